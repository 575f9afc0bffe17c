"""SpMV: ``y = A x`` with ``A`` in CSR."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from tvm.s_tir import Schedule
from tvm.script import sparse as S

from ..ir import SparseFunc
from ..runtime import Executable
from ._build import build_decomposed, build_default, variants
from ._types import check_index_dtype, result_dtype

__all__ = ["build", "program", "reference", "space"]


def program(
    dtype: str = "float32", index_dtype: str = "int32", out_dtype: str | None = None
) -> SparseFunc:
    """Return the program; every size is symbolic.

    Parameters
    ----------
    dtype : str
        Of ``a``, shape ``(nnz,)``, and ``x``, shape ``(n,)``.
    index_dtype : str
        ``"int32"`` or ``"int64"``: of ``indptr``, shape ``(m + 1,)``, ``indices``, shape ``(nnz,)``, and
        the sizes.
    out_dtype : str, optional
        Of ``y``, shape ``(m,)``. By default `dtype`, or int32 for 8- and 16-bit integers and bool.
        Operands are converted to it before they are multiplied.

    Returns
    -------
    SparseFunc
        Parameters ``a, x, y, indptr, indices, m, n, nnz``.

    Raises
    ------
    ValueError
        If a dtype is not supported.

    Examples
    --------
    >>> import tvm_sparse
    >>> tvm_sparse.schedules.spmv.program().name
    'spmv'
    """
    out = result_dtype(dtype, out_dtype, "spmv")
    size = getattr(S, check_index_dtype(index_dtype, "spmv"))

    @S.prim_func
    def spmv(
        a: S.handle,
        x: S.handle,
        y: S.handle,
        indptr: S.handle,
        indices: S.handle,
        m: size,
        n: size,
        nnz: size,
    ):
        I = S.dense_fixed(m)
        J = S.sparse_variable(
            I, (n, nnz), (indptr, indices), index_dtype, sorted=False, unique=False
        )
        Jd = S.dense_fixed(n)
        A = S.match_sparse_buffer(a, (I, J), dtype)
        X = S.match_sparse_buffer(x, (Jd,), dtype)
        Y = S.match_sparse_buffer(y, (I,), out)
        with S.sp_iter([I, J], "SR", "spmv") as [i, j]:
            with S.init():
                Y[i] = S.cast(0, out)
            Y[i] = Y[i] + S.cast(A[i, j], out) * S.cast(X[j], out)

    return spmv


def build(
    dtype: str = "float32",
    index_dtype: str = "int32",
    out_dtype: str | None = None,
    *,
    formats: Any = None,
    target: Any = "llvm",
    deterministic: bool = False,
    **options: Any,
) -> Executable:
    """Compile the operator with its default schedule.

    Parameters
    ----------
    dtype, index_dtype, out_dtype
        As in :func:`program`.
    formats : Format, Composition, dict or sequence, optional
        How ``A`` is held, instead of CSR. Pass what :meth:`Format.pack` returns for `a`.
    target : str, dict or tvm.target.Target
        A CPU, the host's by default, or a CUDA device such as ``{"kind": "cuda", "arch": "sm_90"}``.
    deterministic : bool
        Whether results shall be the same bits in every run. They are in any case: kernels of this
        operator update nothing atomically.
    **options
        For the schedule of that kind of target: ``tile``, and where rows may be shared on CUDA, ``share``
        (see :mod:`tvm_sparse.schedules.cuda`).

    Returns
    -------
    Executable
        The kernel; parameters as those of :func:`program`.

    Raises
    ------
    ValueError
        If an argument is not supported.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> from tvm_sparse import schedules
    >>> from tvm_sparse.formats import BSR
    >>> blocks = BSR(2, 2)
    >>> kernel = schedules.spmv.build(formats=blocks)
    >>> packed = blocks.pack(sp.csr_matrix(np.triu(np.ones((3, 3), "float32"))))
    >>> kernel(a=packed, x=np.ones(3, "float32")).tolist()
    [3.0, 2.0, 1.0]
    """
    func = program(dtype, index_dtype, out_dtype)
    if formats is not None:
        return build_decomposed(
            "spmv_parts",
            func,
            "A",
            formats,
            target,
            strips=True,
            deterministic=deterministic,
            **options,
        )
    return build_default(__name__, func, target, deterministic=deterministic, **options)


def space(schedule: Schedule, target: Any = None, name: str = "spmv") -> list[Schedule]:
    """Return the variants of a stage-III schedule that tuning chooses from.

    Parameters
    ----------
    schedule : tvm.s_tir.Schedule
        Holds the lowered program.
    target : str, dict or tvm.target.Target, optional
        A CPU or a CUDA device.
    name : str
        Name of the program, and of its main iteration.
    """
    return variants(__name__, schedule, target, name)


def reference(a: sp.spmatrix, x: np.ndarray) -> np.ndarray:
    """Return ``a @ x`` in float64."""
    return np.asarray(sp.csr_matrix(a, dtype=np.float64) @ np.asarray(x, np.float64))

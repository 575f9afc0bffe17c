"""SDDMM: dot products of the rows of two dense matrices at the entries of a sparse pattern.

``c[p] = sum_k x[i, k] * y[j, k]`` for the ``p``-th stored entry ``(i, j)``; with ``scaled=True`` it is
multiplied by the stored value ``a[p]``. A stored zero thus gives 0 in the scaled form and the dot
product in the pattern form.

Entries are numbered as in CSR, row by row: a SciPy matrix of another format is converted first. Give
the pattern as the arrays ``indptr`` and ``indices``, or as a matrix ``c=``, whose structure a new
matrix of results then has. A pattern in other formats is packed, and the results are its new values, in
the order of its format.
"""

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
    dtype: str = "float32",
    index_dtype: str = "int32",
    out_dtype: str | None = None,
    scaled: bool = False,
) -> SparseFunc:
    """Return the program; every size is symbolic.

    Parameters
    ----------
    dtype : str
        Of ``x``, shape ``(m, f)``, ``y``, shape ``(n, f)`` (one row per column of the pattern), and, if
        `scaled`, the stored values ``a``, shape ``(nnz,)``.
    index_dtype : str
        ``"int32"`` or ``"int64"``: of ``indptr``, shape ``(m + 1,)``, ``indices``, shape ``(nnz,)``, and
        the sizes.
    out_dtype : str, optional
        Of ``c``, shape ``(nnz,)``, in the order of the pattern's entries. By default `dtype`, or int32
        for 8- and 16-bit integers and bool.
        Operands are converted to it before they are multiplied.
    scaled : bool
        Whether the dot products are multiplied by the stored values.

    Returns
    -------
    SparseFunc
        Parameters ``x, y, c, indptr, indices, m, n, f, nnz``, preceded by ``a`` if `scaled`.

    Raises
    ------
    ValueError
        If a dtype is not supported.

    Examples
    --------
    >>> import tvm_sparse
    >>> tvm_sparse.schedules.sddmm.program(scaled=True).arg_names[:4]
    ['a', 'x', 'y', 'c']
    """
    out = result_dtype(dtype, out_dtype, "sddmm")
    size = getattr(S, check_index_dtype(index_dtype, "sddmm"))
    return (_scaled if scaled else _pattern)(dtype, index_dtype, out, size)


def _pattern(dtype: str, index_dtype: str, out: str, size) -> SparseFunc:
    @S.prim_func
    def sddmm(
        x: S.handle,
        y: S.handle,
        c: S.handle,
        indptr: S.handle,
        indices: S.handle,
        m: size,
        n: size,
        f: size,
        nnz: size,
    ):
        I = S.dense_fixed(m)
        J = S.sparse_variable(
            I, (n, nnz), (indptr, indices), index_dtype, sorted=False, unique=False
        )
        Jd = S.dense_fixed(n)
        F = S.dense_fixed(f)
        X = S.match_sparse_buffer(x, (I, F), dtype)
        Y = S.match_sparse_buffer(y, (Jd, F), dtype)
        C = S.match_sparse_buffer(c, (I, J), out)
        with S.sp_iter([I, J, F], "SSR", "sddmm") as [i, j, k]:
            with S.init():
                C[i, j] = S.cast(0, out)
            C[i, j] = C[i, j] + S.cast(X[i, k], out) * S.cast(Y[j, k], out)

    return sddmm


def _scaled(dtype: str, index_dtype: str, out: str, size) -> SparseFunc:
    @S.prim_func
    def sddmm(
        a: S.handle,
        x: S.handle,
        y: S.handle,
        c: S.handle,
        indptr: S.handle,
        indices: S.handle,
        m: size,
        n: size,
        f: size,
        nnz: size,
    ):
        I = S.dense_fixed(m)
        J = S.sparse_variable(
            I, (n, nnz), (indptr, indices), index_dtype, sorted=False, unique=False
        )
        Jd = S.dense_fixed(n)
        F = S.dense_fixed(f)
        A = S.match_sparse_buffer(a, (I, J), dtype)
        X = S.match_sparse_buffer(x, (I, F), dtype)
        Y = S.match_sparse_buffer(y, (Jd, F), dtype)
        C = S.match_sparse_buffer(c, (I, J), out)
        with S.sp_iter([I, J, F], "SSR", "sddmm") as [i, j, k]:
            with S.init():
                C[i, j] = S.cast(0, out)
            C[i, j] = C[i, j] + S.cast(A[i, j], out) * (S.cast(X[i, k], out) * S.cast(Y[j, k], out))

    return sddmm


def build(
    dtype: str = "float32",
    index_dtype: str = "int32",
    out_dtype: str | None = None,
    scaled: bool = False,
    *,
    features: int | None = None,
    formats: Any = None,
    target: Any = "llvm",
    deterministic: bool = False,
    **options: Any,
) -> Executable:
    """Compile the operator with its default schedule.

    Parameters
    ----------
    dtype, index_dtype, out_dtype, scaled
        As in :func:`program`.
    features : int, optional
        Feature width to compile for; symbolic by default.
    formats : Format, Composition, dict or sequence, optional
        How the pattern is held, instead of CSR. Pass what :meth:`Format.pack` returns for `c`, whose
        values become the results, and, if `scaled`, for `a`.
    target : str, dict or tvm.target.Target
        A CPU, the host's by default, or a CUDA device such as ``{"kind": "cuda", "arch": "sm_90"}``.
    deterministic : bool
        Whether results shall be the same bits in every run. They are in any case: kernels of this
        operator update nothing atomically.
    **options
        For the schedule of that kind of target: on CUDA ``tile`` (see :mod:`tvm_sparse.schedules.cuda`).

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
    >>> from tvm_sparse.formats import Hyb
    >>> hyb = Hyb(buckets=[1, 4])
    >>> kernel = schedules.sddmm.build(formats=hyb)
    >>> result = hyb.pack(sp.csr_matrix(np.eye(3, dtype="float32")))
    >>> x = np.arange(6, dtype="float32").reshape(3, 2)
    >>> _ = kernel(x=x, y=x, c=result)
    >>> result.unpack().toarray().tolist()
    [[1.0, 0.0, 0.0], [0.0, 13.0, 0.0], [0.0, 0.0, 41.0]]
    """
    func = program(dtype, index_dtype, out_dtype, scaled)
    if formats is not None:
        operands = ["A", "C"] if scaled else "C"
        return build_decomposed(
            "sddmm_parts",
            func,
            operands,
            formats,
            target,
            features,
            deterministic=deterministic,
            **options,
        )
    return build_default(__name__, func, target, features, deterministic=deterministic, **options)


def space(schedule: Schedule, target: Any = None, name: str = "sddmm") -> list[Schedule]:
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


def reference(
    pattern: sp.csr_matrix, x: np.ndarray, y: np.ndarray, scaled: bool = False
) -> np.ndarray:
    """Return the values, one per stored entry of `pattern` in CSR order, in float64."""
    rows = np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr))
    dots = np.einsum(
        "pk,pk->p", np.asarray(x, np.float64)[rows], np.asarray(y, np.float64)[pattern.indices]
    )
    return dots * np.asarray(pattern.data, np.float64) if scaled else dots

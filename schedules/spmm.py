"""SpMM: ``C = A B`` with ``A`` in CSR and ``B``, ``C`` dense and row-major."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from tvm.s_tir import Schedule
from tvm.script import sparse as S

from ..ir import SparseFunc
from ..runtime import Executable
from ._build import build_decomposed, build_default, variants
from ._choice import FormatChoice, candidate_formats
from ._choice import choose_format as _choose_format
from ._types import check_index_dtype, result_dtype

__all__ = [
    "FormatChoice",
    "build",
    "candidate_formats",
    "choose_format",
    "program",
    "reference",
    "space",
]


def program(
    dtype: str = "float32", index_dtype: str = "int32", out_dtype: str | None = None
) -> SparseFunc:
    """Return the program; every size is symbolic, so one kernel serves every matrix.

    Parameters
    ----------
    dtype : str
        Of ``a``, shape ``(nnz,)``, and ``b``, shape ``(n, f)``.
    index_dtype : str
        ``"int32"`` or ``"int64"``: of ``indptr``, shape ``(m + 1,)``, ``indices``, shape ``(nnz,)``, and
        the sizes.
    out_dtype : str, optional
        Of ``c``, shape ``(m, f)``. By default `dtype`, or int32 for 8- and 16-bit integers and bool.
        Operands are converted to it before they are multiplied.

    Returns
    -------
    SparseFunc
        Parameters ``a, b, c, indptr, indices, m, n, f, nnz``.

    Raises
    ------
    ValueError
        If a dtype is not supported.

    Examples
    --------
    >>> import tvm_sparse
    >>> list(tvm_sparse.schedules.spmm.program().arg_names)
    ['a', 'b', 'c', 'indptr', 'indices', 'm', 'n', 'f', 'nnz']
    """
    out = result_dtype(dtype, out_dtype, "spmm")
    size = getattr(S, check_index_dtype(index_dtype, "spmm"))

    @S.prim_func
    def spmm(
        a: S.handle,
        b: S.handle,
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
        B = S.match_sparse_buffer(b, (Jd, F), dtype)
        C = S.match_sparse_buffer(c, (I, F), out)
        with S.sp_iter([I, J, F], "SRS", "spmm") as [i, j, k]:
            with S.init():
                C[i, k] = S.cast(0, out)
            C[i, k] = C[i, k] + S.cast(A[i, j], out) * S.cast(B[j, k], out)

    return spmm


def build(
    dtype: str = "float32",
    index_dtype: str = "int32",
    out_dtype: str | None = None,
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
    dtype, index_dtype, out_dtype
        As in :func:`program`.
    features : int, optional
        Feature width to compile for; symbolic by default.
    formats : Format, Composition, dict or sequence, optional
        How ``A`` is held, instead of CSR. Pass what :meth:`Format.pack` returns for `a`.
    target : str, dict or tvm.target.Target
        A CPU, the host's by default, or a CUDA device such as ``{"kind": "cuda", "arch": "sm_90"}``.
    deterministic : bool
        Whether results shall be the same bits in every run. They are in any case on CPUs, and where the
        entries of a row lie together. On CUDA, formats with several ranges of columns, and those that
        scatter rows (COO, CSC), add parts of rows to the result atomically. With this, ranges go one
        after another instead, and formats that scatter rows are refused.
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
    >>> from tvm_sparse.formats import Hyb
    >>> hyb = Hyb(buckets=[1, 4])
    >>> kernel = schedules.spmm.build(formats=hyb)
    >>> packed = hyb.pack(sp.csr_matrix(np.eye(3, dtype="float32")))
    >>> kernel(a=packed, b=np.full((3, 2), 5, "float32")).tolist()
    [[5.0, 5.0], [5.0, 5.0], [5.0, 5.0]]
    """
    func = program(dtype, index_dtype, out_dtype)
    if formats is not None:
        return build_decomposed(
            "parts", func, "A", formats, target, features, deterministic=deterministic, **options
        )
    return build_default(__name__, func, target, features, deterministic=deterministic, **options)


def choose_format(
    matrix: sp.spmatrix,
    features: int,
    *,
    candidates: Mapping[str, Any] | Sequence[Any] | None = None,
    rounds: int = 9,
    target: Any = "llvm",
) -> FormatChoice:
    """Return the fastest of some formats for a matrix, timed with the real kernel on it.

    Every candidate's result is compared with :func:`reference` before it is timed. Each takes a build of
    its kernel, a second or less, and ``rounds`` turns of a few calls. They are compared round by round,
    and the first candidate stays unless another is at least 3 % faster.

    Parameters
    ----------
    matrix : scipy.sparse matrix or array
        Its values tell the dtype.
    features : int
        Feature width; the kernels are compiled for it.
    candidates : dict or sequence of Format or Composition, optional
        What to try, by name; by default :func:`candidate_formats`.
    rounds : int
        Turns in which candidates are timed, one after another.
    target : str, dict or tvm.target.Target
        The CPU.

    Returns
    -------
    FormatChoice
        Name, format, packed matrix and kernel of the fastest, and the times of all.

    Raises
    ------
    RuntimeError
        If a result is wrong.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp
    >>> from tvm_sparse import schedules
    >>> from tvm_sparse.formats import CSR, RowList
    >>> matrix = sp.eye(64, format="csr", dtype="float32")
    >>> choice = schedules.spmm.choose_format(matrix, 8, candidates={"a": CSR(), "b": RowList("rcm")})
    >>> sorted(choice.seconds)
    ['a', 'b']
    >>> choice.kernel(a=choice.packed, b=np.ones((64, 8), "float32")).sum()
    np.float32(512.0)
    """
    return _choose_format(
        build,
        reference,
        matrix,
        features,
        candidates=candidates,
        rounds=rounds,
        target=target,
    )


def space(schedule: Schedule, target: Any = None, name: str = "spmm") -> list[Schedule]:
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


def reference(a: sp.spmatrix, b: np.ndarray) -> np.ndarray:
    """Return ``a @ b`` in float64."""
    return np.asarray(sp.csr_matrix(a, dtype=np.float64) @ np.asarray(b, np.float64))

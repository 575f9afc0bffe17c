"""Segment reduction: rows of a matrix, grouped by ``indptr``, reduced to one row per group.

The value of an empty group is 0 for sum and mean. For max and min it is 0 as well (what graph networks
expect of a node without neighbours), or the identity of the reduction (the lowest, respectively highest,
value of the dtype) with ``empty="identity"``. NaN has no order: max and min of a group that holds one may
be NaN or that of other values, and differ between targets.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import tvm.tirx
from tvm.s_tir import Schedule
from tvm.script import sparse as S

from ..ir import SparseFunc
from ..runtime import Executable
from ._build import build_default, variants
from ._types import FLOATS, check_index_dtype, result_dtype

__all__ = ["OPERATIONS", "build", "program", "reference", "space"]

OPERATIONS = ("sum", "mean", "max", "min")


def program(
    operation: str = "sum",
    dtype: str = "float32",
    index_dtype: str = "int32",
    out_dtype: str | None = None,
    empty: str = "zero",
) -> SparseFunc:
    """Return the program; every size is symbolic.

    Parameters
    ----------
    operation : str
        ``"sum"``, ``"mean"``, ``"max"`` or ``"min"``.
    dtype : str
        Of ``x``, shape ``(nnz, f)``: the rows of group ``i`` are ``indptr[i] .. indptr[i + 1] - 1``.
    index_dtype : str
        ``"int32"`` or ``"int64"``: of ``indptr``, shape ``(m + 1,)``, and the sizes.
    out_dtype : str, optional
        Of ``y``, shape ``(m, f)``. By default `dtype`, or int32 for the sum of 8- and 16-bit integers.
    empty : str
        Value of an empty group under max and min: ``"zero"`` or ``"identity"``.

    Returns
    -------
    SparseFunc
        Parameters ``x, y, indptr, m, f, nnz``.

    Raises
    ------
    ValueError
        If an operation, a dtype or `empty` is not supported; a mean needs a floating dtype.

    Examples
    --------
    >>> import tvm_sparse
    >>> tvm_sparse.schedules.segment_reduce.program("max").name
    'segment_max'
    """
    if operation not in OPERATIONS:
        raise ValueError(
            f"segment_reduce: expected operation one of {list(OPERATIONS)}, found {operation!r}"
        )
    if empty not in ("zero", "identity"):
        raise ValueError(f"segment_reduce: expected empty zero or identity, found {empty!r}")
    if operation == "mean" and dtype not in FLOATS:
        raise ValueError(f"segment_reduce: expected a floating dtype for the mean, found {dtype!r}")
    reduces_values = operation in ("max", "min")
    if reduces_values and "bool" in (dtype, out_dtype):
        raise ValueError(f"segment_reduce: expected a number dtype for {operation}, found 'bool'")
    out = out_dtype or (dtype if reduces_values else result_dtype(dtype, None, "segment_reduce"))
    result_dtype(dtype, out, "segment_reduce")
    size = getattr(S, check_index_dtype(index_dtype, "segment_reduce"))
    if operation == "sum":
        return _sum(dtype, index_dtype, out, size)
    if operation == "mean":
        return _mean(dtype, index_dtype, out, size)
    return _extremum(operation, dtype, index_dtype, out, size, empty)


def _sum(dtype: str, index_dtype: str, out: str, size) -> SparseFunc:
    @S.prim_func
    def segment_sum(x: S.handle, y: S.handle, indptr: S.handle, m: size, f: size, nnz: size):
        I = S.dense_fixed(m)
        E = S.dense_variable(I, (nnz, nnz), indptr, index_dtype)
        F = S.dense_fixed(f)
        X = S.match_sparse_buffer(x, (I, E, F), dtype)
        Y = S.match_sparse_buffer(y, (I, F), out)
        with S.sp_iter([I, E, F], "SRS", "segment_sum") as [i, e, k]:
            with S.init():
                Y[i, k] = S.cast(0, out)
            Y[i, k] = Y[i, k] + S.cast(X[i, e, k], out)

    return segment_sum


def _mean(dtype: str, index_dtype: str, out: str, size) -> SparseFunc:
    """The sum of quotients, so that it is one reduction; an empty group sums nothing."""

    @S.prim_func
    def segment_mean(x: S.handle, y: S.handle, indptr: S.handle, m: size, f: size, nnz: size):
        I = S.dense_fixed(m)
        P = S.match_buffer(indptr, (m + 1,), index_dtype)
        E = S.dense_variable(I, (nnz, nnz), P, index_dtype)
        F = S.dense_fixed(f)
        X = S.match_sparse_buffer(x, (I, E, F), dtype)
        Y = S.match_sparse_buffer(y, (I, F), out)
        TOTAL = S.alloc_sparse_buffer((I, F), "float64" if out == "float64" else "float32")
        with S.sp_iter([I, E, F], "SRS", "segment_mean") as [i, e, k]:
            with S.init():
                TOTAL[i, k] = S.cast(0, TOTAL.dtype)
            TOTAL[i, k] = TOTAL[i, k] + S.cast(X[i, e, k], TOTAL.dtype)
        with S.sp_iter([I, F], "SS", "segment_mean_finish") as [i, k]:
            Y[i, k] = S.cast(TOTAL[i, k] / S.cast(S.max(P[i + 1] - P[i], 1), TOTAL.dtype), out)

    return segment_mean


def _extremum(
    operation: str, dtype: str, index_dtype: str, out: str, size, empty: str
) -> SparseFunc:
    limits = {"max": tvm.tirx.min_value, "min": tvm.tirx.max_value}
    identity = limits[operation](out)
    if out in FLOATS:
        identity = tvm.tirx.const(-np.inf if operation == "max" else np.inf, out)
    better = {"max": tvm.tirx.max, "min": tvm.tirx.min}[operation]
    absent = identity if empty == "identity" else tvm.tirx.const(0, out)
    name = f"segment_{operation}"

    @S.prim_func
    def segment_extremum(x: S.handle, y: S.handle, indptr: S.handle, m: size, f: size, nnz: size):
        I = S.dense_fixed(m)
        P = S.match_buffer(indptr, (m + 1,), index_dtype)
        E = S.dense_variable(I, (nnz, nnz), P, index_dtype)
        F = S.dense_fixed(f)
        X = S.match_sparse_buffer(x, (I, E, F), dtype)
        Y = S.match_sparse_buffer(y, (I, F), out)
        BEST = S.alloc_sparse_buffer((I, F), out)
        with S.sp_iter([I, E, F], "SRS", name) as [i, e, k]:
            with S.init():
                BEST[i, k] = identity
            BEST[i, k] = better(BEST[i, k], S.cast(X[i, e, k], out))
        with S.sp_iter([I, F], "SS", name + "_finish") as [i, k]:
            Y[i, k] = S.if_then_else(P[i + 1] > P[i], BEST[i, k], absent)

    return segment_extremum.with_attr("global_symbol", name)


def build(
    operation: str = "sum",
    dtype: str = "float32",
    index_dtype: str = "int32",
    out_dtype: str | None = None,
    empty: str = "zero",
    *,
    features: int | None = None,
    target: Any = "llvm",
    deterministic: bool = False,
    **options: Any,
) -> Executable:
    """Compile the operator with its default schedule.

    Parameters
    ----------
    operation, dtype, index_dtype, out_dtype, empty
        As in :func:`program`.
    features : int, optional
        Feature width to compile for; symbolic by default.
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
    """
    func = program(operation, dtype, index_dtype, out_dtype, empty)
    return build_default(__name__, func, target, features, deterministic=deterministic, **options)


def space(schedule: Schedule, target: Any = None, name: str = "segment_sum") -> list[Schedule]:
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


def reference(operation: str, x: np.ndarray, indptr: np.ndarray, empty: str = "zero") -> np.ndarray:
    """Return the reduced rows in float64."""
    reduce = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}[operation]
    absent = 0.0
    if empty == "identity" and operation in ("max", "min"):
        absent = -np.inf if operation == "max" else np.inf
    values = np.asarray(x, np.float64)
    result = np.full((len(indptr) - 1, *values.shape[1:]), absent)
    for group, (begin, end) in enumerate(itertools.pairwise(indptr)):
        if end > begin:
            result[group] = reduce(values[begin:end], axis=0)
    return result

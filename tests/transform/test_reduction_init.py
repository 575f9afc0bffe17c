"""Init of reductions whose loops a schedule fused with spatial ones: right on empty ranges, or refused."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tvm.s_tir import Schedule

from tests.execution import build, lower
from tvm_sparse.script import from_source
from tvm_sparse.transform import HoistReductionInit

DENSE = """
@S.prim_func
def f(a: S.handle, c: S.handle, m: S.int32, n: S.int32):
    I = S.dense_fixed(m)
    J = S.dense_fixed(n)
    K = S.dense_fixed(50)
    A = S.match_sparse_buffer(a, (I, J, K), "float64")
    C = S.match_sparse_buffer(c, (I, K), "float64")
    with S.sp_iter([I, K, J], "SSR", "sum") as [i, k, j]:
        with S.init():
            C[i, k] = 1.0
        C[i, k] = C[i, k] + A[i, j, k]
"""

# Both axes of the sum are stored: the spatial one has its values in a result of the same structure.
STORED = """
@S.prim_func
def f(
    a: S.handle, b: S.handle, c: S.handle, r_indptr: S.handle, r_indices: S.handle,
    c_indptr: S.handle, c_indices: S.handle, m: S.int32, r_nnz: S.int32, c_nnz: S.int32,
):
    I = S.dense_fixed(m)
    R = S.sparse_variable(I, (9, r_nnz), (r_indptr, r_indices), "int32")
    J = S.sparse_variable(I, (5, c_nnz), (c_indptr, c_indices), "int32", unique=False)
    A = S.match_sparse_buffer(a, (I, R), "float64")
    B = S.match_sparse_buffer(b, (I, J), "float64")
    C = S.match_sparse_buffer(c, (I, J), "float64")
    with S.sp_iter([I, R, J], "SRS", "outer") as [i, r, j]:
        with S.init():
            C[i, j] = 1.0
        C[i, j] = C[i, j] + A[i, r] * B[i, j]
"""


def reduction_outside(sch, i, k, j):
    sch.reorder(j, k)
    return sch.fuse(j, k)


def reduction_inside(sch, i, k, j):
    return sch.fuse(k, j)


def with_the_rows(sch, i, k, j):
    return sch.fuse(sch.fuse(i, k), j)


def reduction_outermost(sch, i, k, j):
    sch.reorder(j, i, k)
    return sch.fuse(sch.fuse(j, i), k)


def rows_and_reduction(sch, i, k, j):
    sch.reorder(i, j, k)
    return sch.fuse(i, j)


def tiled(sch, i, k, j):
    outer, inner = sch.split(k, [None, 10])
    sch.reorder(outer, j, inner)
    return sch.fuse(j, inner)


def tiled_with_a_tail(sch, i, k, j):
    outer, inner = sch.split(k, [None, 32])
    sch.reorder(outer, j, inner)
    return sch.fuse(j, inner)


def split_again(sch, i, k, j):
    sch.reorder(j, k)
    outer, _ = sch.split(sch.fuse(j, k), [None, 4])
    return outer


def split_along_the_axis(sch, i, k, j):
    sch.reorder(j, k)
    outer, _ = sch.split(sch.fuse(j, k), [None, 25])
    return outer


DENSE_SCHEDULES = [
    reduction_outside,
    reduction_inside,
    with_the_rows,
    reduction_outermost,
    rows_and_reduction,
    tiled,
    tiled_with_a_tail,
    split_again,
    split_along_the_axis,
]


def dense_module(schedule, decomposed: bool):
    sch = Schedule(lower(from_source(DENSE)), error_render_level="none")
    sch.work_on("f")
    block = sch.get_sblock("sum_0")
    loop = schedule(sch, *sch.get_loops(block))
    if decomposed:
        sch.decompose_reduction(block, loop)
    return sch.mod


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("schedule", DENSE_SCHEDULES)
@pytest.mark.parametrize("n", [0, 1, 3])
def test_dense_reductions_fused_with_spatial_axes(schedule, decomposed, n):
    kernel = build(from_source(DENSE), dense_module(schedule, decomposed))
    given = np.random.default_rng(n).random((4, n, 50))
    arrays = {"a": given, "c": np.full((4, 50), np.nan)}
    result = kernel(arrays, {"m": 4, "n": n})["c"]
    np.testing.assert_allclose(result, given.sum(axis=1) + 1, rtol=1e-14)


def test_spatial_axes_fused_and_split_stay_as_scheduled_when_decomposed():
    sch = Schedule(lower(from_source(DENSE)), error_render_level="none")
    sch.work_on("f")
    block = sch.get_sblock("sum_0")
    i, k, _ = sch.get_loops(block)
    outer, _ = sch.split(sch.fuse(i, k), [None, 7])
    sch.decompose_reduction(block, outer)
    loops = HoistReductionInit()(sch.mod).script().split("sum_0_init")[0]
    assert "for i_k_fused_0_init, i_k_fused_1_init in T.grid(" in loops


def plain(sch, r, j):
    return sch.fuse(r, j)


def exchanged(sch, r, j):
    sch.reorder(j, r)
    return sch.fuse(j, r)


def split_first(sch, r, j):
    outer, inner = sch.split(j, [None, 2])
    sch.reorder(outer, r, inner)
    return sch.fuse(r, inner)


def split_after(sch, r, j):
    outer, _ = sch.split(sch.fuse(r, j), [None, 4])
    return outer


def stored_module(schedule, decomposed: bool):
    sch = Schedule(lower(from_source(STORED)), error_render_level="none")
    sch.work_on("f")
    block = sch.get_sblock("outer_1")
    loop = schedule(sch, *sch.get_loops(block))
    if decomposed:
        sch.decompose_reduction(block, loop)
    return sch.mod


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("schedule", [plain, exchanged, split_first])
def test_stored_axes_fused_into_one_loop(schedule, decomposed):
    kernel = build(from_source(STORED), stored_module(schedule, decomposed))
    _check_stored(kernel)


@pytest.mark.parametrize("decomposed", [False, True])
def test_split_of_such_a_loop_is_refused_or_right(decomposed):
    try:
        kernel = build(from_source(STORED), stored_module(split_after, decomposed))
    except ValueError as refusal:
        assert "outer_1" in str(refusal)
        assert "call decompose_reduction before the loops are fused" in str(refusal)
        return
    _check_stored(kernel)


def _check_stored(kernel) -> None:
    reduced = np.array([0, 0, 2, 2, 5], np.int32)
    kept = np.array([0, 7, 7, 9, 10], np.int32)  # the first row repeats coordinates
    rng = np.random.default_rng(1)
    a, b = rng.random(5), rng.random(10)
    arrays = {
        "a": a,
        "b": b,
        "c": np.full(10, np.nan),
        "r_indptr": reduced,
        "r_indices": np.array([0, 8, 1, 2, 3], np.int32),
        "c_indptr": kept,
        "c_indices": np.array([0, 0, 1, 2, 3, 4, 4, 1, 2, 0], np.int32),
    }
    scalars = {"m": 4, "r_nnz": 5, "c_nnz": 10}
    sums = np.array([a[s:e].sum() for s, e in pairwise(reduced)])
    expected = 1 + np.repeat(sums, np.diff(kept)) * b
    np.testing.assert_allclose(kernel(arrays, scalars)["c"], expected, rtol=1e-14)

"""Kernels that are scheduled by hand, with TVM's primitives alone: right, or refused with what to do."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.s_tir import Schedule

import tvm_sparse
from tests.cuda.emulation import emulated
from tests.cuda.operator_cases import CUDA, assert_sums, poisoned, power_law, random_values, stored
from tvm_sparse import SparseProgramError, schedules
from tvm_sparse.runtime import lower
from tvm_sparse.script import from_source

X, Y, Z = "threadIdx.x", "threadIdx.y", "threadIdx.z"
MATRIX = power_law(90, 130)
DENSE = """
@S.prim_func
def dense(a: S.handle, x: S.handle, y: S.handle, m: S.int32):
    I = S.dense_fixed(m)
    J = S.dense_fixed({columns})
    A = S.match_sparse_buffer(a, (I, J), "float32")
    X = S.match_sparse_buffer(x, (J,), "float32")
    Y = S.match_sparse_buffer(y, (I,), "float32")
    with S.sp_iter([I, J], "SR", "dense") as [i, j]:
        with S.init():
            Y[i] = 0.0
        Y[i] = Y[i] + A[i, j] * X[j]
"""


def dense_product(columns: int, lanes: dict[str, int], rows: tuple[str, int] | None = None):
    """Schedule y = A x: columns over threads by axis, rows over an axis or thread blocks alone."""
    sch = Schedule(lower(from_source(DENSE.format(columns=columns))))
    sch.work_on("dense")
    row, column = sch.get_loops(sch.get_sblock("dense_0"))
    if rows is None:
        sch.bind(row, "blockIdx.x")
    else:
        outer, inner = sch.split(row, [None, rows[1]])
        sch.bind(outer, "blockIdx.x")
        sch.bind(inner, rows[0])
    for loop, axis in zip(sch.split(column, [None, *lanes.values()])[1:], lanes):
        sch.bind(loop, axis)
    return sch


def operator(name: str, dtype: str = "float32", features: int | None = None):
    """Return an operator's schedule with nothing in it, and its loops: over rows, and inside of them."""
    program = getattr(schedules, name).program(dtype)
    sch = Schedule(lower(program.specialize({"f": features}) if features else program))
    sch.work_on(name)
    (row,) = sch.get_loops(sch.get_sblock(f"{name}_0"))
    return sch, row, sch.get_loops(sch.get_sblock(f"{name}_1"))


def check_spmv(sch) -> None:
    a, x, y = stored(MATRIX, "float32"), random_values(130, "float32"), poisoned(90, "float32")
    emulated(sch, CUDA)(a=a.values, x=x, y=y, **a.structure)
    exact = x.astype("f8")
    assert_sums(y, a.exact @ exact, abs(a.exact) @ np.abs(exact), "float32")


@pytest.mark.parametrize(
    "columns, lanes, rows",
    [
        (64, {X: 32}, (Y, 4)),
        (64, {X: 8}, (Y, 4)),
        (64, {X: 64}, (Y, 5)),
        (32, {X: 32}, (Y, 7)),
        (33, {X: 32}, (Y, 4)),
        (64, {Y: 8}, (X, 5)),
        (64, {X: 16, Z: 4}, (Y, 4)),
        (200, {X: 96}, None),
        (200, {Y: 3, X: 32}, None),
    ],
)
def test_sums_over_threads_are_stored_where_there_are_rows_only(columns, lanes, rows):
    kernel = emulated(dense_product(columns, lanes, rows), CUDA)
    a, x = random_values((10, columns), "float32"), random_values(columns, "float32")
    y = poisoned(10, "float32")
    kernel(a=a, x=x, y=y)
    assert_sums(y, a.astype("f8") @ x.astype("f8"), abs(a) @ abs(x), "float32")


@pytest.mark.parametrize("lanes, group", [(32, 4), (4, 3), (64, 2)])
def test_dot_products_of_entries_in_groups_are_stored_where_there_are_entries_only(lanes, group):
    sch, row, loops = operator("sddmm", features=64)
    entry, feature = loops[-2:]
    sch.bind(row, "blockIdx.x")
    sch.bind(sch.split(entry, [None, group])[1], Y)
    sch.bind(sch.split(feature, [None, lanes])[1], X)
    a, c = stored(MATRIX, "float32"), poisoned(MATRIX.nnz, "float32")
    x, y = random_values((90, 64), "float32", 1), random_values((130, 64), "float32", 2)
    emulated(sch, CUDA)(x=x, y=y, c=c, **a.structure)
    terms = x.astype("f8")[a.rows] * y.astype("f8")[a.indices]
    assert_sums(c, terms.sum(1), np.abs(terms).sum(1), "float32")


@pytest.mark.parametrize(
    "lanes, count", [({X: 48}, 48), ({X: 20}, 20), ({Y: 5, X: 8}, 40), ({X: 3}, 3)]
)
def test_sums_over_numbers_of_threads_that_tvm_does_not_sum_right_are_refused(lanes, count):
    expected = (
        rf"block dense_0: expected a power of two up to 32 or a multiple of 32 .* found {count}"
    )
    with pytest.raises(SparseProgramError, match=expected):
        tvm_sparse.compile(dense_product(200, lanes), CUDA)


def test_sums_over_a_variable_number_of_threads_are_refused():
    sch, row, (entry,) = operator("spmv")
    sch.bind(row, "blockIdx.x")
    sch.bind(entry, X)
    expected = (
        r"block spmv_1: expected a constant number of threads .* loop j, .* threadIdx.x; split"
    )
    with pytest.raises(SparseProgramError, match=expected):
        tvm_sparse.compile(sch, CUDA)


def spmv_by_lanes(rows: tuple[str, int], lanes: tuple[str, int]):
    sch, row, (entry,) = operator("spmv")
    outer, inner = sch.split(row, [None, rows[1]])
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, rows[0])
    sch.bind(sch.split(entry, [None, lanes[1]])[1], lanes[0])
    return sch


@pytest.mark.parametrize(
    "rows, lanes", [((Y, 1), (X, 64)), ((Y, 7), (X, 32)), ((Y, 4), (X, 8)), ((X, 1), (Y, 8))]
)
def test_sums_of_rows_over_threads_that_need_no_barrier_or_all_come_by_it(rows, lanes):
    check_spmv(spmv_by_lanes(rows, lanes))


@pytest.mark.parametrize("rows, lanes", [((Y, 4), (X, 64)), ((Y, 7), (X, 96)), ((X, 32), (Y, 8))])
def test_barriers_that_rows_beyond_the_last_do_not_come_by_are_refused(rows, lanes):
    expected = r"function spmv: expected all threads .* threadIdx_[xy].*, which differs from thread"
    with pytest.raises(SparseProgramError, match=expected):
        tvm_sparse.compile(spmv_by_lanes(rows, lanes), CUDA)


def bound_twice(how: str):
    if how == "rows over blocks":
        sch, row, _ = operator("spmv")
        pair = sch.split(row, [None, 8])
    elif how == "rows and features over blocks":
        sch, row, (entry, feature) = operator("spmm", features=64)
        sch.reorder(feature, entry)
        pair = row, feature
    elif how == "rows and features over threads":
        sch, row, (entry, feature) = operator("spmm", features=64)
        sch.reorder(feature, entry)
        outer, inner = sch.split(row, [None, 64])
        sch.bind(outer, "blockIdx.x")
        pair = inner, feature
    else:  # rows and entries over threads
        sch, row, (entry,) = operator("spmv")
        outer, inner = sch.split(row, [None, 32])
        sch.bind(outer, "blockIdx.x")
        pair = inner, sch.split(entry, [None, 8])[1]
    axis = "blockIdx.x" if how.endswith("blocks") else X
    for loop in pair:
        sch.bind(loop, axis)
    return sch


@pytest.mark.parametrize(
    "how, loops",
    [
        ("rows over blocks", ("i_1", "i_0")),
        ("rows and features over blocks", ("k", "i")),
        ("rows and features over threads", ("k", "i_1")),
        ("rows and entries over threads", ("j_1", "i_1")),
    ],
)
def test_nested_loops_over_one_axis_are_refused(how, loops):
    axis = "blockIdx.x" if how.endswith("blocks") else X
    expected = rf"loop {loops[0]} is bound to {axis}, and so is loop {loops[1]} around it"
    with pytest.raises(SparseProgramError, match=expected):
        tvm_sparse.compile(bound_twice(how), CUDA)


def test_virtual_threads_around_threads_are_no_axis_of_their_own():
    sch, row, _ = operator("spmv")
    outer, virtual, inner = sch.split(row, [None, 2, 8])
    for loop, axis in ((outer, "blockIdx.x"), (virtual, "vthread.x"), (inner, X)):
        sch.bind(loop, axis)
    check_spmv(sch)


def test_parallel_loops_are_refused_for_cuda():
    sch, row, _ = operator("spmv")
    sch.parallel(row)
    with pytest.raises(
        SparseProgramError, match=r'loop i is parallel.*schedule\.bind\(loop, "blockI'
    ):
        tvm_sparse.compile(sch, CUDA)


def product_by_features(dtype: str = "float32"):
    """Schedule C = A B: rows over thread blocks, 64 features over threads."""
    sch, row, (entry, feature) = operator("spmm", dtype, 64)
    sch.reorder(feature, entry)
    sch.bind(row, "blockIdx.x")
    sch.bind(feature, X)
    return sch, sch.get_sblock("spmm_1"), row, feature


def test_a_copy_of_one_thread_is_right_inside_of_the_loop_over_threads():
    sch, sums, _, feature = product_by_features()
    sch.reverse_compute_at(sch.cache_write(sums, 0, "local"), feature)
    a, b, c = (
        stored(MATRIX, "float32"),
        random_values((130, 64), "float32"),
        poisoned((90, 64), "float32"),
    )
    emulated(sch, CUDA)(a=a.values, b=b, c=c, **a.structure)
    exact = b.astype("f8")
    assert_sums(c, a.exact @ exact, abs(a.exact) @ np.abs(exact), "float32")


def test_a_copy_of_one_thread_that_others_would_read_is_refused():
    sch, sums, _, _ = product_by_features()
    sch.cache_write(sums, 0, "local")
    expected = r"buffer 'C_local' is local.*outside of loop k, which is bound to threadIdx.x"
    with pytest.raises(SparseProgramError, match=expected):
        tvm_sparse.compile(sch, CUDA)


def test_sums_of_one_thread_that_others_would_round_are_refused():
    sch, sums, row, _ = product_by_features("float16")
    sch.set_scope(sums, 0, "local")
    rounding = sch.get_sblock("spmm_cast_0")
    sch.reverse_compute_at(rounding, row)
    sch.bind(sch.split(sch.get_loops(rounding)[-1], [None, 4])[0], X)
    with pytest.raises(SparseProgramError, match="buffer 'C_sum_local' is local, of one thread"):
        tvm_sparse.compile(sch, CUDA)


def test_a_buffer_larger_than_the_memory_of_a_thread_is_refused():
    sch, row, (entry, feature) = operator("spmm", features=2**17 + 1)
    sch.reorder(feature, entry)
    sch.bind(row, "blockIdx.x")
    sch.cache_write(sch.get_sblock("spmm_1"), 0, "local")
    with pytest.raises(
        SparseProgramError, match=r"'C_local' .* at most 524288 bytes, found 524292"
    ):
        tvm_sparse.compile(sch, CUDA)


def test_a_buffer_of_variable_size_in_a_kernel_is_refused():
    sch, sums, _, feature = product_by_features()
    sch.compute_at(sch.cache_read(sums, 1, "local"), feature)
    with pytest.raises(SparseProgramError, match="'A_local' is local: expected a constant size"):
        tvm_sparse.compile(sch, CUDA)


def test_global_memory_inside_of_a_kernel_is_refused():
    sch, row, (entry,) = operator("spmv")
    sch.bind(row, "blockIdx.x")
    sch.rfactor(sch.split(entry, [None, 32])[1], 0)
    with pytest.raises(
        SparseProgramError, match=r"buffer 'Y\.rf' .* kernels can't allocate global"
    ):
        tvm_sparse.compile(sch, CUDA)


def test_the_block_that_rounds_to_half_precision_is_named_with_the_result():
    sch, row, _ = operator("spmm", "float16", 64)
    sch.bind(row, "blockIdx.x")
    expected = r"'C' is written outside of a kernel, by the block that rounds it, .*'C_sum'; bind"
    with pytest.raises(SparseProgramError, match=expected):
        tvm_sparse.compile(sch, CUDA)

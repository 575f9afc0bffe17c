"""What cache_write copies back is what was computed, or the schedule is refused."""

import numpy as np
import pytest
import scipy.sparse as sp

import tvm_sparse
from tvm_sparse import SparseSchedule, schedules
from tvm_sparse.formats import CSR, Bucket, Composition, LongBucket
from tvm_sparse.script import from_source

MATRIX = sp.csr_matrix(np.array([[0, 0, 0], [1, 0, 2], [0, 0, 0], [0, 3, 0]], "float32"))


def lowered(formats):
    schedule = SparseSchedule(schedules.spmm.program())
    schedule.decompose_format("spmm", "A", {"x": formats})
    return schedule.lower()


def test_rows_of_a_list_are_refused_where_the_copy_spans_all_rows():
    sch = lowered(LongBucket(2, column_parts=2))
    sch.cache_write(sch.get_sblock("spmm_x_1"), 0, "local")
    with pytest.raises(ValueError, match=r"block spmm_x_2: C_local is copied to C as a whole, but"):
        tvm_sparse.compile(sch)


@pytest.mark.parametrize(
    "formats, block", [(LongBucket(2, 2), "spmm_x_2"), (Bucket(2), "spmm_x_1")]
)
def test_rows_of_a_list_are_copied_one_by_one(formats, block):
    sch = lowered(formats)
    sch.cache_write(sch.get_sblock(block), 0, "local")
    packed = Composition({"x": formats}).pack(MATRIX)
    dense, result = np.ones((3, 2), "float32"), np.full((4, 2), np.nan, "float32")
    tvm_sparse.compile(sch)(a=packed, b=dense, c=result)
    np.testing.assert_array_equal(result, MATRIX @ dense)


SCALED = """
@S.prim_func
def scaled(a: T.handle, y: T.handle, indptr: T.handle, indices: T.handle, m: T.int32, nnz: T.int32):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (3, nnz), (indptr, indices), "int32")
    N = S.dense_fixed(3)
    A = S.match_sparse_buffer(a, (I, J), "float32")
    Y = S.match_sparse_buffer(y, (I, N), "float32", default=7)
    with S.sp_iter([I, J], "SS", "scaled") as [i, j]:
        Y[i, j] = A[i, j] * 2.0
"""


def test_entries_of_a_dense_result_are_refused():
    sch = SparseSchedule(from_source(SCALED)).lower()
    sch.cache_write(sch.get_sblock("scaled_1"), 0, "local")
    with pytest.raises(ValueError, match=r"block scaled_1: Y_local is copied to Y as a whole, but"):
        tvm_sparse.compile(sch)


def test_a_copy_inside_of_a_reduction_that_may_be_empty_is_refused():
    sch = lowered(CSR())
    block = sch.get_sblock("spmm_x_1")
    entry, _ = sch.get_loops(block)
    sch.reverse_compute_at(sch.cache_write(block, 0, "local"), entry)
    with pytest.raises(ValueError, match=r"loop j: C_local is copied to C inside of the reduction"):
        tvm_sparse.compile(sch)


MAXIMUM = """
@S.prim_func
def rows(
    a: T.handle, d: T.handle, y: T.handle, indptr: T.handle, indices: T.handle, m: T.int32, nnz: T.int32,
    d_indptr: T.handle, d_indices: T.handle, d_nnz: T.int32
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (3, nnz), (indptr, indices), "int32")
    K = S.sparse_variable(I, (3, d_nnz), (d_indptr, d_indices), "int32")
    A = S.match_sparse_buffer(a, (I, J), "float32")
    D = S.match_sparse_buffer(d, (I, K), "float32")
    Y = S.match_sparse_buffer(y, (I,), "float32")
    with S.sp_iter([I, J], "SR", "rows") as [i, j]:
        Y[i] = T.max(Y[i], A[i, j] + D[i, j])
"""


def test_a_block_that_searches_accumulates_in_a_copy_of_what_the_result_holds():
    """The copy began with whatever the memory held: the searches hid the accumulation."""
    sch = SparseSchedule(from_source(MAXIMUM)).lower()
    sch.cache_write(sch.get_sblock("rows_1"), 0, "global")
    start = np.array([5, -9, 1, -9], "float32")
    result = start.copy()
    tvm_sparse.compile(sch)(a=MATRIX, d=MATRIX, y=result)
    np.testing.assert_array_equal(result, [5, 4, 1, 6])


RELATIONS = """
@S.prim_func
def rows(
    a: T.handle, y: T.handle, p: T.handle, q: T.handle, r_p: T.handle, r_q: T.handle, m: T.int32,
    n_1: T.int32, n_2: T.int32
):
    I = S.dense_fixed(m)
    R = S.sparse_variable(I, (3, n_1), (p, q), "int32")
    J = S.sparse_variable(R, (3, n_2), (r_p, r_q), "int32")
    A = S.match_sparse_buffer(a, (I, R, J), "float32")
    Y = S.match_sparse_buffer(y, (I,), "float32")
    with S.sp_iter([I, R, J], "SRR", "rows") as [i, r, j]:
        Y[i] = Y[i] + A[i, r, j]
"""


def test_a_copy_around_two_nested_reductions_is_refused():
    """What the result holds is read in each step of the outer one, by the block inside."""
    sch = SparseSchedule(from_source(RELATIONS)).lower()
    sch.cache_write(sch.get_sblock("rows_1"), 0, "local")
    with pytest.raises(ValueError, match=r"block rows_2: Y_local .* starts anew in each step"):
        tvm_sparse.compile(sch)

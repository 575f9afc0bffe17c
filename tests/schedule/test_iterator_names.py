"""Iterators of the parts have names of their own, by which the primitives find them."""

from tvm.script import sparse as S

from tvm_sparse import SparseSchedule
from tvm_sparse.formats import BSR


@S.prim_func
def product(
    a: S.handle,
    x: S.handle,
    y: S.handle,
    indptr: S.handle,
    indices: S.handle,
    m: S.int32,
    n: S.int32,
    f: S.int32,
    nnz: S.int32,
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    N = S.dense_fixed(n)
    F = S.dense_fixed(f)
    A = S.match_sparse_buffer(a, (I, J), "float32")
    X = S.match_sparse_buffer(x, (N, F), "float32")
    Y = S.match_sparse_buffer(y, (I, F), "float32")
    with S.sp_iter([I, J, F], "SRS", "product") as [i, j, i_0]:
        Y[i, i_0] = Y[i, i_0] + A[i, j] * X[j, i_0]


def test_numbers_leave_out_names_that_are_taken():
    schedule = SparseSchedule(product)
    (part,) = schedule.decompose_format("product", "A", BSR(2, 2))
    names = [iterator.name for iterator in schedule.get_axes(part)]
    assert names == ["i_1", "i_2", "j_0", "j_1", "i_0"]
    schedule.sparse_reorder(part, ["i_1", "i_2", "i_0", "j_0", "j_1"])

"""Rows cut into pieces of stored entries, whose results are combined."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import tvm_ffi

import tvm_sparse
from tvm_sparse import SparseProgramError, SparseSchedule, schedules
from tvm_sparse.formats import Pieces
from tvm_sparse.schedule import Trace
from tvm_sparse.script import from_source


def skewed(rows: int = 60, columns: int = 90) -> sp.csr_matrix:
    matrix = sp.random(rows, columns, 0.03, "lil", dtype="float32", random_state=3)
    matrix[rows // 2] = np.arange(1, columns + 1)  # holds most of the entries
    matrix[0] = 0
    return matrix.tocsr()


MATRICES = {
    "skewed": skewed(),
    "no entries": sp.csr_matrix((5, 4), dtype="float32"),
    "no rows": sp.csr_matrix((0, 4), dtype="float32"),
    "one row": sp.csr_matrix(np.arange(1, 8, dtype="float32").reshape(1, 7)),
}

MAXIMUM = """
@S.prim_func
def largest(
    a: S.handle, c: S.handle, indptr: S.handle, indices: S.handle, m: S.int32, n: S.int32, nnz: S.int32
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    A = S.match_sparse_buffer(a, (I, J), "float32")
    C = S.match_sparse_buffer(c, (I,), "float32")
    with S.sp_iter([I, J], "SR", "largest") as [i, j]:
        with S.init():
            C[i] = -100.0
        C[i] = S.max(C[i], A[i, j])
"""


@pytest.mark.parametrize("entries", [1, 3, 1000])
@pytest.mark.parametrize("name", MATRICES)
def test_split_products_are_those_of_whole_rows(name, entries):
    matrix = MATRICES[name]
    dense = np.random.default_rng(0).random((matrix.shape[1], 5)).astype("float32")
    sch = SparseSchedule(schedules.spmm.program())
    sch.sparse_split("spmm", "j", entries)
    result = np.full((matrix.shape[0], 5), np.nan, "float32")
    tvm_sparse.compile(sch)(a=Pieces(entries).pack(matrix), b=dense, c=result)
    np.testing.assert_allclose(result, matrix.astype("f8") @ dense, rtol=1e-5)


@pytest.mark.parametrize("entries", [1, 7])
def test_pieces_of_other_reductions_combine_by_their_operation(entries):
    matrix = skewed()
    matrix.data *= -1
    sch = SparseSchedule(from_source(MAXIMUM))
    sch.sparse_split("largest", "j", entries)
    found = tvm_sparse.compile(sch)(
        a=Pieces(entries).pack(matrix), c=np.full(matrix.shape[0], np.nan, "float32")
    )
    expected = [
        max([-100.0, *matrix.data[begin:end]])
        for begin, end in zip(matrix.indptr, matrix.indptr[1:])
    ]
    np.testing.assert_array_equal(found, np.array(expected, "float32"))


def test_the_scheduled_kernel_shares_one_parallel_loop():
    matrix = skewed(3000, 2000)
    dense = np.random.default_rng(1).random((2000, 33)).astype("float32")
    kernel = schedules.spmm.build(formats=Pieces(64))
    found = kernel(a=Pieces(64).pack(matrix), b=dense)
    np.testing.assert_allclose(found, matrix.astype("f8") @ dense, rtol=1e-4)


def test_no_unit_of_work_has_more_entries_than_asked_for():
    packed = Pieces(16).pack(skewed())
    for part in packed.parts.values():
        assert np.diff(part.storage.arrays["indptr"]).max() <= 16
    packed.check()
    assert (packed.unpack() != skewed()).nnz == 0


def test_a_split_is_one_entry_of_the_trace():
    sch = SparseSchedule(schedules.spmm.program())
    names = [handle.name for handle in sch.sparse_split("spmm", "j", 8)]
    assert names == ["spmm_head", "spmm_tail", "spmm_tail_add"]
    assert [entry.primitive for entry in sch.trace.entries] == ["sparse_split"]
    again = SparseSchedule(schedules.spmm.program())
    Trace.from_json(sch.trace.as_json()).apply(again)
    assert tvm_ffi.structural_equal(again.mod, sch.mod)


@pytest.mark.parametrize("iterator", ["i", "j"])
def test_a_fused_loop_splits_as_its_entries(iterator):
    fused, plain = (SparseSchedule(schedules.spmm.program()) for _ in range(2))
    fused.sparse_fuse("spmm", ["i", "j"])
    fused.sparse_split("spmm", iterator, 8)
    plain.sparse_split("spmm", "j", 8)
    assert tvm_ffi.structural_equal(fused.mod, plain.mod)
    again = SparseSchedule(schedules.spmm.program())
    Trace.from_json(fused.trace.as_json()).apply(again)
    assert tvm_ffi.structural_equal(again.mod, fused.mod)


def test_entries_that_are_results_split_into_pieces_of_the_result():
    matrix = skewed()
    rng = np.random.default_rng(2)
    x, y = (rng.random((size, 5)).astype("float32") for size in matrix.shape)
    sch = SparseSchedule(schedules.sddmm.program())
    sch.sparse_fuse("sddmm", ["i", "j"])
    sch.sparse_split("sddmm", "i", 7)
    result = Pieces(7).pack(matrix)
    result.update_values(np.full(matrix.nnz, np.nan, "float32"))
    tvm_sparse.compile(sch)(x=x, y=y, c=result)
    expected = schedules.sddmm.reference(matrix, x, y)
    np.testing.assert_allclose(result.entries().values, expected, rtol=1e-5)


@pytest.mark.parametrize("iterator", ["i", "k"])
def test_only_stored_entries_are_split(iterator):
    sch = SparseSchedule(schedules.spmm.program())
    with pytest.raises(SparseProgramError, match=rf"expected iterator {iterator} over the stored"):
        sch.sparse_split("spmm", iterator, 8)


@pytest.mark.parametrize("entries", [0, -1, 1.5, None])
def test_pieces_hold_at_least_one_entry(entries):
    sch = SparseSchedule(schedules.spmm.program())
    with pytest.raises((TypeError, ValueError), match="entries: expected an integer of at least 1"):
        sch.sparse_split("spmm", "j", entries)

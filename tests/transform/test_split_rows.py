"""Rows that are shared by entries have to be found by pointers alone, whoever marked their loop."""

from __future__ import annotations

import pytest
from tvm.s_tir import Schedule

from tests.cuda.source import cuda_source
from tvm_sparse import SparseProgramError
from tvm_sparse.runtime import lower
from tvm_sparse.schedules.cuda import RowTile
from tvm_sparse.schedules.cuda.rows import tile_row
from tvm_sparse.script import from_source
from tvm_sparse.transform.split_rows import SPLIT_ROWS

RAGGED = 'S.dense_variable(I, (n, nnz), indptr, "INDEX")'
STORED = 'S.sparse_variable(I, (n, nnz), (indptr, indices), "INDEX")'
PROGRAM = """
@S.prim_func
def product(a: S.handle, b: S.handle, c: S.handle, indptr: S.handle, indices: S.handle,
            m: S.int32, n: S.int32, nnz: S.int32):
    I = S.dense_fixed(m, "INDEX")
    J = AXIS
    N = S.dense_fixed(n, "INDEX")
    F = S.dense_fixed(32, "INDEX")
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (N, F), "float32")
    C = S.match_sparse_buffer(c, (I, F), "float32")
    with S.sp_iter([I, J, F], "SRS", "product") as [i, j, k]:
        with S.init():
            C[i, k] = S.float32(0)
        C[i, k] = C[i, k] + TERM
"""
SUMS = """
@S.prim_func
def sums(a: S.handle, x: S.handle, y: S.handle, indptr: S.handle, indices: S.handle,
         m: S.int32, n: S.int32, nnz: S.int32):
    I = S.dense_fixed(m, "INDEX")
    J = AXIS
    N = S.dense_fixed(n, "INDEX")
    A = S.match_sparse_buffer(a, (I, J), "float32")
    X = S.match_sparse_buffer(x, (N,), "float32")
    Y = S.match_sparse_buffer(y, (I,), "float32")
    with S.sp_iter([I, J], "SR", "sums") as [i, j]:
        with S.init():
            Y[i] = S.float32(0)
        Y[i] = Y[i] + TERM
"""


def program(text: str, axis: str, term: str, index: str):
    text = text.replace("AXIS", axis).replace("TERM", term).replace("INDEX", index)
    if "indices" not in axis:
        text = text.replace(" indices: S.handle,", "")
    return from_source(text)


def tiled(axis: str, term: str, index: str) -> Schedule:
    """A product whose loop over rows is marked by hand, features across threads."""
    sch = Schedule(lower(program(PROGRAM, axis, term, index)))
    sch.work_on("product")
    (row,) = sch.get_loops(sch.get_sblock("product_0"))
    sch.annotate(row, SPLIT_ROWS, ["J_indptr", 8, 2])
    tile_row(sch, sch.get_sblock("product_1"), RowTile(4, 8, 1, 2))
    return sch


def across_lanes(lanes: int, axis: str, term: str, index: str) -> Schedule:
    """Sums whose loop over rows is marked by hand, entries across threads."""
    sch = Schedule(lower(program(SUMS, axis, term, index)))
    sch.work_on("sums")
    (row,) = sch.get_loops(sch.get_sblock("sums_0"))
    sch.annotate(row, SPLIT_ROWS, ["J_indptr", 8, 2])
    (entry,) = sch.get_loops(sch.get_sblock("sums_1"))
    _, lane = sch.split(entry, [None, lanes])
    sch.bind(lane, "threadIdx.x")
    return sch


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("term", ["A[i, j] * B[j, k]", "S.float32(j) * A[i, j]"])
def test_a_row_that_uses_the_place_of_an_entry_is_refused(term, index):
    with pytest.raises(SparseProgramError, match=r"found by J_indptr alone.* place of an entry"):
        cuda_source(tiled(RAGGED, term, index).mod)


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("lanes", [1, 8])
def test_steps_of_several_lanes_are_seen_through(lanes, index):
    with pytest.raises(SparseProgramError, match=r"found by J_indptr alone.* place of an entry"):
        cuda_source(across_lanes(lanes, RAGGED, "A[i, j] * X[j]", index).mod)
    for axis, term in ((RAGGED, "A[i, j]"), (STORED, "A[i, j] * X[j]")):
        assert "sums" in cuda_source(across_lanes(lanes, axis, term, index).mod)


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_rows_found_by_pointers_alone_are_taken(index):
    for axis, term in ((RAGGED, "A[i, j]"), (STORED, "A[i, j] * B[j, k]")):
        assert "_parts" in cuda_source(tiled(axis, term, index).mod)

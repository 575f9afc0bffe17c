"""What a decomposed program is like: initialisations, parameters, names of iterators, its text."""

from __future__ import annotations

import numpy as np
import pytest
import tvm_ffi

import tvm_sparse
from tests.schedule.decomposed_programs import sampled
from tests.schedule.decompositions import (
    FORMATS,
    LONG_ROW,
    decomposed,
    every_format,
    some_formats,
)
from tvm_sparse import SparseSchedule, schedules
from tvm_sparse.formats import BSR, COO, CSR
from tvm_sparse.ir import SparseFunc
from tvm_sparse.schedule import IterationHandle
from tvm_sparse.script import from_source

# --- initialised once --------------------------------------------------------------------------


def iterations(func: SparseFunc) -> list[tuple[str, bool]]:
    """Names of the iterations, and whether each initialises."""
    body = func.body.seq if hasattr(func.body, "seq") else [func.body]
    return [(stmt.name, stmt.init is not None) for stmt in body]


def test_a_part_that_visits_all_rows_initialises_the_result_and_others_add():
    sch = decomposed(schedules.spmm.program(), "A", "entries_and_columns")
    found = iterations(sch.mod["spmm"])
    assert found == [("spmm_x", True), ("spmm_e", False), ("spmm_c", False)]


def test_where_no_part_visits_all_rows_an_iteration_of_its_own_comes_first():
    sch = SparseSchedule(schedules.spmm.program())
    handles = sch.decompose_format("spmm", "A", {"e": COO(), "f": COO(keeps_duplicates=True)})
    found = iterations(sch.mod["spmm"])
    assert found == [("spmm_init", False), ("spmm_e", False), ("spmm_f", False)]
    assert handles == [IterationHandle(name, "spmm") for name, _ in found]


def test_a_program_that_adds_to_its_argument_goes_on_to_do_so():
    text = schedules.spmv.program().script()
    adding = from_source(
        "\n".join(
            line
            for line in text.split("\n")
            if "init" not in line and "= T.float32(0.0)\n" not in line + "\n"
        )
    )
    sch = decomposed(adding, "A", "hyb")
    assert all(not has_init for _, has_init in iterations(sch.mod["spmv"]))
    packed = FORMATS["hyb"].packs.pack(LONG_ROW.with_values(LONG_ROW.values.astype("float32")))
    y = np.arange(9, dtype="float32")
    tvm_sparse.compile(sch)(a=packed, x=np.ones(7, "float32"), y=y)
    np.testing.assert_array_equal(y, np.arange(9) + 21 * (np.arange(9) == 2))


# --- structure ---------------------------------------------------------------------------------


def test_each_part_has_an_iteration_and_parameters_of_its_own():
    sch = SparseSchedule(schedules.spmv.program())
    sch.decompose_format("spmv", "A", {"rest": CSR(), "blocks": BSR(2, 3)})
    expected = from_source(
        """
@S.prim_func
def spmv(
    a_rest: T.handle, a_rest_nnz: T.int32, a_rest_indptr: T.handle, a_rest_indices: T.handle,
    a_blocks: T.handle, a_blocks_block_rows: T.int32, a_blocks_block_columns: T.int32,
    a_blocks_nnz: T.int32, a_blocks_indptr: T.handle, a_blocks_indices: T.handle,
    x: T.handle, y: T.handle, m: T.int32, n: T.int32
):
    I = S.dense_fixed(m)
    Jd = S.dense_fixed(n)
    RI = S.dense_fixed(m)
    RJ = S.sparse_variable(RI, (n, a_rest_nnz), (a_rest_indptr, a_rest_indices), "int32")
    BI = S.dense_fixed(a_blocks_block_rows)
    BJ = S.sparse_variable(
        BI, (a_blocks_block_columns, a_blocks_nnz), (a_blocks_indptr, a_blocks_indices), "int32"
    )
    II = S.dense_fixed(2)
    JJ = S.dense_fixed(3)
    X = S.match_sparse_buffer(x, (Jd,), "float32")
    Y = S.match_sparse_buffer(y, (I,), "float32")
    A_rest = S.match_sparse_buffer(a_rest, (RI, RJ), "float32")
    A_blocks = S.match_sparse_buffer(a_blocks, (BI, BJ, II, JJ), "float32")
    with S.sp_iter([RI, RJ], "SR", "spmv_rest") as [i, j]:
        S.sp_iter_attr({"tvm_sparse.covers": True})
        with T.init():
            Y[i] = T.float32(0)
        Y[i] = Y[i] + A_rest[i, j] * X[j]
    with S.sp_iter([BI, II, BJ, JJ], "SSRR", "spmv_blocks") as [i_0, i_1, j_0, j_1]:
        if T.reinterpret("uint32", A_blocks[i_0, j_0, i_1, j_1]) != T.uint32(0):
            Y[i_0 * 2 + i_1] = (
                Y[i_0 * 2 + i_1] + A_blocks[i_0, j_0, i_1, j_1] * X[j_0 * 3 + j_1]
            )
"""
    )
    found = sch.mod["spmv"]
    assert list(found.arg_names) == list(expected.arg_names)
    without_notes = from_source(
        "\n".join(line for line in found.script().split("\n") if "func_attr" not in line)
    )
    assert tvm_ffi.structural_equal(without_notes, expected)


@every_format
def test_decomposed_programs_are_read_back_from_their_text(name: str):
    for operation, operand in (("spmm", "A"), ("sddmm", "C")):
        program = getattr(schedules, operation).program("float16", "int64")
        func = decomposed(program, operand, name).mod[operation]
        again = from_source(func.script())
        assert tvm_ffi.structural_equal(again, func)
        assert list(again.arg_names) == list(func.arg_names)


@some_formats
def test_initialisations_of_parts_are_read_back_from_their_text(name: str):
    func = decomposed(sampled("float32", 5.0), "A", name).mod["sampled"]
    assert tvm_ffi.structural_equal(from_source(func.script()), func)


def test_a_program_read_back_is_called_with_packed_arguments():
    func = decomposed(schedules.spmv.program(), "A", "user_diagonals").mod["spmv"]
    packed = FORMATS["user_diagonals"].packs.pack(LONG_ROW.with_values(np.ones(7, "float32")))
    result = tvm_sparse.compile(from_source(func.script()))(
        a=packed, x=np.arange(7, dtype="float32")
    )
    assert result.tolist() == [0, 0, 21, 0, 0, 0, 0, 0, 0]


CLASHING = ["i_0", "i_1", "e", "t", "d", "bi", "j_0"]


@pytest.mark.parametrize("iterator", CLASHING)
@pytest.mark.parametrize("name", ["bsr2x3", "coo", "dcsr", "long_bucket2", "dia", "further_pieces"])
def test_iterators_of_parts_have_names_of_their_own(name: str, iterator: str):
    text = schedules.spmm.program().script()
    for old, new in (
        ("k]", f"{iterator}]"),
        ("[j, k", f"[j, {iterator}"),
        ("[i, k", f"[i, {iterator}"),
    ):
        text = text.replace(old, new)
    sch = decomposed(from_source(text), "A", name)
    for func in sch.mod.functions.values():
        for stmt in func.body.seq if hasattr(func.body, "seq") else [func.body]:
            names = [var.name for var in stmt.iter_vars]
            assert len(set(names)) == len(names)
            sch.sparse_reorder(stmt.name, names)

"""Products and other reductions are what they were, whatever format an operand is held in."""

from __future__ import annotations

import functools
import operator

import numpy as np
import pytest
import tvm_ffi
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tvm_sparse
from tests.schedule.decomposed_programs import REDUCTIONS, reduction, spmm
from tests.schedule.decompositions import (
    EMPTY,
    EXAMPLES,
    FORMATS,
    LONG_ROW,
    SOME,
    SPECIAL,
    TYPES,
    VALUES,
    assert_result,
    check_product,
    decomposed,
    dense_rows,
    entries_of,
    every_format,
    matrices,
    poisoned_rows,
    some_formats,
    sums,
)
from tvm_sparse import schedules
from tvm_sparse.formats import Entries
from tvm_sparse.runtime import Executable
from tvm_sparse.script import from_source

# --- products ----------------------------------------------------------------------------------


@functools.cache
def spmv(name: str, dtype: str = "float32", index: str = "int32") -> Executable:
    return tvm_sparse.compile(decomposed(schedules.spmv.program(dtype, index), "A", name))


@every_format
@EXAMPLES
@given(data=st.data())
def test_spmm(name: str, data):
    tensor = data.draw(matrices(SPECIAL))
    b = dense_rows(data.draw, tensor.shape[1], (data.draw(st.sampled_from([0, 1, 2, 5])),), SPECIAL)
    check_product(spmm(name), name, tensor, b, "float32", "int32")


@every_format
@EXAMPLES
@given(data=st.data())
def test_spmv(name: str, data):
    tensor = data.draw(matrices(SPECIAL))
    x = dense_rows(data.draw, tensor.shape[1], (), SPECIAL)
    check_product(spmv(name), name, tensor, x, "float32", "int32")


@pytest.mark.parametrize(
    "name, dtype, index",
    [
        *((name, "float64", "int64") for name in FORMATS),
        *((name, *types) for types in TYPES[2:] for name in SOME),
    ],
)
@settings(max_examples=4)
@example(tensor=EMPTY)
@example(tensor=LONG_ROW)
@given(tensor=matrices(VALUES))
def test_spmv_of_other_types(name: str, dtype: str, index: str, tensor: Entries):
    x = np.arange(tensor.shape[1]) - 2.0
    x[2:3] = np.inf
    check_product(spmv(name, dtype, index), name, tensor, x, dtype, index)


def test_half_precision_sums_are_rounded_once_for_all_parts():
    """2048 and many ones: in float16 each of them would be lost."""
    columns = np.arange(400, dtype=np.int32)
    values = np.ones(400, np.float16)
    values[0] = 2048
    tensor = Entries((np.zeros(400, np.int32), columns), values, (1, 400))
    for name in ("csr", "hyb", "hyb_parts", "pieces", "coo", "blocks_and_rest", "dia"):
        packed = FORMATS[name].packs.pack(tensor)
        result = spmv(name, "float16")(a=packed, x=np.ones(400, np.float16))
        assert result.tolist() == [np.float16(2048 + 399)]


# --- other reductions --------------------------------------------------------------------------


@functools.cache
def reducing(kind: str, name: str) -> Executable:
    return tvm_sparse.compile(decomposed(reduction(kind), "A", name))


@pytest.mark.parametrize(
    "name, kind",
    [
        *((name, "max") for name in FORMATS),
        *((name, kind) for kind in REDUCTIONS if kind != "max" for name in SOME),
    ],
)
@settings(max_examples=8)
@given(tensor=matrices(VALUES))
def test_reductions(name: str, kind: str, tensor: Entries):
    given, stored = entries_of(FORMATS[name], tensor, "float32")
    x = np.array([3, -1, 2, 1, -2, 4, 1], "float32")[: tensor.shape[1]]
    whole, inner = poisoned_rows(tensor.shape[0], (), "float32")
    reducing(kind, name)(a=FORMATS[name].packs.pack(given), x=x, y=inner)
    _, combine, init = REDUCTIONS[kind]
    init = np.finfo("float32").min if init == -np.inf else init
    assert_result(whole, sums(stored, x, combine, init))


TRANSPOSED = """
@S.prim_func
def columns(
    a: T.handle, x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle, m: T.int32, n: T.int32,
    nnz: T.int32, f: T.int32
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    Jd = S.dense_fixed(n)
    F = S.dense_fixed(f)
    A = S.match_sparse_buffer(a, (I, J), "float32")
    X = S.match_sparse_buffer(x, (I, F), "float32")
    Y = S.match_sparse_buffer(y, (Jd, F), "float32")
    with S.sp_iter([I, J, F], "RSS", "columns") as [i, j, k]:
        with T.init():
            Y[j, k] = T.float32(2)
        Y[j, k] = Y[j, k] + A[i, j] * X[i, k]
"""


@functools.cache
def transposed(name: str) -> Executable:
    return tvm_sparse.compile(decomposed(from_source(TRANSPOSED), "A", name))


@every_format
@settings(max_examples=6)
@given(tensor=matrices(VALUES))
def test_transposed_products(name: str, tensor: Entries):
    given, stored = entries_of(FORMATS[name], tensor, "float32")
    x = np.arange(tensor.shape[0] * 2).reshape(-1, 2).astype("float32") - 3
    whole, inner = poisoned_rows(tensor.shape[1], (2,), "float32")
    transposed(name)(a=FORMATS[name].packs.pack(given), x=x, y=inner)
    flipped = Entries(stored.coordinates[::-1], stored.values, stored.shape[::-1])
    assert_result(whole, sums(flipped, x, operator.add, 2))


TOTAL = """
@S.prim_func
def total(
    a: T.handle, y: T.handle, indptr: T.handle, indices: T.handle, m: T.int32, n: T.int32, nnz: T.int32
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    O = S.dense_fixed(1)
    A = S.match_sparse_buffer(a, (I, J), "float32")
    Y = S.match_sparse_buffer(y, (O,), "float32")
    with S.sp_iter([I, J], "RR", "total") as [i, j]:
        with T.init():
            Y[0] = T.float32(5)
        Y[0] = Y[0] + A[i, j]
"""


@some_formats
def test_a_total_is_initialised_in_an_iteration_without_axes(name):
    sch = decomposed(from_source(TOTAL), "A", name)
    func = sch.mod["total"]
    assert tvm_ffi.structural_equal(from_source(func.script()), func)
    kernel = tvm_sparse.compile(sch)
    for tensor in (LONG_ROW, EMPTY):
        given, stored = entries_of(FORMATS[name], tensor, "float32")
        whole, inner = poisoned_rows(1, (), "float32")
        kernel(a=FORMATS[name].packs.pack(given), y=inner)
        assert_result(whole, np.array([5 + stored.values.sum()]))


@pytest.mark.parametrize("fused", [["j_0", "i"], ["i", "j_1"], ["j_0", "i", "j_1"]])
def test_loops_over_ranges_of_columns_may_be_fused(fused):
    """A loop over entries visits no empty row: the first range does not initialise these then."""
    sch = decomposed(schedules.spmm.program(), "A", "columns")
    sch.sparse_fuse("spmm_columns", fused)
    kernel = tvm_sparse.compile(sch)
    for tensor in (LONG_ROW, EMPTY):
        b = np.arange(tensor.shape[1] * 2, dtype=np.float64).reshape(-1, 2)
        check_product(kernel, "columns", tensor, b, "float32", "int32")

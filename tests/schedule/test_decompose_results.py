"""Results are the same where they are held in formats, and where the parts of an operand share them."""

from __future__ import annotations

import functools
import operator

import numpy as np
import pytest
from hypothesis import given, settings

import tvm_sparse
from tests.schedule.decomposed_programs import sampled, spmm
from tests.schedule.decompositions import (
    EMPTY,
    EXAMPLES,
    FORMATS,
    LONG_ROW,
    SOME,
    TYPES,
    VALUES,
    assert_padding_is_marked,
    assert_result,
    decomposed,
    entries_of,
    matrices,
    numpy_dtype,
    poisoned_rows,
    some_formats,
    sums,
)
from tvm_sparse import schedules
from tvm_sparse.formats import Entries
from tvm_sparse.runtime import Executable
from tvm_sparse.script import from_source

# --- results in formats ------------------------------------------------------------------------


@functools.cache
def sddmm(name: str, dtype: str, index: str, operand: tuple[str, ...]) -> Executable:
    program = schedules.sddmm.program(dtype, index, scaled="A" in operand)
    return tvm_sparse.compile(decomposed(program, operand, name))


def check_sddmm(name: str, tensor: Entries, dtype: str, index: str, operand, values=VALUES) -> None:
    given, stored = entries_of(FORMATS[name], tensor, numpy_dtype(dtype))
    rng = np.random.default_rng(tensor.count)
    x, y = (rng.choice(values, (n, 3)).astype(numpy_dtype(dtype)) for n in tensor.shape)
    pattern = given.with_values(np.full(given.count, np.nan, numpy_dtype(dtype)))
    result = FORMATS[name].packs.pack(pattern, index)
    others = {"a": FORMATS[name].packs.pack(given, index)} if "A" in operand else {}
    sddmm(name, dtype, index, operand)(x=x, y=y, c=result, **others)
    found = result.entries().sorted()
    rows, columns = stored.coordinates
    for dim in range(2):
        np.testing.assert_array_equal(found.coordinates[dim], stored.coordinates[dim])
    with np.errstate(invalid="ignore"):
        expected = (x.astype(np.float64)[rows] * y.astype(np.float64)[columns]).sum(1)
        expected = expected * stored.values if others else expected
    # Repeated entries are stored in any order among themselves.
    key = np.lexsort((found.values.astype(np.float64), *found.coordinates[::-1]))
    wanted = np.lexsort((expected, *stored.coordinates[::-1]))
    np.testing.assert_array_equal(found.values.astype(np.float64)[key], expected[wanted])
    assert_padding_is_marked(result)


@pytest.mark.parametrize(
    "name, operand", [*((name, ("C",)) for name in FORMATS), *((name, ("A", "C")) for name in SOME)]
)
@EXAMPLES
@given(tensor=matrices(VALUES))
def test_sddmm_into_a_packed_result(name: str, operand: tuple[str, ...], tensor: Entries):
    check_sddmm(name, tensor, "float32", "int32", operand)


@pytest.mark.parametrize("dtype, index", TYPES[1:3])
@pytest.mark.parametrize(
    "name", ["csr", "coo", "dia", "bsr2x3", "hyb", "pieces", "blocks_and_rest"]
)
@settings(max_examples=6)
@given(tensor=matrices(VALUES))
def test_sddmm_of_other_types(name: str, dtype: str, index: str, tensor: Entries):
    for operand in (("C",), ("A", "C")):
        check_sddmm(name, tensor, dtype, index, operand)


@pytest.mark.parametrize(
    "name", ["dia", "bsr2x3", "bsr4x4", "dbsr3x2", "sr_bcrs2x3", "user_diagonals"]
)
@settings(max_examples=10)
@given(tensor=matrices(VALUES))
def test_a_result_is_an_operand_of_the_next_kernel(name: str, tensor: Entries):
    """Its padding is zero, although the kernel has passed over it, and its zeros are entries."""
    given, stored = entries_of(FORMATS[name], tensor, "float32")
    result = FORMATS[name].packs.pack(given)
    x, y = (np.arange(n * 2).reshape(n, 2).astype("float32") % 3 for n in tensor.shape)
    sddmm(name, "float32", "int32", ("C",))(x=x, y=y, c=result)
    rows, columns = stored.coordinates
    dots = stored.with_values((x[rows] * y[columns]).sum(1).astype(np.float64))
    b = np.ones((tensor.shape[1], 2), "float32")
    b[1:2] = np.inf
    whole, inner = poisoned_rows(tensor.shape[0], (2,), "float32")
    spmm(name)(a=result, b=b, c=inner)
    assert_result(whole, sums(dots, b, operator.add, 0))


# --- results that the parts share --------------------------------------------------------------


UNIQUE = [name for name, case in FORMATS.items() if not case.keeps_duplicates]


@functools.cache
def sampling(name: str, dtype: str, init: float) -> Executable:
    return tvm_sparse.compile(decomposed(sampled(dtype, init), "A", name))


@pytest.mark.parametrize(
    "name, dtype, init",
    [*((name, "float32", 5.0) for name in UNIQUE), *((name, "float16", 0.0) for name in SOME)],
)
@settings(max_examples=8)
@given(tensor=matrices(VALUES))
def test_parts_initialise_the_places_of_their_own_entries(name, dtype, init, tensor):
    given, stored = entries_of(FORMATS[name], tensor, dtype)
    x, z = (np.arange(n * 2).reshape(n, 2).astype(dtype) % 3 for n in tensor.shape)
    whole, inner = poisoned_rows(tensor.shape[0], (tensor.shape[1],), dtype)
    sampling(name, dtype, init)(a=FORMATS[name].packs.pack(given), x=x, z=z, y=inner)
    expected = np.zeros(tensor.shape)
    rows, columns = stored.coordinates
    dots = (x.astype(np.float64)[rows] * z.astype(np.float64)[columns]).sum(1)
    expected[rows, columns] = init + stored.values * dots
    assert_result(whole, expected)


ELEMENTWISE = """
@S.prim_func
def scaled(
    a: T.handle, x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle, m: T.int32, n: T.int32,
    nnz: T.int32
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    Jd = S.dense_fixed(n)
    A = S.match_sparse_buffer(a, (I, J), "float32")
    X = S.match_sparse_buffer(x, (Jd,), "float32")
    Y = S.match_sparse_buffer(y, (I, Jd), "float32", default=7)
    with S.sp_iter([I, J], "SS", "scaled") as [i, j]:
        Y[i, j] = A[i, j] * X[j]
"""


@some_formats
def test_entries_are_written_to_a_dense_result_and_the_rest_is_its_default(name):
    kernel = tvm_sparse.compile(decomposed(from_source(ELEMENTWISE), "A", name))
    for tensor in (LONG_ROW, EMPTY):
        given, stored = entries_of(FORMATS[name], tensor, "float32")
        x = np.arange(tensor.shape[1], dtype="float32") - 1
        whole, inner = poisoned_rows(tensor.shape[0], (tensor.shape[1],), "float32")
        kernel(a=FORMATS[name].packs.pack(given), x=x, y=inner)
        expected = np.full(tensor.shape, 7.0)
        rows, columns = stored.coordinates
        expected[rows, columns] = stored.values * x[columns]
        assert_result(whole, expected)


STRIDED = """
@S.prim_func
def strided(
    a: T.handle, x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle, m: T.int32, n: T.int32,
    nnz: T.int32
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    Jd = S.dense_fixed(n)
    L = S.dense_fixed(2 * m)
    A = S.match_sparse_buffer(a, (I, J), "float32")
    X = S.match_sparse_buffer(x, (Jd,), "float32")
    Y = S.match_sparse_buffer(y, (L,), "float32", default=7)
    with S.sp_iter([I, J], "SR", "strided") as [i, j]:
        with T.init():
            Y[i * 2] = T.float32(3)
        Y[i * 2] = Y[i * 2] + A[i, j] * X[j]
"""


@some_formats
def test_what_no_row_stores_to_is_the_default_of_the_result(name):
    kernel = tvm_sparse.compile(decomposed(from_source(STRIDED), "A", name))
    for tensor in (LONG_ROW, EMPTY):
        given, stored = entries_of(FORMATS[name], tensor, "float32")
        x = np.arange(tensor.shape[1], dtype="float32") - 1
        whole, inner = poisoned_rows(2 * tensor.shape[0], (), "float32")
        kernel(a=FORMATS[name].packs.pack(given), x=x, y=inner)
        expected = np.full(2 * tensor.shape[0], 7.0)
        expected[::2] = sums(stored, x, operator.add, 3)
        assert_result(whole, expected)

"""Operands held in any formats leave results what they were."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tvm_sparse
from tests.schedule.decompositions import FORMATS, entries_of, matrices
from tvm_sparse import SparseProgramError, SparseSchedule, schedules
from tvm_sparse.formats import BSR, COO, CSF, CSR, DIA, ELL, Composition, Entries, Hyb
from tvm_sparse.ir import SparseFunc
from tvm_sparse.runtime import Executable
from tvm_sparse.schedule import IterationHandle
from tvm_sparse.script import from_source

VALUES = (1.0, -2.0, 3.0, 0.0, -0.0)
SPECIAL = (*VALUES, np.inf, -np.inf, np.nan)
EMPTY = Entries((np.zeros(0, np.int32), np.zeros(0, np.int32)), np.zeros(0), (4, 5))
LONG_ROW = Entries((np.full(7, 2, np.int32), np.arange(7, dtype=np.int32)), np.arange(7.0), (9, 7))
EXAMPLES = settings(max_examples=12)

#: One format of each kind: where every format takes too long.
SOME = ("csr", "coo", "bsr2x3", "pieces", "hyb_parts", "user_diagonals")
every_format = pytest.mark.parametrize("name", FORMATS)
some_formats = pytest.mark.parametrize("name", SOME)
TYPES = [("float32", "int32"), ("float64", "int64"), ("float16", "int32"), ("bfloat16", "int64")]


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def decomposed(func: SparseFunc, operand, name: str) -> SparseSchedule:
    sch = SparseSchedule(func)
    sch.decompose_format(func.name, operand, FORMATS[name].formats)
    return sch


def sums(entries: Entries, operand: np.ndarray, combine: Callable, init: float) -> np.ndarray:
    """Combine ``value * operand[column]`` over the entries of each row, in float64."""
    result = np.full((entries.shape[0], *operand.shape[1:]), init, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        for row, column, value in zip(*entries.coordinates, entries.values):
            result[row] = combine(result[row], value * operand[column].astype(np.float64))
    return result


def poisoned_rows(rows: int, shape: tuple[int, ...], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return an array of NaN with a row more before and after, and the rows between."""
    whole = np.full((rows + 2, *shape), np.nan, numpy_dtype(dtype))
    return whole, whole[1:-1]


def assert_result(whole: np.ndarray, expected: np.ndarray) -> None:
    """The rows between are as expected to the bit, those around as they were."""
    found = whole.astype(np.float64)
    np.testing.assert_array_equal(found[1:-1], expected)
    assert np.isnan(found[[0, -1]]).all()


# --- products ----------------------------------------------------------------------------------


@functools.cache
def spmm(name: str, dtype: str = "float32", index: str = "int32") -> Executable:
    return tvm_sparse.compile(decomposed(schedules.spmm.program(dtype, index), "A", name))


@functools.cache
def spmv(name: str, dtype: str = "float32", index: str = "int32") -> Executable:
    return tvm_sparse.compile(decomposed(schedules.spmv.program(dtype, index), "A", name))


def check_product(kernel: Executable, name: str, tensor: Entries, b: np.ndarray, dtype, index):
    given, stored = entries_of(FORMATS[name], tensor, numpy_dtype(dtype))
    packed = FORMATS[name].packs.pack(given, index)
    b = b.astype(numpy_dtype(dtype))
    whole, inner = poisoned_rows(tensor.shape[0], b.shape[1:], dtype)
    vector = b.ndim == 1
    kernel(a=packed, **({"x": b, "y": inner} if vector else {"b": b, "c": inner}))
    assert_result(whole, sums(stored, b, operator.add, 0))


def dense_rows(draw, rows: int, width: tuple[int, ...], values: tuple[float, ...]) -> np.ndarray:
    size = rows * int(np.prod(width, dtype=int))
    chosen = draw(st.lists(st.sampled_from(values), min_size=size, max_size=size))
    return np.array(chosen, np.float64).reshape(rows, *width)


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

REDUCTIONS = {
    "max": ("T.max(Y[i], A[i, j] * X[j])", np.maximum, -np.inf),
    "min": ("T.min(A[i, j] * X[j], Y[i])", np.minimum, 5.0),
    "product": ("Y[i] * (A[i, j] * X[j])", operator.mul, 1.0),
    "difference": ("Y[i] - A[i, j] * X[j]", operator.sub, 0.0),
    "sum_of_5": ("A[i, j] * X[j] + Y[i]", operator.add, 5.0),
}


def reduction(kind: str, dtype: str = "float32") -> SparseFunc:
    update, _, init = REDUCTIONS[kind]
    written = 'T.min_value("float32")' if init == -np.inf else f"T.{dtype}({init})"
    return from_source(
        f"""
@S.prim_func
def rows(
    a: T.handle, x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle, m: T.int32, n: T.int32,
    nnz: T.int32
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    Jd = S.dense_fixed(n)
    A = S.match_sparse_buffer(a, (I, J), "{dtype}")
    X = S.match_sparse_buffer(x, (Jd,), "{dtype}")
    Y = S.match_sparse_buffer(y, (I,), "{dtype}")
    with S.sp_iter([I, J], "SR", "rows") as [i, j]:
        with T.init():
            Y[i] = {written}
        Y[i] = {update}
"""
    )


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


def assert_padding_is_marked(packed) -> None:
    for part in packed.parts.values() if hasattr(packed, "parts") else [packed]:
        flat, slots = part.values.reshape(-1), part.storage.slots
        bits = np.dtype(f"u{flat.itemsize}")
        assert not np.delete(flat, slots).view(bits).any()
        if part.format.marks_padding:
            assert flat[slots].view(bits).all()


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


def sampled(dtype: str, init: float = 0.0) -> SparseFunc:
    """A product at the entries of a matrix, into a dense result."""
    return from_source(
        f"""
@S.prim_func
def sampled(
    a: T.handle, x: T.handle, z: T.handle, y: T.handle, indptr: T.handle, indices: T.handle,
    m: T.int32, n: T.int32, nnz: T.int32, g: T.int32
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    Jd = S.dense_fixed(n)
    K = S.dense_fixed(g)
    A = S.match_sparse_buffer(a, (I, J), "{dtype}")
    X = S.match_sparse_buffer(x, (I, K), "{dtype}")
    Z = S.match_sparse_buffer(z, (Jd, K), "{dtype}")
    Y = S.match_sparse_buffer(y, (I, Jd), "{dtype}")
    with S.sp_iter([I, J, K], "SSR", "sampled") as [i, j, k]:
        with T.init():
            Y[i, j] = T.{dtype}({init})
        Y[i, j] = Y[i, j] + A[i, j] * X[i, k] * Z[j, k]
"""
    )


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


# --- several operands --------------------------------------------------------------------------

TWO = """
@S.prim_func
def two(
    a: T.handle, b: T.handle, x: T.handle, y: T.handle, p: T.handle, q: T.handle, r: T.handle, s: T.handle,
    m: T.int32, n: T.int32, o: T.int32, u: T.int32, v: T.int32
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, u), (p, q), "int32")
    Jd = S.dense_fixed(n)
    L = S.sparse_variable(Jd, (o, v), (r, s), "int32")
    Ld = S.dense_fixed(o)
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (Jd, L), "float32")
    X = S.match_sparse_buffer(x, (Ld,), "float32")
    Y = S.match_sparse_buffer(y, (I,), "float32")
    W = S.alloc_sparse_buffer((Jd,), "float32")
    with S.sp_iter([Jd, L], "SR", "first") as [j, l]:
        with T.init():
            W[j] = T.float32(0)
        W[j] = W[j] + B[j, l] * X[l]
    with S.sp_iter([I, J], "SR", "second") as [i, j]:
        with T.init():
            Y[i] = T.float32(1)
        Y[i] = Y[i] + A[i, j] * W[j]
"""


@pytest.mark.parametrize(
    "first, second",
    [
        ("csr", "csc"),
        ("coo", "bsr2x3"),
        ("hyb", "pieces"),
        ("user_diagonals", "entries_and_columns"),
    ],
)
def test_operands_are_decomposed_one_after_the_other(first: str, second: str):
    sch = SparseSchedule(from_source(TWO))
    sch.decompose_format("first", "B", FORMATS[first].formats)
    sch.decompose_format("second", "A", FORMATS[second].formats)
    kernel = tvm_sparse.compile(sch)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape) * (rng.random(shape) < 0.5) for shape in ((6, 5), (5, 7)))
    x = rng.integers(-2, 3, 7).astype("float32")
    packed = {
        name: FORMATS[fmt].packs.pack(
            Entries(
                tuple(c.astype("int32") for c in np.nonzero(dense)),
                dense[np.nonzero(dense)].astype("float32"),
                dense.shape,
            )
        )
        for name, fmt, dense in (("a", second, a), ("b", first, b))
    }
    whole, inner = poisoned_rows(6, (), "float32")
    kernel(**packed, x=x, y=inner)
    assert_result(whole, 1.0 + a @ (b @ x))


def test_one_matrix_may_be_held_in_formats_for_each_of_its_uses():
    twice = from_source(
        schedules.spmv.program().script()
        + """
    with S.sp_iter([I, J], "SR", "again") as [i, j]:
        Y[i] = Y[i] + A[i, j]
"""
    )
    sch = SparseSchedule(twice)
    sch.decompose_format("spmv", "A", {"x": CSR(), "y": COO()})
    sch.decompose_format("again", "A", {"z": Hyb(buckets=[1]).parts["w1"]})
    names = list(sch.mod["spmv"].arg_names)
    assert "a" not in names and "indptr" not in names
    assert {"a_x", "a_y", "a_z"} < set(names)


# --- statements --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body, expected",
    [
        ("v: T.let = A[i, j] * X[j]\n        Y[i] = Y[i] + v * v", lambda a, x: (a * x) ** 2),
        (
            "v: T.float32 = A[i, j] * X[j]\n        v = v + T.float32(1)\n        Y[i] = Y[i] + v",
            lambda a, x: a * x + 1,
        ),
        ("if A[i, j] > T.float32(0):\n            Y[i] = Y[i] + X[j]", lambda a, x: x * (a > 0)),
        (
            "for q in range(3):\n            Y[i] = Y[i] + A[i, j] * T.cast(q, 'float32')",
            lambda a, x: 3 * a,
        ),
        ("Y[i] = Y[i] + X[j]", lambda a, x: x),
        ("Y[i] = Y[i] + A[i, j]\n        Y[i] = Y[i] + X[j]", lambda a, x: a + x),
    ],
)
@pytest.mark.parametrize("name", ["csr", "bsr2x3", "entries_and_columns"])
def test_bodies_of_many_statements(name: str, body: str, expected):
    text = schedules.spmv.program().script()
    update = "Y[i] = Y[i] + A[i, j] * X[j]"
    kernel = tvm_sparse.compile(decomposed(from_source(text.replace(update, body)), "A", name))
    dense = np.array([[1, -2, 0, 3], [0, 0, 0, 0], [2, 1, 1, -1]], "float32")
    x = np.array([2, 1, -1, 3], "float32")
    places = np.nonzero(dense)
    tensor = Entries(tuple(c.astype("int32") for c in places), dense[places], dense.shape)
    whole, inner = poisoned_rows(3, (), "float32")
    kernel(a=FORMATS[name].packs.pack(tensor), x=x, y=inner)
    assert_result(whole, np.where(dense != 0, expected(dense, x), 0).sum(1))


def test_integers_are_held_in_blocks_where_zeros_add_nothing():
    kernel = tvm_sparse.compile(decomposed(schedules.spmv.program("int32"), "A", "bsr2x3"))
    packed = FORMATS["bsr2x3"].packs.pack(LONG_ROW.with_values(LONG_ROW.values.astype("int32")))
    assert kernel(a=packed, x=np.arange(7, dtype="int32")).tolist()[2] == 91


# --- what is refused ---------------------------------------------------------------------------


def refuses(*parts: str, error: type[Exception] = SparseProgramError):
    """Expect an error whose message names all of these."""
    return pytest.raises(error, match="(?s)" + "".join(f"(?=.*{part})" for part in parts))


def spmv_with(update: str, extra: str = "") -> SparseSchedule:
    text = schedules.spmv.program().script()
    return SparseSchedule(from_source(text.replace("Y[i] = Y[i] + A[i, j] * X[j]", update) + extra))


@pytest.mark.parametrize(
    "update, parts",
    [
        (
            "Y[i] = A[i, j] * X[j]",
            [r"expected Y\[...\] = op\(Y\[...\], term\)", r"found Y\[...\] = A"],
        ),
        ("Y[i] = Y[i] + A[i, j] * Y[i]", [r"expected Y\[...\] = op"]),
        ("Y[i] = A[i, j] - Y[i]", [r"expected Y\[...\] = op"]),
        (
            "Y[i] = Y[i] + A[i, j]\n        Y[i] = Y[i] * X[j]",
            ["one operation on Y, found several"],
        ),
        (
            "if Y[i] < T.float32(3):\n            Y[i] = Y[i] + A[i, j]",
            ["Y is read while", "order"],
        ),
        ("v: T.let = Y[i]\n        Y[i] = Y[i] + A[i, j] * v", ["Y is read while", "order"]),
        ("Y[i] = Y[i] + A[i, j] * A[i, 0]", [r"expected A\[i, j\], found A\[i, 0\]"]),
        (
            "Y[i] = Y[i] + A[i, j + 1]",
            [r"expected A\[i, j\], found A\[i, j \+ 1\]", "another part"],
        ),
        ("Y[i] = Y[i] + A[j, i]", [r"expected A\[i, j\], found A\[j, i\]"]),
    ],
)
def test_statements_whose_parts_would_not_add_up_are_refused(update, parts):
    sch = spmv_with(update)
    with refuses("decompose_format: iteration spmv", *parts):
        sch.decompose_format("spmv", "A", [CSR(), COO()])
    assert sch.trace.entries == []


def test_results_that_others_use_are_refused():
    sddmm = (
        schedules.sddmm.program().script()
        + """
    with S.sp_iter([I, J], "SS", "after") as [i, j]:
        C[i, j] = C[i, j] * T.float32(2)
"""
    )
    sch = SparseSchedule(from_source(sddmm))
    with refuses("operand C is a result that other statements use as well"):
        sch.decompose_format("sddmm", "C", CSR())
    chained = """
    with S.sp_iter([I, J], "SR", "after") as [i, j]:
        with T.init():
            W[i] = T.float32(0)
        W[i] = W[i] + C[i, j]
"""
    text = schedules.sddmm.program().script() + chained
    text = text.replace("c: S.handle,", "c: S.handle, w: S.handle,").replace(
        "    C = S.match", "    W = S.match_sparse_buffer(w, (I,), 'float32')\n    C = S.match"
    )
    with refuses("operand C is computed by other statements, which would not fill its parts"):
        SparseSchedule(from_source(text)).decompose_format("after", "C", CSR())


def test_operands_that_share_axes_with_repeated_coordinates_are_decomposed_together():
    sch = SparseSchedule(schedules.sddmm.program(scaled=True))
    with refuses("C is stored over axis J too", r"decompose \['A', 'C'\] together"):
        sch.decompose_format("sddmm", "A", CSR())
    with refuses("A is stored over axis J too", r"decompose \['C', 'A'\] together"):
        sch.decompose_format("sddmm", "C", CSR())


def test_operands_over_different_axes_are_refused():
    sch = SparseSchedule(schedules.spmm.program())
    with refuses("operands A and B are stored over different axes", r"\(I, J and Jd, F\)"):
        sch.decompose_format("spmm", ["A", "B"], CSR())
    with refuses("axis Jd of operand B is not iterated there", "iterates I, J, F"):
        sch.decompose_format("spmm", "B", CSR())
    with refuses(r"axis J \(iterator j\) is stored under axis I of operand C"):
        sch.decompose_format("spmm", "C", CSR())


@pytest.mark.parametrize(
    "operand, error, parts",
    [
        ("Z", SparseProgramError, ["one of the sparse buffers A, B, C, found 'Z'"]),
        ("", SparseProgramError, ["one of the sparse buffers A, B, C, found ''"]),
        ("indptr", SparseProgramError, ["one of the sparse buffers", "'indptr'"]),
        (["A", "A"], ValueError, ["each name once, found 'A' again"]),
        ([], ValueError, ["operand: expected at least one"]),
        (None, TypeError, ["operand: expected a name", "None"]),
        (3, TypeError, ["operand: expected a name", "3"]),
        ([None], TypeError, ["operand: expected a name", "None"]),
    ],
)
def test_other_operands_are_refused(operand, error, parts):
    with refuses(*parts, error=error):
        SparseSchedule(schedules.spmm.program()).decompose_format("spmm", operand, CSR())


@pytest.mark.parametrize(
    "formats, error, parts",
    [
        (None, TypeError, ["formats: expected formats by name", "None"]),
        (3, TypeError, ["formats: expected formats by name", "3"]),
        ("csr", TypeError, ["formats: expected formats by name", "'csr'"]),
        (CSR, TypeError, ["formats: expected formats by name", "class", "CSR"]),
        ([], ValueError, ["formats: expected one format or more"]),
        ({}, ValueError, ["formats: expected one format or more"]),
        ([None], TypeError, ["formats: expected a Format for each part", "None"]),
        ({"x": "csr"}, TypeError, ["formats: expected a Format for each part", "'csr'"]),
        ({"x": Hyb(buckets=[1])}, TypeError, ["a Format for each part", "name its parts"]),
        ([CSR(), CSR()], ValueError, ["two have the same name", "dict"]),
        ({"a b": CSR()}, ValueError, ["names that are identifiers, found 'a b'"]),
        ({"": CSR()}, ValueError, ["names that are identifiers, found ''"]),
        ({1: CSR()}, ValueError, ["names that are identifiers, found 1"]),
        (Hyb(), ValueError, ["widths are open", "fitted"]),
        (COO(rank=3), SparseProgramError, ["A has 2 dimensions", "coo stores 3"]),
        (Composition({"x": CSF(3)}), SparseProgramError, ["A has 2 dimensions", "csf stores 3"]),
        ({"init": CSR()}, SparseProgramError, ["part 'init'", "another name"]),
    ],
)
def test_other_formats_are_refused(formats, error, parts):
    sch = SparseSchedule(schedules.spmm.program())
    with refuses(*parts, error=error):
        sch.decompose_format("spmm", "A", formats)
    assert sch.trace.entries == []


def test_parts_whose_parameters_exist_already_are_refused():
    twice = spmv_with(
        "Y[i] = Y[i] + A[i, j] * X[j]",
        '\n    with S.sp_iter([I, J], "SR", "again") as [i, j]:\n        Y[i] = Y[i] + A[i, j]\n',
    )
    with refuses("part '' needs parameters that exist already", "a", "dict"):
        twice.decompose_format("spmv", "A", CSR())
    twice.decompose_format("spmv", "A", {"p": CSR()})
    with refuses("part 'p' needs parameters that exist already", "a_p_indices", "another name"):
        twice.decompose_format("again", "A", {"p": ELL()})
    with refuses("part 'x_indices' needs parameters that exist already", "a_x_indices"):
        decomposing = SparseSchedule(schedules.spmv.program())
        decomposing.decompose_format("spmv", "A", {"x": CSR(), "x_indices": COO()})


def test_iterations_that_would_share_a_name_are_refused():
    sch = SparseSchedule(schedules.spmv.program("float16"))
    with refuses("two iterations would be called spmv_cast", "another name"):
        sch.decompose_format("spmv", "A", {"cast": CSR()})


def test_fused_and_nested_iterations_are_refused():
    sch = SparseSchedule(schedules.spmm.program())
    sch.sparse_fuse("spmm", ["i", "j"])
    with refuses("decompose operands before loops are fused"):
        sch.decompose_format("spmm", "A", CSR())
    nested = from_source(
        """
@S.prim_func
def nested(
    a: T.handle, y: T.handle, indptr: T.handle, indices: T.handle, m: T.int32, n: T.int32, nnz: T.int32
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    A = S.match_sparse_buffer(a, (I, J), "float32")
    Y = S.match_sparse_buffer(y, (I,), "float32")
    with S.sp_iter([I], "S", "outer") as [i]:
        with S.sp_iter([J], "R", "inner") as [j]:
            with T.init():
                Y[i] = T.float32(0)
            Y[i] = Y[i] + A[i, j]
"""
    )
    with refuses("iteration inner", "axis I of operand A is not iterated there"):
        SparseSchedule(nested).decompose_format("inner", "A", CSR())


@pytest.mark.parametrize("kind", ["max", "min", "product"])
@pytest.mark.parametrize("fmt", [BSR(2, 2), DIA()], ids=["bsr", "dia"])
def test_integers_in_formats_whose_padding_would_count_are_refused(kind, fmt):
    sch = SparseSchedule(reduction("sum_of_5" if kind == "max" else kind, "int32"))
    if kind == "max":
        sch = SparseSchedule(
            from_source(
                sch.mod["rows"].script().replace("A[i, j] * X[j] + Y[i]", "T.max(Y[i], A[i, j])")
            )
        )
    with refuses(
        f"format {fmt.name} pads with zeros", r"operand A \(int32\)", "change Y", "CSR or ELL"
    ):
        sch.decompose_format("rows", "A", fmt)
    sch.decompose_format("rows", "A", ELL())


def test_integers_times_floats_that_may_be_infinite_are_refused_in_blocks():
    text = (
        schedules.spmv.program()
        .script()
        .replace(
            "A = S.match_sparse_buffer(a, (I, J), 'float32', default=T.float32(0.0))",
            "A = S.match_sparse_buffer(a, (I, J), 'int8')",
        )
    )
    text = text.replace("A[i, j] * X[j]", "T.cast(A[i, j], 'float32') * X[j]")
    with refuses("format bsr2x2 pads with zeros", r"operand A \(int8\)"):
        SparseSchedule(from_source(text)).decompose_format("spmv", "A", BSR(2, 2))


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

"""Scheduled SpMM over formats is right for all widths, structures and real matrices."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.formats.tensors import FILES, load
from tests.schedule.decompositions import FORMATS, entries_of, matrices
from tvm_sparse import schedules
from tvm_sparse.formats import (
    BSR,
    COO,
    CSC,
    CSF,
    CSR,
    DIA,
    ELL,
    SRBCRS,
    Bucket,
    Composition,
    Entries,
    Hyb,
    Pieces,
)
from tvm_sparse.runtime import Executable, set_num_threads

WIDTHS = (0, 1, 7, 32, 100, 256)
rng = np.random.default_rng(0)

every_format = pytest.mark.parametrize("name", FORMATS)


@functools.cache
def kernel(name: str, dtype: str = "float32", index: str = "int32", features=None) -> Executable:
    return schedules.spmm.build(dtype, index, features=features, formats=FORMATS[name].formats)


def check(call, packed, stored: Entries, b: np.ndarray, error: float) -> None:
    """Errors are relative to the sum of the absolute values of the terms; nothing else is written."""
    rows = stored.shape[0]
    whole = np.full((rows + 2, b.shape[1]), np.nan, b.dtype)
    call(a=packed, b=b, c=whole[1:-1])
    matrix = sp.coo_array((stored.values, stored.coordinates), shape=stored.shape)
    exact = b.astype(np.float64)
    bound = error * (abs(matrix) @ np.abs(exact)) + 1e-30
    assert (np.abs(whole[1:-1].astype(np.float64) - matrix @ exact) <= bound).all()
    assert np.isnan(whole[[0, -1]]).all()


def random_entries(rows: int, columns: int, density: float, seed: int = 0) -> Entries:
    matrix = sp.random(rows, columns, density, "coo", random_state=seed)
    coordinates = (matrix.row.astype(np.int32), matrix.col.astype(np.int32))
    return Entries(coordinates, matrix.data.astype(np.float32), matrix.shape)


def in_float64(tensor: Entries) -> Entries:
    return tensor.with_values(tensor.values.astype(np.float64))


def operand(rows: int, width: int, dtype: str = "float32") -> np.ndarray:
    return rng.standard_normal((rows, width)).astype(dtype)


@every_format
@settings(max_examples=12)
@given(tensor=matrices((1.0, -2.0, 0.5, 0.0, -0.0)), width=st.sampled_from(WIDTHS))
def test_random_structures(name: str, tensor: Entries, width: int):
    given, stored = entries_of(FORMATS[name], tensor, "float32")
    packed = FORMATS[name].packs.pack(given)
    check(kernel(name), packed, stored, operand(tensor.shape[1], width), 1e-5)


@pytest.mark.parametrize("width", WIDTHS)
@every_format
def test_every_width(name: str, width: int):
    """Sizes that no block divides, and more rows than a task has."""
    for shape, density in (((131, 67), 0.05), ((1, 97), 0.5), ((97, 1), 0.5)):
        given, stored = entries_of(FORMATS[name], random_entries(*shape, density), "float32")
        packed = FORMATS[name].packs.pack(given)
        check(kernel(name), packed, stored, operand(shape[1], width), 1e-5)


@pytest.mark.parametrize(
    "name", ["csr", "coo", "bsr2x3", "sr_bcrs2x3", "hyb", "pieces", "user_diagonals"]
)
@pytest.mark.parametrize("features", [1, 7, 32])
def test_widths_that_are_compiled_in(name: str, features: int):
    given, stored = entries_of(FORMATS[name], random_entries(131, 67, 0.05), "float32")
    packed = FORMATS[name].packs.pack(given)
    call = kernel(name, features=features)
    check(call, packed, stored, operand(67, features), 1e-5)
    with pytest.raises(ValueError, match=f"argument 'b': expected shape .*{features}.*found"):
        call(a=packed, b=operand(67, features + 1))


@pytest.mark.parametrize("name", ["csr", "csc", "coo", "bsr4x4", "hyb"])
def test_no_features_at_all(name: str):
    packed = FORMATS[name].packs.pack(random_entries(9, 7, 0.3))
    assert kernel(name, features=0)(a=packed, b=operand(7, 0)).shape == (9, 0)


@pytest.mark.parametrize("dtype, index", [("float64", "int64"), ("float16", "int32")])
@pytest.mark.parametrize("name", ["csr", "coo", "bsr4x4", "hyb_parts", "pieces", "user_blocks"])
def test_other_types(name: str, dtype: str, index: str):
    given, stored = entries_of(FORMATS[name], random_entries(57, 67, 0.1), dtype)
    packed = FORMATS[name].packs.pack(given, index)
    for width in (1, 33):
        error = 1e-13 if dtype == "float64" else 2e-3
        check(kernel(name, dtype, index), packed, stored, operand(67, width, dtype), error)


@pytest.mark.parametrize("name", ["csr", "coo", "csc", "hyb", "hyb_parts", "columns", "pieces"])
def test_the_same_bits_with_any_number_of_threads(name: str):
    """Why `deterministic` changes nothing on a CPU: no row is shared by threads."""
    given, _ = entries_of(FORMATS[name], random_entries(3000, 2000, 0.01), "float32")
    packed, b = FORMATS[name].packs.pack(given), operand(2000, 48)
    call = schedules.spmm.build(formats=FORMATS[name].formats, deterministic=True)
    found = set()
    try:
        for threads in (1, 2, 5):
            set_num_threads(threads)
            found |= {call(a=packed, b=b).tobytes() for _ in range(3)}
    finally:
        set_num_threads(None)
    assert len(found) == 1


@pytest.mark.parametrize("name", ["csr", "bsr2x3", "dia", "hyb", "pieces"])
def test_integers(name: str):
    tensor = random_entries(57, 67, 0.1)
    values = np.round(tensor.values * 9)
    given, stored = entries_of(FORMATS[name], tensor.with_values(values), "int8")
    b = rng.integers(-9, 10, (67, 17)).astype("int8")
    result = kernel(name, "int8")(a=FORMATS[name].packs.pack(given), b=b)
    matrix = sp.coo_array((stored.values, stored.coordinates), shape=stored.shape)
    np.testing.assert_array_equal(result, matrix @ b.astype(float))


@pytest.mark.parametrize(
    "fmt",
    [BSR(1, 1), BSR(5, 7), BSR(64, 64), BSR(3, 1), SRBCRS(8, 4), SRBCRS(1, 5), Hyb(5, [2, 9])],
    ids=repr,
)
def test_blocks_that_divide_nothing(fmt):
    call = schedules.spmm.build(formats=fmt)
    for shape in ((131, 67), (64, 63), (1, 1)):
        tensor = random_entries(*shape, 0.1, seed=3)
        check(call, fmt.pack(tensor), in_float64(tensor), operand(shape[1], 33), 1e-5)


@pytest.fixture
def threads():
    set_num_threads(4)
    yield
    set_num_threads(None)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", ["csr", "hyb_parts", "pieces"])
def test_rows_of_one_thread_leave_those_of_the_others_alone(threads, name: str, dtype: str):
    """A vector is wider than a row: stores of lanes that are off would undo what a neighbour added."""
    given, stored = entries_of(FORMATS[name], random_entries(57, 67, 0.1), dtype)
    packed = FORMATS[name].packs.pack(given)
    for width in (1, 3):
        b = operand(67, width, dtype)
        for _ in range(60):
            check(kernel(name, dtype), packed, stored, b, 2e-3 if dtype == "float16" else 1e-5)


# --- real data ---------------------------------------------------------------------------------

REAL = {
    "hyb": Hyb(buckets=[1, 4, 16]),
    "blocks": Composition([BSR(4, 4, min_fill=0.5), CSR()]),
    "user": FORMATS["user_blocks"].packs,
}


@functools.cache
def kernel_for_data(name: str) -> Executable:
    return schedules.spmm.build(formats=REAL[name])


@pytest.mark.parametrize("file", FILES)
def test_real_matrices(file: str):
    tensor = load(file)
    if len(tensor.shape) != 2 or tensor.shape[0] != tensor.shape[1]:
        pytest.skip("no square matrix")
    widths = (1, 32, 100) if tensor.count < 200_000 else (32,)
    for name, formats in REAL.items():
        packed = formats.pack(tensor)
        for width in widths:
            b = operand(tensor.shape[1], width)
            check(kernel_for_data(name), packed, in_float64(tensor), b, 2e-5)


# --- calls -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["csr", "bsr2x3", "dia", "hyb", "pieces", "user_blocks"])
def test_new_values_are_used_by_the_next_call(name: str):
    tensor = random_entries(12, 12, 0.3)
    packed = FORMATS[name].packs.pack(tensor)
    b = operand(12, 5)
    kernel(name)(a=packed, b=b)
    for factor in (2, 0, -1):
        changed = tensor.with_values(tensor.values * np.float32(factor))
        packed.update_values(changed.values)
        check(kernel(name), packed, in_float64(changed), b, 1e-5)


def test_one_kernel_serves_matrices_of_all_shapes():
    for shape in ((4, 9), (9, 4), (200, 3), (0, 3), (3, 0)):
        tensor = random_entries(*shape, 0.4)
        packed = FORMATS["hyb"].packs.pack(tensor)
        check(kernel("hyb"), packed, in_float64(tensor), operand(shape[1], 2), 1e-5)


PACKED_OTHERWISE = [
    (CSR(), CSC()),
    (CSC(), CSR()),
    (CSF(2), CSF(2, order=(1, 0))),
    (COO(), COO(keeps_duplicates=True)),
    (CSR(), CSR(keeps_duplicates=True)),
    (BSR(2, 3), BSR(3, 2)),
    (BSR(2, 2), BSR(4, 4)),
    (BSR(2, 2), CSR()),
    (ELL(12), ELL(13)),
    (DIA(), CSR()),
    (Bucket(12), CSR()),
    (Hyb(buckets=[1, 2]), Hyb(buckets=[1, 4])),
    (Hyb(buckets=[1, 2]), Hyb(2, buckets=[1, 2])),
    (Hyb(2, buckets=[1, 2]), Hyb(buckets=[1, 2])),
    (Hyb(buckets=[1, 2]), CSR()),
    (CSR(), Hyb(buckets=[1, 2])),
    (Pieces(2), Composition({"head": CSR(), "tail": COO()})),
    ({"x": CSR(), "y": CSC()}, Composition({"x": CSC(), "y": CSR()})),
    ({"x": CSR(), "y": CSC()}, Composition({"x": CSR()})),
    # The same parts, but nobody listed the rows that they are to initialise.
    (Hyb(buckets=[1, 12]), Composition(Hyb(buckets=[1, 12]).parts)),
]


@pytest.mark.parametrize("kernel_of, packs", PACKED_OTHERWISE, ids=repr)
def test_tensors_packed_in_another_way_are_refused(kernel_of, packs):
    call = schedules.spmm.build(formats=kernel_of)
    packed = packs.pack(random_entries(12, 12, 0.3))
    with pytest.raises((TypeError, ValueError), match=r"spmm: argument 'a"):
        call(a=packed, b=operand(12, 5))


@pytest.mark.parametrize("name", ["csr", "bsr2x3", "hyb", "pieces"])
def test_operands_of_other_shapes_and_types_are_refused(name: str):
    tensor = random_entries(12, 12, 0.3)
    packed = FORMATS[name].packs.pack(tensor)
    for b, message in (
        (operand(11, 5), "argument 'b': expected shape"),
        (operand(13, 5), "argument 'b': expected shape"),
        (operand(12, 5)[:, 0], "argument 'b': expected 2 dimensions"),
        (operand(12, 5, "float64"), "argument 'b': expected dtype float32, found float64"),
        (packed, "argument 'b'"),
        (None, "argument 'b'"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            kernel(name)(a=packed, b=b)
    for c in (np.zeros((11, 5), "float32"), np.zeros((12, 6), "float32")):
        with pytest.raises(ValueError, match="argument 'c': expected shape"):
            kernel(name)(a=packed, b=operand(12, 5), c=c)
    wide = FORMATS[name].packs.pack(tensor, "int64")
    with pytest.raises(TypeError, match="expected dtype int32, found int64"):
        kernel(name)(a=wide, b=operand(12, 5))
    double = FORMATS[name].packs.pack(in_float64(tensor))
    with pytest.raises(TypeError, match="expected dtype float32, found float64"):
        kernel(name)(a=double, b=operand(12, 5))


@pytest.mark.parametrize("name", ["csc", "coo", "dia", "hyb", "pieces", "csf_columns"])
def test_what_is_not_packed_is_refused_or_right(name: str):
    tensor = random_entries(12, 12, 0.3)
    matrix = sp.csr_array((tensor.values, tensor.coordinates), shape=tensor.shape)
    b = operand(12, 5)
    for argument in (matrix, matrix.tocsc(), matrix.tocoo(), matrix.toarray()):
        try:
            result = kernel(name)(a=argument, b=b)
        except (TypeError, ValueError) as error:
            assert "argument 'a" in str(error)
        else:
            np.testing.assert_allclose(result, matrix @ b, rtol=1e-4, atol=1e-5)
    with pytest.raises(TypeError, match="packed tensors by name"):
        kernel(name)(FORMATS[name].packs.pack(tensor), b)


@pytest.mark.parametrize("part", ["my_init", "fill", "x_fill", "cast", "add", "own", "spmm"])
def test_names_of_parts_mean_nothing_to_the_schedule(part: str):
    tensor = random_entries(12, 12, 0.3)
    for fmt in (CSR(), COO()):
        formats = {part: fmt, "rest": CSR()}
        packed = Composition(formats).pack(tensor)
        call = schedules.spmm.build(formats=formats)
        check(call, packed, in_float64(tensor), operand(12, 33), 1e-5)

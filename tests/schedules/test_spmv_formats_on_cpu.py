"""Scheduled SpMV over formats is right for all structures, types and special values."""

from __future__ import annotations

import functools
import platform

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings

from tests.formats.tensors import FILES, load
from tests.schedule.decompositions import FORMATS, entries_of, matrices
from tests.schedules.test_formats_on_cpu import in_float64, random_entries
from tvm_sparse import schedules
from tvm_sparse.formats import BSR, CSR, DIA, ELL, SRBCRS, Composition, Entries, Hyb
from tvm_sparse.runtime import Executable, set_num_threads

rng = np.random.default_rng(0)
every_format = pytest.mark.parametrize("name", FORMATS)
SPECIAL = (1.0, -2.0, 0.0, -0.0, np.inf, -np.inf, np.nan)


@functools.cache
def kernel(name: str, dtype: str = "float32", index: str = "int32") -> Executable:
    return schedules.spmv.build(dtype, index, formats=FORMATS[name].formats)


def check(call: Executable, packed, stored: Entries, x: np.ndarray, error: float) -> None:
    """Errors are relative to the sum of the absolute values of the terms; nothing else is written."""
    whole = np.full(stored.shape[0] + 2, np.nan, x.dtype)
    call(a=packed, x=x, y=whole[1:-1])
    matrix = sp.coo_array((stored.values, stored.coordinates), shape=stored.shape)
    exact = x.astype(np.float64)
    bound = error * (abs(matrix) @ np.abs(exact)) + 1e-30
    found = whole.astype(np.float64)
    assert (np.abs(found[1:-1] - matrix @ exact) <= bound).all()
    assert np.isnan(found[[0, -1]]).all()


@every_format
@settings(max_examples=12)
@given(tensor=matrices((1.0, -2.0, 0.5, 0.0, -0.0)))
def test_random_structures(name: str, tensor: Entries):
    given, stored = entries_of(FORMATS[name], tensor, "float32")
    x = rng.standard_normal(tensor.shape[1]).astype("float32")
    check(kernel(name), FORMATS[name].packs.pack(given), stored, x, 1e-6)


@every_format
def test_sizes_that_no_block_divides_and_more_rows_than_a_task_has(name: str):
    for shape, density in (((131, 67), 0.05), ((1, 97), 0.5), ((97, 1), 0.5), ((3000, 900), 0.02)):
        given, stored = entries_of(FORMATS[name], random_entries(*shape, density), "float32")
        x = rng.standard_normal(shape[1]).astype("float32")
        check(kernel(name), FORMATS[name].packs.pack(given), stored, x, 1e-5)


@every_format
@settings(max_examples=12)
@given(tensor=matrices(SPECIAL))
def test_infinite_values_reach_the_rows_that_csr_says(name: str, tensor: Entries):
    given, stored = entries_of(FORMATS[name], tensor, "float32")
    x = rng.choice(np.array(SPECIAL, "float32"), tensor.shape[1])
    expected = np.zeros(tensor.shape[0])
    with np.errstate(invalid="ignore"):
        np.add.at(expected, stored.coordinates[0], stored.values * x[stored.coordinates[1]])
    y = np.full(tensor.shape[0], np.nan, "float32")
    kernel(name)(a=FORMATS[name].packs.pack(given), x=x, y=y)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    "dtype, index, error",
    [("float64", "int64", 1e-13), ("float16", "int32", 2e-3), ("bfloat16", "int64", 2e-2)],
)
@pytest.mark.parametrize("name", ["csr", "coo", "ell", "bsr4x4", "sr_bcrs2x3", "dia", "hyb_parts"])
def test_other_types(name: str, dtype: str, index: str, error: float):
    numpy_dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    given, stored = entries_of(FORMATS[name], random_entries(57, 67, 0.1), numpy_dtype)
    packed = FORMATS[name].packs.pack(given, index)
    x = rng.standard_normal(67).astype(numpy_dtype)
    check(kernel(name, dtype, index), packed, stored, x, error)


@pytest.mark.parametrize("name", ["csr", "bsr2x3", "dia", "hyb", "pieces"])
def test_integers(name: str):
    tensor = random_entries(57, 67, 0.1)
    given, stored = entries_of(
        FORMATS[name], tensor.with_values(np.round(tensor.values * 9)), "int8"
    )
    x = rng.integers(-9, 10, 67).astype("int8")
    result = kernel(name, "int8")(a=FORMATS[name].packs.pack(given), x=x)
    matrix = sp.coo_array((stored.values, stored.coordinates), shape=stored.shape)
    np.testing.assert_array_equal(result, matrix @ x.astype(float))


@pytest.mark.parametrize(
    "fmt",
    [
        *(BSR(*size) for size in ((1, 1), (5, 7), (64, 64), (3, 1), (1, 16), (3, 17), (32, 8))),
        *(SRBCRS(*size) for size in ((8, 4), (1, 5), (12, 3))),
        *(ELL(), ELL(70), DIA(), Hyb(5, [2, 9])),
    ],
    ids=repr,
)
def test_blocks_that_divide_nothing(fmt):
    call = schedules.spmv.build(formats=fmt)
    for shape, density in (
        ((131, 67), 0.1),
        ((64, 63), 1.0),
        ((1, 1), 1.0),
        ((0, 5), 0),
        ((5, 0), 0),
    ):
        tensor = random_entries(*shape, density, seed=3)
        x = rng.standard_normal(shape[1]).astype("float32")
        check(call, fmt.pack(tensor), in_float64(tensor), x, 1e-5)


@pytest.mark.parametrize("name", ["csr", "bsr4x4", "hyb", "pieces", "dia", "user_diagonals"])
def test_results_do_not_depend_on_threads(name: str):
    given, _ = entries_of(FORMATS[name], random_entries(3000, 900, 0.02), "float32")
    packed = FORMATS[name].packs.pack(given)
    x = rng.standard_normal(900).astype("float32")
    results = []
    for threads in (1, 4):
        set_num_threads(threads)
        try:
            results.append(kernel(name)(a=packed, x=x))
        finally:
            set_num_threads(None)
    np.testing.assert_array_equal(*results)


REAL = {
    "hyb": Hyb(buckets=[1, 4, 16]),
    "blocks": Composition([BSR(4, 4, min_fill=0.5), CSR()]),
}


@functools.cache
def kernel_for_data(name: str) -> Executable:
    return schedules.spmv.build(formats=REAL[name])


@pytest.mark.parametrize("file", FILES)
def test_real_matrices(file: str):
    tensor = load(file)
    if len(tensor.shape) != 2 or tensor.shape[0] != tensor.shape[1] or tensor.count > 200_000:
        pytest.skip("no small square matrix")
    x = rng.standard_normal(tensor.shape[1]).astype("float32")
    for name, formats in REAL.items():
        check(kernel_for_data(name), formats.pack(tensor), in_float64(tensor), x, 2e-5)


def test_tensors_packed_in_another_way_are_refused():
    with pytest.raises((TypeError, ValueError), match=r"spmv: argument 'a"):
        packed = BSR(3, 2).pack(random_entries(12, 12, 0.3))
        kernel("bsr2x3")(a=packed, x=np.ones(12, "float32"))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86 processors")
@pytest.mark.parametrize("mcpu", ["x86-64", "x86-64-v3"])
@pytest.mark.parametrize(
    "fmt", [BSR(4, 4), ELL(), DIA(), SRBCRS(8, 4), Hyb(buckets=[1, 8])], ids=repr
)
def test_vectors_of_other_cpus(fmt, mcpu: str):
    call = schedules.spmv.build(formats=fmt, target={"kind": "llvm", "mcpu": mcpu})
    tensor = random_entries(131, 67, 0.1)
    x = rng.standard_normal(67).astype("float32")
    check(call, fmt.pack(tensor), in_float64(tensor), x, 1e-5)

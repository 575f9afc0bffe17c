"""Scheduled SDDMM over formats is right for all widths, structures, types and special values."""

from __future__ import annotations

import functools
import platform

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.formats.tensors import FILES, load
from tests.schedule.decompositions import FORMATS, assert_padding_is_marked, entries_of, matrices
from tests.schedules.test_formats_on_cpu import random_entries
from tvm_sparse import schedules
from tvm_sparse.formats import BSR, COO, CSR, SRBCRS, Composition, Entries, Hyb
from tvm_sparse.runtime import Executable, set_num_threads

WIDTHS = (0, 1, 7, 32, 100, 256)
rng = np.random.default_rng(0)
every_format = pytest.mark.parametrize("name", FORMATS)
SOME = ("csr", "csc", "coo", "ell3", "dia", "bsr4x4", "sr_bcrs2x3", "hyb", "blocks_and_rest")


@functools.cache
def kernel(
    name: str, dtype: str = "float32", index: str = "int32", scaled: bool = False, features=None
) -> Executable:
    return schedules.sddmm.build(
        dtype, index, scaled=scaled, features=features, formats=FORMATS[name].formats
    )


def operand(rows: int, width: int, dtype="float32") -> np.ndarray:
    return rng.standard_normal((rows, width)).astype(dtype)


def results(call: Executable, packs, given: Entries, x, y, scaled: bool, index: str = "int32"):
    """Coordinates and values of a result whose pattern came with other values; padding is as it was."""
    other = given.with_values(np.full(given.count, np.nan, given.values.dtype))
    result = packs.pack(other, index)
    call(x=x, y=y, c=result, **({"a": packs.pack(given, index)} if scaled else {}))
    assert_padding_is_marked(result)
    return result.entries().sorted()


def check(call, packs, given, stored, x, y, *, error, scaled=False, index="int32") -> None:
    """Errors are relative to the sum of the absolute values of the terms."""
    found = results(call, packs, given, x, y, scaled, index)
    rows, columns = stored.coordinates
    np.testing.assert_array_equal(np.array(found.coordinates), np.array(stored.coordinates))
    terms = x.astype(np.float64)[rows] * y.astype(np.float64)[columns]
    terms = terms * stored.values[:, None] if scaled else terms
    # Repeated entries are stored in any order among themselves.
    values, expected = found.values.astype(np.float64), terms.sum(1)
    values = values[np.lexsort((values, columns, rows))]
    order = np.lexsort((expected, columns, rows))
    smallest = float(ml_dtypes.finfo(x.dtype).smallest_subnormal)
    bound = error * np.abs(terms).sum(1)[order] + smallest
    assert (np.abs(values - expected[order]) <= bound).all()


@every_format
@settings(max_examples=12)
@given(tensor=matrices((1.0, -2.0, 0.5, 0.0, -0.0)), width=st.sampled_from(WIDTHS))
def test_random_structures(name: str, tensor: Entries, width: int):
    given, stored = entries_of(FORMATS[name], tensor, "float32")
    x, y = (operand(size, width) for size in tensor.shape)
    check(kernel(name), FORMATS[name].packs, given, stored, x, y, error=1e-5)


@pytest.mark.parametrize(
    "name, scaled", [*((name, False) for name in FORMATS), *((name, True) for name in SOME)]
)
def test_every_width(name: str, scaled: bool):
    """Sizes that no block divides, and more entries than a task has."""
    for shape, density in (((131, 67), 0.05), ((1, 97), 0.5), ((97, 1), 0.5), ((400, 300), 0.1)):
        given, stored = entries_of(FORMATS[name], random_entries(*shape, density), "float32")
        for width in WIDTHS:
            x, y = (operand(size, width) for size in shape)
            call, packs = kernel(name, scaled=scaled), FORMATS[name].packs
            check(call, packs, given, stored, x, y, error=1e-5, scaled=scaled)


@pytest.mark.parametrize("features", [0, 1, 7, 32])
@pytest.mark.parametrize("name", ["csr", "coo", "bsr4x4", "hyb"])
def test_widths_that_are_compiled_in(name: str, features: int):
    given, stored = entries_of(FORMATS[name], random_entries(131, 67, 0.05), "float32")
    x, y = operand(131, features), operand(67, features)
    call = kernel(name, features=features)
    check(call, FORMATS[name].packs, given, stored, x, y, error=1e-5)


@pytest.mark.parametrize(
    "dtype, index, error",
    [("float64", "int64", 1e-13), ("float16", "int32", 2e-3), ("bfloat16", "int64", 2e-2)],
)
@pytest.mark.parametrize("name", ["csr", "coo", "bsr4x4", "hyb"])
def test_other_types(name: str, dtype: str, index: str, error: float):
    numpy_dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    given, stored = entries_of(FORMATS[name], random_entries(57, 67, 0.1), numpy_dtype)
    for scaled in (False, True):
        for width in (1, 33):
            x, y = operand(57, width, numpy_dtype), operand(67, width, numpy_dtype)
            call, packs = kernel(name, dtype, index, scaled), FORMATS[name].packs
            check(call, packs, given, stored, x, y, error=error, scaled=scaled, index=index)


@every_format
def test_infinite_values_reach_the_entries_of_their_rows_and_columns_alone(name: str):
    given, stored = entries_of(FORMATS[name], random_entries(19, 17, 0.2), "float32")
    for width in (1, 19, 40):
        x, y = (np.ones((size, width), "float32") for size in given.shape)
        x[3, width // 2], y[5, 0], y[6, width - 1] = np.inf, -np.inf, np.nan
        found = results(kernel(name), FORMATS[name].packs, given, x, y, False)
        rows, columns = stored.coordinates
        with np.errstate(invalid="ignore"):
            expected = (x[rows].astype(float) * y[columns]).sum(1)
        np.testing.assert_array_equal(found.values, expected)


@pytest.mark.parametrize(
    "fmt",
    [*(BSR(*s) for s in ((1, 1), (5, 7), (64, 64), (3, 1), (1, 8))), SRBCRS(8, 4), SRBCRS(1, 5)],
    ids=repr,
)
def test_blocks_that_divide_nothing(fmt):
    call = schedules.sddmm.build(formats=fmt)
    for shape in ((131, 67), (64, 63), (1, 1), (0, 4), (4, 0)):
        tensor = random_entries(*shape, 0.1, seed=3).sorted()
        x, y = (operand(size, 33) for size in shape)
        check(call, fmt, tensor, tensor, x, y, error=1e-5)


@pytest.mark.parametrize("name", ["csr", "coo", "bsr4x4", "hyb", "csc"])
def test_results_do_not_depend_on_threads(name: str):
    given, _ = entries_of(FORMATS[name], random_entries(400, 300, 0.2), "float32")
    x, y = operand(400, 40), operand(300, 40)
    found = []
    for threads in (1, 4):
        set_num_threads(threads)
        try:
            found.append(results(kernel(name), FORMATS[name].packs, given, x, y, False).values)
        finally:
            set_num_threads(None)
    np.testing.assert_array_equal(*found)


REAL = {
    "hyb": Hyb(buckets=[1, 4, 16]),
    "blocks": Composition([BSR(4, 4, min_fill=0.5), CSR()]),
    "coo": COO(),
}


@functools.cache
def kernel_for_data(name: str) -> Executable:
    return schedules.sddmm.build(formats=REAL[name])


@pytest.mark.parametrize("file", FILES)
def test_real_matrices(file: str):
    tensor = load(file)
    if len(tensor.shape) != 2 or tensor.count > 100_000:
        pytest.skip("no small matrix")
    tensor = tensor.with_values(tensor.values.astype("float32")).sorted()
    x, y = (operand(size, 32) for size in tensor.shape)
    for name, formats in REAL.items():
        check(kernel_for_data(name), formats, tensor, tensor, x, y, error=2e-5)


def test_a_pattern_in_another_format_is_refused():
    result = BSR(3, 2).pack(random_entries(12, 12, 0.3))
    with pytest.raises((TypeError, ValueError), match=r"sddmm: argument 'c"):
        kernel("bsr4x4")(x=operand(12, 3), y=operand(12, 3), c=result)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86 processors")
@pytest.mark.parametrize("mcpu", ["x86-64", "x86-64-v3"])
@pytest.mark.parametrize("fmt", [CSR(), BSR(4, 4), Hyb(buckets=[1, 8])], ids=repr)
def test_vectors_of_other_cpus(fmt, mcpu: str):
    call = schedules.sddmm.build(formats=fmt, target={"kind": "llvm", "mcpu": mcpu})
    tensor = random_entries(131, 67, 0.1).sorted()
    for width in (7, 100):
        x, y = operand(131, width), operand(67, width)
        check(call, fmt, tensor, tensor, x, y, error=1e-5)

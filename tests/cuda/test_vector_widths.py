"""Vectors of tiles: widths that CUDA has types for, of every value type, at every small feature width."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from tests.cuda.emulation import emulated
from tests.cuda.operator_cases import (
    CUDA,
    assert_sums,
    kernel_of,
    poisoned,
    power_law,
    random_values,
    stored,
)
from tests.cuda.source import cubin_of
from tvm_sparse import schedules
from tvm_sparse.schedules.cuda import DotTile, RowTile

MATRIX = power_law(40, 30)
#: Features, type and vector: widths below the vector, odd ones, and those that vectors divide.
ROWS = [
    (3, "float32", 4),
    (5, "float16", 8),
    (6, "int8", 8),
    (7, "bfloat16", 8),
    (9, "float64", 2),
    (8, "int8", None),
    (33, "int32", 4),
]
DOTS = [
    (1, "float32", 8),
    (3, "float16", 4),
    (6, "bfloat16", 2),
    (7, "int8", 8),
    (8, "int8", 4),
    (17, "float64", 4),
    (33, "int32", None),
]


def spmm(features: int, dtype: str, vector: int | None) -> None:
    tile = None if vector is None else RowTile(vector, 4, 2, 8)
    program = schedules.spmm.program(dtype)
    kernel = emulated(kernel_of(schedules.spmm, program, features, tile=tile))
    cubin_of(kernel.inspect_source(), CUDA["arch"])
    a, b = stored(MATRIX, dtype), random_values((30, features), dtype)
    result = summed(dtype)
    c = poisoned((40, features), result)
    kernel(a=a.values, b=b, c=c, **a.structure)
    b = b.astype("f8")
    assert_sums(c, a.exact @ b, abs(a.exact) @ np.abs(b), result)


def sddmm(features: int, dtype: str, vector: int | None) -> None:
    tile = None if vector is None else DotTile(vector, 4, 2, 8, 2)
    program = schedules.sddmm.program(dtype)
    kernel = emulated(kernel_of(schedules.sddmm, program, features, tile=tile))
    cubin_of(kernel.inspect_source(), CUDA["arch"])
    a = stored(MATRIX, dtype)
    x, y = (random_values((rows, features), dtype, rows) for rows in MATRIX.shape)
    result = summed(dtype)
    c = poisoned(MATRIX.nnz, result)
    kernel(x=x, y=y, c=c, **a.structure)
    terms = x.astype("f8")[a.rows] * y.astype("f8")[a.indices]
    assert_sums(c, terms.sum(1), np.abs(terms).sum(1), result)


def summed(dtype: str) -> str:
    """The type that sums of a type have unless another one is asked for."""
    return "int32" if dtype == "int8" else dtype


@pytest.mark.parametrize("features, dtype, vector", ROWS)
def test_rows_of_every_width(features, dtype, vector):
    spmm(features, dtype, vector)


@pytest.mark.parametrize("features, dtype, vector", DOTS)
def test_dot_products_of_every_width(features, dtype, vector):
    sddmm(features, dtype, vector)


@pytest.mark.parametrize("vector", [3, 5, 6, 7, 32])
def test_vectors_that_cuda_has_not_are_refused(vector):
    message = f"vector: expected a power of two up to 16 .*, found {vector}"
    with pytest.raises(ValueError, match=message):
        RowTile(vector, 8, 1, 8)
    with pytest.raises(ValueError, match=message):
        DotTile(vector, 8, 1, 8, 1)


@pytest.mark.parametrize("features", [1, 2, 3, 5, 7, 17, 33])
def test_tiles_cut_to_a_width_keep_vectors_that_cuda_has(features):
    tile = RowTile(8, 4, 2, 8).within(features)
    assert tile.vector in (1, 2, 4, 8)
    assert tile.vector <= features
    assert tile.width >= min(features, 64)


@pytest.mark.parametrize("vector", [None, 2])
def test_bools_are_moved_one_by_one(vector):
    tile = None if vector is None else RowTile(vector, 4, 1, 8)
    kernel = emulated(kernel_of(schedules.spmm, schedules.spmm.program("bool"), 8, tile=tile))
    cubin_of(kernel.inspect_source(), CUDA["arch"])
    a = sp.csr_matrix((np.ones(MATRIX.nnz, bool), MATRIX.indices, MATRIX.indptr), MATRIX.shape)
    b = np.random.default_rng(0).random((30, 8)) < 0.2
    c = poisoned((40, 8), "int32")
    kernel(a=a.data, b=b, c=c, indptr=a.indptr, indices=a.indices)
    np.testing.assert_array_equal(c, a.astype("i4") @ b.astype("i4"))


@pytest.mark.parametrize("lanes", [1, 8])
def test_a_block_may_have_a_single_dot_product(lanes):
    tile = DotTile(vector=1, lanes=lanes, vectors=1, groups=1, entries=1)
    program = schedules.sddmm.program()
    kernel = emulated(kernel_of(schedules.sddmm, program, 8, tile=tile))
    a = stored(MATRIX, "float32")
    x, y = (random_values((rows, 8), "float32", rows) for rows in MATRIX.shape)
    c = poisoned(MATRIX.nnz, "float32")
    kernel(x=x, y=y, c=c, **a.structure)
    terms = x.astype("f8")[a.rows] * y.astype("f8")[a.indices]
    assert_sums(c, terms.sum(1), np.abs(terms).sum(1), "float32")


@pytest.mark.parametrize("share", [2**24 + 1, 2**31 - 1, 2**63])
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_shares_beyond_any_use_are_refused(share, index):
    with pytest.raises(ValueError, match=f"share: expected at most {2**24}, found {share}"):
        kernel_of(schedules.spmm, schedules.spmm.program(index_dtype=index), 8, share=share)

"""SpMM on CUDA, run by the emulator: every width, type, structure and tile against float64."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from tvm.s_tir import Schedule

from tests.cuda.emulation import emulated
from tests.cuda.operator_cases import (
    CUDA,
    FEATURES,
    MATRICES,
    WIDTHS,
    assert_sums,
    covering,
    kernel_of,
    poisoned,
    power_law,
    random_values,
    stored,
    typed,
)
from tvm_sparse import schedules
from tvm_sparse.runtime import Executable
from tvm_sparse.schedules import cuda
from tvm_sparse.schedules.cuda import RowTile

spmm = schedules.spmm

#: Tiles, and entries of a share where rows are shared; None is the default.
TILES = {
    "default": {},
    "one lane": {"tile": RowTile(1, 1, 4, 33)},
    "no power of two": {"tile": RowTile(2, 5, 3, 7)},
    "wide vectors": {"tile": RowTile(8, 3, 2, 5)},
    "shares": {"share": 3, "tile": RowTile(4, 8, 1, 6)},
}


def check(
    kernel: Executable, matrix: sp.csr_matrix, features: int, dtype: str, index: str = "int32"
) -> None:
    a = stored(matrix, dtype, index)
    b = random_values((matrix.shape[1], features), dtype)
    c = poisoned((matrix.shape[0], features), dtype)
    kernel(a=a.values, b=b, c=c, **a.structure)
    b = b.astype("f8")
    assert_sums(c, a.exact @ b, abs(a.exact) @ np.abs(b), dtype)


@pytest.mark.parametrize(
    "features, dtype, index, tile",
    covering(
        features=FEATURES,
        dtype=["float32", "float16", "bfloat16"],
        index=["int32", "int64"],
        tile=list(TILES),
    ),
)
def test_every_width_type_and_tile(features, dtype, index, tile):
    program = spmm.program(dtype, index)
    kernel = emulated(kernel_of(spmm, program, features, **TILES[tile]))
    for matrix in MATRICES.values():
        for width in WIDTHS[1:4:2] if features is None else [features]:
            check(kernel, matrix, width, dtype, index)


def test_variants_that_tuning_chooses_from():
    program = spmm.program("float16").specialize({"f": 136})
    variants = spmm.space(Schedule(cuda.spmm.lowered(program)), CUDA)
    assert len({variant.mod.script() for variant in variants}) == len(variants)
    for kernel in emulated(variants[::7]):
        for name in ("random", "power law", "no rows"):
            check(kernel, MATRICES[name], 136, "float16")


@pytest.mark.parametrize("dtype", ["float64", "int8", "int32"])
def test_other_types(dtype):
    out = "int32" if dtype == "int8" else dtype
    kernel = emulated(kernel_of(spmm, spmm.program(dtype), 24))
    matrix = power_law(60, 50)
    matrix.data = np.round(3 * matrix.data)
    a, b = stored(matrix, dtype), random_values((50, 24), dtype)
    c = poisoned((60, 24), out)
    kernel(a=a.values, b=b, c=c, **a.structure)
    b = b.astype("f8")
    assert_sums(c, a.exact @ b, abs(a.exact) @ np.abs(b), out)


@pytest.mark.parametrize("features", [0, None])
def test_no_features_at_all(features):
    kernel = emulated(kernel_of(spmm, spmm.program("float16"), features))
    for matrix in MATRICES.values():
        check(kernel, matrix, 0, "float16")


@pytest.mark.parametrize("tile", ["default", "shares"])
@pytest.mark.parametrize("features", [17, 64])
def test_what_no_entry_names_stays_out(tile, features):
    """Inf and NaN in rows of ``b`` at both ends, whose columns are empty."""
    matrix = sp.hstack([sp.csr_matrix((90, 1)), power_law(90, 40), sp.csr_matrix((90, 1))], "csr")
    a = stored(matrix, "float32")
    b = random_values((42, features), "float32")
    b[0], b[-1] = np.inf, np.nan
    c = poisoned((90, features), "float32")
    kernel = emulated(kernel_of(spmm, spmm.program(), features, **TILES[tile]))
    kernel(a=a.values, b=b, c=c, **a.structure)
    b = np.where(np.isfinite(b), b, 0).astype("f8")
    assert_sums(c, a.exact @ b, abs(a.exact) @ np.abs(b), "float32")


def test_infinite_values_reach_the_rows_that_name_them_and_no_other():
    matrix = sp.csr_matrix(np.array([[0, 1, 0], [2, 0, 0], [0, 0, 0], [0, 1, 1]], "f4"))
    b = np.ones((3, 20), "f4")
    b[1, 7] = np.inf
    kernel = emulated(kernel_of(spmm, spmm.program(), 20))
    c = poisoned((4, 20), "float32")
    kernel(a=matrix, b=b, c=c)
    expected = np.array([1, 2, 0, 2], "f4")[:, None] * np.ones(20)
    expected[[0, 3], 7] = np.inf
    np.testing.assert_array_equal(c, expected)


def test_repeated_and_unsorted_entries_are_summed():
    matrix = sp.csr_matrix(
        (np.array([1, 2, 4, 8], "f4"), np.array([3, 0, 3, 3]), np.array([0, 3, 4])), (2, 4)
    )
    kernel = emulated(kernel_of(spmm, spmm.program(), 4))
    b, c = typed(np.arange(16).reshape(4, 4), "float32"), poisoned((2, 4), "float32")
    kernel(a=matrix.data, b=b, c=c, indptr=matrix.indptr, indices=matrix.indices)
    np.testing.assert_array_equal(c, [5 * b[3] + 2 * b[0], 8 * b[3]])

"""SDDMM on CUDA, run by the emulator: every width, type, structure and tile against float64."""

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
    random_values,
    stored,
)
from tvm_sparse import schedules
from tvm_sparse.runtime import Executable
from tvm_sparse.schedules import cuda
from tvm_sparse.schedules.cuda import DotTile

sddmm = schedules.sddmm

TILES = {
    "default": None,
    "a warp for an entry": DotTile(vector=1, lanes=32, vectors=2, groups=2, entries=8),
    "no power of two": DotTile(vector=4, lanes=1, vectors=3, groups=5, entries=3),
    "wide vectors": DotTile(vector=8, lanes=16, vectors=1, groups=8, entries=4),
}


def check(
    kernel: Executable,
    pattern: sp.csr_matrix,
    features: int,
    dtype: str,
    index: str = "int32",
    scaled: bool = False,
) -> None:
    a = stored(pattern, dtype, index)
    x = random_values((pattern.shape[0], features), dtype, seed=1)
    y = random_values((pattern.shape[1], features), dtype, seed=2)
    c = poisoned(pattern.nnz, dtype)
    kernel(x=x, y=y, c=c, **({"a": a.values} if scaled else {}), **a.structure)
    terms = x.astype("f8")[a.rows] * y.astype("f8")[a.indices]
    terms = terms * a.exact.data[:, None] if scaled else terms
    assert_sums(c, terms.sum(1), np.abs(terms).sum(1), dtype)


@pytest.mark.parametrize(
    "features, dtype, index, tile, scaled",
    covering(
        features=FEATURES,
        dtype=["float32", "float16", "bfloat16"],
        index=["int32", "int64"],
        tile=list(TILES),
        scaled=[False, True],
    ),
)
def test_every_width_type_and_tile(features, dtype, index, tile, scaled):
    program = sddmm.program(dtype, index, scaled=scaled)
    kernel = emulated(kernel_of(sddmm, program, features, tile=TILES[tile]))
    for pattern in MATRICES.values():
        for width in WIDTHS[1:4:2] if features is None else [features]:
            check(kernel, pattern, width, dtype, index, scaled)


def test_variants_that_tuning_chooses_from():
    program = sddmm.program("float16").specialize({"f": 136})
    variants = sddmm.space(Schedule(cuda.sddmm.lowered(program)), CUDA)
    assert len({variant.mod.script() for variant in variants}) == len(variants)
    for kernel in emulated(variants[::3]):
        for name in ("random", "power law", "no rows"):
            check(kernel, MATRICES[name], 136, "float16")


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_other_types(dtype):
    kernel = emulated(kernel_of(sddmm, sddmm.program(dtype), 24))
    check(kernel, MATRICES["power law"], 24, dtype)


@pytest.mark.parametrize("features", [0, None])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_dot_products_of_no_features_are_0(features, dtype):
    kernel = emulated(kernel_of(sddmm, sddmm.program(dtype), features))
    for pattern in MATRICES.values():
        check(kernel, pattern, 0, dtype)


@pytest.mark.parametrize("features", [17, 19, 64])
def test_infinite_values_stay_in_the_entries_that_name_them(features):
    """A width that leaves lanes unused: Inf times nothing must not turn sums into NaN."""
    pattern = sp.csr_matrix(np.array([[0, 1, 1], [1, 0, 0], [0, 0, 1]], "f4"))
    x, y = np.ones((3, features), "f4"), np.ones((3, features), "f4")
    x[0, 3], y[1, 5], y[2, features - 1] = np.inf, 2.0, 3.0
    c = poisoned(4, "float32")
    kernel = emulated(kernel_of(sddmm, sddmm.program(), features))
    kernel(x=x, y=y, c=c, indptr=pattern.indptr, indices=pattern.indices)
    np.testing.assert_array_equal(c, [np.inf, np.inf, features, features + 2])

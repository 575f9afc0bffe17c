"""Segment reductions on CUDA, run by the emulator: widths, types, operations, tiles against float64."""

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
)
from tests.cuda.source import cubin_of
from tvm_sparse import schedules
from tvm_sparse.runtime import Executable
from tvm_sparse.schedules import cuda
from tvm_sparse.schedules.cuda import RowTile

segments = schedules.segment_reduce

TILES = {
    "default": {},
    "no power of two": {"tile": RowTile(2, 5, 3, 7)},
    "wide vectors": {"tile": RowTile(8, 3, 2, 5)},
    "shares": {"share": 3, "tile": RowTile(1, 1, 4, 33)},
}


def check(
    kernel: Executable,
    lengths: sp.csr_matrix,
    features: int,
    operation: str,
    dtype: str,
    index: str = "int32",
    empty: str = "zero",
) -> None:
    """Reduce segments as long as the rows of a matrix."""
    indptr, count = lengths.indptr.astype(index), lengths.shape[0]
    x, y = random_values((lengths.nnz, features), dtype), poisoned((count, features), dtype)
    kernel(x=x, y=y, indptr=indptr)
    x = x.astype("f8")
    expected = segments.reference(operation, x, indptr, empty).reshape(count, features)
    if operation in ("max", "min"):
        np.testing.assert_array_equal(y.astype("f8"), expected)
        return
    terms = segments.reference(operation, np.abs(x), indptr).reshape(count, features)
    assert_sums(y, expected, terms, dtype)


@pytest.mark.parametrize(
    "features, operation, dtype, index, tile",
    covering(
        features=FEATURES,
        operation=list(segments.OPERATIONS),
        dtype=["float32", "float16", "bfloat16"],
        index=["int32", "int64"],
        tile=list(TILES),
    ),
)
def test_every_width_operation_type_and_tile(features, operation, dtype, index, tile):
    program = segments.program(operation, dtype, index)
    kernel = emulated(kernel_of(segments, program, features, **TILES[tile]))
    for lengths in MATRICES.values():
        for width in WIDTHS[1:4:2] if features is None else [features]:
            check(kernel, lengths, width, operation, dtype, index)


def test_variants_that_tuning_chooses_from():
    program = segments.program("mean", "float16").specialize({"f": 136})
    variants = segments.space(Schedule(cuda.segment_reduce.lowered(program)), CUDA, "segment_mean")
    for kernel in emulated(variants[1::9]):
        for name in ("random", "power law", "no rows"):
            check(kernel, MATRICES[name], 136, "mean", "float16")


@pytest.mark.parametrize("operation", ["max", "min"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("share", [None, 5])
def test_empty_segments_have_the_identity_where_that_is_asked_for(operation, dtype, share):
    program = segments.program(operation, dtype, empty="identity")
    kernel = emulated(kernel_of(segments, program, 20, share=share))
    cubin_of(kernel.inspect_source(), CUDA["arch"])
    for name in ("power law", "mostly empty rows", "no entries"):
        check(kernel, MATRICES[name], 20, operation, dtype, empty="identity")


@pytest.mark.parametrize("dtype", ["float64", "int32"])
@pytest.mark.parametrize("operation", ["sum", "max"])
def test_other_types(dtype, operation):
    kernel = emulated(kernel_of(segments, segments.program(operation, dtype), 24))
    check(kernel, MATRICES["power law"], 24, operation, dtype)


@pytest.mark.parametrize("features", [0, None])
def test_no_features_at_all(features):
    kernel = emulated(kernel_of(segments, segments.program("mean", "float16"), features))
    for lengths in MATRICES.values():
        check(kernel, lengths, 0, "mean", "float16")

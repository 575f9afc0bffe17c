"""SpMV on CUDA, run by the emulator: every type, structure and number of lanes against float64."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from tvm.s_tir import Schedule

from tests.cuda.emulation import emulated
from tests.cuda.operator_cases import (
    CUDA,
    MATRICES,
    assert_sums,
    covering,
    kernel_of,
    poisoned,
    power_law,
    random_values,
    stored,
)
from tvm_sparse import schedules
from tvm_sparse.runtime import Executable
from tvm_sparse.schedules import cuda
from tvm_sparse.schedules.cuda import RowTile

spmv = schedules.spmv


def check(kernel: Executable, matrix: sp.csr_matrix, dtype: str, index: str = "int32") -> None:
    a, x = stored(matrix, dtype, index), random_values(matrix.shape[1], dtype)
    y = poisoned(matrix.shape[0], dtype)
    kernel(a=a.values, x=x, y=y, **a.structure)
    x = x.astype("f8")
    assert_sums(y, a.exact @ x, abs(a.exact) @ np.abs(x), dtype)


@pytest.mark.parametrize(
    "lanes, rows, share, dtype, index",
    covering(
        lanes=[1, 2, 4, 8, 16, 32],
        rows=[1, 5, 32],
        share=[None, 1, 40],
        dtype=["float32", "float16", "bfloat16"],
        index=["int32", "int64"],
    ),
)
def test_every_type_number_of_lanes_and_share(lanes, rows, share, dtype, index):
    tile = RowTile(1, lanes, 1, rows)
    program = spmv.program(dtype, index)
    kernel = emulated(kernel_of(spmv, program, tile=tile, share=share))
    for matrix in MATRICES.values():
        check(kernel, matrix, dtype, index)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_the_default(dtype):
    kernel = emulated(kernel_of(spmv, spmv.program(dtype)))
    for matrix in MATRICES.values():
        check(kernel, matrix, dtype)


def test_variants_that_tuning_chooses_from():
    variants = spmv.space(Schedule(cuda.spmv.lowered(spmv.program())), CUDA)
    assert len({variant.mod.script() for variant in variants}) == len(variants)
    for kernel in emulated(variants):
        for name in ("power law", "mostly empty rows", "no rows"):
            check(kernel, MATRICES[name], "float32")


@pytest.mark.parametrize("share", [None, 7])
def test_what_no_entry_names_stays_out(share):
    """Inf and NaN at both ends of ``x``, whose columns are empty."""
    matrix = sp.hstack([sp.csr_matrix((90, 1)), power_law(90, 40), sp.csr_matrix((90, 1))], "csr")
    a, x, y = stored(matrix, "float32"), random_values(42, "float32"), poisoned(90, "float32")
    x[0], x[-1] = np.inf, np.nan
    emulated(kernel_of(spmv, spmv.program(), share=share))(a=a.values, x=x, y=y, **a.structure)
    x = np.where(np.isfinite(x), x, 0).astype("f8")
    assert_sums(y, a.exact @ x, abs(a.exact) @ np.abs(x), "float32")

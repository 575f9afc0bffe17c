"""Vectors are moved of aligned memory only: arrays of threads are aligned, arguments are checked."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse as sp

from tests.cuda.emulation import emulated
from tvm_sparse import schedules
from tvm_sparse.runtime import Executable
from tvm_sparse.schedules._build import scheduled

CUDA = {"kind": "cuda", "arch": "sm_80"}
MATRIX = sp.random(30, 20, 0.2, "csr", dtype="f4", random_state=1)


def spmm(dtype: str, features: int) -> Executable:
    program = schedules.spmm.program(dtype)
    return emulated(scheduled(schedules.spmm.__name__, program, CUDA, features))


@pytest.mark.parametrize(
    "dtype, features, vector, size",
    [("float32", 64, "float4", 16), ("float16", 64, "uint4", 16), ("float16", 100, "half4", 8)],
)
def test_registers_are_aligned_to_the_vectors_moved_of_them(dtype, features, vector, size):
    source = spmm(dtype, features).inspect_source()
    moved = re.findall(rf"\*\({vector}\*\)\((\w+_local_ptr)", source)
    declared = re.findall(r"alignas\((\d+)\) \w+ (\w+_local_ptr)\[", source)
    alignments = {name: int(alignment) for alignment, name in declared}
    assert set(moved) == {"B_local_ptr", "C_local_ptr"}
    assert all(alignments[name] >= size for name in moved)


def beyond(array: np.ndarray, elements: int) -> np.ndarray:
    """Copy an array to so many elements beyond an address that is a multiple of 64 bytes."""
    memory = np.zeros(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + elements * array.itemsize
    moved = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


@pytest.mark.parametrize("name", ["b", "c"])
def test_arguments_that_vectors_cannot_be_moved_of_are_refused_by_name(name):
    kernel = spmm("float32", 64)
    arrays = {"b": np.ones((20, 64), "f4"), "c": np.full((30, 64), np.nan, "f4")}
    expected = MATRIX.astype("f8") @ arrays["b"]
    kernel(a=MATRIX, **arrays | {name: beyond(arrays[name], 4)})
    for elements in (1, 2, 3):
        moved = beyond(arrays[name], elements)
        with pytest.raises(ValueError, match=rf"'{name}': expected .* multiple of 16 bytes"):
            kernel(a=MATRIX, **arrays | {name: moved})
    kernel(a=MATRIX, **arrays)
    np.testing.assert_allclose(arrays["c"], expected, rtol=1e-6)


def test_arguments_that_only_elements_are_moved_of_may_begin_anywhere():
    kernel = spmm("float32", 17)
    b, c = np.ones((20, 17), "f4"), beyond(np.full((30, 17), np.nan, "f4"), 3)
    kernel(a=MATRIX, b=beyond(b, 1), c=c)
    np.testing.assert_allclose(c, MATRIX.astype("f8") @ b, rtol=1e-6)

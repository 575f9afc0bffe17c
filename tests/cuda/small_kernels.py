"""Kernels of one text with a hole in it, which tests of the emulator fill well and badly."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from tests.cuda.emulation import emulated_source

__all__ = ["NUMPY", "counted", "empty", "exact", "launcher", "random"]

NUMPY = {
    "half": np.dtype("float16"),
    "nv_bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float": np.dtype("float32"),
}


def random(shape: int | tuple[int, ...], dtype: np.dtype, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32").astype(dtype)


def exact(array: np.ndarray) -> np.ndarray:
    return array.astype("float64")


def launcher(code: str) -> Callable[..., None]:
    """Return a function that runs the code's kernel ``k`` with text put in its hole."""

    def run(filling: str, grid, block, *arguments, shared: int = 0, arch: str = "sm_80") -> None:
        kernels = emulated_source(code.replace("HOLE", filling), arch)
        kernels["k"](grid, block, shared, *arguments)

    return run


def counted(size: int, dtype: str = "float32") -> np.ndarray:
    return np.arange(size, dtype=dtype)


def empty(size: int) -> np.ndarray:
    return np.full(size, np.nan, "float32")

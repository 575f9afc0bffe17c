"""Arrays that begin at a cache line, as PyTorch's and TVM's do and NumPy's do not.

A vector of 64 bytes at another address takes two cache lines, which would slow whoever got the array.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["aligned", "aligned_empty"]

_LINE = 64


def aligned_empty(shape: Sequence[int], dtype: type | str = np.float32) -> np.ndarray:
    """Return an array with any content."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    return raw[start : start + size].view(dtype).reshape(shape)


def aligned(array: np.ndarray) -> np.ndarray:
    """Return a copy of an array."""
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy

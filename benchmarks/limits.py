"""How fast this machine reads memory, and how many bytes an operator cannot avoid moving."""

from __future__ import annotations

import time

import numba
import numpy as np

__all__ = ["Bandwidth", "compulsory_bytes"]

_SIZES = [1 << shift for shift in (18, 20, 22, 24, 26, 28)]


@numba.njit(fastmath=True)
def _sum(values: np.ndarray) -> float:
    total = np.float32(0)
    for i in range(values.size):
        total += values[i]
    return total


@numba.njit(parallel=True, fastmath=True)
def _read(values: np.ndarray, parts: int, repeats: int) -> float:
    """Each part is read again and again by one thread."""
    totals = np.zeros(parts)
    step = values.size // parts
    for part in numba.prange(parts):
        mine = values[part * step : (part + 1) * step]
        for _ in range(repeats):
            mine[0] += 1
            totals[part] += _sum(mine)
    return totals.sum()


class Bandwidth:
    """Measured read bandwidth for working sets from 256 KiB to 256 MiB.

    Parameters
    ----------
    threads : int
        Threads that read at once.
    """

    def __init__(self, threads: int) -> None:
        numba.set_num_threads(threads)
        self.bytes_per_second = {size: _measure(size, threads) for size in _SIZES}

    def of_working_set(self, size: int) -> float:
        """Return bytes per second for data of `size` bytes read again and again."""
        return next(
            (rate for limit, rate in self.bytes_per_second.items() if size <= limit),
            self.bytes_per_second[_SIZES[-1]],
        )


def _measure(size: int, threads: int) -> float:
    values = np.ones(size // 4, np.float32)
    repeats = max(1, (1 << 28) // size)
    _read(values, threads, 1)
    best = np.inf
    for _ in range(5):
        start = time.perf_counter()
        _read(values, threads, repeats)
        best = min(best, (time.perf_counter() - start) / repeats)
    return size / best


def compulsory_bytes(operator: str, rows: int, entries: int, features: int) -> int:
    """Return the bytes of all operands, each moved once: 4-byte values and indices.

    Parameters
    ----------
    operator : str
        ``"spmv"``, ``"spmm"``, ``"sddmm"`` or ``"segment_sum"``, on a square matrix.
    rows, entries, features : int
        Its rows, its stored entries, the feature width.
    """
    dense = 4 * rows * features
    structure = 4 * (rows + 1) + 4 * entries
    return {
        "spmv": structure + 4 * entries + 2 * 4 * rows,
        "spmm": structure + 4 * entries + 2 * dense,
        "sddmm": structure + 4 * entries + 2 * dense,
        "segment_sum": 4 * (rows + 1) + 4 * entries * features + dense,
    }[operator]

"""Timing and checking of kernels in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

__all__ = ["interleaved_medians", "same_result", "seconds_per_call"]


def seconds_per_call(run: Callable[[], object], least: float = 0.02) -> float:
    """Return the mean time of a call, in seconds, over calls that take `least` seconds together."""
    run()
    count, begin = 0, time.perf_counter()
    while True:
        run()
        count += 1
        elapsed = time.perf_counter() - begin
        if elapsed >= least:
            return elapsed / count


def interleaved_medians(
    runs: Sequence[Callable[[], object]], rounds: int = 9, least: float = 0.02
) -> list[float]:
    """Time several functions in turns and return the median time of a call of each, in seconds."""
    samples: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for taken, run in zip(samples, runs):
            taken.append(seconds_per_call(run, least))
    return [float(np.median(taken)) for taken in samples]


def same_result(
    found: np.ndarray, expected: np.ndarray, rtol: float, slots: np.ndarray | None = None
) -> bool:
    """Compare relative to the largest expected value; Inf and NaN must stand at the same places.

    Of padded arrays, only `slots` of the flattened arrays are compared.
    """
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if found.shape != expected.shape:
        return False
    if slots is not None:
        found, expected = found.reshape(-1)[slots], expected.reshape(-1)[slots]
    finite = np.isfinite(expected)
    scale = np.abs(expected[finite]).max(initial=0.0)
    close = np.abs(found[finite] - expected[finite]) <= rtol * scale
    return bool(close.all()) and np.array_equal(found[~finite], expected[~finite], equal_nan=True)

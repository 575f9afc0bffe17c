"""Fair times on a noisy machine: contenders take turns in one process, medians over rounds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = ["Times", "geometric_mean", "interleave", "others_load"]


#: A call of more slices than this needs no more warming than one.
_LONG = 10


@dataclass(frozen=True)
class Times:
    """Times of several contenders on one problem.

    Parameters
    ----------
    seconds : dict of str to float
        Median time of a call.
    speedups : dict of str to float
        For each peer, the median over rounds of its time divided by ours in the same round.
    others_load : float
        Processors that other processes kept busy meanwhile; above 0.1 the times are doubtful.
    """

    seconds: dict[str, float]
    speedups: dict[str, float]
    others_load: float


def interleave(
    contenders: dict[str, Callable[[], object]], ours: str, rounds: int, slice_seconds: float
) -> Times:
    """Time contenders in turns.

    Parameters
    ----------
    contenders : dict of str to callable
        What to call; each is warmed twice, or once if it takes long.
    ours : str
        The contender that the others are compared with.
    rounds : int
        In each round every contender runs for `slice_seconds`, after one warming call.
    slice_seconds : float
        Time of a contender in a round.

    Returns
    -------
    Times
        Medians.
    """
    repeats = {name: _repeats(call, slice_seconds) for name, call in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    load = others_load()
    for _ in range(rounds):
        for name, call in contenders.items():
            call()
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            samples[name].append((time.perf_counter() - start) / repeats[name])
    seconds = {name: float(np.median(times)) for name, times in samples.items()}
    own = np.array(samples[ours])
    speedups = {
        name: float(np.median(np.array(times) / own))
        for name, times in samples.items()
        if name != ours
    }
    return Times(seconds, speedups, load())


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def _repeats(call: Callable[[], object], slice_seconds: float) -> int:
    start = time.perf_counter()
    call()
    if time.perf_counter() - start > _LONG * slice_seconds:
        return 1
    call()
    start = time.perf_counter()
    call()
    return max(1, int(slice_seconds / max(time.perf_counter() - start, 1e-7)))


def others_load() -> Callable[[], float]:
    """Start watching; the result tells how many processors other processes used since."""
    start = time.perf_counter(), _all_busy(), sum(os.times()[:2])

    def load() -> float:
        elapsed = time.perf_counter() - start[0]
        busy = (_all_busy() - start[1]) - (sum(os.times()[:2]) - start[2])
        return max(0.0, busy / elapsed) if elapsed else 0.0

    return load


def _all_busy() -> float:
    """Processor seconds that all processes used since the system started; 0 where unknown."""
    try:
        with open("/proc/stat", encoding="ascii") as stat:
            user, nice, system = (int(field) for field in stat.readline().split()[1:4])
    except OSError:
        return 0.0
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")

"""What is measured of a case: that results are right, times in turns, and the memory of a call.

A contender is a call and how its result is read; a case is what a section of the report has a row for.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..timing import interleave

__all__ = ["OURS", "Contender", "Limits", "check", "measure", "peak_bytes"]

OURS = "tvm_sparse"
_SLICE = 2e-3
#: A contender that takes so many seconds, and so many times as long as ours, has the better of two calls.
_SLOW, _SLOWER = 0.1, 6.0


@dataclass(frozen=True)
class Contender:
    """A way to compute a case.

    Parameters
    ----------
    call : callable
        What is timed.
    read : callable, optional
        From what it returns to a SciPy matrix or array; without one it returns that itself.
    """

    call: Callable[[], Any]
    read: Callable[[Any], sp.spmatrix | sp.sparray] = lambda result: result


@dataclass(frozen=True)
class Limits:
    """How long is measured.

    Parameters
    ----------
    rounds : int
        Rounds over all contenders, at most.
    seconds : float
        After which a case ends, if three rounds are done.
    """

    rounds: int = 7
    seconds: float = 4.0


def measure(
    contenders: dict[str, Contender], expected: Any, limits: Limits, ours: str = OURS
) -> dict:
    """Check, time and weigh all contenders of a case.

    Parameters
    ----------
    contenders : dict of str to Contender
        By name.
    expected : scipy.sparse matrix or array
        The result in float64.
    limits : Limits
        How long.
    ours : str
        The contender that the others are compared with.

    Returns
    -------
    dict
        ``seconds``, ``speedups`` over `ours`, ``peak`` bytes of a call beyond what was held before it,
        ``others_load`` and ``Z``, the entries of the result of `ours`.
    """
    peaks, single, held = {}, {}, 0
    for name, own in contenders.items():
        result = own.read(own.call())
        check(name, result, expected)
        held = result.nnz if name == ours else held
        del result
        start = time.perf_counter()
        peaks[name] = peak_bytes(own.call)
        single[name] = time.perf_counter() - start
    slow = {name: t for name, t in single.items() if t > max(_SLOW, _SLOWER * single[ours])}
    slow = {name: min(t, _seconds(contenders[name].call)) for name, t in slow.items()}
    calls = {name: own.call for name, own in contenders.items() if name not in slow}
    once = sum(single[name] + _SLICE for name in calls)
    times = interleave(calls, ours, _rounds(once, limits), _SLICE)
    slower = {name: t / times.seconds[ours] for name, t in slow.items()}
    return {
        "Z": int(held),
        "seconds": times.seconds | slow,
        "speedups": {name: (times.speedups | slower)[name] for name in contenders if name != ours},
        "timed_apart": list(slow),
        "others_load": times.others_load,
        "peak": peaks,
    }


def check(name: str, found: Any, expected: Any) -> None:
    """Compare a result with that in float64.

    Raises
    ------
    RuntimeError
        If it is another one.
    """
    if found.shape != expected.shape:
        raise RuntimeError(f"{name}: expected shape {expected.shape}, found {found.shape}")
    found = _flat(found)
    difference = abs(found - _flat(expected))
    scale = abs(expected).max() if expected.nnz else 1.0
    if difference.nnz and difference.max() > 1e-4 * scale:
        raise RuntimeError(f"{name}: wrong result: differs by {difference.max()}, scale {scale}")


def peak_bytes(call: Callable[[], Any]) -> int | None:
    """Return by how much a call raises the resident memory at most; None where the system hides it."""
    if not Path("/proc/self/clear_refs").exists():
        call()
        return None
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    before = _status("VmRSS")
    result = call()
    peak = _status("VmHWM")
    del result
    return max(0, peak - before)


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) << 10


def _rounds(once: float, limits: Limits) -> int:
    """Return how many rounds fit, of which each takes all calls about twice; three calls come before."""
    return int(np.clip((limits.seconds - 3 * once) / (2 * once), 3, limits.rounds))


def _flat(found: Any) -> sp.csr_array:
    """Return a result as a matrix in float64, dimensions after the first side by side."""
    if found.ndim == 2:
        return sp.csr_array(found.astype(np.float64))
    shape = (found.shape[0], int(np.prod(found.shape[1:], dtype=np.int64)))
    return sp.csr_array(found.astype(np.float64).reshape(shape))

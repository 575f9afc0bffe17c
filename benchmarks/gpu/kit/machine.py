"""The machine that is measured: its arrays, its clock and its limits.

:class:`Gpu` keeps arrays in PyTorch tensors and times with CUDA events; :class:`Host` does the same with
NumPy and the processor's clock, so that the script can be tried where there is no GPU.

**Time of a call.** Calls are queued behind a kernel that keeps the GPU busy, so that events see the kernels
alone and not how fast Python launches them. *Warm*: several calls in a row, of which the time of one is a
share. *Cold*: before each call a buffer larger than the second-level cache is written. Both are medians.
"""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

__all__ = ["Gpu", "Host", "Limits", "Machine", "Times"]


@dataclass(frozen=True)
class Times:
    """Median seconds of a call, with the cache flushed before it and without."""

    cold: float
    warm: float


@dataclass
class Limits:
    """What the machine can do at best, as measured.

    Parameters
    ----------
    bytes_per_second : float
        A device-to-device copy, bytes read and written.
    flops : dict of str to float
        Operations a second of a large dense product, by dtype.
    """

    bytes_per_second: float
    flops: dict[str, float]

    def seconds(self, moved: float, operations: float = 0.0, dtype: str = "float32") -> float:
        """Return the least time in which bytes can be moved and operations be done."""
        return max(moved / self.bytes_per_second, operations / self.flops[dtype])


class Machine:
    """Arrays and clock; see :class:`Gpu` and :class:`Host`."""

    is_gpu = False

    def describe(self) -> dict[str, Any]:
        """Return what the machine and its software are."""
        return {"python": platform.python_version(), "numpy": np.__version__}

    def array(self, values: np.ndarray, dtype: str | None = None) -> Any:
        """Return values on the machine."""
        raise NotImplementedError

    def random(self, shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
        """Return normally distributed values."""
        raise NotImplementedError

    def unset(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return an array of NaN, so that what is not written shows."""
        raise NotImplementedError

    def padded(self, values: Any, places: np.ndarray) -> Any:
        """Return the values at places that count from 1, and zero at place 0."""
        raise NotImplementedError

    def distance(self, found: Any, reference: Any) -> float:
        """Return the norm of the difference over that of the reference; NaN if anything is."""
        raise NotImplementedError

    def time(self, call: Callable[[], Any], seconds: float) -> Times:
        """Time a call, for about some seconds."""
        raise NotImplementedError

    def limits(self, size: int) -> Limits:
        """Measure what the machine can do."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise if the machine can't go on, as a GPU after a kernel that read beyond its memory."""

    @contextmanager
    def released(self) -> Iterator[None]:
        """Give memory back when the block ends."""
        yield


class Gpu(Machine):
    """The first GPU that PyTorch sees."""

    is_gpu = True
    device = "cuda"
    _WARM_CALLS = 20
    _BUSY_CYCLES = 400_000  # some 200 microseconds, in which Python launches what is timed

    def __init__(self) -> None:
        import torch  # noqa: PLC0415 (not on machines where the script is tried)

        # That CSR tensors are new, and their structure is not checked.
        warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)
        if not torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no GPU")
        self.torch = torch
        properties = torch.cuda.get_device_properties(0)
        cache = getattr(properties, "L2_cache_size", 0) or 64 << 20
        self._flushed = torch.empty(2 * cache // 4, dtype=torch.int32, device=self.device)

    def describe(self) -> dict[str, Any]:
        properties = self.torch.cuda.get_device_properties(0)
        return {
            **super().describe(),
            "device": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "memory": properties.total_memory,
            "cache": getattr(properties, "L2_cache_size", None),
            "capability": f"{properties.major}.{properties.minor}",
            "torch": self.torch.__version__,
            "cuda": self.torch.version.cuda,
            "clocks": _clocks(),
        }

    def array(self, values: np.ndarray, dtype: str | None = None) -> Any:
        made = self.torch.from_numpy(np.ascontiguousarray(values)).to(self.device)
        return made if dtype is None else made.to(getattr(self.torch, dtype))

    def random(self, shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
        generator = self.torch.Generator(device=self.device).manual_seed(seed)
        made = self.torch.randn(shape, generator=generator, device=self.device)
        return made.to(getattr(self.torch, dtype))

    def unset(self, shape: tuple[int, ...], dtype: str) -> Any:
        kind = getattr(self.torch, dtype)
        return self.torch.full(shape, float("nan"), dtype=kind, device=self.device)

    def padded(self, values: Any, places: np.ndarray) -> Any:
        return self.torch.cat((values.new_zeros(1), values))[self.array(places).long()]

    def distance(self, found: Any, reference: Any) -> float:
        difference = found.double() - reference
        return float(difference.norm() / reference.norm().clamp_min(1e-30))

    def time(self, call: Callable[[], Any], seconds: float) -> Times:
        call()
        self.torch.cuda.synchronize()
        first = self._elapsed(call, 1)
        rounds = int(np.clip(seconds / 2 / (self._WARM_CALLS * first + 3e-4), 3, 30))
        calls = self._WARM_CALLS if first < 5e-3 else 3
        warm = [self._elapsed(call, calls) / calls for _ in range(rounds)]
        cold_rounds = int(np.clip(seconds / 2 / (first + 6e-4), 5, 100))
        cold = [self._elapsed(call, 1, flush=True) for _ in range(cold_rounds)]
        return Times(float(np.median(cold)), float(np.median(warm)))

    def _elapsed(self, call: Callable[[], Any], calls: int, flush: bool = False) -> float:
        """Time some calls that are queued while the GPU is busy with something else."""
        cuda = self.torch.cuda
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        if flush:
            self._flushed.fill_(1)
        cuda._sleep(self._BUSY_CYCLES * (1 + calls // 5))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def limits(self, size: int) -> Limits:
        torch = self.torch
        source = torch.randn(size * size * 8, device=self.device)
        target = torch.empty_like(source)
        copied = self.time(partial(target.copy_, source), 0.5).cold
        moved = 2 * source.numel() * source.element_size() / copied
        del source, target
        flops = {}
        for dtype in ("float16", "bfloat16", "tf32", "float32"):
            kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
            left, right = (torch.randn(size, size, device=self.device).to(kind) for _ in range(2))
            with self.matrix_mode(dtype):
                seconds = self.time(partial(torch.matmul, left, right), 0.5).warm
            flops[dtype] = 2 * size**3 / seconds
        return Limits(moved, flops)

    def check(self) -> None:
        self.torch.cuda.synchronize()

    @contextmanager
    def matrix_mode(self, dtype: str) -> Iterator[None]:
        """Let products of float32 use tf32, or not."""
        matmul = self.torch.backends.cuda.matmul
        before = matmul.allow_tf32
        matmul.allow_tf32 = dtype == "tf32"
        try:
            yield
        finally:
            matmul.allow_tf32 = before

    @contextmanager
    def released(self) -> Iterator[None]:
        yield
        self.torch.cuda.empty_cache()


class Host(Machine):
    """NumPy arrays and the processor's clock; nothing is flushed."""

    def array(self, values: np.ndarray, dtype: str | None = None) -> np.ndarray:
        return np.array(values, dtype=dtype)

    def random(self, shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).standard_normal(shape).astype(dtype)

    def unset(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        return np.full(shape, np.nan, dtype)

    def padded(self, values: np.ndarray, places: np.ndarray) -> np.ndarray:
        return np.concatenate([np.zeros(1, values.dtype), values])[places]

    def distance(self, found: Any, reference: Any) -> float:
        difference = np.linalg.norm(np.asarray(found, np.float64) - reference)
        return float(difference / max(np.linalg.norm(reference), 1e-30))

    def time(self, call: Callable[[], Any], seconds: float) -> Times:
        samples = []
        until = time.perf_counter() + seconds
        while not samples or (time.perf_counter() < until and len(samples) < 5):
            start = time.perf_counter()
            call()
            samples.append(time.perf_counter() - start)
        median = float(np.median(samples))
        return Times(median, median)

    def limits(self, size: int) -> Limits:
        source = np.ones(size * size, np.float32)
        target = np.empty_like(source)
        copied = self.time(lambda: np.copyto(target, source), 0.02).warm
        square = source.reshape(size, size)
        product = self.time(lambda: square @ square, 0.02).warm
        rate = 2 * size**3 / product
        return Limits(2 * source.nbytes / copied, dict.fromkeys(_DTYPES, rate))


_DTYPES = ("float16", "bfloat16", "tf32", "float32")


def _clocks() -> str | None:
    """Return clocks and temperature as ``nvidia-smi`` tells them; None where it doesn't."""
    import subprocess  # noqa: PLC0415

    asked = "clocks.sm,clocks.mem,temperature.gpu,power.draw,driver_version"
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip().splitlines()[0]
    return None

"""What a call costs with each policy: the constants of the automatic choice, and the terms they weigh.

Comes in: how many entries the rows of a call produce, the number of places of a row, the caches. Goes out:
nanoseconds of one core, by the sums that the policies write in ``Policy.cost``. All constants are fields
of :class:`Costs`; ``benchmarks/calibrate_workspace.py`` fits them.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["COSTS", "Costs", "Work", "cache_sizes", "memory_bytes"]

#: Rows that an estimate looks at.
_SAMPLE = 256


@dataclass(frozen=True)
class Costs:
    """Nanoseconds of one core; fitted on an AMD EPYC of 2 MiB of L2 and 32 MiB of L3.

    Attributes
    ----------
    dense_insert, list_insert, hash_insert, sort_insert, bucket_insert : float
        To take in an entry, in one phase, when the memory is in the nearest cache.
    dense_drain, list_drain, hash_drain, sort_drain, bucket_drain : float
        To give out an entry, without the sort.
    dense_word : float
        For each word of the lowest bitmap that is not zero.
    dense_row : float
        For each word of the topmost bitmap.
    surprise : float
        For an entry of which it is hard to predict whether its place is new; where a branch depends on it.
    byte : float
        For a byte of scratch, which the system finds and empties at the first touch; not fitted.
    window : float
        For an entry that the loops of a window produce and that lies outside of it.
    row : float
        For each row.
    sort_compare : float
        For each pair that a sort by insertion compares.
    sort_pass, sort_pass_byte : float
        For each entry and pass of a radix sort, and for each byte of payload.
    sort_bin : float
        For each value of a digit and pass.
    second, third, memory : float
        For an access that the second cache, the third, or none of them answers.
    """

    dense_insert: float = 1.61
    dense_drain: float = 1.06
    dense_word: float = 2.44
    dense_row: float = 0.233
    list_insert: float = 0.718
    list_drain: float = 2.45
    hash_insert: float = 1.14
    hash_drain: float = 13.0
    sort_insert: float = 1.81
    sort_drain: float = 0.0
    bucket_insert: float = 2.49
    bucket_drain: float = 4.02
    surprise: float = 10.1
    byte: float = 0.05
    window: float = 1.0
    row: float = 21.1
    sort_compare: float = 1.71
    sort_pass: float = 0.948
    sort_pass_byte: float = 0.0
    sort_bin: float = 0.14
    second: float = 0.126
    third: float = 1.73
    memory: float = 6.11


COSTS = Costs()


@dataclass(frozen=True)
class Work:
    """What a call has to do.

    Attributes
    ----------
    produced : numpy.ndarray
        Entries that a sample of the rows produce, repeated ones included, float64.
    scale : float
        How many rows one of the sample stands for.
    most : int
        The most that a row produces.
    length : int
        Places of a row.
    value_bytes : int
        Size of a value.
    rows : int
        How many rows there are.
    terms : int
        What all rows produce.
    costs : Costs
        Constants.
    """

    produced: np.ndarray
    scale: float
    most: int
    length: int
    value_bytes: int
    rows: int
    terms: int
    costs: Costs = COSTS

    @classmethod
    def of(cls, work: np.ndarray, length: int, value_bytes: int) -> Work:
        """Sample the rows of a call."""
        step = max(1, work.size // _SAMPLE)
        sample = work[step // 2 :: step].astype(np.float64)
        seen = sample.sum()
        scale = work.sum() / seen if seen else 1.0
        most, terms = int(work.max(initial=0)), int(work.sum())
        return cls(sample, float(scale), most, length, value_bytes, work.size, terms)

    def distinct(self) -> np.ndarray:
        """Estimate the distinct entries of each row, as if places were random."""
        return -self.length * np.expm1(-self.produced / max(1, self.length))

    def surprises(self) -> np.ndarray:
        """Estimate of how many entries of each row it is hard to predict whether their places are new."""
        new = self.distinct() / np.maximum(1.0, self.produced)
        return self.produced * new * (1 - new)

    def entries(self) -> np.ndarray:
        """Bound the distinct entries of each row."""
        return np.minimum(self.produced, self.length)

    def filled(self, buckets: int) -> np.ndarray:
        """Estimate how many of so many buckets each row fills."""
        return -buckets * np.expm1(-self.produced / buckets)

    def merges(self) -> np.ndarray:
        """Estimate how often a merge touches each entry of a row, of a list of a few thousand entries."""
        return np.log2(np.maximum(1.0, self.produced / 4096))

    def total(self, each: np.ndarray) -> float:
        """Add up the nanoseconds of the rows."""
        return float(self.scale * (each + self.costs.row).sum())

    def access(self, memory: np.ndarray | float) -> np.ndarray | float:
        """Return what an access costs beyond the nearest cache, in a memory of so many bytes."""
        nearest, second, third = cache_sizes()
        sizes = np.log2([nearest, second, third, 8 * third])
        return np.interp(
            np.log2(np.maximum(memory, 1.0)),
            sizes,
            [0.0, self.costs.second, self.costs.third, self.costs.memory],
        )

    def sort_cost(self, count: np.ndarray, payload: int) -> np.ndarray:
        """Return what sorting so many places of each row costs, with a payload of so many bytes."""
        bits = max(1, (self.length - 1).bit_length())
        digit = np.where(count < 2048, 6, 11)
        passes = np.ceil(bits / digit)
        moved = (
            self.costs.sort_pass
            + self.costs.sort_pass_byte * payload
            + self.access(count * (16 + payload))
        )
        by_digits = passes * (moved * count + self.costs.sort_bin * 2 ** np.ceil(bits / passes))
        return np.where(count <= 24, self.costs.sort_compare * count**2 / 4, by_digits)


@functools.cache
def memory_bytes() -> int:
    """Return the memory that there is; a common size where the system does not say it.

    That of the machine, or what its control group, such as a container, may use of it.
    """
    try:
        found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, ValueError, OSError):
        found = [8 << 30]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (Path("/sys/fs/cgroup") / name).read_text().strip()
        except OSError:
            continue
        found += [int(text)] if text.isdigit() else []
    return min(found)


@functools.cache
def cache_sizes() -> tuple[int, int, int]:
    """Return the bytes of the data caches, nearest first; common sizes where the system says none."""
    found = {1: 32 << 10, 2: 1 << 20, 3: 32 << 20}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level, size = (
                (folder / name).read_text().strip() for name in ("type", "level", "size")
            )
        except OSError:
            continue
        if kind != "Instruction" and size.endswith("K") and int(level) in found:
            found[int(level)] = int(size[:-1]) << 10
    return found[1], max(found[1] + 1, found[2]), max(found[2] + 2, found[3])

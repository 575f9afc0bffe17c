"""Sizes of caches, and ranges of columns that fit them."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np

from .format import check_positive

__all__ = ["choose_column_parts", "second_level_cache_bytes"]

#: Where neither the operating system nor the caller tells.
_USUAL_BYTES = 1 << 20
#: Entries that a row must have in each range, or visiting the row once more costs more than it saves.
_LEAST_ENTRIES = 8


def choose_column_parts(
    shape: tuple[int, int],
    entries: int,
    features: int,
    dtype: str = "float32",
    cache_bytes: int | None = None,
) -> int:
    """Choose into how many ranges to cut the columns of a matrix that multiplies a dense one.

    Each range needs the rows of the dense operand that belong to its columns: there are as many ranges
    as make these fill half of the second-level cache, the other half being for results, values and
    indices. There are fewer where the rows of the matrix would have less than 8 entries in a range
    on average, since every range reads and writes the results of its rows once more.

    Parameters
    ----------
    shape : tuple of int
        Of the matrix.
    entries : int
        Stored entries of it.
    features : int
        Columns of the dense operand.
    dtype : str
        Of the dense operand.
    cache_bytes : int, optional
        Size of the cache; by default that of this machine's second level, 1 MiB where that is unknown.

    Returns
    -------
    int
        At least 1.

    Examples
    --------
    >>> choose_column_parts((1000, 1000), 64_000, 1024, cache_bytes=1 << 20)
    8
    >>> choose_column_parts((1000, 1000), 4_000, 1024, cache_bytes=1 << 20)
    1
    """
    check_positive(features=features)
    if cache_bytes is None:
        cache_bytes = second_level_cache_bytes() or _USUAL_BYTES
    check_positive(cache_bytes=cache_bytes)
    itemsize = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    rows, columns = shape
    wanted = -(-columns * features * itemsize // (cache_bytes // 2 or 1))
    most = entries // (max(1, rows) * _LEAST_ENTRIES)
    return max(1, min(wanted, most))


@cache
def second_level_cache_bytes() -> int | None:
    """Return the size of the second-level cache of a core, None where the system does not tell."""
    path = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
    try:
        text = path.read_text(encoding="ascii").strip()
        return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]]
    except (OSError, ValueError, KeyError, IndexError):
        pass
    try:
        return os.sysconf("SC_LEVEL2_CACHE_SIZE") or None
    except (AttributeError, OSError, ValueError):
        return None

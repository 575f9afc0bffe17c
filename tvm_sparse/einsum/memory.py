"""Whether a result fits into memory, asked before anything is allocated for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..workspace.costs import memory_bytes

__all__ = ["check_sizes"]

#: Row pointers are counted, summed up and brought to the index type of the result.
_POINTER_BYTES = 24


def check_sizes(letters: str, shape: Sequence[int], out: str, dtype: np.dtype) -> None:
    """Refuse a result whose sizes alone need more than this machine's memory.

    Parameters
    ----------
    letters : str
        Of the result.
    shape : sequence of int
        Its sizes.
    out : str
        What it is returned as.
    dtype : numpy.dtype
        Of its values.

    Raises
    ------
    MemoryError
        If all values of a dense one, or the row pointers of a compressed one, do not fit.
    """
    sizes = " x ".join(f"{size} ({letter})" for letter, size in zip(letters, shape))
    if out == "dense":
        needed, what = math.prod(shape) * dtype.itemsize, f"all places of {sizes}"
        advice = "a sparse result, such as out='coo', takes memory for its entries alone"
    elif len(shape) == 2 and out in ("csr", "csc", "bsr"):
        rows = shape[1] if out == "csc" else shape[0]
        needed, what = (rows + 1) * _POINTER_BYTES, f"the pointers of a result of {sizes}"
        advice = "out='coo' and out='dcsr' take memory for its entries alone"
    else:
        return
    if needed > memory_bytes():
        raise MemoryError(
            f"out: expected a result that fits into the {memory_bytes() / 2**30:.3g} GiB of this machine, "
            f"found {out!r}, which takes {needed / 2**30:.3g} GiB for {what}; {advice}"
        )

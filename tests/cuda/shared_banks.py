"""Conflicts of banks: how the 32 lanes of a warp share out an access to dynamic shared memory.

In: generated CUDA C, of which the index expressions are evaluated for each lane. Out: for every access, how
many passes it takes beyond the least. Shared memory has 32 banks of four bytes; accesses of 16 bytes a lane
are made for 8 lanes at a time, ``ldmatrix`` for the 8 rows of each matrix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["SharedRead", "shared_reads"]

_ACCESS = re.compile(r"\(\((\w+)\*\)buf_dyn_shmem_ptr\)\[")
_BYTES = {"half": 2, "nv_bfloat16": 2, "float": 4}
_WARP, _BANKS, _WORD = 32, 32, 4


@dataclass(frozen=True)
class SharedRead:
    """A read of shared memory by a warp.

    Attributes
    ----------
    by_matrices : bool
        Whether it is ``ldmatrix``; otherwise, each lane reads a value.
    passes : int
        How often the memory is accessed for lanes that could be served at once.
    """

    by_matrices: bool
    passes: int


def shared_reads(text: str, warp: int = 0) -> list[SharedRead]:
    """Return the reads of dynamic shared memory in a text without loops.

    Parameters
    ----------
    text : str
        Statements; copies to shared memory are passed over.
    warp : int
        ``threadIdx.y`` of the warp; a variable ``turn`` is 2.

    Examples
    --------
    >>> text = "f_ld_shared_b32(x, &(((float*)buf_dyn_shmem_ptr)[(((int)threadIdx.x) * STEP)]));"
    >>> [shared_reads(text.replace("STEP", step))[0].passes for step in ("1", "2", "32", "33", "0")]
    [1, 2, 32, 1, 1]
    >>> text = "f_ldmatrix_x4(&(((half*)buf_dyn_shmem_ptr)[((((int)threadIdx.x) & 15) * STEP)]));"
    >>> [shared_reads(text.replace("STEP", step))[0].passes for step in ("8", "16", "24", "64", "72")]
    [1, 2, 1, 8, 1]
    """
    found = []
    for line in text.splitlines():
        for match in _ACCESS.finditer(line):
            by_matrices = "ldmatrix" in line[: match.start()]
            if not by_matrices and "ld_shared" not in line[: match.start()]:
                continue
            index = line[match.end() : _closing(line, match.end())]
            size = 16 if by_matrices else _BYTES[match[1]]
            begins = [_BYTES[match[1]] * _value(index, lane, warp) for lane in range(_WARP)]
            found.append(SharedRead(by_matrices, _passes(begins, size)))
    return found


def _passes(begins: list[int], size: int) -> int:
    """How often the worst bank of the worst group of lanes is accessed."""
    together = _BANKS * _WORD // max(size, _WORD)
    worst = 1
    for first in range(0, _WARP, together):
        words = {
            (begin + byte) // _WORD
            for begin in begins[first : first + together]
            for byte in range(0, size, _WORD)
        }
        banks = [word % _BANKS for word in words]
        worst = max(worst, *map(banks.count, set(banks)))
    return worst


def _value(index: str, lane: int, warp: int) -> int:
    """Evaluate an index of C, whose parts are all positive."""
    index = index.replace("((int)threadIdx.x)", str(lane)).replace("((int)threadIdx.y)", str(warp))
    return eval(index.replace("/", "//"), {"__builtins__": {}}, {"turn": 2})


def _closing(text: str, start: int) -> int:
    depth = 1
    for at in range(start, len(text)):
        depth += (text[at] == "[") - (text[at] == "]")
        if depth == 0:
            return at
    raise ValueError(f"no closing bracket in {text!r}")

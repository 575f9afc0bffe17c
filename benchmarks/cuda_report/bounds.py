"""The least that an entry of SpMM and SDDMM costs a warp, to compare an inner loop with.

``L`` lanes hold the row of one entry, so a warp has ``32 / L`` entries in hand at a time and its
instructions serve all of them. Per entry of that warp:

**Bytes**: every index, value and row of a dense operand is read once for each use of it. SpMM reads an
index, a value and a row of ``B``; SDDMM an index, a row of ``X`` and a row of ``Y``, and a value if it is
scaled.

**Instructions**, each counted once for the ``32 / L`` entries that share it:

- a load of the index, and one of the value: the place of a row is not aligned, so these are no vectors;
- for each row of a dense operand ``ceil(row bytes / (L * v))`` loads, where ``v`` is the widest vector, of
  16 bytes at most, that divides the row;
- for each such row one wide multiply-add, which makes the address of an index; two for an index of 64 bits,
  whose halves are multiplied apart;
- ``ceil(features / L)`` multiply-adds, and a conversion for each value of 16 bits that is loaded, since
  these are added up in float32;
- for SDDMM the sum over lanes, ``log2(L)`` shuffles and additions, and a store;
- for formats with padding one comparison of the index, which finds it; two for an index of 64 bits;
- three instructions that step, compare and branch, for every four entries.

Pointers of rows, results and the search for the row of an entry are not in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Minimum", "sddmm_minimum", "spmm_minimum"]

_WARP = 32
_LOOP = 3 / 4
_WIDEST = 16
#: Bytes of a register.
_WORD = 4


@dataclass(frozen=True)
class Minimum:
    """Bytes that a warp must load for an entry, and instructions that it must issue."""

    loaded_bytes: float
    instructions: float


def spmm_minimum(
    features: int, value_bytes: int, index_bytes: int, lanes: int, padded: bool = False
) -> Minimum:
    """Return the minimum of SpMM.

    Parameters
    ----------
    features : int
        Columns of ``B``.
    value_bytes, index_bytes : int
        Size of a value and of an index.
    lanes : int
        Lanes that hold the row of an entry.
    padded : bool
        Whether entries may be padding.

    Examples
    --------
    >>> spmm_minimum(128, 4, 4, 32)
    Minimum(loaded_bytes=520, instructions=8.75)
    >>> spmm_minimum(128, 4, 8, 32)
    Minimum(loaded_bytes=524, instructions=9.75)
    """
    widened = _conversions(features, value_bytes, lanes) + (value_bytes == 2)
    words = index_bytes // _WORD
    issued = 2 + _row_loads(features, value_bytes, lanes) + words
    issued += math.ceil(features / lanes) + widened + _LOOP + padded * words
    return Minimum(index_bytes + (features + 1) * value_bytes, issued * lanes / _WARP)


def sddmm_minimum(
    features: int, value_bytes: int, index_bytes: int, lanes: int, scaled: bool = False
) -> Minimum:
    """Return the minimum of SDDMM in CSR; parameters as in :func:`spmm_minimum`.

    Examples
    --------
    >>> sddmm_minimum(128, 4, 4, 32).loaded_bytes
    1028
    """
    widened = 2 * _conversions(features, value_bytes, lanes)
    rows = 2 * (_row_loads(features, value_bytes, lanes) + index_bytes // _WORD)
    summed = 2 * math.log2(lanes) + 1
    issued = 1 + rows + math.ceil(features / lanes) + widened + summed + _LOOP
    loaded = index_bytes + 2 * features * value_bytes
    if scaled:
        issued += 2 + (value_bytes == 2)
        loaded += value_bytes
    return Minimum(loaded, issued * lanes / _WARP)


def _row_loads(features: int, value_bytes: int, lanes: int) -> int:
    """Return loads of a row."""
    row_bytes = features * value_bytes
    vector = math.gcd(row_bytes, _WIDEST)
    return math.ceil(row_bytes / (lanes * vector))


def _conversions(features: int, value_bytes: int, lanes: int) -> int:
    return math.ceil(features / lanes) if value_bytes == 2 else 0

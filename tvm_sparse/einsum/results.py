"""From the entries of a result to what a user asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from ..formats import DCSR
from ..formats.entries import Entries, RowEntries
from .semiring import Arithmetic

__all__ = ["OUTPUTS", "finish", "result_order"]

OUTPUTS = ("csr", "csc", "coo", "dcsr", "dense")


def result_order(letters: str, out: str) -> tuple[str, ...]:
    """Return the order of levels in which a result is computed.

    Raises
    ------
    ValueError
        If there is no such output, or it is one of matrices and the result none.
    """
    if out not in OUTPUTS:
        raise ValueError(f"out: expected one of {', '.join(OUTPUTS)}, found {out!r}")
    if out in ("csc", "dcsr") and len(letters) != 2:
        raise ValueError(
            f"out: expected csr, coo or dense for a result of {len(letters)} dimensions, found {out!r}"
        )
    return tuple(reversed(letters)) if out == "csc" else tuple(letters)


def finish(
    entries: Entries | None,
    values: np.ndarray,
    shape: tuple[int, ...],
    *,
    out: str,
    arithmetic: Arithmetic,
    prune: bool,
    as_array: bool,
    wide: bool,
) -> Any:
    """Put a result together.

    Parameters
    ----------
    entries : Entries or None
        Its structure in the order of levels; None for a dense array or a number.
    values : numpy.ndarray
        Its values as the kernel held them.
    shape : tuple of int
        Of the result.
    out : str
        What is asked for.
    arithmetic : Arithmetic
        Types, and what an absent entry stands for.
    prune : bool
        Whether entries that hold this are left out.
    as_array : bool
        Whether matrices are SciPy's arrays.
    wide : bool
        Whether indices are 64 bits wide though 32 would do.
    """
    zero = arithmetic.semiring.zero(values.dtype)
    final = arithmetic.finished(values)
    if out == "dense" or not shape:
        return final.reshape(shape)[()]
    if prune:
        kept = values != zero
        entries, final = Entries(entries.coordinates, values, entries.shape).take(kept), final[kept]
    index = np.int64 if wide or max([*shape, final.size]) >= 2**31 else np.int32
    if len(shape) != 2 or out == "coo":
        return _coordinates(entries, final, shape, index, as_array and len(shape) == 2)
    if out == "dcsr":
        return DCSR().pack(Entries(entries.coordinates, final, shape))
    return _compressed(entries, final, shape, index, out, as_array)


def _coordinates(
    entries: Entries, values: np.ndarray, shape: tuple[int, ...], index: type, as_array: bool
) -> sp.coo_array | sp.coo_matrix:
    coordinates = tuple(own.astype(index) for own in entries.coordinates)
    kind = sp.coo_array if as_array or len(shape) != 2 else sp.coo_matrix
    tensor = kind((values, coordinates), shape=shape)
    tensor.has_canonical_format = True
    return tensor


def _compressed(
    entries: Entries,
    values: np.ndarray,
    shape: tuple[int, int],
    index: type,
    out: str,
    as_array: bool,
) -> Any:
    pointers, columns = entries.row_pointers.astype(index), entries.columns.astype(index)
    if not isinstance(entries, RowEntries):
        columns = entries.coordinates[1].astype(index)
    kinds = {
        "csr": (sp.csr_matrix, sp.csr_array),
        "csc": (sp.csc_matrix, sp.csc_array),
    }
    matrix = kinds[out][as_array]((values, columns, pointers), shape=shape)
    matrix.has_sorted_indices = matrix.has_canonical_format = True
    return matrix

"""From the entries of a result to what a user asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..formats import DCSR
from ..formats.entries import Entries, RowEntries
from .memory import check_sizes
from .semiring import Arithmetic

__all__ = ["OUTPUTS", "Output"]

OUTPUTS = ("csr", "csc", "coo", "dcsr", "bsr", "dense")


@dataclass(frozen=True)
class Output:
    """What a user asked for.

    Attributes
    ----------
    letters : str
        Of the result.
    out : str
        What it is returned as, one of :data:`OUTPUTS`.
    blocksize : tuple of int or None
        Of the blocks of ``"bsr"``.
    prune : bool
        Whether entries that hold what an absent one stands for are left out.

    Raises
    ------
    ValueError
        If there is no such output, it is one of matrices and the result none, or its blocks have no size.
    """

    letters: str
    out: str
    blocksize: tuple[int, int] | None
    prune: bool

    def __post_init__(self) -> None:
        if self.out not in OUTPUTS:
            raise ValueError(f"out: expected one of {', '.join(OUTPUTS)}, found {self.out!r}")
        if self.out in ("csc", "dcsr", "bsr") and len(self.letters) != 2:
            raise ValueError(
                f"out: expected csr, coo or dense for a result of {len(self.letters)} dimensions, found "
                f"{self.out!r}"
            )
        if (self.out == "bsr") != (self.blocksize is not None):
            raise ValueError(
                "blocksize: expected rows and columns of a block with out='bsr', and none otherwise, found "
                f"{self.blocksize} with out={self.out!r}"
            )

    @property
    def order(self) -> tuple[str, ...]:
        """The order of levels in which the result is computed."""
        return tuple(reversed(self.letters)) if self.out == "csc" else tuple(self.letters)

    @property
    def is_dense(self) -> bool:
        """Whether the result is an array."""
        return self.out == "dense"

    def check(self, shape: tuple[int, ...], arithmetic: Arithmetic) -> None:
        """Refuse a result of this shape that blocks do not tile, or that memory does not hold.

        Raises
        ------
        MemoryError, ValueError
            If it is one.
        """
        check_sizes(self.letters, shape, self.out, arithmetic.result)
        if self.out != "bsr":
            return
        zero = arithmetic.semiring.zero(arithmetic.held)
        if zero != 0:
            raise ValueError(
                f"out: expected a semiring whose sum of nothing is 0 for 'bsr', where blocks are filled up "
                f"with zeros, found {arithmetic.semiring.name!r}, whose is {zero}"
            )
        size = self.blocksize
        is_pair = isinstance(size, tuple | list) and len(size) == 2
        if not is_pair or any(own < 1 or n % own for n, own in zip(shape, size)):
            raise ValueError(
                f"blocksize: expected rows and columns that divide the shape {shape}, found {size}"
            )

    def finish(
        self,
        entries: Entries | None,
        values: np.ndarray,
        shape: tuple[int, ...],
        *,
        arithmetic: Arithmetic,
        as_array: bool,
        wide: bool,
    ) -> Any:
        """Put the result together.

        Parameters
        ----------
        entries : Entries or None
            Its structure in the order of levels; None for a dense array or a number.
        values : numpy.ndarray
            Its values as kernels held them.
        shape : tuple of int
            Of the result.
        arithmetic : Arithmetic
            Types, and what an absent entry stands for.
        as_array : bool
            Whether matrices are SciPy's arrays.
        wide : bool
            Whether indices are 64 bits wide though 32 would do.
        """
        zero = arithmetic.semiring.zero(values.dtype)
        final = arithmetic.finished(values)
        if self.is_dense or not shape:
            return final.reshape(shape)[()]
        if self.prune:
            kept = values != zero
            entries = Entries(entries.coordinates, values, entries.shape).take(kept)
            final = final[kept]
        index = np.int64 if wide or max([*shape, final.size]) >= 2**31 else np.int32
        if len(shape) != 2 or self.out == "coo":
            return _coordinates(entries, final, shape, index, as_array and len(shape) == 2)
        if self.out == "dcsr":
            return DCSR().pack(Entries(entries.coordinates, final, shape))
        kind = "csr" if self.out == "bsr" else self.out
        matrix = _compressed(entries, final, shape, index, kind, as_array)
        if self.out != "bsr":
            return matrix
        blocks = matrix.tobsr(tuple(self.blocksize))
        blocks.sort_indices()
        return blocks


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

"""Masks: the places where a result may have entries, as a further factor of each term.

A plain mask is a factor whose entries multiply as one, so that it can drive loops, or be looked up by
them. A complemented mask is looked up before anything is stored; products stand where it has no entry.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..formats.entries import Entries
from .factors import Factor
from .operands import Source, read_operand
from .semiring import Arithmetic

__all__ = ["Mask", "read_mask"]


@dataclass(frozen=True)
class Mask:
    """A mask.

    Attributes
    ----------
    factor : Factor
        The factor that it is of each term.
    source : Source
        Its sizes, and the number of its values.
    """

    factor: Factor
    source: Source

    def values(self, arithmetic: Arithmetic) -> np.ndarray:
        """Return values that leave products as they are."""
        count = 0 if self.factor.excludes else self.factor.count
        return np.full(count, arithmetic.semiring.one(arithmetic.held), arithmetic.held)


def read_mask(mask: Any, letters: str, complement: bool, number: int) -> Mask:
    """Read a mask.

    Parameters
    ----------
    mask : scipy.sparse matrix or array, Packed, list of these, torch.Tensor or numpy.ndarray
        Of the shape of the result. The entries of a sparse one count, explicit zeros too; of a dense
        one the places that are not zero.
    letters : str
        Those of the result.
    complement : bool
        Whether products stand where it has no entry.
    number : int
        Number of the source of its values.

    Returns
    -------
    Mask
        The mask.

    Raises
    ------
    TypeError, ValueError
        If it is no tensor of this many dimensions.
    """
    if not letters:
        raise ValueError(
            "mask: expected a result with dimensions, found '->' without letters after it; multiply by "
            "the mask instead"
        )
    factor, source, read = read_operand(letters, mask, number, "mask")
    if factor.is_dense:
        places = np.nonzero(read)
        entries = Entries(places, np.arange(places[0].size), read.shape)
        factor = replace(factor, entries=entries)
    return Mask(replace(factor, excludes=complement), replace(source, dtype=np.dtype(bool)))

"""Factors of products: sorted coordinates without duplicates, and where values come from.

Everything about structure is worked out on coordinates; values follow as places in a source, so that a
plan runs again with new values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..formats.entries import Entries

__all__ = ["Factor"]


@dataclass(frozen=True)
class Factor:
    """A factor of a product.

    Attributes
    ----------
    variables : tuple of str
        One for each dimension.
    source : int
        Number of the array that its values are taken from.
    entries : Entries or None
        Sorted coordinates, none twice, whose "values" are places in the source; None if it is dense.
    excludes : bool
        Whether products stand where it has no entry, as under a complemented mask; it has no values.
    """

    variables: tuple[str, ...]
    source: int
    entries: Entries | None = None
    excludes: bool = False

    @property
    def is_dense(self) -> bool:
        """Whether it is a dense array, all of whose places count as entries."""
        return self.entries is None

    @property
    def can_drive(self) -> bool:
        """Whether loops may run over its entries."""
        return not (self.is_dense or self.excludes)

    @property
    def count(self) -> int:
        """Number of entries of a sparse factor."""
        return self.entries.count

    def coordinates(self, variable: str) -> np.ndarray:
        """Coordinates of one variable of a sparse factor."""
        return self.entries.coordinates[self.variables.index(variable)]

    def with_columns(self, columns: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> Factor:
        """Return a sparse factor over other variables, the order of entries being kept."""
        shape = tuple(sizes[variable] for variable in columns)
        entries = Entries(tuple(columns.values()), self.entries.values, shape)
        return replace(self, variables=tuple(columns), entries=entries)

    def take(self, chosen: np.ndarray) -> Factor:
        """Return a sparse factor of some of the entries."""
        return replace(self, entries=self.entries.take(chosen))

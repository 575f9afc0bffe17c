"""Factors in the order of levels that loops need: all rows of the outermost variable, then compressed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from ..formats.entries import Entries, RowEntries, lexicographic_order
from .factors import Factor

__all__ = ["Levels", "store_levels"]


@dataclass(frozen=True)
class Levels:
    """A sparse factor in order.

    Attributes
    ----------
    pointers, indices : list of numpy.ndarray
        For each level after the first: where the coordinates under each entry of the level before begin,
        and the coordinates.
    places : numpy.ndarray or None
        For each entry, the place of its value in the source; None where they are the first in order.
    stored : numpy.ndarray or None
        Of a factor of one level alone: its coordinates.
    """

    pointers: list[np.ndarray]
    indices: list[np.ndarray]
    places: np.ndarray | None
    stored: np.ndarray | None = None


def store_levels(factor: Factor, variables: Sequence[str], dtype: str) -> Levels:
    """Bring a sparse factor to an order of its variables, outermost first; linear up to a sort."""
    entries = factor.entries
    dims = [factor.variables.index(v) for v in variables]
    if len(dims) == 1:
        return Levels([], [], _places(entries.values), entries.coordinates[0])
    if isinstance(entries, RowEntries) and dims == [0, 1]:
        return _matrix(entries.row_pointers, entries.columns, entries.values, dtype)
    if len(dims) == 2:
        return _by_rows(entries, dims, dtype)
    coordinates = [entries.coordinates[dim] for dim in dims]
    shape = [entries.shape[dim] for dim in dims]
    order = lexicographic_order(coordinates, shape)
    if order is not None:
        coordinates = [own[order] for own in coordinates]
    places = entries.values if order is None else entries.values[order]
    return _tree(coordinates, shape[0], places, dtype)


def _by_rows(entries: Entries, dims: list[int], dtype: str) -> Levels:
    """A matrix, through SciPy's linear conversions."""
    shape = tuple(entries.shape[dim] for dim in dims)
    if isinstance(entries, RowEntries):
        by_rows = (entries.values, entries.columns, entries.row_pointers)
        matrix = sp.csc_matrix(by_rows, shape=shape).tocsr()
    else:
        coordinates = tuple(entries.coordinates[dim] for dim in dims)
        matrix = sp.coo_matrix((entries.values, coordinates), shape=shape).tocsr()
        matrix.sort_indices()
    return _matrix(matrix.indptr, matrix.indices, matrix.data, dtype)


def _matrix(pointers, indices, places, dtype) -> Levels:
    arrays = [pointers.astype(dtype, copy=False)], [indices.astype(dtype, copy=False)]
    return Levels(*arrays, _places(places))


def _tree(coordinates: list[np.ndarray], rows: int, places: np.ndarray, dtype: str) -> Levels:
    """Levels of sorted coordinates: an entry of a level is new where it or one outside of it is."""
    count = places.size
    pointers, indices = [], []
    new = np.ones(count, bool)
    new[1:] = coordinates[0][1:] != coordinates[0][:-1]
    parents = None
    for own in coordinates[1:]:
        outer = new.copy()
        new[1:] |= own[1:] != own[:-1]
        begins = np.flatnonzero(new)
        if parents is None:
            counts = np.bincount(coordinates[0][begins], minlength=rows)
        else:
            counts = np.bincount((np.cumsum(outer) - 1)[begins], minlength=parents)
        pointers.append(np.append(0, np.cumsum(counts)).astype(dtype))
        indices.append(own[begins].astype(dtype))
        parents = begins.size
    return Levels(pointers, indices, _places(places))


def _places(places: np.ndarray) -> np.ndarray | None:
    is_same = places.size == 0 or (
        places[0] == 0 and places[-1] == places.size - 1 and bool((np.diff(places) == 1).all())
    )
    return None if is_same else places

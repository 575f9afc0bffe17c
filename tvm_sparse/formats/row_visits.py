"""Rows as formats that list them store and visit them: in an order, one range of columns after another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm.ir import Expr

from ..ir import Axis
from .entries import Entries, RowEntries, stable_order
from .layout import LayoutBuilder
from .orders import Order, order_rows

__all__ = ["RowVisits", "columns_per_part", "find_rows", "rows_of_ranges", "visit_rows"]


@dataclass(frozen=True)
class RowVisits:
    """The rows of sorted entries, those without any left out, and the order of visits.

    Attributes
    ----------
    pointers : numpy.ndarray
        Where the entries of each row begin, and the last ones end.
    visits : numpy.ndarray
        Which of these rows comes at each place.
    part_indptr : numpy.ndarray
        At which place each range of columns begins, and the last one ends.
    """

    pointers: np.ndarray
    visits: np.ndarray
    part_indptr: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Entries of each row."""
        return np.diff(self.pointers)


def visit_rows(entries: Entries, column_parts: int, order: Order) -> RowVisits:
    """Find the rows of each of so many ranges of columns, and order them.

    Parameters
    ----------
    entries : Entries
        Sorted.
    column_parts : int
        The entries of a row in one range count as a row of their own.
    order : str, sequence of int, callable or None
        Of the rows of each range, see :func:`order_rows`.
    """
    pointers = find_rows(entries, column_parts)
    count = pointers.size - 1
    if column_parts == 1:
        return RowVisits(pointers, order_rows(order, entries, pointers), np.array([0, count]))
    size = columns_per_part(entries.shape[-1], column_parts)
    part = entries.columns[pointers[:-1]] // size
    visits = stable_order(part, column_parts)
    part_indptr = np.append(0, np.cumsum(np.bincount(part, minlength=column_parts)))
    if order is not None:
        lengths = np.diff(pointers)
        of_entries = np.repeat(part, lengths)
        for number in range(column_parts):
            rows = visits[part_indptr[number] : part_indptr[number + 1]]
            own = entries.take(np.flatnonzero(of_entries == number))
            stored = np.append(0, np.cumsum(lengths[rows]))
            visits[part_indptr[number] : part_indptr[number + 1]] = rows[
                order_rows(order, own, stored)
            ]
    return RowVisits(pointers, visits, part_indptr)


def find_rows(entries: Entries, column_parts: int = 1) -> np.ndarray:
    """Return where the entries of each row begin, and the last end; entries are sorted.

    Rows are those that have entries: stretches of equal coordinates, all but the last. Of each, every
    one of ``column_parts`` equal ranges of columns counts as a row of its own.
    """
    if column_parts == 1 and isinstance(entries, RowEntries):
        pointers = entries.row_pointers
        return np.append(pointers[:-1][pointers[1:] > pointers[:-1]], entries.count)
    begins = np.zeros(entries.count + 1, bool)
    begins[0] = begins[-1] = True
    inner = begins[1:-1]
    for found in entries.coordinates[:-1]:
        inner |= found[1:] != found[:-1]
    if column_parts > 1:
        part = entries.columns // columns_per_part(entries.shape[-1], column_parts)
        inner |= part[1:] != part[:-1]
    return np.flatnonzero(begins)


def columns_per_part(columns: int, column_parts: int) -> int:
    """Return how many columns each of so many equal ranges has, the last ones perhaps fewer."""
    return max(1, -(-columns // column_parts))


def rows_of_ranges(build: LayoutBuilder, column_parts: Expr | int, rows: Expr) -> Axis:
    """Declare ``T`` over ranges of columns and, under it, ``I`` over the numbers of their rows.

    Each row of a range is stored once, so that a parallel loop over them writes no row twice.
    """
    part = build.dense("T", column_parts, dims=[1])
    return build.compressed(
        "I",
        part,
        rows,
        dims=[0],
        indptr="part_indptr",
        indices="row_indices",
        nnz="rows",
        sorted=False,
    )

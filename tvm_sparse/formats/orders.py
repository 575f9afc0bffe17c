"""Orders in which rows are visited, so that rows near each other in time gather the same columns.

A kernel that multiplies row by row reads, for each entry, a row of the dense operand. Rows that share
columns and follow one another find these in cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import scipy.sparse as sp

from .entries import Entries

__all__ = ["ORDERS", "Order", "check_order", "order_name", "order_rows"]

#: A name, the numbers of all rows in the order of visits, or a function of the pattern that returns them.
Order = str | Sequence[int] | Callable[[sp.csr_matrix], np.ndarray] | None


def by_degree(pattern: sp.csr_matrix) -> np.ndarray:
    """Order rows by their number of entries, most first; equal ones as they come."""
    return np.argsort(-np.diff(pattern.indptr), kind="stable")


def by_cuthill_mckee(pattern: sp.csr_matrix) -> np.ndarray:
    """Order rows by breadth-first search over rows and columns, from the outside in.

    Reverse Cuthill-McKee (Cuthill and McKee, "Reducing the bandwidth of sparse symmetric matrices", 1969)
    on the graph that has a node for each row and each column and an edge for each entry: it needs no
    square matrix and no symmetric pattern.
    """
    joined = sp.block_array([[None, pattern], [pattern.T, None]], format="csr")
    if not joined.nnz:
        return np.arange(pattern.shape[0])
    from scipy.sparse.csgraph import reverse_cuthill_mckee  # noqa: PLC0415 (slow to import)

    nodes = reverse_cuthill_mckee(joined, symmetric_mode=True)
    return nodes[nodes < pattern.shape[0]]


#: Orders by name.
ORDERS: dict[str, Callable[[sp.csr_matrix], np.ndarray]] = {
    "degree": by_degree,
    "rcm": by_cuthill_mckee,
}


def check_order(order: Order) -> Order:
    """Refuse orders that are no order; make numbers of rows a tuple."""
    if order is None or callable(order):
        return order
    if isinstance(order, str):
        if order not in ORDERS:
            raise ValueError(f"order: expected one of {', '.join(ORDERS)}, found {order!r}")
        return order
    rows = np.asarray(order)
    if rows.ndim != 1 or (rows.dtype.kind not in "iu" and rows.size):
        raise ValueError(
            f"order: expected numbers of rows, found {rows.dtype} of shape {rows.shape}"
        )
    _check_permutation(rows.astype(np.int64))
    return tuple(int(row) for row in rows)


def order_name(order: Order) -> str:
    """Return a short text for an order."""
    return repr(order) if order is None or isinstance(order, str) else "<own>"


def order_rows(order: Order, entries: Entries, stored: np.ndarray) -> np.ndarray:
    """Order the rows that have entries.

    Parameters
    ----------
    order : str, sequence of int, callable or None
        None leaves them as they are.
    entries : Entries
        Sorted.
    stored : numpy.ndarray
        Where the entries of each stored row begin, and the last ones end.

    Returns
    -------
    numpy.ndarray
        A permutation of ``0 .. stored.size - 2``: which stored row comes at each place.
    """
    count = stored.size - 1
    if order is None:
        return np.arange(count)
    rows = entries.coordinates[-2][stored[:-1]]
    if isinstance(order, str):
        return ORDERS[order](_pattern(entries, stored))
    if callable(order):
        whole = np.zeros(entries.shape[-2] + 1, np.int64)
        whole[rows + 1] = np.diff(stored)
        structure = (np.ones(entries.count, bool), entries.columns, np.cumsum(whole))
        order = np.asarray(order(sp.csr_matrix(structure, shape=entries.shape[-2:])))
        _check_permutation(order)
    places = np.asarray(order)
    if places.size != entries.shape[-2]:
        raise ValueError(
            f"order: expected the numbers of {entries.shape[-2]} rows, found {places.size}"
        )
    ranks = np.empty(places.size, np.int64)
    ranks[places] = np.arange(places.size)
    return np.argsort(ranks[rows])


def _pattern(entries: Entries, stored: np.ndarray) -> sp.csr_matrix:
    """The stored rows, one after another, as a matrix of ones over the columns that occur."""
    used, columns = np.unique(entries.columns, return_inverse=True)
    structure = (np.ones(entries.count, np.int8), columns, stored)
    return sp.csr_matrix(structure, shape=(stored.size - 1, used.size))


def _check_permutation(rows: np.ndarray) -> None:
    if rows.ndim != 1 or not np.array_equal(np.sort(rows), np.arange(rows.size)):
        raise ValueError("order: expected every row number once, found others")

"""Rows listed in an order of one's choice, each with its number and column indices."""

from __future__ import annotations

import numpy as np

from .dcsr import DCSR
from .entries import Entries, places_in
from .format import Storage
from .orders import Order, check_order
from .row_visits import visit_rows

__all__ = ["RowList"]


class RowList(DCSR):
    """All rows, listed in an order that makes good use of caches.

    Axes are those of :class:`DCSR`: ``R`` over listed rows, ``I`` their numbers, ``J`` columns. Row
    numbers are distinct, so results stay where they are whatever the order: nothing is permuted back.
    Rows without entries are listed too, after the others, so that a product needs no pass of its own that
    initialises its result.

    Parameters
    ----------
    order : str, sequence of int, callable or None
        ``"rcm"``: reverse Cuthill-McKee over rows and columns, so that rows that share columns come
        near each other. ``"degree"``: longest rows first. A sequence: the numbers of all rows in the
        order of visits. A callable: gets the pattern, a SciPy CSR matrix of booleans, and returns such
        numbers. None: as they come.

    Notes
    -----
    A schedule is saved with its formats as JSON; a callable cannot be.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import RowList
    >>> packed = RowList("degree").pack(sp.coo_matrix([[0, 5.0], [0, 0], [7.0, 8.0]]))
    >>> packed.storage.arrays["row_indices"].ravel().tolist(), packed.values.tolist()
    ([2, 0, 1], [7.0, 8.0, 5.0])
    """

    covers = (0,)

    def __init__(self, order: Order = "rcm") -> None:
        self.order = check_order(order)
        self.name = f"rows_{order}" if isinstance(order, str) else "rows"

    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        found = visit_rows(entries, 1, self.order)
        pointers, visits = found.pointers, found.visits
        lengths = found.lengths[visits]
        filled = entries.coordinates[0][pointers[visits]] if entries.count else visits
        rows = np.concatenate([filled, np.setdiff1d(np.arange(entries.shape[0]), filled)])
        indptr = np.full(rows.size + 1, entries.count, index_dtype)
        indptr[0] = 0
        np.cumsum(lengths, out=indptr[1 : lengths.size + 1])
        # Where each stored entry comes from, and where each entry goes.
        source = np.arange(entries.count)
        source += np.repeat(pointers[visits] - indptr[: lengths.size], lengths)
        arrays = {
            "row_indices": rows.astype(index_dtype).reshape(-1, 1),
            "indptr": indptr,
            "indices": entries.columns[source].astype(index_dtype),
        }
        sizes = {"rows": rows.size, "nnz": entries.count}
        return Storage(entries.values[source], arrays, sizes, places_in(source))

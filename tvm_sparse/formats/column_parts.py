"""A matrix by ranges of columns one after another, each a list of rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm.ir import Expr

from .entries import Entries, places_in
from .format import Format, Storage, as_size, check_positive
from .layout import Layout, LayoutBuilder
from .orders import Order, check_order, order_name
from .row_visits import rows_of_ranges, visit_rows

__all__ = ["ColumnParts"]


class ColumnParts(Format):
    """Equal ranges of columns: ``T`` over ranges, ``I`` over the rows of each, ``J`` columns.

    A product works on one range after another, so that the rows of the dense operand that a range needs
    stay in cache; :func:`choose_column_parts` chooses how many ranges that takes. The first range lists
    all rows, which initialises a result; others list those with entries. One kernel serves any number of
    ranges.

    Parameters
    ----------
    column_parts : int
        Number of ranges.
    order : str, sequence of int, callable or None
        Order of the rows of each range, as for :class:`RowList`; computed from the entries of the range
        alone.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import ColumnParts
    >>> packed = ColumnParts(2).pack(sp.coo_matrix([[0, 5.0], [7.0, 8.0]]))
    >>> packed.values.tolist()
    [7.0, 5.0, 8.0]
    >>> packed.storage.arrays["row_indices"].tolist(), packed.storage.arrays["part_indptr"].tolist()
    ([1, 0, 0, 1], [0, 2, 4])
    """

    covers_at_start = (0,)

    def __init__(self, column_parts: int, order: Order = None) -> None:
        check_positive(column_parts=column_parts)
        self.column_parts, self.order = as_size(column_parts), check_order(order)
        self.name = "columns"

    def layout(self, prefix: str, shape: Sequence[Expr], index_dtype: str = "int32") -> Layout:
        rows, columns = shape
        build = LayoutBuilder(prefix, index_dtype)
        row = rows_of_ranges(build, build.size("parts"), rows)
        build.compressed("J", row, columns, dims=[1])
        return build.finish(lambda stored: list(stored[1:]))

    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        found = visit_rows(entries, self.column_parts, self.order)
        numbers = entries.coordinates[0][found.pointers[:-1]][found.visits]
        first = int(found.part_indptr[1])
        empty = np.ones(entries.shape[0], bool)
        empty[numbers[:first]] = False
        without = np.flatnonzero(empty)
        lengths = np.insert(found.lengths[found.visits], first, np.zeros(without.size, np.int64))
        part_indptr = found.part_indptr + without.size
        part_indptr[0] = 0
        indptr = np.append(0, np.cumsum(lengths))
        # Where each stored entry comes from, and where each entry goes.
        begins = found.pointers[:-1][found.visits]
        source = np.arange(entries.count)
        source += np.repeat(np.insert(begins, first, without * 0) - indptr[:-1], lengths)
        arrays = {
            "part_indptr": part_indptr.astype(index_dtype),
            "row_indices": np.insert(numbers, first, without).astype(index_dtype),
            "indptr": indptr.astype(index_dtype),
            "indices": entries.columns[source].astype(index_dtype),
        }
        sizes = {"parts": self.column_parts, "rows": lengths.size, "nnz": entries.count}
        return Storage(entries.values[source], arrays, sizes, places_in(source))

    def coordinates(self, storage: Storage, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        row = np.searchsorted(storage.arrays["indptr"], slots, side="right") - 1
        return storage.arrays["row_indices"][row], storage.arrays["indices"][slots]

    def __repr__(self) -> str:
        order = "" if self.order is None else f", order={order_name(self.order)}"
        return f"ColumnParts(column_parts={self.column_parts}{order})"

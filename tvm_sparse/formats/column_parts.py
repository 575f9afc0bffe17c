"""A matrix as ranges of columns one after another, each a list of rows."""

from __future__ import annotations

import numpy as np

from .bucket import column_range
from .composition import Composition
from .entries import Entries
from .format import check_positive
from .orders import Order
from .row_list import RowList

__all__ = ["ColumnParts", "ColumnRange"]


class ColumnRange(RowList):
    """The rows of one range of columns.

    The first range lists all rows, so that it initialises a result; others list those with entries.

    Parameters
    ----------
    column_part, column_parts : int
        It takes the entries of this one of so many equal ranges of columns.
    order : str, sequence of int, callable or None
        Order of the rows, as for :class:`RowList`; computed from the entries of the range alone.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import ColumnRange
    >>> packed = ColumnRange(1, 2).pack(sp.coo_matrix([[0, 0], [0, 8.0]]))
    >>> packed.storage.arrays["row_indices"].ravel().tolist()
    [1]
    """

    def __init__(self, column_part: int = 0, column_parts: int = 1, order: Order = None) -> None:
        check_positive(column_parts=column_parts)
        if not 0 <= column_part < column_parts:
            raise ValueError(
                f"column_part: expected one of 0..{column_parts - 1}, found {column_part}"
            )
        super().__init__(order)
        self.column_part, self.column_parts = column_part, column_parts
        self.name = f"c{column_part}"
        self.lists_all = column_part == 0
        self.covers = (0,) if self.lists_all else ()

    def takes(self, entries: Entries) -> np.ndarray:
        begin, end = column_range(entries.shape[1], self.column_part, self.column_parts)
        return (entries.columns >= begin) & (entries.columns < end)


class ColumnParts(Composition):
    """Equal ranges of columns, each a list of rows: ``c0``, ``c1`` and so on.

    A product works on one range after another, so that the rows of the dense operand that a range needs
    stay in cache; :func:`choose_column_parts` chooses how many ranges that takes.

    Parameters
    ----------
    column_parts : int
        Number of ranges.
    order : str, sequence of int, callable or None
        Order of the rows of each range, as for :class:`RowList`.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import ColumnParts
    >>> packed = ColumnParts(2).pack(sp.coo_matrix([[0, 5.0], [7.0, 8.0]]))
    >>> {name: part.values.tolist() for name, part in packed.parts.items()}
    {'c0': [7.0], 'c1': [5.0, 8.0]}
    """

    def __init__(self, column_parts: int, order: Order = None) -> None:
        check_positive(column_parts=column_parts)
        ranges = [ColumnRange(part, column_parts, order) for part in range(column_parts)]
        super().__init__({own.name: own for own in ranges})
        self.column_parts, self.order = column_parts, ranges[0].order

    def __repr__(self) -> str:
        return f"ColumnParts(column_parts={self.column_parts})"

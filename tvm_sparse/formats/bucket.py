"""Buckets: the rows of a matrix that have about the same number of entries, padded to one width.

The parts of :class:`Hyb` and :class:`RelationalHyb`. A bucket looks at one range of columns, and for
tensors of three dimensions at one relation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import tirx
from tvm.ir import Expr

from ..ir import Axis
from .entries import Entries, RowEntries, places_in
from .format import Format, Storage, check_fits, check_positive
from .layout import Layout, LayoutBuilder
from .orders import Order, check_order, order_rows

__all__ = ["Bucket", "EmptyRows", "LongBucket", "find_rows", "rows_without_entries"]


class Bucket(Format):
    """Rows of at most ``width`` entries: ``R`` over stored rows, ``I`` their numbers, ``J`` columns.

    ``R`` is dense over the rows of the bucket; ``I`` has one slot under each, and row numbers are
    distinct, so that a parallel loop over ``R`` writes no row twice. ``J`` has ``width`` slots under
    each row: entries first, sorted, then padding with the number of columns as index and zero as
    value. Values and column indices have the shape ``(rows, 1, width)``.

    Parameters
    ----------
    width : int
        Slots of a row.
    column_part, column_parts : int
        The bucket takes entries of this one of so many equal ranges of columns.
    relation : int, optional
        For tensors (relation, row, column): the bucket takes entries of this relation, a constant of
        its kernel.
    order : str, sequence of int, callable or None
        Order in which the rows are stored and visited, as for :class:`RowList`; computed from the
        entries of the bucket alone. None: as they come.

    Notes
    -----
    One ELL matrix of SparseTIR's hyb (ASPLOS'23).

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import Bucket
    >>> packed = Bucket(width=2).pack(sp.coo_matrix([[0, 5.0], [0, 0], [7.0, 8.0]]))
    >>> packed.storage.arrays["row_indices"].ravel().tolist(), packed.values.tolist()
    ([0, 2], [[[5.0, 0.0]], [[7.0, 8.0]]])
    """

    def __init__(
        self,
        width: int,
        column_part: int = 0,
        column_parts: int = 1,
        relation: int | None = None,
        order: Order = None,
    ) -> None:
        check_positive(width=width, column_parts=column_parts)
        if not 0 <= column_part < column_parts:
            raise ValueError(
                f"column_part: expected one of 0..{column_parts - 1}, found {column_part}"
            )
        self.width, self.column_part, self.column_parts = width, column_part, column_parts
        self.relation = relation if relation is None else int(relation)
        self.order = check_order(order)
        self.rank = 2 if relation is None else 3
        where = f"c{column_part}" if relation is None else f"r{relation}"
        self.name = f"{where}_w{width}"

    def layout(self, prefix: str, shape: Sequence[Expr], index_dtype: str = "int32") -> Layout:
        rows, columns = shape[-2:]
        build = LayoutBuilder(prefix, index_dtype)
        row = self._rows(build, rows)
        build.padded("J", row, columns, self.width, dims=[self.rank - 1])
        return build.finish(self._to_tensor(index_dtype))

    def _rows(self, build: LayoutBuilder, rows: Expr) -> Axis:
        """Declare stored rows and their numbers."""
        stored = build.dense("R", build.size("rows"), dims=[self.rank - 2])
        return build.padded("I", stored, rows, 1, dims=[self.rank - 2], indices="row_indices")

    def _to_tensor(self, index_dtype: str) -> Callable[[Sequence[Expr]], list[Expr]]:
        """Return the map to coordinates in the tensor: an own relation, row and column."""
        outer = [] if self.relation is None else [tirx.const(self.relation, index_dtype)]
        return lambda stored: [*outer, stored[1], stored[-1]]

    def takes(self, entries: Entries) -> np.ndarray:
        pointers = find_rows(entries, self.column_parts)
        starts, lengths = pointers[:-1], np.diff(pointers)
        first = entries.take(starts)
        begin, end = column_range(entries.shape[-1], self.column_part, self.column_parts)
        taken = (first.columns >= begin) & (first.columns < end) & self._holds(lengths)
        if self.relation is not None:
            taken &= first.coordinates[0] == self.relation
        return np.repeat(taken, lengths)

    def _holds(self, lengths: np.ndarray) -> np.ndarray:
        """Whether rows of these lengths belong here, if no narrower bucket took them."""
        return lengths <= self.width

    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        self._check_entries(entries)
        pointers = find_rows(entries)
        lengths = np.diff(pointers)
        longest = int(lengths.max(initial=0))
        if longest > self.width:
            raise ValueError(
                f"{self.name}: expected rows of at most {self.width} entries (width), found {longest}"
            )
        count = lengths.size
        visits = order_rows(self.order, entries, pointers)
        places = places_in(visits)
        return self._store(entries, pointers, visits, places, (count, 1), {}, index_dtype)

    def _store(
        self,
        entries: Entries,
        pointers: np.ndarray,
        visits: np.ndarray,
        places: np.ndarray,
        shape: tuple[int, ...],
        structure: dict[str, np.ndarray],
        index_dtype: np.dtype,
    ) -> Storage:
        """Fill slots of the bucket's width.

        ``pointers`` say where the entries of each row begin, ``visits`` in which order rows are
        stored, ``places`` in which padded slot of ``width`` each begins, ``shape`` how many of these
        there are.
        """
        check_fits(self.name, int(np.prod(shape)) * self.width, index_dtype)
        lengths = np.diff(pointers)
        slots = np.arange(entries.count, dtype=index_dtype)
        slots += np.repeat((places * self.width - pointers[:-1]).astype(index_dtype), lengths)
        values = np.zeros((*shape, self.width), entries.values.dtype)
        indices = np.full(values.shape, entries.shape[-1], index_dtype)
        values.reshape(-1)[slots] = entries.values
        indices.reshape(-1)[slots] = entries.columns
        rows = entries.coordinates[-2][pointers[:-1]][visits].astype(index_dtype)
        arrays = {"row_indices": rows.reshape(-1, 1), **structure, "indices": indices}
        return Storage(values, arrays, {"rows": lengths.size}, slots)

    def _check_entries(self, entries: Entries) -> None:
        """Refuse entries of other columns, and of other relations, whose number the kernel assumes."""
        begin, end = column_range(entries.shape[-1], self.column_part, self.column_parts)
        columns = entries.columns
        if entries.count and not (columns.min() >= begin and columns.max() < end):
            raise ValueError(f"{self.name}: expected columns {begin}..{end - 1}, found others")
        if self.relation is not None and (entries.coordinates[0] != self.relation).any():
            raise ValueError(f"{self.name}: expected relation {self.relation}, found others")

    def coordinates(self, storage: Storage, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        rows = storage.arrays["row_indices"][self._stored_rows(storage, slots), 0]
        columns = storage.arrays["indices"].reshape(-1)[slots]
        if self.relation is None:
            return rows, columns
        return np.full_like(rows, self.relation), rows, columns

    def _stored_rows(self, storage: Storage, slots: np.ndarray) -> np.ndarray:
        """Return which stored row each slot belongs to."""
        return slots // self.width


class LongBucket(Bucket):
    """Rows of any length, cut into pieces of ``width``: ``R``, ``I``, ``S`` over pieces, ``J`` columns.

    The last bucket. ``S`` is ragged: each row has as many pieces as it needs, the last one padded, so
    that rows stay distinct. Values and column indices have the shape ``(pieces, width)``. Parameters
    are those of :class:`Bucket`.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import LongBucket
    >>> packed = LongBucket(width=2).pack(sp.coo_matrix([[1.0, 2, 3], [0, 0, 0], [0, 0, 4]]))
    >>> packed.storage.arrays["indptr"].tolist(), packed.values.tolist()
    ([0, 2, 3], [[1.0, 2.0], [3.0, 0.0], [4.0, 0.0]])
    """

    def layout(self, prefix: str, shape: Sequence[Expr], index_dtype: str = "int32") -> Layout:
        rows, columns = shape[-2:]
        build = LayoutBuilder(prefix, index_dtype)
        row = self._rows(build, rows)
        piece = build.ragged("S", row, columns, dims=[self.rank - 1], nnz="pieces")
        build.padded("J", piece, columns, self.width, dims=[self.rank - 1])
        return build.finish(self._to_tensor(index_dtype))

    def _holds(self, lengths: np.ndarray) -> np.ndarray:
        return np.ones(lengths.shape, bool)

    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        self._check_entries(entries)
        pointers = find_rows(entries)
        visits = order_rows(self.order, entries, pointers)
        indptr = np.zeros(pointers.size, index_dtype)
        np.cumsum(-(-np.diff(pointers)[visits] // self.width), out=indptr[1:])
        pieces = int(indptr[-1])
        places = indptr[:-1][places_in(visits)]
        storage = self._store(
            entries, pointers, visits, places, (pieces,), {"indptr": indptr}, index_dtype
        )
        storage.sizes["pieces"] = pieces
        return storage

    def _stored_rows(self, storage: Storage, slots: np.ndarray) -> np.ndarray:
        pieces = np.diff(storage.arrays["indptr"])
        return np.repeat(np.arange(pieces.size), pieces)[slots // self.width]


class EmptyRows(Bucket):
    """Rows without entries, of width 0: a kernel over hyb initialises them by it.

    It has the axes of :class:`Bucket`. :class:`Hyb` makes its rows; it takes no entries.

    Parameters
    ----------
    column_parts : int
        The rows are those without entries in the first of so many equal ranges of columns.
    """

    def __init__(self, column_parts: int = 1) -> None:
        super().__init__(1, 0, column_parts)
        self.width, self.name = 0, "c0_w0"

    def takes(self, entries: Entries) -> np.ndarray:
        return np.zeros(entries.count, bool)

    def store_rows(
        self, rows: np.ndarray, columns: int, dtype: np.dtype, index_dtype: np.dtype
    ) -> Storage:
        """Return the storage of these rows, for values of a dtype."""
        shape = (rows.size, 1, 0)
        arrays = {
            "row_indices": rows.astype(index_dtype).reshape(-1, 1),
            "indices": np.full(shape, columns, index_dtype),
        }
        return Storage(np.zeros(shape, dtype), arrays, {"rows": rows.size}, np.zeros(0, np.int64))


def rows_without_entries(entries: Entries, column_parts: int = 1) -> np.ndarray:
    """Return the rows of a matrix that have no entry in the first range of columns."""
    if column_parts == 1 and isinstance(entries, RowEntries):
        return np.flatnonzero(np.diff(entries.row_pointers) == 0)
    _, end = column_range(entries.shape[-1], 0, column_parts)
    found = np.zeros(entries.shape[-2], bool)
    found[entries.coordinates[-2][entries.columns < end]] = True
    return np.flatnonzero(~found)


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


def column_range(columns: int, column_part: int, column_parts: int) -> tuple[int, int]:
    """Return the first column of a range, and the one after its last."""
    size = columns_per_part(columns, column_parts)
    return min(columns, column_part * size), min(columns, (column_part + 1) * size)

"""Buckets: the rows of a matrix that have about the same number of entries, padded to one width.

The parts of :class:`Hyb` and :class:`RelationalHyb`. With ranges of columns a row counts once in each
range; for tensors of three dimensions a bucket looks at one relation.
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
from .orders import Order, check_order
from .row_visits import RowVisits, find_rows, rows_of_ranges, visit_rows

__all__ = ["Bucket", "EmptyRows", "LongBucket", "rows_without_entries"]


class Bucket(Format):
    """Rows of at most ``width`` entries: ``R`` over stored rows, ``I`` their numbers, ``J`` columns.

    ``R`` is dense over the rows of the bucket; ``I`` has one slot under each, and row numbers are
    distinct, so that a parallel loop over ``R`` writes no row twice. ``J`` has ``width`` slots under
    each row: entries first, sorted, then padding with the number of columns as index and zero as
    value. Values and column indices have the shape ``(rows, 1, width)``.

    With several ranges of columns, ``T`` is dense over these, and ``I`` sparse over the rows of each
    that fit: row numbers are distinct within a range. Values and column indices have the shape
    ``(rows, width)``.

    Parameters
    ----------
    width : int
        Slots of a row.
    column_parts : int
        Number of equal ranges of columns. The entries of a row in one range count as a row of their own.
    relation : int, optional
        For tensors (relation, row, column): the bucket takes entries of this relation, a constant of
        its kernel. There is one range of columns.
    order : str, sequence of int, callable or None
        Order in which the rows are stored and visited, as for :class:`RowList`; computed from the
        entries of the bucket in each range alone. None: as they come.

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
        column_parts: int = 1,
        relation: int | None = None,
        order: Order = None,
    ) -> None:
        check_positive(width=width, column_parts=column_parts)
        if relation is not None and column_parts > 1:
            raise ValueError(
                f"column_parts: expected 1 for the bucket of a relation, found {column_parts}"
            )
        self.width, self.column_parts = width, column_parts
        self.relation = relation if relation is None else int(relation)
        self.order = check_order(order)
        self.rank = 2 if relation is None else 3
        where = f"c{column_parts}_" if column_parts > 1 else ""
        where = where if relation is None else f"r{relation}_"
        self.name = f"{where}w{width}"

    def layout(self, prefix: str, shape: Sequence[Expr], index_dtype: str = "int32") -> Layout:
        rows, columns = shape[-2:]
        build = LayoutBuilder(prefix, index_dtype)
        row = self._rows(build, rows)
        build.padded("J", row, columns, self.width, dims=[self.rank - 1])
        return build.finish(self._to_tensor(index_dtype))

    def _rows(self, build: LayoutBuilder, rows: Expr) -> Axis:
        """Declare stored rows and their numbers."""
        if self.column_parts > 1:
            return rows_of_ranges(build, self.column_parts, rows)
        stored = build.dense("R", build.size("rows"), dims=[self.rank - 2])
        return build.padded("I", stored, rows, 1, dims=[self.rank - 2], indices="row_indices")

    def _to_tensor(self, index_dtype: str) -> Callable[[Sequence[Expr]], list[Expr]]:
        """Return the map to coordinates in the tensor: an own relation, row and column."""
        outer = [] if self.relation is None else [tirx.const(self.relation, index_dtype)]
        return lambda stored: [*outer, stored[1], stored[-1]]

    def takes(self, entries: Entries) -> np.ndarray:
        pointers = find_rows(entries, self.column_parts)
        lengths = np.diff(pointers)
        taken = self._holds(lengths)
        if self.relation is not None:
            taken &= entries.coordinates[0][pointers[:-1]] == self.relation
        return np.repeat(taken, lengths)

    def _holds(self, lengths: np.ndarray) -> np.ndarray:
        """Whether rows of these lengths belong here, if no narrower bucket took them."""
        return lengths <= self.width

    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        self._check_entries(entries)
        rows = self._find_rows(entries)
        longest = int(rows.lengths.max(initial=0))
        if longest > self.width:
            raise ValueError(
                f"{self.name}: expected rows of at most {self.width} entries (width), found {longest}"
            )
        shape = (rows.visits.size,) if self.column_parts > 1 else (rows.visits.size, 1)
        return self._store(entries, rows, places_in(rows.visits), shape, {}, index_dtype)

    def _find_rows(self, entries: Entries) -> RowVisits:
        return visit_rows(entries, self.column_parts, self.order)

    def _store(
        self,
        entries: Entries,
        rows: RowVisits,
        places: np.ndarray,
        shape: tuple[int, ...],
        structure: dict[str, np.ndarray],
        index_dtype: np.dtype,
    ) -> Storage:
        """Fill slots of the bucket's width.

        ``places`` say in which padded slot of ``width`` each row begins, ``shape`` how many of these
        there are.
        """
        check_fits(self.name, int(np.prod(shape)) * self.width, index_dtype)
        slots = np.arange(entries.count, dtype=index_dtype)
        begins = (places * self.width - rows.pointers[:-1]).astype(index_dtype)
        slots += np.repeat(begins, rows.lengths)
        values = np.zeros((*shape, self.width), entries.values.dtype)
        indices = np.full(values.shape, entries.shape[-1], index_dtype)
        values.reshape(-1)[slots] = entries.values
        indices.reshape(-1)[slots] = entries.columns
        numbers = entries.coordinates[-2][rows.pointers[:-1]][rows.visits].astype(index_dtype)
        if self.column_parts > 1:
            arrays = {"part_indptr": rows.part_indptr.astype(index_dtype), "row_indices": numbers}
        else:
            arrays = {"row_indices": numbers.reshape(-1, 1)}
        arrays |= {**structure, "indices": indices}
        return Storage(values, arrays, {"rows": rows.visits.size}, slots)

    def _check_entries(self, entries: Entries) -> None:
        """Refuse entries of other relations, whose number the kernel assumes."""
        if self.relation is not None and (entries.coordinates[0] != self.relation).any():
            raise ValueError(f"{self.name}: expected relation {self.relation}, found others")

    def coordinates(self, storage: Storage, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        rows = storage.arrays["row_indices"].reshape(-1)[self._stored_rows(storage, slots)]
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
        rows = self._find_rows(entries)
        indptr = np.zeros(rows.pointers.size, index_dtype)
        np.cumsum(-(-rows.lengths[rows.visits] // self.width), out=indptr[1:])
        pieces = int(indptr[-1])
        places = indptr[:-1][places_in(rows.visits)]
        storage = self._store(entries, rows, places, (pieces,), {"indptr": indptr}, index_dtype)
        storage.sizes["pieces"] = pieces
        return storage

    def _stored_rows(self, storage: Storage, slots: np.ndarray) -> np.ndarray:
        pieces = np.diff(storage.arrays["indptr"])
        return np.repeat(np.arange(pieces.size), pieces)[slots // self.width]


class EmptyRows(Bucket):
    """Rows without entries, of width 0: a kernel over hyb initialises them by it.

    It has the axes of :class:`Bucket`. :class:`Hyb` makes its rows; it takes no entries.
    """

    def __init__(self) -> None:
        super().__init__(1)
        self.width, self.name = 0, "w0"

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


def rows_without_entries(entries: Entries) -> np.ndarray:
    """Return the rows of a matrix that have no entry."""
    if isinstance(entries, RowEntries):
        return np.flatnonzero(np.diff(entries.row_pointers) == 0)
    found = np.zeros(entries.shape[-2], bool)
    found[entries.coordinates[-2]] = True
    return np.flatnonzero(~found)

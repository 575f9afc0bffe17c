"""BSR: a matrix cut into equal blocks, those that hold entries stored as small dense matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm.ir import Expr

from .entries import Entries, lexicographic_order
from .format import Format, Storage, check_fits, check_positive
from .layout import Layout, LayoutBuilder

__all__ = ["BSR", "Blocks", "find_blocks"]


class BSR(Format):
    """Block compressed rows: ``BI`` dense, ``BJ`` compressed under it, ``II`` and ``JJ`` dense.

    Values have the shape ``(blocks, rows, columns)``. Sizes of the matrix need not be multiples of
    those of a block: the last blocks then stick out, filled with padding. A padding slot holds +0.0
    (all bits zero) and an entry never does: an entry that is zero is stored as -0.0, which equals it,
    so that a kernel can tell them apart. Integers have no such zero; there, padding and zero entries
    look the same.

    Parameters
    ----------
    rows, columns : int
        Size of a block.
    min_fill : float
        As a part of a composition, take only blocks of which at least this share is filled, between
        0 and 1. All of a block counts, also where it sticks out of the matrix.

    Notes
    -----
    The format of SciPy's ``bsr_array`` and of SparseTIR (ASPLOS'23), there with square blocks.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import BSR
    >>> packed = BSR(2, 2).pack(sp.coo_matrix([[1.0, 2.0, 0], [0, 3.0, 0], [0, 0, 4.0]]))
    >>> packed.storage.arrays["indices"].tolist(), packed.values.tolist()
    ([0, 1], [[[1.0, 2.0], [0.0, 3.0]], [[4.0, 0.0], [0.0, 0.0]]])
    """

    covers = (0,)

    marks_padding = True

    def __init__(self, rows: int, columns: int, min_fill: float = 0.0) -> None:
        check_positive(rows=rows, columns=columns)
        if not 0 <= min_fill <= 1:
            raise ValueError(f"min_fill: expected a share between 0 and 1, found {min_fill}")
        self.name = f"bsr{rows}x{columns}"
        self.rows, self.columns, self.min_fill = rows, columns, min_fill

    def layout(self, prefix: str, shape: Sequence[Expr], index_dtype: str = "int32") -> Layout:
        build = LayoutBuilder(prefix, index_dtype)
        block_row = build.dense("BI", build.size("block_rows"), dims=[0])
        build.compressed("BJ", block_row, build.size("block_columns"), dims=[1])
        build.dense("II", self.rows, dims=[0])
        build.dense("JJ", self.columns, dims=[1])
        return build.finish(self.to_tensor, self._from_tensor)

    def to_tensor(self, stored: Sequence[Expr]) -> list[Expr]:
        """Return the coordinates in the matrix of those on the stored axes."""
        block_row, block_column, row, column = stored
        return [block_row * self.rows + row, block_column * self.columns + column]

    def _from_tensor(self, coordinates: Sequence[Expr]) -> list[Expr]:
        row, column = coordinates
        blocks = [row // self.rows, column // self.columns]
        return [*blocks, row % self.rows, column % self.columns]

    def takes(self, entries: Entries) -> np.ndarray:
        if self.min_fill == 0:
            return super().takes(entries)
        blocks = find_blocks(entries, self.rows, self.columns)
        filled = np.bincount(blocks.of_entry, minlength=blocks.count) / (self.rows * self.columns)
        return (filled >= self.min_fill)[blocks.of_entry]

    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        blocks = find_blocks(entries, self.rows, self.columns)
        block_rows, block_columns = count_blocks(entries.shape, self.rows, self.columns)
        check_fits(self.name, blocks.count * self.rows * self.columns, index_dtype)
        values, slots = blocks.fill(entries)
        arrays = {
            "indptr": blocks.row_pointers(block_rows).astype(index_dtype),
            "indices": blocks.block_columns.astype(index_dtype),
        }
        sizes = {"block_rows": block_rows, "block_columns": block_columns, "nnz": blocks.count}
        return Storage(values, arrays, sizes, slots)

    def coordinates(self, storage: Storage, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        blocks_of_row = np.diff(storage.arrays["indptr"])
        block_rows = np.repeat(np.arange(blocks_of_row.size), blocks_of_row)
        return block_coordinates(
            slots, block_rows, storage.arrays["indices"], self.rows, self.columns
        )


@dataclass(frozen=True)
class Blocks:
    """The blocks of a matrix that hold entries, row by row.

    Attributes
    ----------
    rows, columns : int
        Size of a block.
    block_rows, block_columns : numpy.ndarray
        Coordinates of each block, counted in blocks.
    of_entry : numpy.ndarray
        The block of each entry.
    """

    rows: int
    columns: int
    block_rows: np.ndarray
    block_columns: np.ndarray
    of_entry: np.ndarray

    @property
    def count(self) -> int:
        """Number of blocks."""
        return self.block_rows.size

    def row_pointers(self, count: int) -> np.ndarray:
        """Return where the blocks of each of ``count`` block rows begin, and the last ones end."""
        return np.searchsorted(self.block_rows, np.arange(count + 1))

    def slots(self, entries: Entries) -> np.ndarray:
        """Return the slot of each entry in row-major blocks one after another."""
        size = self.rows * self.columns
        wide = np.int32 if self.count * size < 2**31 else np.int64
        rows, columns = entries.coordinates
        slots = self.of_entry.astype(wide)
        slots *= size
        within = (rows % self.rows).astype(wide, copy=False)
        within *= self.columns
        slots += within
        slots += (columns % self.columns).astype(wide, copy=False)
        return slots

    def fill(self, entries: Entries) -> tuple[np.ndarray, np.ndarray]:
        """Return the blocks' values, zero in padding, and the slots of the entries."""
        values = np.zeros((self.count, self.rows, self.columns), entries.values.dtype)
        slots = self.slots(entries)
        values.reshape(-1)[slots] = entries.values
        return values, slots


def find_blocks(entries: Entries, rows: int, columns: int) -> Blocks:
    """Find the blocks of ``rows`` times ``columns`` that hold the entries, which are sorted."""
    row, column = entries.coordinates
    block_row, block_column = row // rows, column // columns
    order = lexicographic_order(
        (block_row, block_column), count_blocks(entries.shape, rows, columns)
    )
    if order is not None:
        block_row, block_column = block_row[order], block_column[order]
    first = np.ones(entries.count, bool)
    first[1:] = block_row[1:] != block_row[:-1]
    first[1:] |= block_column[1:] != block_column[:-1]
    of_entry = np.cumsum(first, dtype=np.int32 if entries.count < 2**31 else np.int64)
    of_entry -= 1
    if order is not None:
        of_sorted, of_entry = of_entry, np.empty_like(of_entry)
        of_entry[order] = of_sorted
    return Blocks(rows, columns, block_row[first], block_column[first], of_entry)


def count_blocks(shape: Sequence[int], rows: int, columns: int) -> tuple[int, int]:
    """Return how many blocks a matrix has in each dimension, those that stick out included."""
    return -(-shape[0] // rows), -(-shape[1] // columns)


def block_coordinates(
    slots: np.ndarray, block_rows: np.ndarray, block_columns: np.ndarray, rows: int, columns: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the coordinates in the matrix of slots in row-major blocks one after another."""
    blocks, within = np.divmod(slots, rows * columns)
    row, column = np.divmod(within, columns)
    return block_rows[blocks] * rows + row, block_columns[blocks] * columns + column

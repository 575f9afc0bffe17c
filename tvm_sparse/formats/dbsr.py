"""DBSR: BSR that stores only the block rows that have blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm.ir import Expr

from .bsr import BSR, block_coordinates, count_blocks, find_blocks
from .entries import Entries
from .format import Format, Storage, check_fits
from .layout import Layout, LayoutBuilder

__all__ = ["DBSR"]


class DBSR(Format):
    """Doubly compressed block rows: ``R`` over stored block rows, ``BI`` their numbers, then as BSR.

    For matrices pruned block by block, where many block rows are empty. ``BJ`` is compressed under
    ``BI``, ``II`` and ``JJ`` are dense, and values have the shape ``(blocks, rows, columns)``. Padding
    is +0.0 and entries that are zero are -0.0, as in :class:`BSR`.

    Parameters
    ----------
    rows, columns : int
        Size of a block.
    min_fill : float
        As a part of a composition, take only blocks of which at least this share is filled.

    Notes
    -----
    DBSR of SparseTIR (ASPLOS'23).

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import DBSR
    >>> packed = DBSR(1, 2).pack(sp.coo_matrix([[0, 0, 0], [0, 0, 0], [1.0, 2.0, 3.0]]))
    >>> packed.storage.arrays["block_row_indices"].tolist(), packed.values.tolist()
    ([[2]], [[[1.0, 2.0]], [[3.0, 0.0]]])
    """

    marks_padding = True

    def __init__(self, rows: int, columns: int, min_fill: float = 0.0) -> None:
        self._blocks = BSR(rows, columns, min_fill)
        self.name = f"d{self._blocks.name}"
        self.rows, self.columns, self.min_fill = rows, columns, min_fill

    def layout(self, prefix: str, shape: Sequence[Expr], index_dtype: str = "int32") -> Layout:
        build = LayoutBuilder(prefix, index_dtype)
        stored = build.dense("R", build.size("stored_block_rows"), dims=[0])
        block_row = build.padded(
            "BI", stored, build.size("block_rows"), 1, dims=[0], indices="block_row_indices"
        )
        build.compressed("BJ", block_row, build.size("block_columns"), dims=[1])
        build.dense("II", self.rows, dims=[0])
        build.dense("JJ", self.columns, dims=[1])
        return build.finish(lambda stored: self._blocks.to_tensor(stored[1:]))

    def takes(self, entries: Entries) -> np.ndarray:
        return self._blocks.takes(entries)

    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        blocks = find_blocks(entries, self.rows, self.columns)
        block_rows, block_columns = count_blocks(entries.shape, self.rows, self.columns)
        check_fits(self.name, blocks.count * self.rows * self.columns, index_dtype)
        values, slots = blocks.fill(entries)
        stored, begins = np.unique(blocks.block_rows, return_index=True)
        arrays = {
            "block_row_indices": stored.astype(index_dtype).reshape(-1, 1),
            "indptr": np.append(begins, blocks.count).astype(index_dtype),
            "indices": blocks.block_columns.astype(index_dtype),
        }
        sizes = {
            "stored_block_rows": stored.size,
            "block_rows": block_rows,
            "block_columns": block_columns,
            "nnz": blocks.count,
        }
        return Storage(values, arrays, sizes, slots)

    def coordinates(self, storage: Storage, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        arrays = storage.arrays
        block_rows = np.repeat(arrays["block_row_indices"][:, 0], np.diff(arrays["indptr"]))
        return block_coordinates(slots, block_rows, arrays["indices"], self.rows, self.columns)

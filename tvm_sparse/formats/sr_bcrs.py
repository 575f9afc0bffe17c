"""SR-BCRS: strips of rows whose columns that have entries are stored in groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm.ir import Expr

from .bsr import count_blocks, find_blocks
from .entries import Entries
from .format import Format, Storage, check_fits, check_positive
from .layout import Layout, LayoutBuilder

__all__ = ["SRBCRS"]


class SRBCRS(Format):
    """Strided row-major BCRS: ``BI`` over strips, ``G`` over groups, ``T`` over tiles, ``II`` over rows.

    A strip is ``t`` rows. Its columns that have entries are stored as tiles of ``t`` times 1, sorted,
    ``g`` of them to a group, so that a matrix unit can multiply a group and ``g`` gathered rows.
    ``G`` is ragged under ``BI``, and ``T`` has ``g`` slots under each group; the last group of a strip
    is padded with the number of columns as index. Values have the shape ``(groups, g, t)``: tiles are
    contiguous. Padding is +0.0 and entries that are zero are -0.0, as in :class:`BSR`.

    Parameters
    ----------
    t : int
        Rows of a strip; the last one may stick out of the matrix.
    g : int
        Tiles of a group.

    Notes
    -----
    From Magicube (SC'22), as SR-BCRS(t, g) of SparseTIR (ASPLOS'23); TC-GNN's format
    is the same.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import SRBCRS
    >>> packed = SRBCRS(2, 2).pack(sp.coo_matrix([[1.0, 0, 0, 2], [3, 0, 4, 0]]))
    >>> packed.storage.arrays["indices"].tolist(), packed.values.tolist()
    ([[0, 2], [3, 4]], [[[1.0, 3.0], [0.0, 4.0]], [[2.0, 0.0], [0.0, 0.0]]])
    """

    covers = (0,)

    marks_padding = True

    def __init__(self, t: int, g: int) -> None:
        check_positive(t=t, g=g)
        self.name = f"sr_bcrs{t}x{g}"
        self.t, self.g = t, g

    def layout(self, prefix: str, shape: Sequence[Expr], index_dtype: str = "int32") -> Layout:
        columns = shape[1]
        build = LayoutBuilder(prefix, index_dtype)
        strip = build.dense("BI", build.size("strips"), dims=[0])
        group = build.ragged("G", strip, columns, dims=[1], nnz="groups")
        build.padded("T", group, columns, self.g, dims=[1])
        build.dense("II", self.t, dims=[0])
        return build.finish(self._to_tensor)

    def _to_tensor(self, stored: Sequence[Expr]) -> list[Expr]:
        strip, _, column, row = stored
        return [strip * self.t + row, column]

    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        tiles = find_blocks(entries, self.t, 1)
        strips, columns = count_blocks(entries.shape, self.t, 1)
        begins = tiles.row_pointers(strips)
        indptr = np.zeros(strips + 1, np.int64)
        np.cumsum(-(-np.diff(begins) // self.g), out=indptr[1:])
        groups = int(indptr[-1])
        check_fits(self.name, groups * self.g * self.t, index_dtype)
        # Tiles of a strip come one after another; what strips before it are padded with comes on top.
        places = np.arange(tiles.count)
        places += (indptr[:-1] * self.g - begins[:-1])[tiles.block_rows]
        indices = np.full((groups, self.g), columns, index_dtype)
        indices.reshape(-1)[places] = tiles.block_columns
        slots = places[tiles.of_entry] * self.t + entries.coordinates[0] % self.t
        values = np.zeros((groups, self.g, self.t), entries.values.dtype)
        values.reshape(-1)[slots] = entries.values
        arrays = {"indptr": indptr.astype(index_dtype), "indices": indices}
        return Storage(values, arrays, {"strips": strips, "groups": groups}, slots)

    def coordinates(self, storage: Storage, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        tiles, row = np.divmod(slots, self.t)
        groups_of_strip = np.diff(storage.arrays["indptr"])
        strips = np.repeat(np.arange(groups_of_strip.size), groups_of_strip)
        return (
            strips[tiles // self.g] * self.t + row,
            storage.arrays["indices"].reshape(-1)[tiles],
        )

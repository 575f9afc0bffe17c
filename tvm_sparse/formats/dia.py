"""DIA: whole diagonals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import tirx
from tvm.ir import Expr

from .entries import Entries
from .format import Format, Storage, check_fits
from .layout import Layout, LayoutBuilder

__all__ = ["DIA"]


class DIA(Format):
    """Diagonals that have entries: axes ``D`` over diagonals, ``I`` over rows, both dense.

    Slot ``(d, i)`` belongs to column ``i + offsets[d]``; where that is outside the matrix, or the
    matrix has no entry, the slot is padding. Unlike in ``scipy.sparse.dia_array``, slots are numbered
    by row, not by column.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import DIA
    >>> packed = DIA().pack(sp.coo_matrix([[1.0, 5.0, 0], [0, 2.0, 6.0]]))
    >>> packed.storage.arrays["offsets"].tolist(), packed.values.tolist()
    ([0, 1], [[1.0, 2.0], [5.0, 6.0]])
    """

    covers = (0,)

    marks_padding = True

    def __init__(self) -> None:
        self.name = "dia"

    def layout(self, prefix: str, shape: Sequence[Expr], index_dtype: str = "int32") -> Layout:
        rows, _ = shape
        build = LayoutBuilder(prefix, index_dtype)
        count = build.size("diagonals")
        offsets = build.array("offsets", count)
        build.dense("D", count, dims=[1], distinct=False)  # columns of diagonals overlap
        build.dense("I", rows, dims=[0])

        def to_tensor(coordinates: Sequence[Expr]) -> list[Expr]:
            diagonal, row = coordinates
            return [row, row + tirx.BufferLoad(offsets, [diagonal])]

        return build.finish(to_tensor)

    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        rows, columns = (c.astype(np.int64) for c in entries.coordinates)
        offsets, diagonals = np.unique(columns - rows, return_inverse=True)
        shape = (offsets.size, entries.shape[0])
        # Rows and offsets are added, in padding slots too.
        check_fits(self.name, max(offsets.size * shape[1], sum(entries.shape)), index_dtype)
        slots = diagonals * entries.shape[0] + rows
        values = np.zeros(shape, entries.values.dtype)
        values.reshape(-1)[slots] = entries.values
        arrays = {"offsets": offsets.astype(index_dtype)}
        return Storage(values, arrays, {"diagonals": offsets.size}, slots)

    def coordinates(self, storage: Storage, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        diagonals, rows = np.divmod(slots, max(1, storage.values.shape[1]))
        return rows, rows + storage.arrays["offsets"][diagonals]

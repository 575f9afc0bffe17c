"""ELL: the same number of slots for every row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm.ir import Expr

from .entries import Entries
from .format import Format, Storage, check_fits, check_positive
from .layout import Layout, LayoutBuilder

__all__ = ["ELL"]


class ELL(Format):
    """Rows of equal width: axes ``I`` dense, ``J`` sparse with ``width`` slots under it.

    A row's entries come first, sorted; slots left over are padding, with the number of columns as
    index and zero as value. The format of ITPACK and ELLPACK.

    Parameters
    ----------
    width : int, optional
        Slots of a row, a constant of the kernel. None: that of the longest row packed, a size
        parameter.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import ELL
    >>> packed = ELL(width=2).pack(sp.coo_matrix([[0, 5.0], [7.0, 8.0]]))
    >>> packed.storage.arrays["indices"].tolist(), packed.values.tolist()
    ([[1, 2], [0, 1]], [[5.0, 0.0], [7.0, 8.0]])
    """

    covers = (0,)

    def __init__(self, width: int | None = None) -> None:
        if width is not None:
            check_positive(width=width)
        self.name = "ell" if width is None else f"ell{width}"
        self.width = width

    def layout(self, prefix: str, shape: Sequence[Expr], index_dtype: str = "int32") -> Layout:
        rows, columns = shape
        build = LayoutBuilder(prefix, index_dtype)
        row = build.dense("I", rows, dims=[0])
        width = build.size("width") if self.width is None else self.width
        build.padded("J", row, columns, width, dims=[1])
        return build.finish(list, list)

    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        rows, columns = entries.coordinates
        row_count, column_count = entries.shape
        begins = entries.row_pointers
        width = self._width_for(np.diff(begins))
        check_fits(self.name, row_count * width, index_dtype)
        slots = np.arange(entries.count) - begins[rows] + rows.astype(np.int64) * width
        indices = np.full((row_count, width), column_count, index_dtype)
        values = np.zeros((row_count, width), entries.values.dtype)
        indices.reshape(-1)[slots] = columns
        values.reshape(-1)[slots] = entries.values
        sizes = {"width": width} if self.width is None else {}
        return Storage(values, {"indices": indices}, sizes, slots)

    def coordinates(self, storage: Storage, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        width = max(1, storage.values.shape[1])
        return slots // width, storage.arrays["indices"].reshape(-1)[slots]

    def _width_for(self, lengths: np.ndarray) -> int:
        """Return the width, at least as long as every row."""
        longest = int(lengths.max(initial=0))
        if self.width is None:
            return longest
        if longest > self.width:
            raise ValueError(
                f"{self.name}: expected rows of at most {self.width} entries (width), found "
                f"{longest} in row {int(lengths.argmax())}; choose a larger width, or None"
            )
        return self.width

"""CSC: columns one after another, each with its row indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm.ir import Expr

from .csr import row_pointers
from .entries import Entries, places_in, storage_order
from .format import Format, Storage
from .layout import Layout, LayoutBuilder

__all__ = ["CSC"]


class CSC(Format):
    """Compressed sparse columns: axes ``J`` dense, ``I`` sparse and variable under it.

    The arrays are those of ``scipy.sparse.csc_array`` with sorted indices.

    Parameters
    ----------
    keeps_duplicates : bool
        Give repeated coordinates slots of their own instead of summing them.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import CSC
    >>> packed = CSC().pack(sp.coo_matrix([[0, 5.0], [7.0, 0]]))
    >>> packed.storage.arrays["indices"].tolist(), packed.values.tolist()
    ([1, 0], [7.0, 5.0])
    """

    covers = (1,)

    def __init__(self, keeps_duplicates: bool = False) -> None:
        self.name = "csc"
        self.keeps_duplicates = keeps_duplicates

    def layout(self, prefix: str, shape: Sequence[Expr], index_dtype: str = "int32") -> Layout:
        rows, columns = shape
        unique = not self.keeps_duplicates
        build = LayoutBuilder(prefix, index_dtype)
        column = build.dense("J", columns, dims=[1])
        build.compressed("I", column, rows, dims=[0], unique=unique, distinct=unique)
        swap = lambda pair: [pair[1], pair[0]]  # noqa: E731
        return build.finish(swap, swap)

    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        order = storage_order(entries, (1, 0))
        rows, columns = entries.take(order).coordinates
        arrays = {
            "indptr": row_pointers(columns, entries.shape[1], index_dtype),
            "indices": rows.astype(index_dtype),
        }
        return Storage(entries.values[order], arrays, {"nnz": entries.count}, places_in(order))

    def coordinates(self, storage: Storage, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        columns = np.searchsorted(storage.arrays["indptr"], slots, side="right") - 1
        return storage.arrays["indices"][slots], columns

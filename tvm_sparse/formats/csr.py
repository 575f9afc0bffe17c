"""CSR: rows one after another, each with its column indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm.ir import Expr

from .entries import Entries
from .format import Format, Storage
from .layout import Layout, LayoutBuilder

__all__ = ["CSR"]


class CSR(Format):
    """Compressed sparse rows: axes ``I`` dense, ``J`` sparse and variable under it.

    Parameters
    ----------
    keeps_duplicates : bool
        Give repeated coordinates slots of their own instead of summing them.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import CSR
    >>> packed = CSR().pack(sp.coo_matrix([[0, 5.0], [7.0, 0]]))
    >>> packed.storage.arrays["indptr"].tolist(), packed.values.tolist()
    ([0, 1, 2], [5.0, 7.0])
    """

    covers = (0,)

    def __init__(self, keeps_duplicates: bool = False) -> None:
        self.name = "csr"
        self.keeps_duplicates = keeps_duplicates

    def layout(self, prefix: str, shape: Sequence[Expr], index_dtype: str = "int32") -> Layout:
        rows, columns = shape
        build = LayoutBuilder(prefix, index_dtype)
        row = build.dense("I", rows, dims=[0])
        unique = not self.keeps_duplicates
        build.compressed("J", row, columns, dims=[1], unique=unique, distinct=unique)
        return build.finish(list, list)

    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        indptr = entries.row_pointers.astype(index_dtype)
        arrays = {"indptr": indptr, "indices": entries.columns.astype(index_dtype)}
        sizes = {"nnz": entries.count}
        return Storage(entries.values.copy(), arrays, sizes, np.arange(entries.count))

    def coordinates(self, storage: Storage, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        rows = np.searchsorted(storage.arrays["indptr"], slots, side="right") - 1
        return rows, storage.arrays["indices"][slots]


def row_pointers(rows: np.ndarray, count: int, dtype: np.dtype) -> np.ndarray:
    """Return where the entries of each row begin, shape ``(count + 1,)``; rows are sorted."""
    pointers = np.zeros(count + 1, dtype)
    np.cumsum(np.bincount(rows, minlength=count), out=pointers[1:])
    return pointers

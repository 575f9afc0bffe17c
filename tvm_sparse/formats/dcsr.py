"""DCSR: the rows that have entries one after another, each with its number and column indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm.ir import Expr

from .entries import Entries
from .format import Format, Storage
from .layout import Layout, LayoutBuilder

__all__ = ["DCSR"]


class DCSR(Format):
    """Doubly compressed sparse rows: axes ``R`` over stored rows, ``I`` their numbers, ``J`` columns.

    For hypersparse matrices, whose empty rows cost nothing: the row-wise form of DCSC of Buluç and
    Gilbert, "On the representation and multiplication of hypersparse matrices", IPDPS 2008.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import DCSR
    >>> packed = DCSR().pack(sp.coo_matrix([[0, 0], [0, 0], [7.0, 8.0]]))
    >>> packed.storage.arrays["row_indices"].tolist(), packed.storage.arrays["indptr"].tolist()
    ([[2]], [0, 2])
    """

    def __init__(self) -> None:
        self.name = "dcsr"

    def layout(self, prefix: str, shape: Sequence[Expr], index_dtype: str = "int32") -> Layout:
        rows, columns = shape
        build = LayoutBuilder(prefix, index_dtype)
        stored = build.dense("R", build.size("rows"), dims=[0])
        row = build.padded("I", stored, rows, 1, dims=[0], indices="row_indices")
        build.compressed("J", row, columns, dims=[1])
        return build.finish(lambda coordinates: list(coordinates[1:]))

    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        begins = entries.row_pointers
        stored = np.flatnonzero(np.diff(begins))
        arrays = {
            "row_indices": stored.astype(index_dtype).reshape(-1, 1),
            "indptr": np.append(begins[stored], entries.count).astype(index_dtype),
            "indices": entries.columns.astype(index_dtype),
        }
        sizes = {"rows": stored.size, "nnz": entries.count}
        return Storage(entries.values.copy(), arrays, sizes, np.arange(entries.count))

    def coordinates(self, storage: Storage, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        stored = np.searchsorted(storage.arrays["indptr"], slots, side="right") - 1
        return storage.arrays["row_indices"][stored, 0], storage.arrays["indices"][slots]

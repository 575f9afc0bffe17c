"""COO: entries one after another, each with all of its coordinates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm.ir import Expr

from .entries import Entries
from .format import Format, Storage
from .layout import Layout, LayoutBuilder, check_rank, dimension_name

__all__ = ["COO"]


class COO(Format):
    """Coordinate list: axis ``E`` over the entries, then ``I``, ``J``, ... of one coordinate each.

    Entries are sorted by coordinates, first dimension slowest. The arrays are those of
    ``scipy.sparse.coo_array``, ``indices0`` for the first dimension and so on, with a dimension of 1
    for each axis under ``E``.

    Parameters
    ----------
    rank : int
        Number of dimensions of the tensor.
    keeps_duplicates : bool
        Give repeated coordinates slots of their own instead of summing them.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import COO
    >>> packed = COO().pack(sp.coo_matrix([[0, 5.0], [7.0, 0]]))
    >>> packed.storage.arrays["indices1"].ravel().tolist(), packed.values.ravel().tolist()
    ([1, 0], [5.0, 7.0])
    """

    def __init__(self, rank: int = 2, keeps_duplicates: bool = False) -> None:
        check_rank(rank, 1)
        self.name = "coo"
        self.rank = rank
        self.keeps_duplicates = keeps_duplicates

    def layout(self, prefix: str, shape: Sequence[Expr], index_dtype: str = "int32") -> Layout:
        build = LayoutBuilder(prefix, index_dtype)
        count, unique = build.size("nnz"), not self.keeps_duplicates
        parent = build.dense("E", count, dims=range(self.rank), distinct=unique)
        for dim, extent in enumerate(shape):
            parent = build.padded(
                dimension_name(dim), parent, extent, 1, dims=[dim], indices=f"indices{dim}"
            )
        return build.finish(lambda coordinates: list(coordinates[1:]))

    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        arrays = {
            f"indices{dim}": _column(found.astype(index_dtype), dim + 1)
            for dim, found in enumerate(entries.coordinates)
        }
        values = _column(entries.values.copy(), self.rank)
        return Storage(values, arrays, {"nnz": entries.count}, np.arange(entries.count))

    def coordinates(self, storage: Storage, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        arrays = storage.arrays
        return tuple(arrays[f"indices{dim}"].reshape(-1)[slots] for dim in range(self.rank))


def _column(array: np.ndarray, levels: int) -> np.ndarray:
    """Give an array the shape of ``levels`` axes of width 1 under the entries."""
    return array.reshape(array.size, *[1] * levels)

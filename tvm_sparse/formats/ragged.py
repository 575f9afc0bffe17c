"""Ragged: rows of different lengths without gaps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm.ir import Expr

from .entries import Entries
from .format import Format, Storage, check_fits
from .layout import Layout, LayoutBuilder, check_rank, dimension_name

__all__ = ["Ragged"]


class Ragged(Format):
    """Rows that store coordinates ``0 .. length - 1``: axes ``I`` dense, ``J`` ragged under it.

    With more dimensions, ``K`` is ragged under ``J`` and so on. The arrays are ``indptr`` and the size
    ``nnz`` for a matrix, ``indptr1``, ``nnz1``, ``indptr2``, ... for more dimensions. As in CoRa of
    Fegade et al., MLSys 2022, and in nested tensors of PyTorch.

    Parameters
    ----------
    rank : int
        Number of dimensions of the tensor, at least 2.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import Ragged
    >>> packed = Ragged().pack(sp.coo_matrix([[5.0, 6.0], [0, 0], [7.0, 0]]))
    >>> packed.storage.arrays["indptr"].tolist(), packed.values.tolist()
    ([0, 2, 2, 3], [5.0, 6.0, 7.0])
    """

    covers = (0,)

    def __init__(self, rank: int = 2) -> None:
        check_rank(rank, 2)
        self.name = "ragged"
        self.rank = rank

    def layout(self, prefix: str, shape: Sequence[Expr], index_dtype: str = "int32") -> Layout:
        build = LayoutBuilder(prefix, index_dtype)
        parent = build.dense("I", shape[0], dims=[0])
        for dim in range(1, self.rank):
            parent = build.ragged(
                dimension_name(dim),
                parent,
                shape[dim],
                dims=[dim],
                indptr=self._level_name("indptr", dim),
                nnz=self._level_name("nnz", dim),
            )
        return build.finish(list, list)

    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        arrays: dict[str, np.ndarray] = {}
        sizes: dict[str, int] = {}
        nodes, count = entries.coordinates[0], entries.shape[0]
        for dim in range(1, self.rank):
            begins = _begins_of_rows(nodes, entries.coordinates[dim], count)
            nodes, count = begins[nodes] + entries.coordinates[dim], int(begins[-1])
            check_fits(self.name, count, index_dtype)
            arrays[self._level_name("indptr", dim)] = begins.astype(index_dtype)
            sizes[self._level_name("nnz", dim)] = count
        if count != entries.count:
            self._refuse_gap(entries, nodes)
        return Storage(entries.values.copy(), arrays, sizes, np.arange(entries.count))

    def coordinates(self, storage: Storage, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        found: list[np.ndarray] = []
        nodes = slots
        for dim in range(self.rank - 1, 0, -1):
            begins = storage.arrays[self._level_name("indptr", dim)]
            parents = np.searchsorted(begins, nodes, side="right") - 1
            found.insert(0, nodes - begins[parents])
            nodes = parents
        return (nodes, *found)

    def _level_name(self, what: str, dim: int) -> str:
        return what if self.rank == 2 else f"{what}{dim}"

    def _refuse_gap(self, entries: Entries, slots: np.ndarray) -> None:
        """Name the first entry after a gap and the coordinates that are missing before it."""
        late = int(np.flatnonzero(slots != np.arange(slots.size))[0])
        *row, last = (int(found[late]) for found in entries.coordinates)
        begin = last - int(slots[late] - late)
        raise ValueError(
            f"{self.name}: expected coordinates 0..{last} in row {tuple(row)}, as it stores "
            f"{last}; found none from {begin} to {last - 1}"
        )


def _begins_of_rows(nodes: np.ndarray, coordinates: np.ndarray, count: int) -> np.ndarray:
    """Return where rows begin that reach up to their largest coordinate, shape ``(count + 1,)``."""
    begins = np.zeros(count + 1, np.int64)
    np.maximum.at(begins[1:], nodes, coordinates + 1)
    return np.cumsum(begins)

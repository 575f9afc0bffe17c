"""CSF: a tree of coordinates, one level for each dimension."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm.ir import Expr

from .csr import row_pointers
from .entries import Entries, places_in, storage_order
from .format import Format, Storage
from .layout import Layout, LayoutBuilder, check_rank, dimension_name

__all__ = ["CSF"]


class CSF(Format):
    """Compressed sparse fibres: one axis for each dimension, compressed under the one before.

    Axes are named after dimensions, ``I``, ``J``, ``K``, ...; level ``n`` has the arrays ``indptrn``
    and ``indicesn`` and the size ``nnzn``. A compressed root is an axis ``R`` over its stored
    coordinates with these under it, as in DCSR; a vector with a dense root is stored as a whole. Of
    Smith and Karypis, "Tensor-matrix products with a compressed sparse tensor", IA3 2015.

    Parameters
    ----------
    rank : int
        Number of dimensions of the tensor.
    order : sequence of int, optional
        Dimensions from the root to the leaves; None is ``0, 1, ...``.
    compressed_root : bool
        Store only the root coordinates that have entries.

    Examples
    --------
    >>> from tvm_sparse.formats import CSF
    >>> packed = CSF(3).pack((([0, 0, 1], [2, 2, 0], [0, 3, 1]), [5.0, 6.0, 7.0], (2, 3, 4)))
    >>> {name: array.tolist() for name, array in packed.storage.arrays.items()}
    {'indptr1': [0, 1, 2], 'indices1': [2, 0], 'indptr2': [0, 2, 3], 'indices2': [0, 3, 1]}
    """

    def __init__(
        self, rank: int, order: Sequence[int] | None = None, compressed_root: bool = False
    ) -> None:
        check_rank(rank, 1)
        self.rank = rank
        self.order = tuple(range(rank) if order is None else order)
        levels = "_".join(map(str, self.order))
        self.name = "csf" if self.order == tuple(range(rank)) else f"csf_{levels}"
        self.compressed_root = compressed_root
        self.marks_padding = rank == 1 and not compressed_root
        if sorted(self.order) != list(range(rank)):
            raise ValueError(
                f"order: expected a permutation of 0..{rank - 1}, found {list(self.order)}"
            )

    def layout(self, prefix: str, shape: Sequence[Expr], index_dtype: str = "int32") -> Layout:
        build = LayoutBuilder(prefix, index_dtype)
        root = self.order[0]
        if self.compressed_root:
            stored = build.dense("R", build.size("nnz0"), dims=[root])
            name = dimension_name(root)
            parent = build.padded(name, stored, shape[root], 1, dims=[root], indices="indices0")
        else:
            parent = build.dense(dimension_name(root), shape[root], dims=[root])
        for level, dim in list(enumerate(self.order))[1:]:
            parent = build.compressed(
                dimension_name(dim),
                parent,
                shape[dim],
                dims=[dim],
                indptr=f"indptr{level}",
                indices=f"indices{level}",
                nnz=f"nnz{level}",
            )

        def to_tensor(coordinates: Sequence[Expr]) -> list[Expr]:
            by_dim = dict(zip(self.order, coordinates[-self.rank :]))
            return [by_dim[dim] for dim in range(self.rank)]

        def from_tensor(coordinates: Sequence[Expr]) -> list[Expr]:
            return [coordinates[dim] for dim in self.order]

        return build.finish(to_tensor, None if self.compressed_root else from_tensor)

    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        order = storage_order(entries, self.order)
        sorted_entries = entries.take(order)
        levels = [sorted_entries.coordinates[dim] for dim in self.order]
        arrays: dict[str, np.ndarray] = {}
        sizes: dict[str, int] = {}
        begins = np.zeros(entries.count, bool)  # whether an entry is the first of its node
        if self.compressed_root:
            begins = _first_of_node(begins, levels[0])
            arrays["indices0"] = levels[0][begins].astype(index_dtype).reshape(-1, 1)
            sizes["nnz0"] = arrays["indices0"].size
            nodes, count = np.cumsum(begins) - 1, sizes["nnz0"]
        else:
            begins = _first_of_node(begins, levels[0])
            nodes, count = levels[0], entries.shape[self.order[0]]
        for level in range(1, self.rank):
            begins = _first_of_node(begins, levels[level])
            arrays[f"indptr{level}"] = row_pointers(nodes[begins], count, index_dtype)
            arrays[f"indices{level}"] = levels[level][begins].astype(index_dtype)
            nodes = np.cumsum(begins) - 1
            count = sizes[f"nnz{level}"] = arrays[f"indices{level}"].size
        values = np.zeros(count, entries.values.dtype)
        values[nodes] = sorted_entries.values
        if self.compressed_root and self.rank == 1:
            values = values.reshape(-1, 1)
        return Storage(values, arrays, sizes, nodes.astype(np.int64)[places_in(order)])

    def coordinates(self, storage: Storage, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        by_dim = {}
        nodes = slots
        for level in range(self.rank - 1, 0, -1):
            by_dim[self.order[level]] = storage.arrays[f"indices{level}"][nodes]
            nodes = np.searchsorted(storage.arrays[f"indptr{level}"], nodes, side="right") - 1
        root = storage.arrays["indices0"][nodes, 0] if self.compressed_root else nodes
        by_dim[self.order[0]] = root
        return tuple(by_dim[dim] for dim in range(self.rank))


def _first_of_node(begins: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
    """Mark the entries that begin a node of a level, from those of the level above."""
    first = begins.copy()
    first[:1] = True
    first[1:] |= coordinates[1:] != coordinates[:-1]
    return first

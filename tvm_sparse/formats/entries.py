"""Tensors as coordinates and values, whatever they came as: the input of every format's ``pack``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

__all__ = ["Entries", "as_entries"]


@dataclass(frozen=True)
class Entries:
    """The stored entries of a tensor, in the order of its source.

    Attributes
    ----------
    coordinates : tuple of numpy.ndarray
        One integer array of shape ``(entries,)`` for each dimension.
    values : numpy.ndarray
        Shape ``(entries,)``.
    shape : tuple of int
        Of the tensor.
    """

    coordinates: tuple[np.ndarray, ...]
    values: np.ndarray
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of stored entries."""
        return self.values.size

    @cached_property
    def order(self) -> np.ndarray | None:
        """Permutation that sorts the entries by coordinates, first dimension slowest; None if sorted."""
        return lexicographic_order(self.coordinates, self.shape)

    def sorted(self) -> Entries:
        """Return the entries in lexicographic order."""
        return self if self.order is None else self.take(self.order)

    def take(self, chosen: np.ndarray) -> Entries:
        """Return the entries at these places, in this order."""
        return Entries(tuple(c[chosen] for c in self.coordinates), self.values[chosen], self.shape)


def lexicographic_order(
    coordinates: Sequence[np.ndarray], shape: Sequence[int]
) -> np.ndarray | None:
    """Return the stable permutation that sorts coordinates, None if they are sorted already."""
    if not coordinates or coordinates[0].size < 2:
        return None
    key = linear_key(coordinates, shape)
    if key is None:
        order = np.lexsort(tuple(reversed(coordinates)))
        return None if np.array_equal(order, np.arange(order.size)) else order
    if bool(np.all(key[1:] >= key[:-1])):
        return None
    return np.argsort(key, kind="stable")


def linear_key(coordinates: Sequence[np.ndarray], shape: Sequence[int]) -> np.ndarray | None:
    """Return row-major offsets of coordinates, None where they pass 63 bits."""
    size = 1
    for extent in shape:
        size *= max(1, int(extent))
    if size >= 2**63:
        return None
    key = np.zeros(coordinates[0].shape, np.int64)
    for values, extent in zip(coordinates, shape):
        key *= extent
        key += values
    return key


def as_entries(tensor: Any, rank: int | None = None, label: str = "tensor") -> Entries:
    """Read a tensor of any accepted kind.

    Parameters
    ----------
    tensor : scipy.sparse matrix or array, torch.Tensor, Entries, Packed or tuple
        A tuple is ``(coordinates, values, shape)``, coordinates one array for each dimension.
    rank : int, optional
        The number of dimensions that is wanted.
    label : str
        Names the argument in messages.

    Returns
    -------
    Entries
        Coordinates in range; unsorted and repeated ones as they came.

    Raises
    ------
    TypeError, ValueError
        If the tensor is of another kind or rank, or a coordinate is out of range.
    """
    entries = _normalized(_read(tensor, label), label)
    if rank is not None and len(entries.shape) != rank:
        raise ValueError(f"{label}: expected {rank} dimensions, found {len(entries.shape)}")
    for dim, (found, extent) in enumerate(zip(entries.coordinates, entries.shape)):
        if found.shape != entries.values.shape:
            raise ValueError(
                f"{label}: expected as many coordinates as values ({entries.values.size}), "
                f"found {found.size} in dimension {dim}"
            )
        if found.size and not (found.min() >= 0 and found.max() < extent):
            raise ValueError(
                f"{label}: expected coordinates of dimension {dim} in 0..{extent - 1}, "
                f"found {found.min()}..{found.max()}"
            )
    return entries


def _normalized(entries: Entries, label: str) -> Entries:
    """Bring coordinates to int32 or int64 and values to native byte order; check the rest."""
    coordinates, values, shape = entries.coordinates, entries.values, entries.shape
    if len(coordinates) != len(shape):
        raise ValueError(
            f"{label}: expected {len(shape)} arrays of coordinates, found {len(coordinates)}"
        )
    if any(extent < 0 for extent in shape):
        raise ValueError(f"{label}: expected a shape of sizes >= 0, found {tuple(shape)}")
    if values.ndim != 1:
        raise ValueError(f"{label}: expected one value for each entry, found shape {values.shape}")
    if values.dtype.kind in "OSUMm" or values.dtype.fields is not None:
        raise TypeError(f"{label}: expected values that are numbers, found {values.dtype}")
    narrow = ("int32", "int64")
    return Entries(
        tuple(
            c if c.dtype.name in narrow and c.dtype.isnative else c.astype("int64")
            for c in coordinates
        ),
        values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("=")),
        tuple(int(extent) for extent in shape),
    )


def _read(tensor: Any, label: str) -> Entries:
    if isinstance(tensor, Entries):
        return tensor
    if hasattr(tensor, "entries") and callable(tensor.entries):
        return tensor.entries()
    if sp.issparse(tensor):
        return _from_scipy(tensor)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _from_torch(tensor, label)
    if isinstance(tensor, tuple) and len(tensor) == 3:
        coordinates, values, shape = tensor
        arrays = tuple(np.ascontiguousarray(c) for c in coordinates)
        arrays = tuple(c if c.size else c.astype("int64") for c in arrays)
        for dim, array in enumerate(arrays):
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise ValueError(
                    f"{label}: expected integer vectors of coordinates, found {array.dtype} of "
                    f"shape {array.shape} in dimension {dim}"
                )
        return Entries(arrays, np.ascontiguousarray(values), tuple(int(n) for n in shape))
    raise TypeError(
        f"{label}: expected a SciPy sparse matrix, a PyTorch sparse tensor, packed values or "
        f"(coordinates, values, shape), found {type(tensor).__name__}"
    )


def _from_scipy(matrix: Any) -> Entries:
    if matrix.format == "csr" and len(matrix.shape) == 2:
        count = matrix.nnz  # the arrays may be longer
        rows = np.repeat(
            np.arange(matrix.shape[0], dtype=matrix.indices.dtype), np.diff(matrix.indptr)
        )
        return Entries((rows, matrix.indices[:count]), matrix.data[:count], matrix.shape)
    coo = matrix.tocoo()
    coordinates = coo.coords if hasattr(coo, "coords") else (coo.row, coo.col)
    return Entries(tuple(coordinates), coo.data, coo.shape)


def _from_torch(tensor: Any, label: str) -> Entries:
    layout = str(tensor.layout).rpartition(".")[2]
    if not layout.startswith("sparse"):
        raise TypeError(f"{label}: expected a sparse tensor, found one of layout {layout}")
    coo = tensor if layout == "sparse_coo" else tensor.to_sparse_coo()
    if coo.dense_dim():
        raise ValueError(f"{label}: expected one value for each entry, found a hybrid tensor")
    # Not coalesced: repeated coordinates are kept as they are.
    values = coo._values().detach().cpu().resolve_neg().resolve_conj()
    if str(values.dtype) == "torch.bfloat16":
        from ml_dtypes import bfloat16  # noqa: PLC0415 (comes with TVM)

        array = values.view(sys.modules["torch"].int16).numpy().view(bfloat16)
    else:
        array = values.numpy()
    return Entries(tuple(coo._indices().cpu().numpy()), array, tuple(coo.shape))

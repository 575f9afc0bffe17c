"""Tensors as coordinates and values, whatever they came as: the input of every format's ``pack``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

__all__ = ["Entries", "RowEntries", "as_entries"]


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
    def columns(self) -> np.ndarray:
        """Coordinates of the last dimension."""
        return self.coordinates[-1]

    @cached_property
    def order(self) -> np.ndarray | None:
        """Permutation that sorts the entries by coordinates, first dimension slowest; None if sorted."""
        return lexicographic_order(self.coordinates, self.shape)

    @cached_property
    def row_pointers(self) -> np.ndarray:
        """Where the entries of each row begin, of a sorted matrix; shape ``(rows + 1,)``."""
        pointers = np.zeros(self.shape[0] + 1, np.int64)
        np.cumsum(np.bincount(self.coordinates[0], minlength=self.shape[0]), out=pointers[1:])
        return pointers

    def repeats(self) -> np.ndarray:
        """Return, of sorted entries, whether each but the first has the coordinates of the one before."""
        return np.logical_and.reduce([c[1:] == c[:-1] for c in self.coordinates])

    def sorted(self) -> Entries:
        """Return the entries in lexicographic order."""
        return self if self.order is None else self.take(self.order)

    def take(self, chosen: np.ndarray) -> Entries:
        """Return the entries at these places, in this order."""
        return Entries(tuple(c[chosen] for c in self.coordinates), self.values[chosen], self.shape)

    def with_values(self, values: np.ndarray) -> Entries:
        """Return entries with other values at the same coordinates."""
        return Entries(self.coordinates, values, self.shape)


class RowEntries(Entries):
    """The entries of a matrix row by row, as CSR holds them; row numbers are made when asked for.

    Parameters
    ----------
    row_pointers : numpy.ndarray
        Where the entries of each row begin, shape ``(rows + 1,)``.
    columns, values : numpy.ndarray
        Shape ``(entries,)``.
    shape : tuple of int
        Of the matrix.
    """

    row_pointers: np.ndarray
    columns: np.ndarray

    def __init__(
        self,
        row_pointers: np.ndarray,
        columns: np.ndarray,
        values: np.ndarray,
        shape: tuple[int, ...],
    ) -> None:
        # Not the frozen dataclass's own: its coordinates are a property here.
        vars(self).update(row_pointers=row_pointers, columns=columns, values=values, shape=shape)

    @cached_property
    def coordinates(self) -> tuple[np.ndarray, ...]:  # type: ignore[override]
        """Row and column of each entry."""
        rows = np.arange(self.shape[0], dtype=self.columns.dtype)
        return np.repeat(rows, np.diff(self.row_pointers)), self.columns

    @cached_property
    def order(self) -> np.ndarray | None:
        """Permutation that sorts the entries by coordinates; None if they are sorted."""
        return None if self._rises else lexicographic_order(self.coordinates, self.shape)

    @cached_property
    def _rises(self) -> bool:
        """Whether columns rise within every row: entries are sorted, and none comes twice."""
        rises = self.columns[1:] > self.columns[:-1]
        starts = self.row_pointers[1:-1]
        rises[starts[(starts > 0) & (starts < self.count)] - 1] = True
        return bool(rises.all())

    def repeats(self) -> np.ndarray:
        """Return, of sorted entries, whether each but the first has the coordinates of the one before."""
        return np.zeros(max(0, self.count - 1), bool) if self._rises else super().repeats()

    def with_values(self, values: np.ndarray) -> RowEntries:
        """Return entries with other values at the same coordinates."""
        return RowEntries(self.row_pointers, self.columns, values, self.shape)


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
    return stable_order(key, int(key.max()) + 1)


def stable_order(keys: np.ndarray, bound: int) -> np.ndarray:
    """Return the stable permutation that sorts integers in ``0 .. bound - 1``."""
    if bound <= 2**8:
        return np.argsort(keys.astype(np.uint8), kind="stable")  # NumPy counts these
    place_bits = max(0, keys.size - 1).bit_length()
    if bound.bit_length() + place_bits > 63:
        return np.argsort(keys, kind="stable")
    # NumPy sorts plain integers several times as fast as it sorts places by key.
    joint = keys.astype(np.int64)
    joint <<= place_bits
    joint |= np.arange(keys.size)
    joint.sort()
    joint &= (1 << place_bits) - 1
    return joint


def storage_order(entries: Entries, dims: Sequence[int]) -> np.ndarray:
    """Return the stable permutation that sorts entries by coordinates, ``dims[0]`` slowest."""
    order = lexicographic_order(
        [entries.coordinates[dim] for dim in dims], [entries.shape[dim] for dim in dims]
    )
    return np.arange(entries.count) if order is None else order


def places_in(order: np.ndarray) -> np.ndarray:
    """Return where each entry stands in a permutation: its inverse."""
    places = np.empty(order.size, np.int64)
    places[order] = np.arange(order.size)
    return places


def linear_key(coordinates: Sequence[np.ndarray], shape: Sequence[int]) -> np.ndarray | None:
    """Return row-major offsets of coordinates, in 32 bits if they fit, None where they pass 63."""
    size = 1
    for extent in shape:
        size *= max(1, int(extent))
    if size >= 2**63:
        return None
    key = np.zeros(coordinates[0].shape, np.int32 if size < 2**31 else np.int64)
    for values, extent in zip(coordinates, shape):
        key *= extent
        np.add(key, values, out=key, casting="unsafe")
    return key


def coordinates_of(key: np.ndarray, shape: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Return the coordinates of row-major offsets, by divisions, which NumPy's unravel is slower than."""
    found = []
    for extent in reversed(shape[1:]):
        above = key // max(1, int(extent))
        found.append(key - above * int(extent))
        key = above
    return (key, *reversed(found))


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
    if isinstance(entries, RowEntries):
        _check_pointers(entries, label)
        _check_coordinates(entries, 1, entries.columns, label)
        return entries
    for dim, found in enumerate(entries.coordinates):
        _check_coordinates(entries, dim, found, label)
    return entries


def _check_coordinates(entries: Entries, dim: int, found: np.ndarray, label: str) -> None:
    extent = entries.shape[dim]
    if found.shape != entries.values.shape:
        raise ValueError(
            f"{label}: expected as many coordinates as values ({entries.count}), "
            f"found {found.size} in dimension {dim}"
        )
    if found.size and not (found.min() >= 0 and found.max() < extent):
        raise ValueError(
            f"{label}: expected coordinates of dimension {dim} in 0..{extent - 1}, "
            f"found {found.min()}..{found.max()}"
        )


def _check_pointers(entries: RowEntries, label: str) -> None:
    pointers, rows = entries.row_pointers, entries.shape[0]
    if pointers.shape != (rows + 1,):
        raise ValueError(f"{label}: expected {rows + 1} row pointers, found {pointers.size}")
    falls = np.flatnonzero(pointers[1:] < pointers[:-1])
    if falls.size:
        row = int(falls[0])
        raise ValueError(
            f"{label}: expected row pointers that never fall, found {pointers[row]} and then "
            f"{pointers[row + 1]} at row {row}"
        )
    if pointers[0] != 0 or pointers[-1] != entries.count:
        raise ValueError(
            f"{label}: expected row pointers that rise from 0 to the number of values "
            f"({entries.count}), found ones from {pointers[0]} to {pointers[-1]}"
        )


def _normalized(entries: Entries, label: str) -> Entries:
    """Bring coordinates to int32 or int64 and values to native byte order; check the rest."""
    values, shape = entries.values, entries.shape
    by_rows = isinstance(entries, RowEntries)
    arrays = (entries.row_pointers, entries.columns) if by_rows else entries.coordinates
    if len(arrays) != len(shape):
        raise ValueError(
            f"{label}: expected {len(shape)} arrays of coordinates, found {len(arrays)}"
        )
    if any(extent < 0 for extent in shape):
        raise ValueError(f"{label}: expected a shape of sizes >= 0, found {tuple(shape)}")
    if values.ndim != 1:
        raise ValueError(f"{label}: expected one value for each entry, found shape {values.shape}")
    if values.dtype.kind in "OSUMm" or values.dtype.fields is not None:
        raise TypeError(f"{label}: expected values that are numbers, found {values.dtype}")
    narrow = ("int32", "int64")
    arrays = tuple(
        a if a.dtype.name in narrow and a.dtype.isnative else a.astype("int64") for a in arrays
    )
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    shape = tuple(int(extent) for extent in shape)
    return RowEntries(*arrays, values, shape) if by_rows else Entries(arrays, values, shape)


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
        + ("; wrap it as scipy.sparse.csr_matrix(array)" if isinstance(tensor, np.ndarray) else "")
    )


def _from_scipy(matrix: Any) -> Entries:
    if matrix.format == "csr" and len(matrix.shape) == 2:
        count = matrix.nnz  # the arrays may be longer
        columns, values = matrix.indices[:count], matrix.data[:count]
        return RowEntries(matrix.indptr, columns, values, matrix.shape)
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
        try:
            array = values.numpy()
        except TypeError as error:
            raise TypeError(
                f"{label}: expected values of a type that NumPy has, found {values.dtype}; convert "
                "them, for example to float32"
            ) from error
    return Entries(tuple(coo._indices().cpu().numpy()), array, tuple(coo.shape))

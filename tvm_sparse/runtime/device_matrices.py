"""Sparse matrices on GPUs as arguments: PyTorch's sparse tensors and CuPy's matrices, taken apart there.

In: a matrix, and the axes of the buffer that it is passed for. Out: its arrays, on its device. Its
structure is copied to the host and checked when the matrix is first seen; index arrays in another dtype
than the axes' are converted then, and kept as long as the matrix lives.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays import is_torch
from .device_arrays import DeviceArray, device_array
from .sparse_arguments import Axis, SparseArrays, unpacker_of
from .structure import check_coordinates, check_ends, check_monotone, first_disorder

__all__ = ["unpack_on_device"]

#: Matrices that are remembered.
_CAPACITY = 64


def unpack_on_device(
    label: str,
    matrix: Any,
    axes: Sequence[Axis],
    format: str | None = None,
    view: Callable[[str, Any], DeviceArray] = device_array,
) -> SparseArrays:
    """Take a matrix apart for a buffer over `axes`, which is stored in a format of this name.

    Its arrays are seen through `view`.

    Raises
    ------
    TypeError
        If the axes are not those of CSR, CSC or BSR.
    ValueError
        If the structure of the matrix is broken, not in the order that the axes declare, or does not fit
        their dtype.
    """
    unpacker, ordered = unpacker_of(axes, format)
    name = getattr(unpacker, "name", None)
    if name not in ("csr", "csc", "bsr"):
        raise TypeError(
            f"{label}: expected arrays on a GPU, found a sparse matrix, and the kernel's format is "
            "none of CSR, CSC and BSR; pass the arrays of the buffer and of its axes"
        )
    parts = _compressed(label, matrix, name)
    outer, inner = ordered[:2] if name != "csc" else ordered[::-1]
    height, width = parts.values.shape[1:] if name == "bsr" else (1, 1)
    rows, columns = matrix.shape if name != "csc" else tuple(matrix.shape)[::-1]
    rows, columns = rows // height, columns // width
    structure = _sound_structure(label, matrix, parts, inner, (rows, columns))
    indptr, indices = (view(label, array) for array in structure)
    sizes = [(outer["length"], rows), (inner["length"], columns)]
    sizes.append((inner["nnz"], indices.shape[0]))
    if name == "bsr":
        sizes += [(ordered[2]["length"], height), (ordered[3]["length"], width)]
    return SparseArrays(
        values=view(label, parts.values),
        indices={inner["indptr"]: indptr, inner["indices"]: indices},
        sizes=sizes,
        rebuild=lambda values: _rebuild(matrix, values, parts, name),
    )


@dataclass(frozen=True)
class _Parts:
    """The arrays of a matrix, as its framework holds them."""

    values: Any
    indptr: Any
    indices: Any

    @property
    def place(self) -> tuple:
        """Where the structure lies and how large it is."""
        return tuple((_address(array), tuple(array.shape)) for array in (self.indptr, self.indices))


def _address(array: Any) -> int:
    return array.data_ptr() if is_torch(array) else array.data.ptr


def _compressed(label: str, matrix: Any, name: str) -> _Parts:
    """Take the arrays of a matrix; another layout is converted, by its framework."""
    if is_torch(matrix):
        torch = sys.modules["torch"]
        if matrix.layout is not getattr(torch, f"sparse_{name}"):
            if name == "bsr":
                raise ValueError(f"{label}: expected a BSR tensor, found {matrix.layout}")
            matrix = matrix.to_sparse_csr() if name == "csr" else matrix.to_sparse_csc()
        if name == "csc":
            return _Parts(matrix.values(), matrix.ccol_indices(), matrix.row_indices())
        return _Parts(matrix.values(), matrix.crow_indices(), matrix.col_indices())
    if name == "bsr":
        raise ValueError(
            f"{label}: expected a BSR tensor of PyTorch, found {type(matrix).__name__}"
        )
    matrix = matrix.tocsr() if name == "csr" else matrix.tocsc()
    return _Parts(matrix.data, matrix.indptr, matrix.indices)


# --- Structure -----------------------------------------------------------------------------------


class _Remembered:
    """Index arrays of matrices that were found sound, in the dtype of the axes."""

    def __init__(self) -> None:
        self._entries: dict[tuple, tuple] = {}
        self._lock = threading.Lock()

    def get(self, key: tuple, matrix: Any, place: tuple) -> tuple[Any, Any] | None:
        entry = self._entries.get(key)
        if entry is None or entry[0]() is not matrix or entry[1] != place:
            return None
        return entry[2]

    def keep(self, key: tuple, matrix: Any, place: tuple, arrays: tuple[Any, Any]) -> None:
        entries = self._entries
        with self._lock:
            while len(entries) >= _CAPACITY:
                entries.pop(next(iter(entries)), None)
            entries[key] = weakref.ref(matrix, lambda _: entries.pop(key, None)), place, arrays


_remembered = _Remembered()


def _sound_structure(
    label: str, matrix: Any, parts: _Parts, axis: Axis, shape: tuple[int, int]
) -> tuple[Any, Any]:
    """Return pointers and indices of a matrix in the dtype of an axis, checked at first sight."""
    dtype = np.dtype(axis.get("dtype", "int32"))
    order = axis.get("sorted", True), axis.get("unique", True)
    key = (id(matrix), dtype.name, *order)
    found = _remembered.get(key, matrix, parts.place)
    if found is None:
        arrays = [device_array(label, array) for array in (parts.indptr, parts.indices)]
        _check(label, [array.to_host() for array in arrays], order, shape, dtype)
        found = tuple(_converted(array.source, dtype) for array in arrays)
        _remembered.keep(key, matrix, parts.place, found)
    return found


def _check(
    label: str,
    arrays: Sequence[np.ndarray],
    order: tuple[bool, bool],
    shape: tuple[int, int],
    dtype: np.dtype,
) -> None:
    indptr, indices = arrays
    rows, columns = shape
    where = f"{label}, indptr of the matrix"
    if indptr.ndim != 1 or indptr.size != rows + 1:
        raise ValueError(f"{where}: expected {rows + 1} pointers, found shape {indptr.shape}")
    check_ends(where, indptr, indices.size)
    check_monotone(where, indptr)
    check_coordinates(f"{label}, indices of the matrix", indices, columns)
    is_sorted, is_unique = order
    if (is_sorted or is_unique) and first_disorder(indptr, indices, is_unique) is not None:
        raise ValueError(
            f"{label}: expected a matrix on a GPU whose indices increase within a row, as the kernel "
            "requires, found others; sort them (sort_indices() of CuPy, coalesce() of a COO tensor)"
        )
    largest = max(int(indices.size), columns)
    if largest > np.iinfo(dtype).max:
        raise ValueError(
            f"{label}: expected sizes that fit {dtype.name}, found {largest}; compile the kernel with "
            "int64 axes"
        )


def _converted(array: Any, dtype: np.dtype) -> Any:
    """Return index arrays in a dtype, on their device."""
    if not is_torch(array):
        return array.astype(dtype, copy=False)
    return array.to(getattr(sys.modules["torch"], dtype.name))


def _rebuild(matrix: Any, values: Any, parts: _Parts, name: str) -> Any:
    """Make a matrix of the same structure from other values."""
    if not is_torch(matrix):
        cls = getattr(sys.modules["cupyx.scipy.sparse"], f"{name}_matrix")
        return cls((values, parts.indices, parts.indptr), shape=matrix.shape)
    torch = sys.modules["torch"]
    return torch.sparse_compressed_tensor(
        parts.indptr,
        parts.indices,
        values,
        size=tuple(matrix.shape),
        layout=getattr(torch, f"sparse_{name}"),
    )

"""Sparse matrices as arguments: their values, pointers and indices taken apart by format.

In: a SciPy sparse matrix or a PyTorch sparse tensor, and the axes of the buffer that it is passed
for. Out: the arrays of that buffer and of its axes. A format is a :class:`SparseUnpacker`;
:func:`register_sparse_unpacker` adds one. Cached flags of a matrix (``has_sorted_indices``) are
never trusted: each call reads the structure once, and mends a copy where the axes ask for an
order that the matrix does not have. The caller's arrays are never written.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .arrays import host_view, is_torch
from .structure import check_coordinates, check_ends, check_monotone, first_disorder

Axis = Mapping[str, Any]


@dataclass
class SparseArrays:
    """A matrix taken apart.

    Attributes
    ----------
    values : numpy.ndarray
        The stored values, in the shape of the buffer.
    indices : dict
        Parameter name (``indptr``, ``indices``) to index array.
    sizes : list of tuple
        (dimension expression, value) equations that the matrix' shape gives.
    rebuild : callable
        Makes a matrix of the same structure from other values.
    """

    values: np.ndarray
    indices: dict[str, np.ndarray]
    sizes: list[tuple[str, int]] = field(default_factory=list)
    rebuild: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class SparseUnpacker:
    """How matrices are passed for buffers of one arrangement of axes.

    Attributes
    ----------
    name : str
        Name of the format, for error messages.
    matches : callable
        ``matches(axes) -> bool`` for the axes metadata of a buffer, outermost first.
    unpack : callable
        ``unpack(label, matrix, axes, sizes) -> SparseArrays``; `sizes` holds the sizes known so
        far.
    """

    name: str
    matches: Callable[[Sequence[Axis]], bool]
    unpack: Callable[[str, Any, Sequence[Axis], Mapping[str, int]], SparseArrays]


_unpackers: list[SparseUnpacker] = []


def register_sparse_unpacker(unpacker: SparseUnpacker) -> SparseUnpacker:
    """Add a format; it is asked before those that were registered earlier."""
    _unpackers.insert(0, unpacker)
    return unpacker


def unpack_sparse(
    label: str,
    matrix: Any,
    axes: Sequence[Axis],
    sizes: Mapping[str, int],
    format: str | None = None,
) -> SparseArrays:
    """Take `matrix` apart for a buffer over `axes`, which is stored in a format of this name.

    Raises
    ------
    TypeError
        If no registered format fits the axes.
    ValueError
        If the structure of the matrix is broken, or its indices do not fit the axes' dtype.
    """
    if len(matrix.shape) != 2:
        raise ValueError(
            f"{label}: expected a matrix, found a sparse array of shape {tuple(matrix.shape)}"
        )
    unpacker, ordered = unpacker_of(axes, format)
    if unpacker is not None:
        return unpacker.unpack(label, matrix, ordered, sizes)
    if format is not None:
        raise TypeError(
            f"{label}: expected a tensor packed as {format}, found a sparse matrix; pass what the "
            "pack() of the format returns for it"
        )
    kinds = ", ".join(f"{axis['name']}: {axis['kind']}" for axis in axes)
    raise TypeError(
        f"{label}: expected an array, found a sparse matrix, and no known format lays a matrix "
        f"out over the axes [{kinds}]; pass the arrays of the buffer and of its axes"
    )


def accepts_matrices(axes: Sequence[Axis], format: str | None = None) -> bool:
    """Tell whether a matrix can be passed for a buffer over `axes`, stored in a format of this name."""
    return unpacker_of(axes, format)[0] is not None


def unpacker_of(
    axes: Sequence[Axis], format: str | None
) -> tuple[SparseUnpacker | None, Sequence[Axis]]:
    """Find what takes a matrix apart, and the axes in the order of the matrix' dimensions.

    Without a format, axes are those of a buffer that is written in the order of dimensions; a format
    may store columns outside of rows.
    """
    ordered = axes[::-1] if format == "csc" else axes
    family = None if format is None else re.sub(r"\d+x\d+$", "", format)  # bsr of bsr2x2
    for unpacker in _unpackers:
        if unpacker.matches(ordered) and family in (None, unpacker.name):
            return unpacker, ordered
    return None, axes


def index_parameters(axes: Sequence[Axis]) -> list[str]:
    """Return the parameters that hold the pointers and indices of `axes`."""
    return [axis[kind] for axis in axes for kind in ("indptr", "indices") if axis.get(kind)]


# --- CSR and CSC ---------------------------------------------------------------------------------


def _is_csr(axes: Sequence[Axis]) -> bool:
    return len(axes) == 2 and _is_compressed(axes[0], axes[1])


def _is_csc(axes: Sequence[Axis]) -> bool:
    return len(axes) == 2 and _is_compressed(axes[1], axes[0])


def _is_compressed(outer: Axis, inner: Axis) -> bool:
    return (
        outer["kind"] == "dense_fixed"
        and inner["kind"] == "sparse_variable"
        and inner.get("parent") == outer["name"]
    )


def _unpack_csr(
    label: str, matrix: Any, axes: Sequence[Axis], sizes: Mapping[str, int]
) -> SparseArrays:
    return _unpack_compressed(label, matrix, axes[0], axes[1], by_row=True)


def _unpack_csc(
    label: str, matrix: Any, axes: Sequence[Axis], sizes: Mapping[str, int]
) -> SparseArrays:
    return _unpack_compressed(label, matrix, axes[1], axes[0], by_row=False)


def _unpack_compressed(
    label: str, matrix: Any, outer: Axis, inner: Axis, by_row: bool
) -> SparseArrays:
    if is_torch(matrix):
        matrix, values, indptr, indices = _torch_compressed(label, matrix, by_row)
    else:
        matrix = matrix.tocsr() if by_row else matrix.tocsc()
        values, indptr, indices = matrix.data, matrix.indptr, matrix.indices
    rows, columns = matrix.shape if by_row else matrix.shape[::-1]
    values, indptr, indices = _sound_structure(
        label, inner, (values, indptr, indices), rows, columns
    )
    dtype = np.dtype(inner.get("dtype", "int32"))

    def rebuild(new_values: Any) -> Any:
        return _rebuild(matrix, new_values, indptr, indices)

    return SparseArrays(
        values=values,
        indices={
            inner["indptr"]: _as_index_dtype(label, indptr, dtype),
            inner["indices"]: _as_index_dtype(label, indices, dtype),
        },
        sizes=[
            (outer["length"], rows),
            (inner["length"], columns),
            (inner["nnz"], len(indices)),
        ],
        rebuild=rebuild,
    )


# --- BSR -----------------------------------------------------------------------------------------


def _is_bsr(axes: Sequence[Axis]) -> bool:
    return (
        len(axes) == 4
        and _is_compressed(axes[0], axes[1])
        and axes[2]["kind"] == axes[3]["kind"] == "dense_fixed"
    )


def _unpack_bsr(
    label: str, matrix: Any, axes: Sequence[Axis], sizes: Mapping[str, int]
) -> SparseArrays:
    outer, inner, block_rows, block_columns = axes
    wanted = tuple(_known_size(axis["length"], sizes) for axis in (block_rows, block_columns))
    if is_torch(matrix):
        torch = sys.modules["torch"]
        if matrix.layout is not torch.sparse_bsr:
            if None in wanted:
                raise ValueError(f"{label}: expected a BSR matrix, found {matrix.layout}")
            matrix = matrix.to_sparse_bsr(wanted)
        values, indptr, indices = (
            host_view(label, part)
            for part in (matrix.values(), matrix.crow_indices(), matrix.col_indices())
        )
    else:
        if matrix.format != "bsr" or (None not in wanted and matrix.blocksize != wanted):
            if None in wanted:
                raise ValueError(
                    f"{label}: expected a BSR matrix, as the block size is not known, found "
                    f"{type(matrix).__name__}"
                )
            if any(size % block for size, block in zip(matrix.shape, wanted)):
                raise ValueError(
                    f"{label}: expected a shape that is a multiple of the block size {wanted}, "
                    f"found {tuple(matrix.shape)}"
                )
            matrix = matrix.tobsr(blocksize=wanted)
        values, indptr, indices = matrix.data, matrix.indptr, matrix.indices
    height, width = values.shape[1:]
    rows, columns = matrix.shape[0] // height, matrix.shape[1] // width
    values, indptr, indices = _sound_structure(
        label, inner, (values, indptr, indices), rows, columns
    )
    dtype = np.dtype(inner.get("dtype", "int32"))

    def rebuild(new_values: Any) -> Any:
        return _rebuild(matrix, new_values, indptr, indices)

    return SparseArrays(
        values=values,
        indices={
            inner["indptr"]: _as_index_dtype(label, indptr, dtype),
            inner["indices"]: _as_index_dtype(label, indices, dtype),
        },
        sizes=[
            (outer["length"], rows),
            (inner["length"], columns),
            (inner["nnz"], len(indices)),
            (block_rows["length"], height),
            (block_columns["length"], width),
        ],
        rebuild=rebuild,
    )


def _known_size(length: str | int, sizes: Mapping[str, int]) -> int | None:
    text = str(length)
    return int(text) if text.isdigit() else sizes.get(text)


# --- Structure -----------------------------------------------------------------------------------


def _sound_structure(
    label: str,
    axis: Axis,
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray],
    rows: int,
    columns: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Check (values, indptr, indices); return them, or a copy in the order that `axis` declares."""
    values, indptr, indices = arrays
    where = f"{label}, indptr of the matrix"
    if indptr.ndim != 1 or indptr.size != rows + 1:
        raise ValueError(f"{where}: expected {rows + 1} pointers, found shape {indptr.shape}")
    stored = int(indptr[-1])
    if stored > min(len(values), len(indices)):
        raise ValueError(
            f"{where}: expected the last pointer to be at most {min(len(values), len(indices))}, "
            f"the number of stored entries, found {stored}"
        )
    check_ends(where, indptr, stored)
    check_monotone(where, indptr)
    values, indices = values[:stored], indices[:stored]  # SciPy allows spare capacity
    check_coordinates(f"{label}, indices of the matrix", indices, columns)
    needs_order = axis.get("sorted", True) or axis.get("unique", True)
    if needs_order and first_disorder(indptr, indices, axis.get("unique", True)) is not None:
        return _canonical(values, indptr, indices, axis.get("unique", True))
    return values, indptr, indices


def _canonical(
    values: np.ndarray, indptr: np.ndarray, indices: np.ndarray, unique: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sort each row's entries by coordinate in a copy; with `unique`, add up duplicates."""
    rows = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    order = np.lexsort((indices, rows))
    rows, indices, values = rows[order], indices[order], values[order]
    if not unique:
        return values, indptr, indices
    first = np.ones(indices.size, bool)
    first[1:] = (np.diff(indices) != 0) | (np.diff(rows) != 0)
    if first.all():
        return values, indptr, indices
    summed = np.add.reduceat(values, np.flatnonzero(first), axis=0, dtype=values.dtype)
    counts = np.bincount(rows[first], minlength=indptr.size - 1)
    pointers = np.concatenate([[0], np.cumsum(counts)]).astype(indptr.dtype)
    return summed, pointers, indices[first]


def _as_index_dtype(label: str, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if array.dtype == dtype:
        return array
    largest = int(array.max()) if array.size else 0
    if largest > np.iinfo(dtype).max:
        raise ValueError(
            f"{label}: expected indices that fit {dtype.name}, found {largest}; compile the "
            "kernel with int64 axes"
        )
    return array.astype(dtype)


def _torch_compressed(
    label: str, matrix: Any, by_row: bool
) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    torch = sys.modules["torch"]
    wanted = torch.sparse_csr if by_row else torch.sparse_csc
    if matrix.layout is not wanted:
        matrix = matrix.to_sparse_csr() if by_row else matrix.to_sparse_csc()
    if by_row:
        parts = (matrix.values(), matrix.crow_indices(), matrix.col_indices())
    else:
        parts = (matrix.values(), matrix.ccol_indices(), matrix.row_indices())
    return (matrix, *(host_view(label, part) for part in parts))


def _rebuild(matrix: Any, values: Any, indptr: np.ndarray, indices: np.ndarray) -> Any:
    if not is_torch(matrix):
        return type(matrix)((values, indices, indptr), shape=matrix.shape)
    torch = sys.modules["torch"]
    return torch.sparse_compressed_tensor(
        torch.from_numpy(np.array(indptr)),
        torch.from_numpy(np.array(indices)),
        torch.as_tensor(values),
        size=tuple(matrix.shape),
        layout=matrix.layout,
    )


register_sparse_unpacker(SparseUnpacker("bsr", _is_bsr, _unpack_bsr))
register_sparse_unpacker(SparseUnpacker("csc", _is_csc, _unpack_csc))
register_sparse_unpacker(SparseUnpacker("csr", _is_csr, _unpack_csr))

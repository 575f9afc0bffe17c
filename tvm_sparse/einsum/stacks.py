"""Lists of sparse tensors as one tensor of a dimension more: batches whose members differ in structure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..formats.entries import Entries, as_entries

__all__ = ["is_stack", "read_stack"]


def is_stack(operand: Any) -> bool:
    """Whether an operand is a list or tuple with sparse tensors."""
    return isinstance(operand, list | tuple) and any(map(_is_sparse, operand))


def _is_sparse(operand: Any) -> bool:
    return sp.issparse(operand) or hasattr(operand, "unpack")


def read_stack(operand: Sequence[Any], label: str) -> tuple[Entries, np.ndarray]:
    """Read tensors of one number of dimensions as slices of one.

    Parameters
    ----------
    operand : sequence of scipy.sparse matrix or array, or Packed
        Slices; their sizes may differ.
    label : str
        Names the operand in messages.

    Returns
    -------
    Entries, numpy.ndarray
        Entries whose first coordinate is the number of the slice, the other sizes being the largest
        that a slice has; and the sizes of each slice, shape ``(slices, dimensions)``.

    Raises
    ------
    TypeError
        If one of them is no sparse tensor.
    ValueError
        If the number of dimensions differs.

    Examples
    --------
    >>> entries, extents = read_stack([sp.eye_array(2), sp.eye_array(1, 3)], "operand")
    >>> entries.shape, extents.tolist()
    ((2, 2, 3), [[2, 2], [1, 3]])
    """
    for number, own in enumerate(operand):
        if not _is_sparse(own):
            raise TypeError(
                f"{label}[{number}]: expected a SciPy sparse matrix or array or a packed tensor, as others "
                f"of the list are, found {type(own).__name__}"
            )
    rank = len(operand[0].shape)
    parts = [as_entries(own, rank, f"{label}[{n}]") for n, own in enumerate(operand)]
    extents = np.array([part.shape for part in parts])
    dtype = np.result_type(np.int32, *(own.dtype for part in parts for own in part.coordinates))
    number = np.repeat(np.arange(len(parts), dtype=dtype), [part.count for part in parts])
    inner = [np.concatenate(own) for own in zip(*(part.coordinates for part in parts))]
    values = np.concatenate([part.values for part in parts])
    shape = (len(parts), *(int(own) for own in extents.max(axis=0)))
    return Entries((number, *inner), values, shape), extents

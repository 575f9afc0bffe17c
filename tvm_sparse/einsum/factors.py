"""Operands of ``einsum`` as factors: sorted coordinates without duplicates, and where values come from.

Everything about structure is worked out on coordinates; values follow as places in a source, so that a
plan runs again with new values.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..formats.entries import Entries, as_entries
from .semiring import Arithmetic

__all__ = ["Factor", "Source", "read_operand", "read_sizes"]


@dataclass(frozen=True)
class Factor:
    """A factor of a product.

    Attributes
    ----------
    variables : tuple of str
        One for each dimension.
    source : int
        Number of the array that its values are taken from.
    entries : Entries or None
        Sorted coordinates, none twice, whose "values" are places in the source; None if it is dense.
    """

    variables: tuple[str, ...]
    source: int
    entries: Entries | None = None

    @property
    def is_dense(self) -> bool:
        """Whether it is a dense array, all of whose places count as entries."""
        return self.entries is None

    @property
    def count(self) -> int:
        """Number of entries of a sparse factor."""
        return self.entries.count

    def coordinates(self, variable: str) -> np.ndarray:
        """Coordinates of one variable of a sparse factor."""
        return self.entries.coordinates[self.variables.index(variable)]

    def with_columns(self, columns: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> Factor:
        """Return a sparse factor over other variables, the order of entries being kept."""
        shape = tuple(sizes[variable] for variable in columns)
        entries = Entries(tuple(columns.values()), self.entries.values, shape)
        return replace(self, variables=tuple(columns), entries=entries)

    def take(self, chosen: np.ndarray) -> Factor:
        """Return a sparse factor of some of the entries."""
        return replace(self, entries=self.entries.take(chosen))


@dataclass(frozen=True)
class Source:
    """How the values of an operand become those of its factor.

    Attributes
    ----------
    label : str
        Names the operand in messages.
    letters : str
        One for each dimension.
    dtype : numpy.dtype
        Of its values as they came.
    shape : tuple of int
        Its sizes.
    structure : Entries or None
        What was read; None if it is dense.
    order : numpy.ndarray or None
        Sorts entries; None if they are sorted.
    starts : numpy.ndarray or None
        Where groups of equal coordinates begin; None if there are none.
    """

    label: str
    letters: str
    dtype: np.dtype
    shape: tuple[int, ...]
    structure: Entries | None = None
    order: np.ndarray | None = None
    starts: np.ndarray | None = None

    def values(self, operand: Any, arithmetic: Arithmetic) -> np.ndarray:
        """Return the values of an operand of this structure as its factor has them."""
        if self.structure is None:
            return np.ascontiguousarray(arithmetic.values(_as_array(operand)))
        values = arithmetic.values(operand.values)
        values = values if self.order is None else values[self.order]
        if self.starts is None:
            return values
        total = np.maximum if arithmetic.is_logical else np.add
        return total.reduceat(values, self.starts) if self.starts.size else values[:0]

    def read_again(self, operand: Any) -> Any:
        """Read an operand that must have this structure.

        Raises
        ------
        ValueError
            If it has another one.
        """
        if self.structure is None:
            array = _as_array(operand)
            if array is None or array.shape != self.shape:
                found = getattr(operand, "shape", type(operand).__name__)
                raise ValueError(
                    f"{self.label}: expected a dense array of shape {self.shape}, found {found}"
                )
            return array
        entries = as_entries(operand, len(self.shape), self.label)
        known = self.structure
        if (
            entries.shape != known.shape
            or entries.count != known.count
            or not _same(entries, known)
        ):
            raise ValueError(
                f"{self.label}: expected the structure that was planned for, found another one; make a "
                "new plan"
            )
        return entries


def read_operand(letters: str, operand: Any, number: int) -> tuple[Factor, Source, Any]:
    """Read an operand.

    Parameters
    ----------
    letters : str
        One for each dimension.
    operand : scipy.sparse matrix or array, Packed, torch.Tensor or numpy.ndarray
        What was passed.
    number : int
        Which operand it is.

    Returns
    -------
    Factor, Source, Entries or numpy.ndarray
        The factor, how its values are got, and what was read.

    Raises
    ------
    TypeError, ValueError
        If it is of another kind, or has more or fewer dimensions than letters.
    """
    label = f"operand {number} ({letters!r})"
    array = _as_array(operand)
    entries = None if array is not None else _read_sparse(operand, label)
    shape = tuple(array.shape if array is not None else entries.shape)
    if len(shape) != len(letters):
        raise ValueError(
            f"{label}: expected {len(letters)} dimensions, one for each letter, found shape {shape}"
        )
    if array is not None:
        source = Source(label, letters, array.dtype, shape)
        return Factor(tuple(letters), number), source, array
    dtype = entries.values.dtype
    order = entries.order
    ordered = entries if order is None else entries.take(order)
    repeats = ordered.repeats()
    starts = None
    if repeats.any():
        starts = np.flatnonzero(np.concatenate([[True], ~repeats]))
        ordered = Entries(tuple(c[starts] for c in ordered.coordinates), starts, shape)
    ordered = ordered.with_values(np.arange(ordered.count))
    source = Source(label, letters, dtype, shape, entries, order, starts)
    return Factor(tuple(letters), number, ordered), source, entries


def read_sizes(sources: Sequence[Source]) -> dict[str, int]:
    """Return the size of each letter.

    Raises
    ------
    ValueError
        If operands disagree.
    """
    sizes: dict[str, tuple[int, str]] = {}
    for source in sources:
        for letter, size in zip(source.letters, source.shape):
            known, label = sizes.setdefault(letter, (int(size), source.label))
            if known != size:
                raise ValueError(
                    f"{source.label}: expected size {known} for letter {letter!r}, as {label} has, found "
                    f"{size} (shape {source.shape})"
                )
    return {letter: size for letter, (size, _) in sizes.items()}


def _read_sparse(operand: Any, label: str) -> Entries:
    try:
        return as_entries(operand, label=label)
    except TypeError as error:
        if "expected a SciPy sparse matrix" not in str(error):
            raise
        raise TypeError(
            f"{label}: expected a SciPy sparse matrix or array, a packed tensor or a NumPy array, found "
            f"{type(operand).__name__}"
        ) from None


def _as_array(operand: Any) -> np.ndarray | None:
    """The array of a dense operand, None for other operands."""
    if isinstance(operand, np.ndarray):
        return np.asarray(operand)
    torch = sys.modules.get("torch")
    is_tensor = torch is not None and isinstance(operand, torch.Tensor)
    return operand.detach().cpu().numpy() if is_tensor and operand.layout is torch.strided else None


def _same(left: Entries, right: Entries) -> bool:
    if left is right:
        return True
    rows = [getattr(own, "row_pointers", None) for own in (left, right)]
    if hasattr(left, "_rises") and hasattr(right, "_rises"):
        return np.array_equal(*rows) and np.array_equal(left.columns, right.columns)
    return all(map(np.array_equal, left.coordinates, right.coordinates))

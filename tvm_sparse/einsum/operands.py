"""Operands of ``einsum``: what is read of them, and how their values become those of factors."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..formats.entries import Entries, as_entries, places_in
from .expression import Number
from .factors import Factor
from .semiring import Arithmetic
from .stacks import is_stack, read_stack

__all__ = ["Source", "read_entries", "read_operand", "read_sizes", "scaled"]


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
    diagonal : numpy.ndarray or None
        Which entries have equal coordinates where letters are equal; None if no letter is repeated.
    extents : numpy.ndarray or None
        Of a stack: the sizes of each of its tensors.
    coefficient : int or float
        What values are multiplied by.
    """

    label: str
    letters: str
    dtype: np.dtype
    shape: tuple[int, ...]
    structure: Entries | None = None
    order: np.ndarray | None = None
    starts: np.ndarray | None = None
    diagonal: np.ndarray | None = None
    extents: np.ndarray | None = None
    coefficient: Number = 1

    def values(self, operand: Any, arithmetic: Arithmetic) -> np.ndarray:
        """Return the values of an operand of this structure as its factor has them.

        Raises
        ------
        TypeError
            If they are of a kind that was not planned for, such as real numbers in place of integers.
        """
        dtype = operand.dtype if self.structure is None else operand.values.dtype
        if dtype != self.dtype and not arithmetic.takes(dtype, self.dtype):
            raise TypeError(
                f"{self.label}: expected values that convert to {self.dtype}, as planned, found {dtype}; "
                "make a new plan"
            )
        if self.structure is None:
            values = np.ascontiguousarray(arithmetic.values(_diagonal_of(self.letters, operand)))
        else:
            values = self._entry_values(arithmetic.values(operand.values), arithmetic)
        is_one = self.coefficient == 1
        return values if is_one else values * arithmetic.held.type(self.coefficient)

    def _entry_values(self, values: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
        values = values if self.order is None else values[self.order]
        if self.starts is not None:
            total = np.maximum if arithmetic.is_logical else np.add
            values = total.reduceat(values, self.starts) if self.starts.size else values[:0]
        return values if self.diagonal is None else values[self.diagonal]

    def read_again(self, operand: Any) -> Any:
        """Read an operand that must have this structure; the order of its entries may be another one.

        Raises
        ------
        ValueError
            If it has another structure.
        """
        if self.structure is None:
            array = _as_array(operand)
            if array is None or array.shape != self.shape:
                found = f"{type(operand).__name__} of shape {getattr(operand, 'shape', None)}"
                raise ValueError(
                    f"{self.label}: expected a dense array of shape {self.shape}, as planned, found {found}"
                )
            return array
        if _as_array(operand) is not None:
            raise ValueError(
                f"{self.label}: expected a sparse tensor, as planned, found a dense array; make a new plan"
            )
        entries, extents = read_entries(operand, len(self.letters), self.label)
        known = self.structure
        if (
            entries.shape == known.shape
            and entries.count == known.count
            and np.array_equal(extents, self.extents)
        ):
            if _same(entries, known):
                return entries
            if _same(ordered := entries.sorted(), known.sorted()):
                order = self.order
                return ordered if order is None else ordered.take(places_in(order))
        raise ValueError(
            f"{self.label}: expected the structure that was planned for, found another one; make a "
            "new plan"
        )


def read_operand(
    letters: str, operand: Any, number: int, name: str | None = None
) -> tuple[Factor, Source, Any]:
    """Read an operand.

    Parameters
    ----------
    letters : str
        One for each dimension; those that come twice stand for a diagonal.
    operand : scipy.sparse matrix or array, Packed, torch.Tensor, numpy.ndarray or list of sparse ones
        What was passed.
    number : int
        Which operand it is.
    name : str, optional
        Names it in messages.

    Returns
    -------
    Factor, Source, Entries or numpy.ndarray
        The factor, how its values are got, and what was read.

    Raises
    ------
    TypeError, ValueError
        If it is of another kind, or has more or fewer dimensions than letters.
    """
    label = f"{name or f'operand {number}'} ({letters!r})"
    array = _as_array(operand)
    entries, extents = (None, None) if array is not None else read_entries(operand, None, label)
    shape = tuple(array.shape if array is not None else entries.shape)
    if len(shape) != len(letters):
        raise ValueError(
            f"{label}: expected {len(letters)} dimensions, one for each letter, found shape {shape}"
        )
    variables = tuple(dict.fromkeys(letters))
    _check_diagonal(label, letters, shape)
    if array is not None:
        source = Source(label, letters, array.dtype, shape)
        return Factor(variables, number), source, array
    dtype = entries.values.dtype
    order = entries.order
    ordered = entries if order is None else entries.take(order)
    repeats = ordered.repeats()
    starts = None
    if repeats.any():
        starts = np.flatnonzero(np.concatenate([[True], ~repeats]))
        ordered = Entries(tuple(c[starts] for c in ordered.coordinates), starts, shape)
    ordered, diagonal = _diagonal_entries(letters, ordered)
    ordered = ordered.with_values(np.arange(ordered.count))
    source = Source(label, letters, dtype, shape, entries, order, starts, diagonal, extents)
    return Factor(variables, number, ordered), source, entries


def read_sizes(sources: Sequence[Source]) -> dict[str, int]:
    """Return the size of each letter.

    Raises
    ------
    ValueError
        If operands disagree; stacks of tensors of several sizes have to agree tensor by tensor.
    """
    sizes: dict[str, tuple[int, str]] = {}
    ragged: dict[tuple[str, str], tuple[np.ndarray, str]] = {}
    for source in sources:
        for letter, size in zip(source.letters, source.shape):
            known, label = sizes.setdefault(letter, (int(size), source.label))
            if known != size:
                raise ValueError(
                    f"{source.label}: expected size {known} for letter {letter!r}, as {label} has, found "
                    f"{size} (shape {source.shape})"
                )
        if source.extents is None:
            continue
        batch, *inner = source.letters
        for letter, own in zip(inner, source.extents.T):
            known, label = ragged.setdefault((batch, letter), (own, source.label))
            for place in np.flatnonzero(known != own)[:1]:
                raise ValueError(
                    f"{source.label}: tensor {place}: expected size {known[place]} for letter "
                    f"{letter!r}, as tensor {place} of {label} has, found {own[place]}"
                )
    return {letter: size for letter, (size, _) in sizes.items()}


def scaled(
    sources: Sequence[Source], terms: Sequence[Sequence[Factor]], coefficients: Sequence[Number]
) -> list[Source]:
    """Let the smallest operand of each term be multiplied by the coefficient of the term."""
    found = list(sources)
    for term, coefficient in zip(terms, coefficients):
        sizes = {
            f.source: math.prod(found[f.source].shape) if f.is_dense else f.count for f in term
        }
        number = min(sizes, key=sizes.get)
        found[number] = replace(found[number], coefficient=coefficient)
    return found


def read_entries(operand: Any, rank: int | None, label: str) -> tuple[Entries, np.ndarray | None]:
    """Read a sparse operand; of a list of tensors, stacked, also the sizes of each."""
    if is_stack(operand):
        return read_stack(operand, label)
    try:
        return as_entries(operand, rank, label), None
    except TypeError as error:
        if "expected a SciPy sparse matrix" not in str(error):
            raise
        raise TypeError(
            f"{label}: expected a SciPy sparse matrix or array, a packed tensor, a list of these or a "
            f"NumPy array, found {type(operand).__name__}"
        ) from None


def _as_array(operand: Any) -> np.ndarray | None:
    """The array of a dense operand, None for other operands."""
    if isinstance(operand, np.ndarray):
        return np.asarray(operand)
    torch = sys.modules.get("torch")
    if (
        torch is None
        or not isinstance(operand, torch.Tensor)
        or operand.layout is not torch.strided
    ):
        return None
    return operand.detach().cpu().resolve_conj().resolve_neg().numpy()


def _same(left: Entries, right: Entries) -> bool:
    if left is right:
        return True
    rows = [getattr(own, "row_pointers", None) for own in (left, right)]
    if hasattr(left, "_rises") and hasattr(right, "_rises"):
        return np.array_equal(*rows) and np.array_equal(left.columns, right.columns)
    return all(map(np.array_equal, left.coordinates, right.coordinates))


# --- repeated letters ------------------------------------------------------------------------------


def _check_diagonal(label: str, letters: str, shape: tuple[int, ...]) -> None:
    for dim, letter in enumerate(letters):
        first = letters.index(letter)
        if shape[dim] != shape[first]:
            raise ValueError(
                f"{label}: expected equal sizes where letter {letter!r} is repeated, found "
                f"{shape[first]} and {shape[dim]} (shape {shape})"
            )


def _diagonal_entries(letters: str, entries: Entries) -> tuple[Entries, np.ndarray | None]:
    """Sorted entries whose coordinates are equal where letters are, over the distinct letters."""
    if len(set(letters)) == len(letters):
        return entries, None
    first = {letter: entries.coordinates[letters.index(letter)] for letter in letters}
    equal = [own == first[letter] for letter, own in zip(letters, entries.coordinates)]
    chosen = np.flatnonzero(np.logical_and.reduce(equal))
    shape = tuple(entries.shape[letters.index(letter)] for letter in first)
    coordinates = tuple(own[chosen] for own in first.values())
    return Entries(coordinates, entries.values[chosen], shape), chosen


def _diagonal_of(letters: str, array: np.ndarray) -> np.ndarray:
    distinct = "".join(dict.fromkeys(letters))
    return array if distinct == letters else np.einsum(f"{letters}->{distinct}", array)

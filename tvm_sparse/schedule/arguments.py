"""Checks of the arguments of schedule primitives: what is wrong is named before anything is changed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from ..errors import SparseProgramError
from ..formats import Composition, Format, Packed, PackedComposition
from ..formats.composition import name_parts
from .trace import IterationHandle, IteratorHandle

__all__ = [
    "Iteration",
    "Iterator",
    "check_choice",
    "iterator_names",
    "named_parts",
    "operand_names",
    "plain_annotation",
]

Iteration = IterationHandle | str
Iterator = IteratorHandle | str


def iterator_names(iterators: Sequence[Iterator], iteration: str, label: str) -> list[str]:
    """Return the names of iterators of an iteration, given by handles or names.

    Raises
    ------
    TypeError
        If they are not.
    SparseProgramError
        If a handle is one of another iteration.
    """
    if isinstance(iterators, str) or not isinstance(iterators, Iterable):
        raise TypeError(f"{label}: expected a list of handles or names, found {iterators!r}")
    names = []
    for iterator in iterators:
        if isinstance(iterator, IteratorHandle):
            if iterator.iteration != iteration:
                raise SparseProgramError(
                    f"{label}: expected iterators of iteration {iteration}, found {iterator.name} of "
                    f"iteration {iterator.iteration}"
                )
            names.append(iterator.name)
        elif isinstance(iterator, str):
            names.append(iterator)
        else:
            raise TypeError(f"{label}: expected handles or names, found {iterator!r}")
    return names


def operand_names(operand: str | Sequence[str]) -> list[str]:
    """Return the names of operands, at least one and none twice.

    Raises
    ------
    TypeError, ValueError
        If they are none.
    """
    names = [operand] if isinstance(operand, str) else operand
    if not isinstance(names, Iterable):
        raise TypeError(f"operand: expected a name or a list of names, found {operand!r}")
    names = list(names)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"operand: expected a name or a list of names, found {name!r}")
        if names.count(name) > 1:
            raise ValueError(f"operand: expected each name once, found {name!r} again")
    if not names:
        raise ValueError("operand: expected at least one, found none")
    return names


def named_parts(formats: Any) -> dict[str, Format]:
    """Return the formats of the parts by name; a single one has the empty name.

    Raises
    ------
    TypeError, ValueError
        If they are no formats, or their names no different identifiers.
    """
    if isinstance(formats, Format):
        name_parts([formats], "formats")
        return {"": formats}
    if isinstance(formats, Packed | PackedComposition):
        what = "format" if isinstance(formats, Packed) else "composition"
        raise TypeError(f"formats: expected a description, found a tensor; pass its .{what}")
    if isinstance(formats, Composition):
        return dict(formats.parts)
    return name_parts(formats, "formats")


def check_choice(
    candidates: Sequence[int], probs: Sequence[float] | None, decision: int | None
) -> tuple[list[int], list[float] | None, int | None]:
    """Return a categorical choice as lists of plain numbers.

    Raises
    ------
    TypeError, ValueError
        If candidates are no integers, probabilities no weights, or the decision no index.
    """
    if isinstance(candidates, str) or not isinstance(candidates, Iterable):
        raise TypeError(f"candidates: expected a list of integers, found {candidates!r}")
    choices = []
    for candidate in candidates:
        if not _is_integer(candidate):
            raise TypeError(f"candidates: expected integers, found {candidate!r}")
        choices.append(int(candidate))
    if not choices:
        raise ValueError("candidates: expected at least one integer, found none")
    weights = None if probs is None else _weights(probs, len(choices))
    if decision is None:
        return choices, weights, None
    if not _is_integer(decision):
        raise TypeError(
            f"decision: expected the index of a candidate, an integer, found {decision!r}"
        )
    if not 0 <= decision < len(choices):
        raise ValueError(f"decision: expected 0..{len(choices) - 1}, found {decision}")
    return choices, weights, int(decision)


def plain_annotation(key: str, value: Any) -> Any:
    """Return the value of an annotation as plain data, which a trace can hold.

    Raises
    ------
    TypeError, ValueError
        If the key is no name, or the value no number, text, list or dict.
    """
    if not isinstance(key, str):
        raise TypeError(f"key: expected a name, found {key!r}")
    if not key:
        raise ValueError("key: expected a name, found none")
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {name: _plain(item) for name, item in value.items()}
    raise TypeError(
        f"value: expected numbers, text, and lists and dicts (by name) of them, found {value!r}"
    )


def _weights(probs: Sequence[float], count: int) -> list[float]:
    if isinstance(probs, str) or not isinstance(probs, Iterable):
        raise TypeError(f"probs: expected a list of numbers, found {probs!r}")
    given = list(probs)
    if len(given) != count:
        raise ValueError(f"probs: expected {count} numbers, found {len(given)}")
    for weight in given:
        if isinstance(weight, bool) or not isinstance(weight, Real):
            raise TypeError(f"probs: expected numbers, found {weight!r}")
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"probs: expected finite numbers of at least 0, found {weight}")
    if not sum(given):
        raise ValueError("probs: expected a number above 0, found zeros alone")
    return [float(weight) for weight in given]


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool | np.bool_)

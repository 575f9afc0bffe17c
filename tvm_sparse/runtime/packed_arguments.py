"""Packed tensors as arguments: that a kernel was compiled for them, and whose arrays they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..formats.description import difference
from .signature import Signature

__all__ = ["check_packed", "expand_packed", "shares_arrays"]


def check_packed(signature: Signature, key: str, packed: Any) -> None:
    """Refuse a tensor whose arrays mean something else than those that the kernel reads.

    Raises
    ------
    TypeError
        If a part is in another format, or the parts do not list what they are to initialise.
    """
    for name, part in _parts_of(key, packed):
        expected = signature.descriptions.get(name, {})
        wrong = difference(part.description, expected) if "axes" in expected else None
        if wrong:
            raise TypeError(f"{signature.label(key)}: expected a tensor {wrong}")
    wanted = signature.descriptions.get(key, {}).get("covering")
    by = getattr(packed, "composition", getattr(packed, "format", None))
    if wanted and list(getattr(by, "covering_parts", ())) != wanted:
        raise TypeError(
            f"{signature.label(key)}: expected a tensor packed by the composition that the kernel was "
            f"compiled for, whose parts {', '.join(wanted)} visit all of the result, found one packed by "
            f"{by!r}"
        )


def expand_packed(
    signature: Signature, key: str, packed: Any, known: Mapping[str, Any]
) -> dict[str, Any]:
    """Return arrays and sizes of a packed tensor by parameter, those left out that are ``known``.

    Tensors over common index arrays (the matrix and the result of SDDMM) may all be passed packed.

    Raises
    ------
    ValueError
        If their arrays differ.
    """
    found: dict[str, Any] = {}
    for name, part in _parts_of(key, packed):
        owner = signature.descriptions.get(name, {}).get("arrays_of", name)
        for given, value in part.arguments(name).items():
            parameter = given if given == name else owner + given.removeprefix(name)
            if owner == name or given == name or parameter not in known:
                found[parameter] = value
            elif not _is_same(known[parameter], value):
                raise ValueError(
                    f"{signature.label(key)}: expected the index arrays of the other tensor over the "
                    f"same axes, found others ({parameter!r} differs)"
                )
    return found


def _is_same(first: Any, second: Any) -> bool:
    """Whether two arrays, or sizes, are equal; those on a GPU are copied to tell."""
    if first is second:
        return True
    copies = (value.numpy() if hasattr(value, "data_ptr") else value for value in (first, second))
    return np.array_equal(*copies)


def shares_arrays(signature: Signature, key: str) -> bool:
    """Whether a tensor, or a part of it, has the index arrays of another one."""
    return any(
        "arrays_of" in known
        for name, known in signature.descriptions.items()
        if name == key or name.startswith(f"{key}_")
    )


def _parts_of(key: str, packed: Any) -> list[tuple[str, Any]]:
    """Return the parts of a packed tensor, each by the name of its values."""
    if hasattr(packed, "parts"):
        return [(f"{key}_{name}", part) for name, part in packed.parts.items()]
    return [(key, packed)]

"""Tensors packed in formats as arguments: parameters that their arrays and sizes are.

In: what :meth:`Format.pack` or :meth:`Composition.pack` returned, and the name it is passed by. Out: the
arguments of the kernel; or an error where the formats are not those that the kernel was compiled for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..formats.description import difference, is_plain_csr
from .signature import Signature

__all__ = [
    "PackedArguments",
    "check_matrix",
    "is_packed",
    "refuse_positional",
    "wanted_form",
]


class PackedArguments:
    """The packed tensors of one call.

    Tensors over common index arrays (the matrix and the result of SDDMM) may all be passed packed: their
    arrays must agree.
    """

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.tensors: dict[str, Any] = {}
        self._parts: dict[str, Any] = {}
        self._arrays: dict[str, Any] = {}

    def expand(self, key: str, packed: Any) -> dict[str, Any]:
        """Return the arguments that a packed tensor stands for, those of earlier ones left out."""
        self.tensors[key] = packed
        self._check_covering(key, packed)
        arguments: dict[str, Any] = {}
        for name, part in _parts_of(key, packed):
            self._check_format(key, name, part)
            self._parts[name] = part
            arguments |= self._arguments_of(key, name, part)
        return arguments

    def mark_padding(self, outputs: Sequence[str]) -> None:
        """Let results that a kernel wrote look as if they were packed: zeros in padding."""
        for name, part in self._parts.items():
            if name in outputs and part.format.marks_padding:
                part.mark_padding()

    def _arguments_of(self, key: str, name: str, part: Any) -> dict[str, Any]:
        known = self.signature.tensors.get(name, {})
        owner = known.get("arrays_of", name)
        found: dict[str, Any] = {}
        for given, value in part.arguments(name).items():
            parameter = given if given == name else owner + given.removeprefix(name)
            if parameter in self._arrays:
                if not np.array_equal(self._arrays[parameter], value):
                    raise ValueError(
                        f"{self.signature.label(key)}: expected the index arrays of the other tensor "
                        f"over the same axes, found others ({parameter!r} differs)"
                    )
            elif parameter in self.signature.by_name:
                found[parameter] = value
                if parameter != name:
                    self._arrays[parameter] = value
            elif isinstance(value, np.ndarray):
                raise TypeError(
                    f"{self.signature.label(key)} is packed with an array {given!r}, which the kernel "
                    f"does not take; it takes {', '.join(self.signature.names)}"
                )
        return found

    def _check_format(self, key: str, name: str, part: Any) -> None:
        expected = self.signature.tensors.get(name, {}).get("format")
        wrong = expected and difference(part.description, expected)
        if wrong:
            raise TypeError(f"{self.signature.label(key)}: expected a tensor {wrong}")

    def _check_covering(self, key: str, packed: Any) -> None:
        """Parts that together initialise a result list all of its rows only if packed to do so."""
        wanted = self.signature.tensors.get(key, {}).get("covering")
        if not wanted:
            return
        by = getattr(packed, "composition", getattr(packed, "format", None))
        if list(getattr(by, "covering_parts", ())) != wanted:
            raise TypeError(
                f"{self.signature.label(key)}: expected a tensor packed by the composition that the "
                f"kernel was compiled for, whose parts {', '.join(wanted)} visit all of the result, found "
                f"one packed by {by!r}"
            )


def is_packed(value: Any) -> bool:
    """Tell whether an argument is a packed tensor."""
    return hasattr(value, "arguments") and hasattr(value, "nbytes")


def refuse_positional(signature: Signature, args: Sequence[Any]) -> None:
    """Refuse packed tensors without a name, which says which parameters they stand for."""
    if any(map(is_packed, args)):
        names = ", ".join(signature.tensors) or "none"
        raise TypeError(
            f"{signature.function}: expected packed tensors by name (those of the kernel: {names}), found "
            "one as a positional argument"
        )


def wanted_form(signature: Signature, key: str, value: Any) -> str | None:
    """Say how a tensor is passed that the kernel holds in formats; None if it does not hold it so."""
    known = signature.tensors.get(key)
    if known is None:
        return None
    parts = [name for name in known.get("parts", []) if name]
    held = f"in parts {', '.join(parts)}" if parts else f"as {known['format']['name']}"
    return (
        f"{signature.label(key)}: expected a tensor packed {held}, that is what pack(...) of the formats "
        f"returns, found {type(value).__name__}"
    )


def check_matrix(signature: Signature, name: str, matrix: Any) -> None:
    """Refuse a sparse matrix for a tensor whose format has other arrays than the matrix."""
    known: Mapping[str, Any] = signature.tensors.get(name, {})
    if "format" in known and not is_plain_csr(known["format"]):
        raise TypeError(wanted_form(signature, name, matrix))


def _parts_of(key: str, packed: Any) -> list[tuple[str, Any]]:
    """Return the parts of a packed tensor, each by the name of its values."""
    if hasattr(packed, "parts"):
        return [(f"{key}_{name}", part) for name, part in packed.parts.items()]
    return [(key, packed)]

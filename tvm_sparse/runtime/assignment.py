"""The arguments of a call by the names of parameters, packed tensors replaced by their arrays and sizes.

In: positional and named arguments as the caller passed them. Out: one value for each parameter that was
given, and the packed tensors; or an error that names the argument, the expected and the found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .arrays import is_sparse_matrix
from .packed_arguments import check_packed, expand_packed, shares_arrays
from .signature import Signature
from .sparse_arguments import index_parameters

__all__ = ["Assignment"]


class Assignment:
    """Maps arguments to the parameters of a function.

    Parameters
    ----------
    signature : Signature
        The function's.
    check_place : callable
        Takes the name of a packed tensor and the tensor, and refuses one in the wrong memory.

    Attributes
    ----------
    packed : dict of str to object
        The packed tensors among the arguments of the last call.
    """

    def __init__(self, signature: Signature, check_place: Callable[[str, Any], None]) -> None:
        self._signature, self._check_place = signature, check_place
        self.packed: dict[str, Any] = {}

    def assign(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Map arguments to parameter names."""
        signature = self._signature
        for place, value in enumerate(args):
            if _is_packed(value):
                raise TypeError(
                    f"{signature.function}: expected packed tensors by name, as in "
                    f"{next(iter(signature.tensors), 'a')}=, found one as argument {place + 1}"
                )
        named = {}
        for key, value in self._expand_packed(kwargs):
            name = signature.aliases.get(key, key)
            if name not in signature.by_name:
                raise TypeError(self._unexpected(key, value))
            if name in named:
                raise TypeError(f"{signature.label(name)}: given twice")
            named[name] = value
        buffers = [p["name"] for p in signature.buffers]
        inputs = signature.inputs
        orders = (
            signature.names,
            buffers,
            inputs,
            inputs + signature.scalars,
        )
        for order in orders:
            assigned, left_over, missing = self._walk(order, args, named)
            if not left_over and not missing:
                return assigned
        assigned, left_over, _ = self._walk(signature.names, args, named)
        if left_over:
            raise TypeError(
                f"{signature.function}: expected at most "
                f"{len(args) - len(left_over)} positional arguments here, found {len(args)}; the "
                f"parameters are {', '.join(signature.names)}"
            )
        return assigned

    def _walk(
        self, order: Sequence[str], args: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[Any], list[str]]:
        """Give `args` to the parameters of `order` that are still open."""
        assigned = dict(named)
        supplied = {
            filled
            for name, value in named.items()
            if is_sparse_matrix(value)
            for filled in index_parameters(self._signature.sparse_axes(name))
        }
        waiting = list(args)
        for name in order:
            if name in assigned or name in supplied:
                continue
            if not waiting:
                continue
            value = assigned[name] = waiting.pop(0)
            if is_sparse_matrix(value) and self._signature.by_name[name]["kind"] == "buffer":
                supplied.update(index_parameters(self._signature.sparse_axes(name)))
        missing = [name for name in order if name not in assigned and name not in supplied]
        return assigned, waiting, missing

    def _expand_packed(self, kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Replace tensors packed in formats by their arrays and sizes, each a parameter."""
        known: dict[str, Any] = {}
        owners_first = sorted(kwargs, key=lambda key: shares_arrays(self._signature, key))
        for key in owners_first:
            value = kwargs[key]
            if not _is_packed(value):
                yield key, value
                continue
            self.packed[key] = value
            self._check_place(key, value)
            self._check_formats(key, value.formats(key))
            check_packed(self._signature, key, value)
            arguments = expand_packed(self._signature, key, value, known)
            known |= arguments
            for name, part in arguments.items():
                if name in self._signature.by_name:
                    yield name, part
                elif hasattr(part, "shape"):
                    raise TypeError(self._other_parts(key, name, value))

    def _check_formats(self, key: str, formats: Mapping[str, str]) -> None:
        """Refuse a tensor packed in another format than the kernel reads."""
        for name, packed in formats.items():
            expected = self._signature.formats.get(name, packed)
            if packed != expected:
                where = f" for {name!r}" if name != key else ""
                raise TypeError(
                    f"{self._signature.label(key)}: expected a tensor packed as {expected}{where}, "
                    f"found one packed as {packed}"
                )

    def _other_parts(self, key: str, array: str, found: Any) -> str:
        """Say why the kernel does not take an array of a packed tensor, and what to pass."""
        formats = self._signature.formats
        if key in self._signature.tensors and found.formats(key).items() <= formats.items():
            return f"{self._signature.label(key)}: its layout declares no array {array!r}"
        if key in self._signature.tensors:
            return f"{self._signature.label(key)}: expected {self._wanted(key)}, found {found!r}"
        return (
            f"{self._signature.function}: argument {key!r} is packed with an array {array!r}, which the "
            f"kernel does not take; it holds {key!r} in no format, pass unpack() of the tensor"
        )

    def _wanted(self, key: str) -> str:
        """Say how a tensor is to be packed."""
        signature = self._signature
        if key in signature.formats:
            return f"a tensor packed as {signature.formats[key]}"
        parts = ", ".join(
            f"{name} as {fmt}"
            for name, fmt in signature.formats.items()
            if name.startswith(f"{key}_") and name in signature.by_name
        )
        return f"a tensor packed as a sum of parts ({parts})"

    def _unexpected(self, key: str, value: Any) -> str:
        signature = self._signature
        if key in signature.tensors:
            found = type(value).__name__
            return (
                f"{signature.label(key)}: expected {self._wanted(key)}, found {found}; pass what "
                "pack() of the format or composition returns"
            )
        return (
            f"{signature.function}: unexpected argument {key!r}; expected some of "
            f"{', '.join(signature.names)}"
        )


def _is_packed(value: Any) -> bool:
    """Tell whether a value is a tensor packed in a format or a composition."""
    return hasattr(value, "arguments") and hasattr(value, "formats")

"""Packed tensors on a GPU as ready arguments, kept from one call to the next.

As :mod:`~tvm_sparse.runtime.prepared_tensors` does on the host. The arrays of such a tensor are never
replaced, and their structure was checked when it was first passed, so that a later call looks at the
dense arrays alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..formats.on_device import PackedCompositionOnDevice, PackedOnDevice
from .binding import Binding
from .device_arrays import allocator_like
from .device_calls import ready_addresses
from .prepared_tensors import AddressRanges, PreparedTensor, PreparedTensors, given_by
from .signature import Signature

__all__ = ["PreparedOnDevice"]


class PreparedOnDevice(PreparedTensors):
    """The packed tensors on a GPU that a function was called with."""

    packed_types = (PackedOnDevice, PackedCompositionOnDevice)

    def _prepare(
        self, binding: Binding, key: str, packed: Any, forget: Callable[[Any], None]
    ) -> PreparedTensor | None:
        given = given_by(self._signature, binding, key, packed)
        if given is None:
            return None
        arrays, sizes = given
        if any(ready_addresses(array) is None for array in arrays.values()):
            return None
        return _Prepared(self._signature, key, packed, arrays, arrays, sizes, forget)


class _Prepared(PreparedTensor):
    """The arguments that one packed tensor on a GPU gives, and what else a call needs."""

    def _watch(self, signature: Signature, packed: Any, arrays: Mapping[str, Any]) -> None:
        self._all_ranges = AddressRanges(map(ready_addresses, arrays.values()))
        self._written_ranges = AddressRanges(map(ready_addresses, self._written.values()))

    def is_current(self, packed: Any) -> bool:
        return self._packed() is packed

    def _has_sound_ends(self) -> bool:
        return True

    def _allocator(self, inputs: Sequence[Any]) -> Callable[[Sequence[int], str], Any]:
        return allocator_like(inputs)

    def _is_apart(
        self, given: Mapping[str, Any], dense: Sequence[Any], results: Sequence[Any]
    ) -> bool:
        inputs = [ready_addresses(value) for value in dense]
        outputs = [ready_addresses(value) for value in results]
        if None in inputs or None in outputs:
            return False
        if any(self._written_ranges.overlap(*view) for view in inputs):
            return False
        names = [name for name, _ in self._inputs]
        written = [inputs[names.index(name)] for name in self._written_inputs] + outputs
        everything = inputs + outputs
        for view in written:
            if self._all_ranges.overlap(*view):
                return False
            if any(view is not other and _overlap(view, other) for other in everything):
                return False
        return True


def _overlap(first: tuple[int, int], second: tuple[int, int]) -> bool:
    return max(first[0], second[0]) < min(first[1], second[1])

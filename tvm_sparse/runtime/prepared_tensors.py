"""Packed tensors as ready arguments, kept from one call to the next.

In: the binding of a call that took a packed tensor. Out: what completes a later call with the same
tensor to a full argument list. Kept are views of the tensor's arrays, which share their memory: what is
written there between calls is seen. An array or part that was replaced by another one is noticed, and the
call takes the longer path again.
"""

from __future__ import annotations

import functools
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ..formats import Packed, PackedComposition
from .arrays import allocate, framework_of, is_torch
from .binding import Binding
from .dimensions import dimension, solve_sizes
from .minimal import array_to_tensor
from .packed_arguments import expand_packed
from .signature import Signature
from .sparse_arguments import index_parameters

__all__ = ["AddressRanges", "PreparedTensor", "PreparedTensors", "given_by"]

_TENSOR_TYPES = (tvm_ffi.Tensor, tvm.runtime.Tensor)


class PreparedTensors:
    """The packed tensors that a function was called with, each as long as someone else holds it.

    Parameters
    ----------
    signature : Signature
        Of the function.
    """

    #: Types of packed tensors that are kept.
    packed_types: tuple[type, ...] = (Packed, PackedComposition)

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        # By name of the argument and identity of the tensor; single operations of a dict are atomic.
        self._entries: dict[tuple[str, int], PreparedTensor] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, arguments: Mapping[str, Any]) -> PreparedTensor | None:
        """Return what is kept of the one packed tensor among keyword arguments, if it is still so."""
        chosen = None
        for key, value in arguments.items():
            if type(value) in self.packed_types:
                if chosen is not None:
                    return (
                        None  # tensors with index arrays in common are checked against each other
                    )
                chosen = key, value
        if chosen is None:
            return None
        key, packed = chosen
        entry = self._entries.get((key, id(packed)))
        return entry if entry is not None and entry.is_current(packed) else None

    def remember(self, binding: Binding) -> None:
        """Keep the packed tensor of a finished call, if it was the only one and needs no copy."""
        if len(binding.packed) != 1:
            return
        ((key, packed),) = binding.packed.items()
        if type(packed) not in self.packed_types:
            return
        known = self._entries.get((key, id(packed)))
        if known is not None and known.is_current(packed):
            return
        entry = self._prepare(binding, key, packed, self._forgetting(key, id(packed)))
        if entry is not None:
            self._entries[key, id(packed)] = entry

    def _prepare(
        self, binding: Binding, key: str, packed: Any, forget: Callable[[Any], None]
    ) -> PreparedTensor | None:
        given = given_by(self._signature, binding, key, packed)
        if given is None or not all(map(_is_shared, given[0].values())):
            return None
        arrays, sizes = given
        outputs = self._signature.outputs
        tensors = {
            name: array_to_tensor(binding.views[name], written=name in outputs) for name in arrays
        }
        return PreparedTensor(self._signature, key, packed, arrays, tensors, sizes, forget)

    def _forgetting(self, key: str, identity: int) -> Callable[[Any], None]:
        """Return what drops an entry when its tensor is gone, without keeping this object alive."""
        owner = weakref.ref(self)

        def forget(_reference: Any) -> None:
            kept = owner()
            if kept is not None:
                kept._entries.pop((key, identity), None)

        return forget


class PreparedTensor:
    """The arguments that one packed tensor gives, and what else a call needs.

    Parameters
    ----------
    signature : Signature
        Of the function.
    key : str
        Name of the argument.
    packed : Packed or PackedComposition
        The tensor.
    arrays : dict of str to numpy.ndarray
        Its arrays, by parameter.
    tensors : dict of str to tvm_ffi.Tensor
        Views of these.
    sizes : dict of str to int
        All sizes that it determines.
    forget : callable
        Called when the tensor is gone.
    """

    def __init__(
        self,
        signature: Signature,
        key: str,
        packed: Packed | PackedComposition,
        arrays: Mapping[str, np.ndarray],
        tensors: Mapping[str, tvm_ffi.Tensor],
        sizes: Mapping[str, int],
        forget: Callable[[Any], None],
    ) -> None:
        self._packed = weakref.ref(packed, forget)
        self._key = key
        position = signature.position
        self._template: list[Any] = [None] * len(signature.parameters)
        for name, tensor in tensors.items():
            self._template[position[name]] = tensor
        for name in signature.scalars:
            self._template[position[name]] = sizes.get(name)
        # What the caller gives beside it.
        self._inputs = [(n, position[n]) for n in signature.inputs if n not in arrays]
        self._outputs = [
            (name, position[name], signature.shapes[name], signature.by_name[name]["dtype"])
            for name in signature.outputs
            if name not in arrays and name not in signature.inputs
        ]
        self._written_inputs = [n for n, _ in self._inputs if n in signature.outputs]
        self._reads = [
            (position[name], _extents_that_show(signature, name, arrays))
            for name in signature.scalars
            if name not in sizes
        ]
        self._sizes = dict(sizes)
        self._open_sizes = [(name, position[name]) for name in signature.scalars]
        # What it gives as a result.
        self._written = {
            position[name]: array for name, array in arrays.items() if name in signature.outputs
        }
        read = [array for name, array in arrays.items() if name in signature.inputs]
        self._example = read[:1]
        self._result_positions = signature.output_positions
        self._watch(signature, packed, arrays)

    def _watch(self, signature: Signature, packed: Any, arrays: Mapping[str, Any]) -> None:
        """Note where the arrays lie, and by what a change is noticed."""
        self._parts = tuple(packed.parts.values()) if hasattr(packed, "parts") else None
        self._storages = [
            (storage, storage.values, tuple(storage.arrays.values()), dict(storage.sizes))
            for storage in _storages(packed)
        ]
        self._shapes = [(array, array.shape) for array in arrays.values()]
        self._pins = [weakref.ref(array) for array in arrays.values()]  # NumPy then moves none
        self._pointers = [
            (arrays[name], stored.evaluate(self._sizes)) for name, stored in signature.pointers
        ]
        self._all_ranges = AddressRanges(map(_addresses, arrays.values()))
        self._written_ranges = AddressRanges(map(_addresses, self._written.values()))

    def is_current(self, packed: Packed | PackedComposition) -> bool:
        """Tell whether this is of `packed`, and its arrays are still the same objects."""
        if self._packed() is not packed:
            return False
        if self._parts is not None:
            parts = packed.parts
            if len(parts) != len(self._parts) or not all(map(is_, parts.values(), self._parts)):
                return False
        for storage, values, arrays, sizes in self._storages:
            found = storage.arrays
            if (
                storage.values is not values
                or len(found) != len(arrays)
                or not all(map(is_, found.values(), arrays))
                or storage.sizes != sizes
            ):
                return False
        return all(array.shape == shape for array, shape in self._shapes)

    def _has_sound_ends(self) -> bool:
        return all(p.item(0) == 0 and p.item(-1) == stored for p, stored in self._pointers)

    def _allocator(self, inputs: Sequence[Any]) -> Callable[[Sequence[int], str], Any]:
        return functools.partial(allocate, framework_of(inputs))

    def complete(self, given: Mapping[str, Any]) -> list[Any] | None:
        """Return all arguments of a call, None where it needs the longer path.

        Checks what the compiled code does not: the ends of pointers, alignment, overlap of outputs.
        """
        if not self._has_sound_ends():
            return None
        full = self._template.copy()
        dense = []
        for name, place in self._inputs:
            value = given.get(name)
            if value is None:
                return None
            full[place] = value
            dense.append(value)
        used = 1 + len(dense)
        missing, results = [], []
        for output in self._outputs:
            name, place = output[:2]
            value = given.get(name)
            used += name in given
            if value is None:
                missing.append(output)
            else:
                full[place] = value
                results.append(value)
        if used != len(given):
            return None
        try:
            for place, extents in self._reads:
                for name, axis, offset in extents:
                    if given.get(name) is not None:
                        full[place] = int(given[name].shape[axis]) - offset
                        break
                else:
                    return None
            if not self._is_apart(given, dense, results):
                return None
        except (IndexError, AttributeError, TypeError, RuntimeError, BufferError):
            return None
        if missing:
            sizes = {name: full[place] for name, place in self._open_sizes}
            new = self._allocator([*dense, *self._example])
            for _, place, shape, dtype in missing:
                extents = [extent.evaluate(sizes) for extent in shape]
                if min(extents, default=1) < 0:
                    return None
                full[place] = new(extents, dtype)
        return full

    def results(self, full: Sequence[Any]) -> Any:
        """Return the outputs among all arguments, single or as a tuple, after the call."""
        written = self._written
        if written:
            packed = self._packed()
            if packed is not None:
                packed.restore_padding()
        found = tuple(written.get(place, full[place]) for place in self._result_positions)
        return found[0] if len(found) == 1 else found or None

    def _is_apart(
        self, given: Mapping[str, Any], dense: Sequence[Any], results: Sequence[Any]
    ) -> bool:
        """Check that dense arrays are aligned, and that what is written overlaps nothing else."""
        inputs = [_view(value) for value in dense]
        outputs = [_view(value) for value in results]
        if any(view is None for view in inputs) or any(view is None for view in outputs):
            return False
        if self._written:
            if not all(array.flags.writeable for array in self._written.values()):
                return False
            if any(_overlap(self._written_ranges, view) for view in inputs):
                return False
        names = [name for name, _ in self._inputs]
        written = [inputs[names.index(name)] for name in self._written_inputs] + outputs
        everything = inputs + outputs
        for view in written:
            if _overlap(self._all_ranges, view):
                return False
            if any(view is not other and np.may_share_memory(view, other) for other in everything):
                return False
        return True


class AddressRanges:
    """The addresses that arrays take.

    Parameters
    ----------
    ranges : iterable of tuple
        Begin and end of each.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        for begin, end in sorted(ranges):
            if begin == end:
                continue
            if self._ends and begin <= self._ends[-1]:
                self._ends[-1] = max(end, self._ends[-1])
            else:
                self._begins.append(begin)
                self._ends.append(end)

    def overlap(self, begin: int, end: int) -> bool:
        """Tell whether some of the addresses from `begin` to `end` are among them."""
        last = bisect_left(self._begins, end) - 1
        return begin < end and last >= 0 and self._ends[last] > begin


def _overlap(ranges: AddressRanges, view: np.ndarray) -> bool:
    """Tell whether a contiguous array shares memory with others; of other arrays, nothing is known."""
    return not view.flags.c_contiguous or ranges.overlap(*_addresses(view))


def _addresses(array: np.ndarray) -> tuple[int, int]:
    begin = array.__array_interface__["data"][0]
    return begin, begin + array.nbytes


def _view(value: Any) -> np.ndarray | None:
    """Return a ready array as NumPy sees it, None where it needs the longer path."""
    kind = type(value)
    if kind is np.ndarray:
        return value if value.flags.aligned else None
    if kind in _TENSOR_TYPES:
        return np.from_dlpack(value)
    return value.numpy() if is_torch(value) else None


def _storages(packed: Packed | PackedComposition) -> list[Any]:
    parts = packed.parts.values() if hasattr(packed, "parts") else [packed]
    return [part.storage for part in parts]


def _extents_that_show(
    signature: Signature, size: str, packed: Mapping[str, Any]
) -> list[tuple[str, int, int]]:
    """Return (parameter, axis, offset) of each extent of a dense array that is a size plus a constant."""
    found = []
    for name, shape in signature.shapes.items():
        for axis, extent in enumerate(shape):
            if name not in packed and extent.symbols == (size,):
                offset = extent.evaluate({size: 0})
                if extent.evaluate({size: 1}) - offset == 1:
                    found.append((name, axis, offset))
    return found


def given_by(
    signature: Signature, binding: Binding, key: str, packed: Any
) -> tuple[dict[str, Any], dict[str, int]] | None:
    """Return the arrays and sizes that a packed tensor gave to a call, None if the call needs more.

    It does where index arrays, or sizes that they are checked against, came with other arguments.
    """
    expanded = expand_packed(signature, key, packed, {})
    arrays = {
        name: value
        for name, value in expanded.items()
        if name in signature.shapes and binding.values.get(name) is value
    }
    # 1. All index arrays of the call, and the sizes that they are checked against, are the tensor's.
    sizes = _own_sizes(signature, key, packed, expanded, arrays)
    for axis in signature.given_axes:
        given = [name for name in index_parameters([axis]) if name in signature.by_name]
        if any(name not in arrays for name in given):
            return None
        for kind in ("length", "nnz"):
            extent = signature.extent(axis, kind)
            if extent is not None and not set(extent.symbols) <= sizes.keys():
                return None
    # 2. The call that succeeded had these sizes.
    if any(binding.sizes.get(name) != size for name, size in sizes.items()):
        return None
    return arrays, sizes


def _own_sizes(
    signature: Signature,
    key: str,
    packed: Packed | PackedComposition,
    expanded: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
) -> dict[str, int]:
    """Return the sizes that a packed tensor alone determines."""
    scalars = {name: value for name, value in expanded.items() if name in signature.scalars}
    equations = [
        (dimension(text), size) for text, size in zip(signature.tensors.get(key, []), packed.shape)
    ]
    for name, array in arrays.items():
        if array.ndim == len(signature.shapes[name]):
            equations += list(zip(signature.shapes[name], array.shape))
    return solve_sizes(equations, scalars)


def _is_shared(array: Any) -> bool:
    """Whether compiled code reads an array in place."""
    if type(array) is not np.ndarray:
        return False
    return array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative

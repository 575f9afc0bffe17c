"""What a call needs to know about a function's parameters, looked up once.

In: the argument metadata of a function. Out: :class:`Signature`, with the orders in which
arguments are given, the dimensions of every buffer, and the checks and completions of the short
path of a call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from .arrays import allocate, framework_of, is_sparse_matrix, is_torch, numpy_dtype
from .checked_structures import CheckedStructures
from .dimensions import Dimension, dimension
from .sparse_arguments import index_parameters

WRITTEN_ROLES = ("output", "inout")


class Signature:
    """The parameters of a function, looked up in every way that a call needs."""

    def __init__(self, name: str, metadata: dict) -> None:
        self.function = name
        self.parameters: list[dict] = metadata["args"]
        self.names = [parameter["name"] for parameter in self.parameters]
        self.by_name = dict(zip(self.names, self.parameters))
        self.position = {name: index for index, name in enumerate(self.names)}
        self.axes = {axis["name"]: axis for axis in metadata.get("axes", [])}
        #: Shapes of tensors that come packed in a format, by the name they are passed by.
        self.tensors: dict[str, list[str]] = metadata.get("tensors", {})
        #: Descriptions of the formats of buffers that are stored in one, by parameter; of compositions,
        #: the parts that together visit all of a result.
        self.descriptions: dict[str, dict] = metadata.get("formats", {})
        #: Names of these formats.
        self.formats: dict[str, str] = {
            name: known["name"] for name, known in self.descriptions.items() if "name" in known
        }
        self.buffers = [p for p in self.parameters if p["kind"] == "buffer"]
        self.scalars = [p["name"] for p in self.parameters if p["kind"] == "scalar"]
        self.inputs = [p["name"] for p in self.buffers if p.get("role") != "output"]
        self.outputs = [p["name"] for p in self.buffers if p.get("role") in WRITTEN_ROLES]
        self.shapes = {
            p["name"]: tuple(dimension(extent) for extent in p["shape"]) for p in self.buffers
        }
        self.dtypes = {p["name"]: numpy_dtype(p["dtype"]) for p in self.buffers}
        self.aliases = {
            p["buffer"]: p["name"]
            for p in self.buffers
            if p.get("buffer") and p["buffer"] not in self.by_name
        }
        # Axes whose index arrays the caller gives; those that the kernel writes hold nothing yet.
        self.given_axes = [
            axis
            for axis in self.axes.values()
            if (arrays := self._existing(index_parameters([axis])))
            and all(self.by_name[name].get("role") == "input" for name in arrays)
        ]
        self.pointers = [
            (axis["indptr"], stored)
            for axis in self.given_axes
            if axis.get("indptr") in self.by_name
            and (stored := self.extent(axis, "nnz")) is not None
        ]
        self.pointer_names = {
            axis["indptr"] for axis in self.axes.values() if axis.get("indptr") in self.by_name
        }
        self.structure = {
            name for axis in self.axes.values() for name in self._existing(index_parameters([axis]))
        }
        self.checked = {name: CheckedStructures() for name in self.axes}
        self.output_positions = [self.position[name] for name in self.outputs]

    def results(self, args: Sequence[Any]) -> Any:
        """Return the outputs among `args`, single or as a tuple."""
        positions = self.output_positions
        if len(positions) == 1:
            return args[positions[0]]
        return tuple(args[position] for position in positions) or None

    def _existing(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name in self.by_name]

    def extent(self, axis: Mapping[str, Any], kind: str) -> Dimension | None:
        """Return the ``"length"`` or ``"nnz"`` of an axis, None where no scalar gives it."""
        extent = dimension(axis[kind]) if axis.get(kind) is not None else None
        return extent if extent and set(extent.symbols) <= set(self.scalars) else None

    def label(self, name: str) -> str:
        return f"{self.function}: argument {name!r}"

    def sparse_axes(self, name: str) -> list[dict]:
        """Axes metadata of a buffer parameter."""
        return [self.axes[axis] for axis in self.by_name[name].get("axes", [])]

    def index_arrays(self, name: str) -> list[str]:
        """Return the index parameters of a buffer parameter's axes."""
        return self._existing(index_parameters(self.sparse_axes(name)))

    def completion(
        self,
        given: Sequence[str],
        allocator: Callable[[Sequence[Any]], Callable[..., Any]] | None = None,
    ) -> Callable[[Sequence[Any]], list | None] | None:
        """Return what extends ready arrays for the parameters `given` to a full argument list.

        Results are allocated by what `allocator` returns for the arrays, in host memory if it is not given.
        None when some size can't be read off one extent of a given array.
        """
        sources = {}
        for name in self.scalars:
            for position, parameter in enumerate(given):
                for axis, extent in enumerate(self.shapes[parameter]):
                    if extent.symbols == (name,) and extent.solve(0, {}) is not None:
                        offset = extent.evaluate({name: 0})
                        if extent.evaluate({name: 1}) - offset == 1 and name not in sources:
                            sources[name] = (position, axis, offset)
        open_buffers = [p["name"] for p in self.buffers if p["name"] not in given]
        if len(sources) < len(self.scalars) or not set(open_buffers) <= set(self.outputs):
            return None
        reads = [(self.position[name], *sources[name]) for name in self.scalars]
        places = [self.position[name] for name in given]
        allocations = [
            (self.position[name], self.shapes[name], self.by_name[name]["dtype"])
            for name in open_buffers
        ]
        names = [(name, self.position[name]) for name in self.scalars]
        count = len(self.parameters)

        def complete(args: Sequence[Any]) -> list | None:
            full: list[Any] = [None] * count
            for place, value in zip(places, args):
                if type(value) is not np.ndarray and (
                    is_sparse_matrix(value) or not hasattr(value, "shape")
                ):
                    return None
                full[place] = value
            try:
                for place, position, axis, offset in reads:
                    full[place] = int(args[position].shape[axis]) - offset
            except IndexError:
                return None
            if allocations:
                new = (
                    allocator(args)
                    if allocator
                    else functools.partial(allocate, framework_of(args))
                )
                sizes = {name: full[place] for name, place in names}
                for place, shape, dtype in allocations:
                    extents = [extent.evaluate(sizes) for extent in shape]
                    if min(extents, default=1) < 0:
                        return None
                    full[place] = new(extents, dtype)
            return full

        return complete

    def reader(self) -> Callable[[Dimension, Sequence[Any]], Any]:
        """Return what evaluates a dimension for a full argument list."""
        position = self.position
        scalars = [(name, position[name]) for name in self.scalars]

        def evaluate(extent: Dimension, args: Sequence[Any]) -> Any:
            if extent.is_name:
                return args[position[extent.symbols[0]]]
            return extent.evaluate({name: args[at] for name, at in scalars})

        return evaluate

    def ready_check(self) -> Callable[[Sequence[Any]], bool]:
        """Return a check that a full argument list needs no binding before the compiled checks.

        It looks at what the compiled code does not: the structure of index arrays (the ends of
        ``indptr``, and whether the arrays were checked before), overlap of outputs, alignment.
        False only means that the call takes the longer path.
        """
        count = len(self.parameters)
        buffers = [self.position[p["name"]] for p in self.buffers]
        outputs = self.output_positions
        pointers = [(self.position[name], stored) for name, stored in self.pointers]
        structures = [
            (
                self.checked[axis["name"]].holds,
                self.position.get(axis.get("indptr")),
                self.position.get(axis.get("indices")),
                self.extent(axis, "length"),
            )
            for axis in self.given_axes
        ]
        evaluate = self.reader()
        pairs = [
            (output, other)
            for output in outputs
            for other in buffers
            if other != output and not (other in outputs and other < output)
        ]
        share_memory = np.may_share_memory
        from_dlpack = np.from_dlpack
        array_type = np.ndarray
        tensor_types = (tvm_ffi.Tensor, tvm.runtime.Tensor)

        def check(args: Sequence[Any]) -> bool:
            if len(args) != count:
                return False
            views = list(args)
            try:
                for index in buffers:
                    value = args[index]
                    kind = type(value)
                    if kind is array_type:
                        if not value.flags.aligned:
                            return False
                    elif kind in tensor_types:
                        views[index] = from_dlpack(value)
                    elif is_torch(value):
                        views[index] = value.numpy()
                    else:
                        return False
            except (TypeError, RuntimeError, BufferError):
                return False
            for output, other in pairs:
                if share_memory(views[output], views[other]):
                    return False
            for index, stored in pointers:
                pointer = views[index]
                if pointer.ndim != 1 or not pointer.size or pointer[0] != 0:
                    return False
                if pointer[-1] != evaluate(stored, args):
                    return False
            for holds, pointers_at, indices_at, length in structures:
                indptr = None if pointers_at is None else args[pointers_at]
                indices = None if indices_at is None else args[indices_at]
                if not holds(indptr, indices, length and evaluate(length, args)):
                    return False
            return True

        return check

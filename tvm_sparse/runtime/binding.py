"""The arguments of one call bound to parameters, completed, checked and converted.

In: the arguments as the caller passed them, and the function's signature. Out: the tensors that
the compiled code takes, and its outputs as the caller wants them; or an error that names the
argument, the expected and the found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm_ffi

from .arrays import (
    allocate,
    framework_of,
    host_view,
    is_sparse_matrix,
    is_torch,
    may_overlap,
    overlaps_itself,
)
from .assignment import Assignment
from .axis_checks import check_axis, check_axis_ends
from .minimal import array_to_tensor
from .signature import Signature
from .size_inference import SizeInference, shape_text
from .sparse_arguments import SparseArrays, unpack_sparse


class Binding:
    """The arguments of one call, bound to parameters, completed, checked and converted."""

    def __init__(
        self, signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self.signature = signature
        assignment = Assignment(signature, self._check_place)
        self.values = assignment.assign(args, kwargs)
        self.packed = assignment.packed
        self.allocate = self._allocator(
            [value for name, value in self.values.items() if name in signature.inputs]
        )
        self.matrices: dict[str, SparseArrays] = {}
        self.views: dict[str, np.ndarray] = {}
        self.sizes: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self.write_back: list[tuple[np.ndarray, np.ndarray]] = []

    def run(self, function: tvm_ffi.Function, level: str) -> Any:
        """Bind everything, call `function`, and return the outputs."""
        self._view_arrays()
        self._bind_scalars()
        self._unpack_matrices()
        self._infer_sizes()
        self._allocate_outputs()
        self._check_arrays()
        self._check_structure(level)
        self._make_inputs_ready()
        self._make_outputs_ready()
        self._check_overlap()
        self._call(function)
        for target, source in self.write_back:
            self._write(target, source)
        signature = self.signature
        for name, packed in self.packed.items():
            if not packed.formats(name).keys().isdisjoint(signature.outputs):
                packed.restore_padding()
        outputs = tuple(self._result(name) for name in signature.outputs)
        return outputs[0] if len(outputs) == 1 else outputs or None

    # How arrays are seen, made and written: as NumPy's, in host memory.

    def _allocator(self, inputs: Sequence[Any]) -> Callable[[Sequence[int], str], Any]:
        return functools.partial(allocate, framework_of(inputs))

    def _view(self, label: str, value: Any) -> Any:
        return host_view(label, value)

    def _unpack(self, label: str, name: str, matrix: Any) -> SparseArrays:
        signature = self.signature
        axes, fmt = signature.sparse_axes(name), signature.formats.get(name)
        return unpack_sparse(label, matrix, axes, self._known(), fmt)

    def _is_same(self, known: Any, indices: Any) -> bool:
        return np.array_equal(known, indices)

    def _is_contiguous(self, view: Any) -> bool:
        return view.flags.c_contiguous

    def _check_place(self, key: str, packed: Any) -> None:
        if hasattr(packed, "to_host"):
            raise ValueError(
                f"{self.signature.label(key)}: expected a packed tensor in host memory, as the kernel was "
                f"compiled for a CPU, found one on {packed.device}; pass its to_host()"
            )

    def _call(self, function: Callable[..., None]) -> None:
        function(*self._tensors())

    def _overlap(self, first: Any, second: Any) -> bool:
        return may_overlap(first, second)

    def _write(self, target: Any, result: Any) -> None:
        target[...] = result

    # Steps of `run`, in order.

    def _view_arrays(self) -> None:
        signature = self.signature
        for parameter in signature.buffers:
            name = parameter["name"]
            value = self.values.get(name)
            if value is None or is_sparse_matrix(value):
                continue
            self.views[name] = self._view(signature.label(name), value)
            if name in signature.outputs:
                self.results[name] = value

    def _bind_scalars(self) -> None:
        signature = self.signature
        for name in signature.scalars:
            if self.values.get(name) is not None:
                dtype = signature.by_name[name]["dtype"]
                self.sizes[name] = _scalar(signature.label(name), self.values[name], dtype)

    def _unpack_matrices(self) -> None:
        signature = self.signature
        for parameter in signature.buffers:
            name = parameter["name"]
            matrix = self.values.get(name)
            if matrix is None or not is_sparse_matrix(matrix):
                continue
            arrays = self._unpack(signature.label(name), name, matrix)
            for other, indices in arrays.indices.items():
                if self.values.get(other) is not None:
                    raise TypeError(
                        f"{signature.label(other)}: given twice, also by the sparse matrix {name!r}"
                    )
                if other in signature.by_name:
                    self._add_structure(other, name, indices)
            self.matrices[name] = arrays
            if parameter["role"] != "output":
                self.views[name] = arrays.values

    def _add_structure(self, parameter: str, matrix: str, indices: np.ndarray) -> None:
        """Take index arrays from a matrix; two matrices over one axis must agree."""
        known = self.views.get(parameter)
        if known is not None and not self._is_same(known, indices):
            raise ValueError(
                f"{self.signature.label(matrix)}: expected the structure of the other matrix over "
                f"the same axes, found another ({parameter!r} differs)"
            )
        self.views[parameter] = indices

    def _infer_sizes(self) -> None:
        self.sizes = self._size_inference().infer()

    def _known(self) -> dict[str, Any]:
        """All sizes that scalars, matrices and shapes determine so far."""
        return self._size_inference().known()

    def _size_inference(self) -> SizeInference:
        return SizeInference(
            self.signature, self.values, self.views, self.matrices, self.packed, self.sizes
        )

    def _allocate_outputs(self) -> None:
        signature = self.signature
        for name in signature.outputs:
            if name in self.views:
                continue
            parameter = signature.by_name[name]
            shape = [extent.evaluate(self.sizes) for extent in signature.shapes[name]]
            self.results[name] = self.allocate(shape, parameter["dtype"])
            self.views[name] = self._view(signature.label(name), self.results[name])

    def _check_arrays(self) -> None:
        """Check dtype and shape of every array; reshape flat ones."""
        signature = self.signature
        for parameter in signature.buffers:
            name = parameter["name"]
            label = signature.label(name)
            view = self.views[name]
            wanted = signature.dtypes[name]
            if view.dtype != wanted and view.dtype.newbyteorder("=") != wanted:
                raise TypeError(
                    f"{label}: expected dtype {parameter['dtype']}, found {view.dtype.name}"
                )
            dimensions = signature.shapes[name]
            expected = tuple(extent.evaluate(self.sizes) for extent in dimensions)
            if view.shape == expected:
                continue
            if view.ndim == 1 and len(expected) != 1 and view.size == _product(expected):
                if name in signature.outputs and not self._is_contiguous(view):
                    raise ValueError(f"{label}: contiguous array required for a flat output")
                self.views[name] = view.reshape(expected)
                continue
            raise ValueError(
                f"{label}: expected shape {shape_text(dimensions)} = {expected}, found {view.shape}"
            )

    def _check_structure(self, level: str) -> None:
        if level == "full":
            for packed in self.packed.values():
                packed.check()  # padding, and the parts of a composition against each other
        for axis in self.signature.given_axes:
            check_axis_ends(self.signature, axis, self.views, self.sizes)
            extent = self.signature.extent(axis, "length")
            length = extent.evaluate(self.sizes) if extent else None
            given = [self._given_index(axis, kind) for kind in ("indptr", "indices")]
            if level == "full":
                check_axis(self.signature, axis, self.views, length)
            elif any(array is not None for array in given):  # else a matrix' own, checked there
                checked = self.signature.checked[axis["name"]]
                if not checked.holds(*given, length):
                    check_axis(self.signature, axis, self.views, length)
                    checked.remember(*given, length)

    def _given_index(self, axis: Mapping[str, Any], kind: str) -> Any:
        """Return the object that the caller passed for an index array, None if there is none."""
        return self.values.get(axis.get(kind))

    def _make_inputs_ready(self) -> None:
        """Copy the inputs that the compiled code can't read in place."""
        for name in self.signature.inputs:
            if name in self.signature.outputs:
                continue
            view = self.views[name]
            if not (view.flags.c_contiguous and view.flags.aligned and view.dtype.isnative):
                self.views[name] = _packed(view)

    def _make_outputs_ready(self) -> None:
        """Refuse outputs that can't be written; give strided ones a packed stand-in."""
        for name in self.signature.outputs:
            view = self.views[name]
            label = self.signature.label(name)
            if not view.flags.writeable:
                raise ValueError(f"{label}: expected a writable output, found a read-only array")
            if overlaps_itself(view):
                raise ValueError(
                    f"{label}: expected an output whose elements are distinct, found a view whose "
                    f"elements share memory (strides {view.strides})"
                )
            if view.flags.c_contiguous and view.flags.aligned and view.dtype.isnative:
                continue
            self.views[name] = _packed(view)
            self.write_back.append((view, self.views[name]))

    def _check_overlap(self) -> None:
        outputs = self.signature.outputs
        for name in outputs:
            for other in self.views:
                if other == name or (other in outputs and other < name):
                    continue
                if self._overlap(self.views[name], self.views[other]):
                    raise ValueError(
                        f"{self.signature.label(name)}: expected an output apart from the other "
                        f"arguments, found one that overlaps {other!r} in memory"
                    )

    def _tensors(self) -> list[Any]:
        outputs = self.signature.outputs
        return [
            array_to_tensor(self.views[p["name"]], written=p["name"] in outputs)
            if p["kind"] == "buffer"
            else self.sizes[p["name"]]
            for p in self.signature.parameters
        ]

    def _result(self, name: str) -> Any:
        matrix = self.matrices.get(name)
        if matrix is None or matrix.rebuild is None:
            return self.results[name]
        return matrix.rebuild(self.results[name])


def _packed(view: np.ndarray) -> np.ndarray:
    """Copy into fresh, contiguous, aligned, native memory."""
    return view.astype(view.dtype.newbyteorder("="), order="C", copy=True)


def _scalar(label: str, value: Any, dtype: str) -> Any:
    """Convert a scalar argument, refusing what would lose its value."""
    is_integer = dtype.startswith(("int", "uint"))
    if isinstance(value, np.ndarray | np.generic) or is_torch(value):
        if value.ndim != 0:
            raise TypeError(f"{label}: expected a scalar, found an array of shape {value.shape}")
        value = value.item()
    if dtype == "bool":
        if not isinstance(value, bool):
            raise TypeError(f"{label}: expected a bool, found {type(value).__name__}")
        return value
    if is_integer:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{label}: expected an integer, found {type(value).__name__}")
        limits = np.iinfo(dtype)
        if not limits.min <= value <= limits.max:
            raise ValueError(f"{label}: expected a value that fits {dtype}, found {value}")
        return value
    if not isinstance(value, int | float):
        raise TypeError(f"{label}: expected a number, found {type(value).__name__}")
    return float(value)


def _product(shape: Sequence[int]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total

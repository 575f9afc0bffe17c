"""The arguments of one call bound to parameters, completed, checked and converted.

In: the arguments as the caller passed them, and the function's signature. Out: the tensors that
the compiled code takes, and its outputs as the caller wants them; or an error that names the
argument, the expected and the found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from .dimensions import Dimension, dimension, solve_sizes
from .minimal import array_to_tensor
from .packed_arguments import check_packed, expand_packed, shares_arrays
from .signature import Signature
from .sparse_arguments import SparseArrays, accepts_matrices, index_parameters, unpack_sparse
from .structure import (
    check_coordinates,
    check_distinct,
    check_ends,
    check_monotone,
    check_order,
    check_padded_rows,
    check_row_lengths,
)


class Binding:
    """The arguments of one call, bound to parameters, completed, checked and converted."""

    def __init__(
        self, signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self.signature = signature
        self.packed: dict[str, Any] = {}
        self.values = self._assign(args, kwargs)
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

    def _expand_packed(self, kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Replace tensors packed in formats by their arrays and sizes, each a parameter."""
        known: dict[str, Any] = {}
        owners_first = sorted(kwargs, key=lambda key: shares_arrays(self.signature, key))
        for key in owners_first:
            value = kwargs[key]
            if not _is_packed(value):
                yield key, value
                continue
            self.packed[key] = value
            self._check_place(key, value)
            self._check_formats(key, value.formats(key))
            check_packed(self.signature, key, value)
            arguments = expand_packed(self.signature, key, value, known)
            known |= arguments
            for name, part in arguments.items():
                if name in self.signature.by_name:
                    yield name, part
                elif hasattr(part, "shape"):
                    raise TypeError(self._other_parts(key, name, value))

    def _check_formats(self, key: str, formats: Mapping[str, str]) -> None:
        """Refuse a tensor packed in another format than the kernel reads."""
        for name, packed in formats.items():
            expected = self.signature.formats.get(name, packed)
            if packed != expected:
                where = f" for {name!r}" if name != key else ""
                raise TypeError(
                    f"{self.signature.label(key)}: expected a tensor packed as {expected}{where}, "
                    f"found one packed as {packed}"
                )

    def _other_parts(self, key: str, array: str, found: Any) -> str:
        """Say why the kernel does not take an array of a packed tensor, and what to pass."""
        formats = self.signature.formats
        if key in self.signature.tensors and found.formats(key).items() <= formats.items():
            return f"{self.signature.label(key)}: its layout declares no array {array!r}"
        if key in self.signature.tensors:
            return f"{self.signature.label(key)}: expected {self._wanted(key)}, found {found!r}"
        return (
            f"{self.signature.function}: argument {key!r} is packed with an array {array!r}, which the "
            f"kernel does not take; it holds {key!r} in no format, pass unpack() of the tensor"
        )

    def _wanted(self, key: str) -> str:
        """Say how a tensor is to be packed."""
        signature = self.signature
        if key in signature.formats:
            return f"a tensor packed as {signature.formats[key]}"
        parts = ", ".join(
            f"{name} as {fmt}"
            for name, fmt in signature.formats.items()
            if name.startswith(f"{key}_") and name in signature.by_name
        )
        return f"a tensor packed as a sum of parts ({parts})"

    def _unexpected(self, key: str, value: Any) -> str:
        signature = self.signature
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

    def _assign(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Map arguments to parameter names."""
        signature = self.signature
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
            for filled in index_parameters(self.signature.sparse_axes(name))
        }
        waiting = list(args)
        for name in order:
            if name in assigned or name in supplied:
                continue
            if not waiting:
                continue
            value = assigned[name] = waiting.pop(0)
            if is_sparse_matrix(value) and self.signature.by_name[name]["kind"] == "buffer":
                supplied.update(index_parameters(self.signature.sparse_axes(name)))
        missing = [name for name in order if name not in assigned and name not in supplied]
        return assigned, waiting, missing

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
        given = self.sizes
        self.sizes = self._known()
        self._check_ranks()
        self._check_given_sizes(given)
        self._check_matrix_sizes()
        missing = [name for name in self.signature.scalars if name not in self.sizes]
        if missing:
            raise TypeError(
                f"{self.signature.function}: missing argument {missing[0]!r}, which the shapes "
                f"given do not determine; pass {missing[0]}="
            )

    def _check_ranks(self) -> None:
        """Check presence and rank, the likely reasons why a size is not known, by argument.

        A flat array passes for any rank where the other arguments determine all of its sizes.
        """
        signature = self.signature
        for parameter in signature.buffers:
            name = parameter["name"]
            view, shape = self.views.get(name), signature.shapes[name]
            if view is None:
                if name in signature.inputs:
                    raise TypeError(self._missing(parameter))
                continue
            if name in signature.pointer_names and view.ndim == 1 and not view.size:
                raise ValueError(
                    f"{signature.label(name)}: expected row pointers, one more than there are rows, "
                    "found none"
                )
            symbols = {symbol for extent in shape for symbol in extent.symbols}
            if view.ndim == len(shape) or (view.ndim == 1 and symbols <= set(self.sizes)):
                continue
            if self._lacks_structure(name):
                raise ValueError(
                    f"{signature.label(name)}: expected {self._sparse_forms(name)}, found a dense "
                    f"array of shape {view.shape}"
                )
            raise ValueError(
                f"{signature.label(name)}: expected {_count(len(shape), 'dimension')}, "
                f"{_shape_text(shape)}, found shape {view.shape}"
            )

    def _missing(self, parameter: Mapping[str, Any]) -> str:
        signature, name = self.signature, parameter["name"]
        shape = _shape_text(signature.shapes[name])
        wanted = f"an array of shape {shape} and dtype {parameter['dtype']}"
        for other in signature.buffers:
            if name != other["name"] and name in signature.index_arrays(other["name"]):
                wanted = f"{wanted}; or, for {other['name']!r}, {self._sparse_forms(other['name'])}"
                break
        role = parameter.get("role")
        hint = ", which is read before it is written" if role == "inout" else ""
        return f"{signature.label(name)}: missing{hint}; expected {wanted}"

    def _lacks_structure(self, name: str) -> bool:
        """Tell whether index arrays of a buffer are missing."""
        return any(other not in self.views for other in self.signature.index_arrays(name))

    def _sparse_forms(self, name: str) -> str:
        """Say in which forms a sparse buffer is passed."""
        arrays = ", ".join(map(repr, [name, *self.signature.index_arrays(name)]))
        signature = self.signature
        fmt = signature.formats.get(name)
        if not accepts_matrices(signature.sparse_axes(name), fmt):
            return f"the arrays {arrays}" if fmt is None else f"a tensor packed as {fmt}"
        return f"a SciPy or PyTorch sparse matrix, or the arrays {arrays}"

    def _known(self) -> dict[str, Any]:
        """All sizes that scalars, matrices and shapes determine so far."""
        return solve_sizes([(extent, value) for _, extent, value in self._equations()], self.sizes)

    def _equations(self) -> list[tuple[str, Dimension, int]]:
        """Return (argument, extent, value) of every extent that matrices and arrays show."""
        equations = [
            (name, dimension(text), value)
            for name, arrays in self.matrices.items()
            for text, value in arrays.sizes
        ]
        tensors = self.packed | {name: self.values[name] for name in self.matrices}
        for name, tensor in tensors.items():
            texts = self.signature.tensors.get(name, [])
            equations += [(name, dimension(t), size) for t, size in zip(texts, tensor.shape)]
        for name, view in self.views.items():
            shape = self.signature.shapes[name]
            if view.ndim == len(shape) and name not in self.matrices:
                equations += [(name, *pair) for pair in zip(shape, view.shape)]
        return equations

    def _check_given_sizes(self, given: Mapping[str, Any]) -> None:
        """Refuse a size that the caller passed and that the arrays contradict.

        The size is at fault where a matrix or an index array says otherwise, or two arrays agree
        against it; else the shape check names the one array that does not fit.
        """
        signature = self.signature
        shown: dict[str, dict[str, int]] = {name: {} for name in given}
        for argument, extent, size in self._equations():
            if len(extent.symbols) == 1 and extent.symbols[0] in shown:
                solution = extent.solve(size, {})
                if solution is not None:
                    shown[solution[0]].setdefault(argument, solution[1])
        for name, value in given.items():
            found = shown[name]
            matrices = [argument for argument in found if argument in self.matrices]
            pointers = [argument for argument in found if argument in signature.structure]
            is_agreed = len(set(found.values())) == 1
            if matrices or (is_agreed and (pointers or len(found) > 1)):
                source = [*matrices, *pointers, *found][0]
            else:
                continue
            if found[source] != value:
                raise ValueError(
                    f"{signature.label(name)}: expected {found[source]} (from the shape of "
                    f"{source!r}), found {value}"
                )

    def _check_matrix_sizes(self) -> None:
        """Refuse a matrix whose shape contradicts another argument."""
        for name, arrays in self.matrices.items():
            for text, value in arrays.sizes:
                extent = dimension(text)
                known = set(extent.symbols) <= set(self.sizes)
                if known and (expected := extent.evaluate(self.sizes)) != value:
                    raise ValueError(
                        f"{self.signature.label(name)}: expected a matrix with {extent.text} = "
                        f"{expected}, found {value}"
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
                f"{label}: expected shape {_shape_text(dimensions)} = {expected}, found {view.shape}"
            )

    def _check_structure(self, level: str) -> None:
        if level == "full":
            for packed in self.packed.values():
                packed.check()  # padding, and the parts of a composition against each other
        for axis in self.signature.given_axes:
            self._check_ends(axis)
            extent = self.signature.extent(axis, "length")
            length = extent.evaluate(self.sizes) if extent else None
            given = [self._given_index(axis, kind) for kind in ("indptr", "indices")]
            if level == "full":
                self._check_axis(axis, length)
            elif any(array is not None for array in given):  # else a matrix' own, checked there
                checked = self.signature.checked[axis["name"]]
                if not checked.holds(*given, length):
                    self._check_axis(axis, length)
                    checked.remember(*given, length)

    def _given_index(self, axis: Mapping[str, Any], kind: str) -> Any:
        """Return the object that the caller passed for an index array, None if there is none."""
        return self.values.get(axis.get(kind))

    def _check_ends(self, axis: Mapping[str, Any]) -> None:
        pointers = self.views.get(axis.get("indptr"))
        stored = self.signature.extent(axis, "nnz")
        if pointers is not None and stored is not None:
            label = self._axis_label(axis, "indptr")
            check_ends(label, pointers, stored.evaluate(self.sizes))

    def _check_axis(self, axis: Mapping[str, Any], length: int | None) -> None:
        """Check every pointer and coordinate of an axis; its length is None if nothing gives it."""
        pointers = self.views.get(axis.get("indptr"))
        indices = self.views.get(axis.get("indices"))
        order = axis.get("sorted", True), axis.get("unique", True)
        if pointers is not None:
            check_monotone(self._axis_label(axis, "indptr"), pointers)
            if axis["kind"] == "dense_variable" and length is not None:
                check_row_lengths(self._axis_label(axis, "indptr"), pointers, length)
        if indices is None:
            return
        label = self._axis_label(axis, "indices")
        if axis.get("distinct") and length is not None:
            check_distinct(label, indices, length)
        if axis["kind"] == "sparse_fixed":
            if length is not None:
                check_padded_rows(label, indices, length, *order)
            return
        if length is not None:
            check_coordinates(label, indices, length)
        if pointers is not None:
            check_order(label, pointers, indices, *order)

    def _axis_label(self, axis: Mapping[str, Any], kind: str) -> str:
        return f"{self.signature.label(axis[kind])} (axis {axis['name']!r})"

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


def _is_packed(value: Any) -> bool:
    """Tell whether a value is a tensor packed in a format or a composition."""
    return hasattr(value, "arguments") and hasattr(value, "formats")


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


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _shape_text(shape: Sequence[Dimension]) -> str:
    """Write a shape as ``(m + 1)`` or ``(n, f)``."""
    return f"({', '.join(extent.text for extent in shape)})"


def _product(shape: Sequence[int]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total

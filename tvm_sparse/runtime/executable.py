"""Compiled kernels as Python callables: arguments bound, checked, converted and returned.

In: a compiled TVM module, and the metadata that says what each parameter is. Out:
:class:`Executable`, called with arrays of any framework. A call with a complete list of ready
arrays takes a short path (a few microseconds); everything else, and every call that the compiled
code refuses, goes through :class:`_Binding`, which repairs what may be repaired and names the
argument, the expected and the found otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from .arrays import (
    allocate,
    framework_of,
    host_view,
    is_sparse_matrix,
    is_torch,
    may_overlap,
    numpy_dtype,
    overlaps_itself,
)
from .checked_structures import CheckedStructures
from .dimensions import Dimension, dimension, solve_sizes
from .export import copy_library, export_library
from .minimal import (
    KNOWN_ARCHITECTURES,
    array_to_tensor,
    describe_missing,
    host_architecture,
    missing_cpu_features,
)
from .sparse_arguments import SparseArrays, accepts_matrices, index_parameters, unpack_sparse
from .structure import (
    check_coordinates,
    check_ends,
    check_monotone,
    check_order,
    check_padded_rows,
)
from .threads import attach_process_launcher, module_header

_VALIDATION_LEVELS = ("cheap", "full")
_WRITTEN_ROLES = ("output", "inout")


class Executable:
    """Compiled sparse kernels.

    Made by ``tvm_sparse.compile`` and ``tvm_sparse.load``. An executable of one function is
    called itself; ``executable[name]`` gives each function as a :class:`KernelFunction`, where
    calling is described.

    Parameters
    ----------
    module : tvm.runtime.Executable or tvm_ffi.Module
        What ``tvm.compile`` returned, or a loaded library.
    metadata : dict
        ``{"version": 1, "functions": {name: {"args": [...], "axes": [...]}}, "target": {...},
        "cpu_features": [...]}``.
    validate : {"cheap", "full"}
        How often the structure of sparse arguments is checked unless a call says otherwise.
        ``"cheap"`` reads every index of an index array when the array is first seen, and later
        only the two ends of each ``indptr``; ``"full"`` reads every index at each call. Both
        check rank, shape, dtype, device and overlap of every argument.
    path : path-like, optional
        The library that `module` was loaded from.
    """

    def __init__(
        self,
        module: tvm.runtime.Executable | tvm_ffi.Module,
        metadata: dict,
        validate: str = "cheap",
        path: Path | None = None,
    ) -> None:
        _check_level(validate)
        if not metadata.get("functions"):
            raise ValueError("metadata: expected at least one function, found none")
        self.metadata = metadata
        self.validate = validate
        self._path = path
        self._compiled = module if isinstance(module, tvm.runtime.Executable) else None
        self.module = self._compiled.jit() if self._compiled is not None else module
        refusal = _foreign_target(self.module, metadata)
        if refusal is None and self.module.kind == "llvm":
            attach_process_launcher(self.module)
        self._functions = {
            name: KernelFunction(
                name,
                self.module.get_function(name) if refusal is None else _refusing(refusal),
                function,
                self.validate,
            )
            for name, function in metadata["functions"].items()
        }
        names = list(self._functions)
        self._default = self._functions["main" if "main" in names else names[0]]

    @property
    def functions(self) -> list[str]:
        """Names of the functions."""
        return list(self._functions)

    def __getitem__(self, name: str) -> KernelFunction:
        if name not in self._functions:
            raise KeyError(f"no function {name!r}, found {', '.join(self._functions)}")
        return self._functions[name]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function ``main``, else the first one; see :class:`KernelFunction`."""
        return self._default(*args, **kwargs)

    def export_library(self, path: str | os.PathLike, **options: Any) -> Path:
        """Write code and metadata into one shared library; see ``tvm_sparse.load``.

        Parameters
        ----------
        path : path-like
            A file name that ends in ``.so``, in an existing folder.
        **options
            For TVM's ``export_library``, such as ``cc="aarch64-linux-gnu-gcc"`` when the target
            is another processor family.

        Returns
        -------
        pathlib.Path
            `path`.

        Raises
        ------
        ValueError
            If the suffix is wrong, the folder is missing, or no C compiler is found for linking.
        """
        if self._compiled is None:
            if self._path is None:
                raise ValueError("export_library: expected a compiled module, found a bare one")
            return copy_library(self._path, path)
        return export_library(self._compiled, self.metadata, path, **options)

    def inspect_source(self, language: str = "") -> str:
        """Return generated code: ``"ll"`` for LLVM IR, ``"asm"`` for assembly."""
        return self.module.inspect_source(language)

    def __repr__(self) -> str:
        target = self.metadata.get("target", {})
        kind = " ".join(str(target[key]) for key in ("kind", "mcpu") if key in target)
        functions = ", ".join(function.heading for function in self._functions.values())
        return f"<Executable {functions} for {kind or 'an unnamed target'}>"


class KernelFunction:
    """One compiled function.

    **Arguments.** Positional arguments follow the parameter order: all parameters, or all
    buffers, or only the inputs; keywords name parameters (or buffers). A SciPy sparse matrix or
    PyTorch sparse tensor passed for a sparse buffer also supplies the pointers and indices of its
    axes. Sizes that are left out are inferred from shapes. Outputs that are left out (or None) are
    allocated: as PyTorch tensors if an input is one, as TVM tensors if all inputs are, else as
    NumPy arrays. A sparse matrix passed for an output gives its structure, and the result is a
    new matrix.

    **Arrays** are NumPy, PyTorch, TVM or other DLPack arrays in host memory. Dtypes must match.
    Inputs may be read-only; views that are strided, unaligned or byte-swapped are copied, and
    strided outputs are written through a copy, so gaps keep their content. A flat array may
    stand for a buffer of several dimensions if other arguments determine all its sizes. An output
    may not overlap another argument.

    **Checks.** Always: rank, shape relations, dtype, device, overlap, and the two ends of each
    ``indptr`` (first 0, last the number of stored entries; spare capacity is refused). When index
    arrays are first seen: every pointer and coordinate, in range and ordered as the axes declare.
    The array objects that passed are remembered (the last 64 of each axis), and later calls with
    them skip this check. *A change in place of a remembered array is not noticed:* pass
    ``validate="full"``, which checks at each call, or a new array. Sparse matrices are checked at
    each call, and sorted in a copy where an axis asks for it.

    Returns
    -------
    array or tuple of arrays or None
        The outputs, as passed or allocated.

    Raises
    ------
    TypeError, ValueError
        If an argument is missing, superfluous or unfit; the message names it, the expected and
        the found.
    """

    def __init__(
        self, name: str, function: tvm_ffi.Function, metadata: dict, validate: str = "cheap"
    ) -> None:
        self.name = name
        self.metadata = metadata
        self.validate = validate
        self._function = function
        self._signature = _Signature(name, metadata)
        self._is_ready = self._signature.ready_check()
        self._completions = {
            len(given): self._signature.completion(given)
            for given in (self._signature.inputs, [p["name"] for p in self._signature.buffers])
        }

    def __call__(self, *args: Any, validate: str | None = None, **kwargs: Any) -> Any:
        """Run the kernel."""
        level = validate or self.validate
        if not kwargs and level == "cheap":
            complete = self._completions.get(len(args))
            ready = args if complete is None else complete(args)
            if ready is not None and self._is_ready(ready):
                try:
                    self._function(*ready)
                except (TypeError, ValueError, BufferError):
                    pass  # refused before anything was written; the binding repairs or explains
                else:
                    return self._signature.results(ready)
        _check_level(level)
        return _Binding(self._signature, args, kwargs).run(self._function, level)

    def arguments(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the complete list of ready arguments that a call would pass, fully validated."""
        ready: list[Any] = []
        _Binding(self._signature, args, kwargs).run(lambda *all_: ready.extend(all_), "full")
        return ready

    @property
    def heading(self) -> str:
        """Name and parameters, such as ``"spmv(a, x, y, indptr, indices, m, n, nnz)"``."""
        return f"{self.name}({', '.join(self._signature.names)})"

    def __repr__(self) -> str:
        return f"<KernelFunction {self.heading}>"


class _Signature:
    """The parameters of a function, looked up in every way that a call needs."""

    def __init__(self, name: str, metadata: dict) -> None:
        self.function = name
        self.parameters: list[dict] = metadata["args"]
        self.names = [parameter["name"] for parameter in self.parameters]
        self.by_name = dict(zip(self.names, self.parameters))
        self.position = {name: index for index, name in enumerate(self.names)}
        self.axes = {axis["name"]: axis for axis in metadata.get("axes", [])}
        self.buffers = [p for p in self.parameters if p["kind"] == "buffer"]
        self.scalars = [p["name"] for p in self.parameters if p["kind"] == "scalar"]
        self.inputs = [p["name"] for p in self.buffers if p.get("role") != "output"]
        self.outputs = [p["name"] for p in self.buffers if p.get("role") in _WRITTEN_ROLES]
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

    def completion(self, given: Sequence[str]) -> Callable[[Sequence[Any]], list | None] | None:
        """Return what extends ready arrays for the parameters `given` to a full argument list.

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
                framework = framework_of(args)
                sizes = {name: full[place] for name, place in names}
                for place, shape, dtype in allocations:
                    extents = [extent.evaluate(sizes) for extent in shape]
                    if min(extents, default=1) < 0:
                        return None
                    full[place] = allocate(framework, extents, dtype)
            return full

        return complete

    def _reader(self) -> Callable[[Dimension, Sequence[Any]], Any]:
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
        evaluate = self._reader()
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


class _Binding:
    """The arguments of one call, bound to parameters, completed, checked and converted."""

    def __init__(
        self, signature: _Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self.signature = signature
        self.values = self._assign(args, kwargs)
        self.framework = framework_of(
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
        function(*self._tensors())
        for target, source in self.write_back:
            target[...] = source
        signature = self.signature
        outputs = tuple(self._result(name) for name in signature.outputs)
        return outputs[0] if len(outputs) == 1 else outputs or None

    # Steps of `run`, in order.

    def _assign(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Map arguments to parameter names."""
        signature = self.signature
        named = {}
        for key, value in kwargs.items():
            name = signature.aliases.get(key, key)
            if name not in signature.by_name:
                raise TypeError(
                    f"{signature.function}: unexpected argument {key!r}; expected some of "
                    f"{', '.join(signature.names)}"
                )
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
            self.views[name] = host_view(signature.label(name), value)
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
            label = signature.label(name)
            arrays = unpack_sparse(label, matrix, signature.sparse_axes(name), self._known())
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
        if known is not None and not np.array_equal(known, indices):
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
        if not accepts_matrices(self.signature.sparse_axes(name)):
            return f"the arrays {arrays}"
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
        for name, value in given.items():
            found: dict[str, int] = {}
            for argument, extent, size in self._equations():
                solution = extent.solve(size, {}) if extent.symbols == (name,) else None
                if solution is not None:
                    found.setdefault(argument, solution[1])
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
            self.results[name] = allocate(self.framework, shape, parameter["dtype"])
            self.views[name] = host_view(signature.label(name), self.results[name])

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
                if name in signature.outputs and not view.flags.c_contiguous:
                    raise ValueError(f"{label}: contiguous array required for a flat output")
                self.views[name] = view.reshape(expected)
                continue
            raise ValueError(
                f"{label}: expected shape {_shape_text(dimensions)} = {expected}, found {view.shape}"
            )

    def _check_structure(self, level: str) -> None:
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
        if indices is None:
            return
        label = self._axis_label(axis, "indices")
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
                if may_overlap(self.views[name], self.views[other]):
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


def _foreign_target(module: tvm_ffi.Module, metadata: dict) -> str | None:
    """Say why this machine can't run `module`, which may still be exported; None if it can."""
    if module.kind != "llvm":
        return None
    family = module_header(module)[1].split("-")[0]
    if family in KNOWN_ARCHITECTURES and family != host_architecture():
        return f"was compiled for {family}, and this machine is {host_architecture()}; export it"
    missing = missing_cpu_features(metadata.get("cpu_features") or [])
    host = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")() if missing else {}
    missing = [name for name in missing if not host.get(name)]
    return describe_missing(metadata, missing) if missing else None


def _refusing(reason: str) -> Callable[..., None]:
    def refuse(*args: Any) -> None:
        raise ValueError(f"the kernel {reason}")

    return refuse


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


def _check_level(level: str) -> None:
    if level not in _VALIDATION_LEVELS:
        raise ValueError(f"validate: expected 'cheap' or 'full', found {level!r}")

"""The arguments of one call of a CUDA kernel, bound as those of a kernel for a CPU, on a GPU.

In: the arguments as the caller passed them. Out: tensors on one GPU, with no copy where the kernel can
read them in place; or an error that names the argument, the expected and the found. Only index arrays
are looked at: they are copied to the host when they are first seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm_ffi

from .arrays import is_cupy_matrix, is_torch
from .axis_checks import check_axis, check_axis_ends
from .binding import Binding
from .device_arrays import DeviceArray, allocator_like, device_array, device_number
from .device_matrices import unpack_on_device
from .minimal import cuda_refusal, cuda_tensor, current_stream, on_stream, wait_for_scratch
from .sparse_arguments import SparseArrays

__all__ = ["DeviceBinding", "Launcher"]


class DeviceBinding(Binding):
    """The arguments of one call of a CUDA kernel."""

    _first: tuple[str, int] | None = None  # the first array, by how errors name it, and its device

    def _allocator(self, inputs: Sequence[Any]) -> Callable[[Sequence[int], str], Any]:
        return allocator_like(inputs)

    def _view(self, label: str, value: Any) -> DeviceArray:
        view = device_array(label, value, self._stream)
        self._check_device(label, view.device)
        return view

    def _stream(self, device: int) -> int:
        """The stream that the kernel runs on, where all arrays are to be ready."""
        arrays = (getattr(v, "data", v) if is_cupy_matrix(v) else v for v in self.values.values())
        return current_stream(list(arrays), device)

    def _call(self, function: Any) -> None:
        if not isinstance(function, Launcher):
            function(*self._tensors())
            return
        device = self._first[1] if self._first else 0
        function.launch(device, self._stream(device), self._tensors())

    def _check_device(self, label: str, device: int) -> None:
        if self._first is None:
            self._first = label, device
        first, expected = self._first
        if device != expected:
            raise ValueError(
                f"{label}: expected an array on cuda:{expected}, as {first.split(': ')[-1]}, found one on "
                f"cuda:{device}; move it there"
            )

    def _check_place(self, key: str, packed: Any) -> None:
        if not hasattr(packed, "to_host"):
            raise ValueError(
                f"{self.signature.label(key)}: expected a packed tensor on a GPU, found one in host "
                'memory; pass its to("cuda")'
            )

    def _unpack(self, label: str, name: str, matrix: Any) -> SparseArrays:
        device = device_number(matrix)
        if device is None:
            kind = f"{type(matrix).__module__.split('.')[0]}'s {type(matrix).__name__}"
            raise ValueError(
                f"{label}: expected a sparse matrix on a GPU, found {kind} in host memory; pass "
                "cupyx.scipy.sparse.csr_matrix(matrix), a sparse tensor of PyTorch on a GPU, or what "
                'pack(matrix).to("cuda") of a format returns'
            )
        self._check_device(label, device)
        signature = self.signature
        axes, fmt = signature.sparse_axes(name), signature.formats.get(name)
        return unpack_on_device(label, matrix, axes, fmt, self._view)

    def _is_same(self, known: DeviceArray, indices: DeviceArray) -> bool:
        is_one = known.address == indices.address and known.shape == indices.shape
        return is_one or np.array_equal(known.to_host(), indices.to_host())

    def _is_contiguous(self, view: DeviceArray) -> bool:
        return view.is_contiguous

    def _write(self, target: DeviceArray, result: DeviceArray) -> None:
        target.write(result)

    def _check_structure(self, level: str) -> None:
        """Check index arrays in full when they are first seen, their ends too: all need a copy."""
        views = self.views
        for axis in self.signature.given_axes:
            extents = (self.signature.extent(axis, kind) for kind in ("length", "nnz"))
            sizes = tuple(extent and extent.evaluate(self.sizes) for extent in extents)
            names = [axis.get(kind) for kind in ("indptr", "indices")]
            given = [self.values.get(name) for name in names]
            checked = self.signature.checked[axis["name"]]
            from_matrix = all(array is None for array in given)  # checked there
            if level == "cheap" and (from_matrix or checked.holds(*given, sizes)):
                continue
            on_host = {name: views[name].to_host() for name in names if name in views}
            check_axis_ends(self.signature, axis, on_host, self.sizes)
            check_axis(self.signature, axis, on_host, sizes[0])
            checked.remember(*given, sizes)
        if level == "full":
            for packed in self.packed.values():
                packed.check()

    def _make_inputs_ready(self) -> None:
        for name in self.signature.inputs:
            if name not in self.signature.outputs and not self.views[name].is_ready:
                self.views[name] = self.views[name].packed(self.signature.label(name))

    def _make_outputs_ready(self) -> None:
        for name in self.signature.outputs:
            view = self.views[name]
            if not view.is_ready:
                self.views[name] = view.packed(self.signature.label(name))
                self.write_back.append((view, self.views[name]))

    def _overlap(self, first: DeviceArray, second: DeviceArray) -> bool:
        return first.overlaps(second)

    def _tensors(self) -> list[Any]:
        return [
            self.views[p["name"]].argument if p["kind"] == "buffer" else self.sizes[p["name"]]
            for p in self.signature.parameters
        ]


class Launcher:
    """Calls compiled code on the GPU that holds the arguments, on the current stream of their framework.

    Parameters
    ----------
    function : tvm_ffi.Function
        The compiled function.
    described : dict
        Metadata of the function.
    metadata : dict
        Of the executable: its architectures, and whether there are temporary arrays on the GPU.
    """

    def __init__(self, function: tvm_ffi.Function, described: dict, metadata: dict) -> None:
        self._function = function
        self._places = [i for i, arg in enumerate(described["args"]) if arg["kind"] == "buffer"]
        self._held = {"architectures": metadata["architectures"]}
        self._has_scratch = metadata.get("scratch", False)
        self._usable: set[int] = set()

    def __call__(self, *args: Any) -> None:
        """Call with ready arrays."""
        arrays = [args[place] for place in self._places]
        device = next((n for array in arrays if (n := device_number(array)) is not None), 0)
        if all(isinstance(array, tvm_ffi.Tensor) or is_torch(array) for array in arrays):
            self._check_device(device)
            if self._has_scratch:
                wait_for_scratch(device, current_stream(arrays, device))
            self._function(*args)  # which takes the stream of PyTorch's tensors, or else TVM's
            return
        stream = current_stream(arrays, device)
        ready = list(args)
        for place in self._places:
            ready[place] = cuda_tensor(args[place], stream)
        self.launch(device, stream, ready)

    def launch(self, device: int, stream: int, args: Sequence[Any]) -> None:
        """Call with tensors on a device, on a stream."""
        self._check_device(device)
        with on_stream(device, stream):
            if self._has_scratch:
                wait_for_scratch(device, stream)
            self._function(*args)

    def _check_device(self, device: int) -> None:
        if device in self._usable:
            return
        refusal = cuda_refusal(self._held, device)
        if refusal is not None:
            raise ValueError(f"the kernel {refusal}")
        self._usable.add(device)

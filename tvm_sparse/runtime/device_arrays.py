"""Arrays on GPUs: seen as NumPy's are, without a copy, and allocated by their frameworks.

In: PyTorch, CuPy, TVM or other DLPack arrays in the memory of a GPU. Out: :class:`DeviceArray`, which says
what a call has to know of an array, and new arrays on the same device. Whatever a framework does for a
call (a copy, a conversion) runs on its current stream, as the kernel itself.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from .arrays import CUDA_DEVICE_TYPES, device_name, is_cupy, is_cupy_matrix, is_torch, numpy_dtype
from .minimal import CUDA_ALIGNMENT, cuda_tensor, current_stream

__all__ = ["DeviceArray", "allocate_on", "allocator_like", "device_array", "device_number"]

_CUDA = CUDA_DEVICE_TYPES[0]
_MOVE = "move it there, as in torch.as_tensor(x).cuda() or cupy.asarray(x)"


class DeviceArray:
    """An array on a GPU.

    Attributes
    ----------
    source : array
        As the caller passed it.
    tensor : tvm_ffi.Tensor or torch.Tensor
        As compiled code takes it.
    shape : tuple of int
        Its shape.
    dtype : numpy.dtype
        Of its elements.
    device : int
        Number of the GPU.
    address : int
        Of the first element.
    is_contiguous : bool
        Whether its elements lie row by row.
    """

    __slots__ = ("address", "device", "dtype", "is_contiguous", "shape", "source", "tensor")

    def __init__(self, source: Any, tensor: Any) -> None:
        self.source, self.tensor = source, tensor
        self.shape = tuple(map(int, tensor.shape))
        self.dtype = numpy_dtype(str(tensor.dtype).removeprefix("torch."))
        self.device = int(tensor.device.index or 0)
        self.address = tensor.data_ptr()
        self.is_contiguous = tensor.is_contiguous()

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_ready(self) -> bool:
        """Whether kernels take it as it is."""
        return self.is_contiguous and self.address % CUDA_ALIGNMENT == 0

    @property
    def argument(self) -> Any:
        """What compiled code takes; it compares strides, which differ where there are no values."""
        if self.size:
            return self.tensor
        return allocate_on(self.device, self.shape, str(self.dtype))

    def reshape(self, shape: Sequence[int]) -> DeviceArray:
        """See a contiguous array in another shape."""
        if is_torch(self.tensor):
            return DeviceArray(self.source, self.tensor.view(tuple(shape)))
        view = tvm_ffi.get_global_func("runtime.TVMTensorCreateView")
        dtype = tvm_ffi.dtype(str(self.tensor.dtype))
        return DeviceArray(self.source, view(self.tensor, tvm_ffi.Shape(tuple(shape)), dtype, 0))

    def overlaps(self, other: DeviceArray) -> bool:
        """Tell whether the address ranges of two contiguous arrays overlap."""
        ends = [array.address + array.size * array.dtype.itemsize for array in (self, other)]
        return max(self.address, other.address) < min(ends)

    def to_host(self) -> np.ndarray:
        """Copy it to host memory, and wait for that."""
        if is_torch(self.source):
            return self.source.detach().cpu().numpy()
        if is_cupy(self.source):
            return sys.modules["cupy"].asnumpy(self.source)
        return _as_tvm(self.tensor).numpy()

    def packed(self, label: str) -> DeviceArray:
        """Copy it into fresh memory, contiguous and aligned."""
        if is_torch(self.source):
            torch = sys.modules["torch"]
            copy = self.source.clone(memory_format=torch.contiguous_format)
        elif is_cupy(self.source):
            copy = self.source.copy(order="C")
        elif self.is_contiguous:
            copy = allocate_on(self.device, self.shape, str(self.tensor.dtype))
            _as_tvm(self.tensor).copyto(copy)
        else:
            raise ValueError(f"{label}: contiguous array required, found a strided one")
        return device_array(label, copy)

    def write(self, result: DeviceArray) -> None:
        """Copy a result into it, on the stream of its framework."""
        if is_torch(self.source):
            self.source.copy_(result.source)
        elif is_cupy(self.source):
            self.source[...] = result.source
        else:
            _as_tvm(result.tensor).copyto(_as_tvm(self.tensor))


def device_array(
    label: str, value: Any, stream_on: Callable[[int], int] | None = None
) -> DeviceArray:
    """See an array on a GPU.

    Parameters
    ----------
    label : str
        How an error names the argument.
    value : array
        PyTorch, CuPy, TVM, or any object with ``__dlpack__``.
    stream_on : callable, optional
        Gives the stream of a device on which the array is to be ready; that of its own framework if not
        given.

    Raises
    ------
    TypeError
        If `value` is no array.
    ValueError
        If it is not on a GPU, or is part of an autograd graph.
    """
    if not hasattr(value, "__dlpack__"):
        value = _through_cupy(label, value)
    kind, number = (int(part) for part in value.__dlpack_device__())
    if kind not in CUDA_DEVICE_TYPES:
        raise ValueError(
            f"{label}: expected an array on a GPU, found one on {device_name(kind, number)}; {_MOVE}"
        )
    if is_torch(value):
        torch = sys.modules["torch"]
        if value.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{label}: expected a tensor outside autograd, found one that requires grad; "
                "call .detach()"
            )
        value = value.detach().resolve_conj().resolve_neg()
        return DeviceArray(value, value)
    stream = stream_on(number) if stream_on is not None else current_stream([value], number)
    tensor = cuda_tensor(value, stream)
    return DeviceArray(value, _plain(tensor, value))


def allocate_on(device: int, shape: Sequence[int], dtype: str) -> tvm.runtime.Tensor:
    """Allocate a tensor of TVM on a GPU."""
    return tvm.runtime.empty(tuple(shape), dtype, tvm.cuda(device))


def allocator_like(values: Sequence[Any]) -> Callable[[Sequence[int], str], Any]:
    """Return what allocates results on the GPU that holds the first of these inputs.

    As PyTorch tensors if an input is one, as CuPy arrays if one is, else as TVM tensors.
    """
    tensor = next((value for value in values if is_torch(value)), None)
    if tensor is not None:
        torch = sys.modules["torch"]
        return lambda shape, dtype: torch.empty(
            tuple(shape), dtype=getattr(torch, dtype), device=tensor.device
        )
    device = next((number for value in values if (number := device_number(value)) is not None), 0)
    if any(is_cupy(value) for value in values):  # CuPy allocates on the current device
        return lambda shape, dtype: sys.modules["cupy"].empty(tuple(shape), numpy_dtype(dtype))
    return functools.partial(allocate_on, device)


def device_number(value: Any) -> int | None:
    """The number of the GPU that holds an array or sparse matrix, None for other values."""
    if is_torch(value):  # sparse tensors have no __dlpack_device__
        return value.device.index if value.device.type == "cuda" else None
    array = value.data if is_cupy_matrix(value) else value
    find = getattr(array, "__dlpack_device__", None)
    if find is None:
        return value.device.index if hasattr(value, "to_host") else None  # a packed tensor
    kind, number = find()
    return int(number) if int(kind) in CUDA_DEVICE_TYPES else None


def _through_cupy(label: str, value: Any) -> Any:
    """See an array with CUDA's array interface as a CuPy array."""
    cupy = sys.modules.get("cupy")
    if hasattr(value, "__cuda_array_interface__"):
        if cupy is not None:
            return cupy.asarray(value)
        raise TypeError(
            f"{label}: expected an array with __dlpack__, found {type(value).__qualname__}; "
            "pass cupy.asarray(x)"
        )
    if isinstance(value, np.generic):
        raise ValueError(f"{label}: expected an array on a GPU, found a NumPy scalar; {_MOVE}")
    raise TypeError(
        f"{label}: expected an array (PyTorch, CuPy, TVM or DLPack), found "
        f"{type(value).__module__}.{type(value).__qualname__}"
    )


def _as_tvm(tensor: Any) -> Any:
    """See a tensor as TVM's, which copies."""
    return tensor if isinstance(tensor, tvm.runtime.Tensor) else tvm.runtime.from_dlpack(tensor)


# --- DLPack --------------------------------------------------------------------------------------


class _Tensor(ctypes.Structure):
    """DLPack's ``DLTensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint32),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _ManagedTensor(ctypes.Structure):
    """DLPack's ``DLManagedTensor``."""

    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_kept: dict[int, tuple] = {}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _drop(managed: int) -> None:
    _kept.pop(managed, None)


def _plain(tensor: tvm_ffi.Tensor, owner: Any) -> tvm_ffi.Tensor:
    """Return a tensor whose data begins at its pointer, in memory of the type that compiled code expects.

    Producers may describe a view as memory with an offset, or as managed by CUDA.
    """
    capsule = tensor.__dlpack__()
    found = _Tensor.from_address(_pointer_of(capsule, b"dltensor"))
    if found.byte_offset == 0 and found.device_type == _CUDA:
        return tensor
    managed = _ManagedTensor()
    managed.tensor = found
    managed.tensor.data = found.data + found.byte_offset
    managed.tensor.byte_offset = 0
    managed.tensor.device_type = _CUDA
    managed.deleter = ctypes.cast(_drop, ctypes.c_void_p).value
    address = ctypes.addressof(managed)
    _kept[address] = (managed, capsule, owner)  # until the new tensor is gone
    return tvm_ffi.from_dlpack(_new_capsule(address, b"dltensor", None))

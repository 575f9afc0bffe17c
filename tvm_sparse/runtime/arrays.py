"""Array interop: the arrays of every framework seen as NumPy views, and results allocated.

In: NumPy, PyTorch, TVM or any DLPack arrays in host memory. Out: NumPy arrays that share their
memory, and new arrays of the caller's framework for results.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tvm_ffi

from .minimal import _view_tensor

CPU_DEVICE_TYPES = (1,)  # kDLCPU
CUDA_DEVICE_TYPES = (2, 13)  # kDLCUDA, kDLCUDAManaged


def is_sparse_matrix(value: Any) -> bool:
    """Tell whether `value` is a SciPy or CuPy sparse matrix or a PyTorch tensor of a sparse layout."""
    scipy_sparse = sys.modules.get("scipy.sparse")
    if scipy_sparse is not None and scipy_sparse.issparse(value):
        return True
    if is_torch(value):
        return value.layout is not sys.modules["torch"].strided
    return is_cupy_matrix(value)


def is_torch(value: Any) -> bool:
    """Tell whether `value` is a PyTorch tensor, without importing PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def is_cupy(value: Any) -> bool:
    """Tell whether `value` is an array or a sparse matrix of CuPy, without importing CuPy."""
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return False
    return isinstance(value, getattr(cupy, "ndarray", ())) or is_cupy_matrix(value)


def is_cupy_matrix(value: Any) -> bool:
    """Tell whether `value` is a sparse matrix of CuPy."""
    sparse = sys.modules.get("cupyx.scipy.sparse")
    return sparse is not None and bool(sparse.issparse(value))


def host_view(label: str, value: Any) -> np.ndarray:
    """Return a NumPy view of an array in host memory, sharing its memory.

    Parameters
    ----------
    label : str
        How an error names the argument.
    value : array
        NumPy, PyTorch, TVM, or any object with ``__dlpack__``; any strides.

    Raises
    ------
    TypeError
        If `value` is no array.
    ValueError
        If it is not in host memory, or is part of an autograd graph.
    """
    if isinstance(value, np.ndarray):
        return value.view(np.ndarray)
    if is_torch(value):
        return _torch_view(label, value)
    if isinstance(value, tvm_ffi.Tensor):
        return _tensor_view(label, value)
    if hasattr(value, "__dlpack__"):
        _check_host(label, value)
        try:
            return np.from_dlpack(value)
        except (BufferError, TypeError, RuntimeError, ValueError):
            return _tensor_view(label, tvm_ffi.from_dlpack(value))
    if isinstance(value, np.generic):
        return np.asarray(value)
    raise TypeError(
        f"{label}: expected an array (NumPy, PyTorch, TVM or DLPack), found "
        f"{type(value).__module__}.{type(value).__qualname__}"
    )


def allocate(framework: str, shape: Sequence[int], dtype: str) -> Any:
    """Allocate an array of a framework: ``"numpy"``, ``"torch"`` or ``"tvm"``."""
    if framework == "torch":
        torch = sys.modules["torch"]
        return torch.empty(tuple(shape), dtype=getattr(torch, dtype))
    if framework == "tvm":
        raw = np.empty(max(1, int(np.prod(shape)) * tvm_ffi.dtype(dtype).itemsize), np.uint8)
        return _view_tensor(tvm_ffi.from_dlpack(raw), tuple(shape), dtype)
    return np.empty(tuple(shape), numpy_dtype(dtype))


def framework_of(values: Sequence[Any]) -> str:
    """Return the framework in which results for these inputs are allocated."""
    if any(is_torch(value) for value in values):
        return "torch"
    dense = [value for value in values if not is_sparse_matrix(value)]
    if dense and all(isinstance(value, tvm_ffi.Tensor) for value in dense):
        return "tvm"
    return "numpy"


def numpy_dtype(name: str) -> np.dtype:
    """Return the NumPy dtype of TVM's dtype name; ``ml_dtypes`` serves bfloat16 and its kin."""
    try:
        return np.dtype(name)
    except TypeError:
        return np.dtype(getattr(ml_dtypes, name))


def may_overlap(first: np.ndarray, second: np.ndarray) -> bool:
    """Tell whether the address ranges of two arrays overlap (exact for contiguous arrays)."""
    return np.may_share_memory(first, second)


def overlaps_itself(array: np.ndarray) -> bool:
    """Tell whether two elements of the array share memory, judged by its address range."""
    if array.size < 2:
        return False
    span = sum(abs(stride) * (size - 1) for stride, size in zip(array.strides, array.shape))
    return span + array.itemsize < array.nbytes


def _torch_view(label: str, value: Any) -> np.ndarray:
    torch = sys.modules["torch"]
    if value.device.type != "cpu":
        raise _elsewhere(label, str(value.device))
    if value.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{label}: expected a tensor outside autograd, found one that requires grad; "
            "call .detach()"
        )
    value = value.detach().resolve_conj().resolve_neg()
    try:
        return value.numpy()
    except TypeError:  # a type that NumPy lacks: bfloat16, float8
        bits = {1: torch.uint8, 2: torch.int16}[value.element_size()]
        return value.view(bits).numpy().view(numpy_dtype(str(value.dtype).removeprefix("torch.")))


def _tensor_view(label: str, value: tvm_ffi.Tensor) -> np.ndarray:
    _check_host(label, value)
    dtype = str(value.dtype)
    if dtype.startswith(("int", "uint", "float16", "float32", "float64", "bool")):
        return np.from_dlpack(value)
    if not value.is_contiguous():
        raise ValueError(f"{label}: contiguous array required for {dtype}, found a strided one")
    if 0 in value.shape:
        return np.empty(tuple(value.shape), numpy_dtype(dtype))
    bits = f"uint{8 * tvm_ffi.dtype(dtype).itemsize}"
    return np.from_dlpack(_view_tensor(value, tuple(value.shape), bits)).view(numpy_dtype(dtype))


def device_name(kind: int, number: int) -> str:
    """Name a device of DLPack: ``"cuda:1"``, or ``"the host"``."""
    if kind in CUDA_DEVICE_TYPES:
        return f"cuda:{number}"
    return {1: "the host", 3: "the host (pinned memory)"}.get(kind, f"DLPack device type {kind}")


def _check_host(label: str, value: Any) -> None:
    kind, number = (int(part) for part in value.__dlpack_device__())
    if kind not in CPU_DEVICE_TYPES:
        raise _elsewhere(label, device_name(kind, number))


def _elsewhere(label: str, place: str) -> ValueError:
    return ValueError(
        f"{label}: expected an array in host memory, as the kernel was compiled for a CPU, found one on "
        f"{place}; copy it to the host, or compile the kernel for CUDA"
    )

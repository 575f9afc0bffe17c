"""DLPack arrays that say they lie on a device, and are in host memory. Needs NumPy alone."""

from __future__ import annotations

import ctypes

import numpy as np


class _Tensor(ctypes.Structure):
    """The head of DLPack's ``DLManagedTensor``."""

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


_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class ArrayOnDevice:
    """A DLPack array of another framework, that says it lies on a device and is in host memory.

    Parameters
    ----------
    array : numpy.ndarray
        Its memory.
    device : tuple of int
        DLPack's device type (2 is CUDA's) and number.
    offset : int
        Bytes of the address that are given as an offset.
    """

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (2, 0), offset: int = 0):
        self.array, self.device, self.offset = array, device, offset
        self.shape = array.shape
        self.streams: list[object] = []

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        capsule = self.array.__dlpack__()
        tensor = _Tensor.from_address(_pointer_of(capsule, b"dltensor"))
        tensor.device_type, tensor.device_id = self.device
        tensor.data -= self.offset
        tensor.byte_offset = self.offset
        return capsule

    def __dlpack_device__(self):
        return self.device


def aligned(array: np.ndarray, beyond: int = 0) -> np.ndarray:
    """Copy an array to an address that is `beyond` bytes beyond a multiple of 64."""
    raw = np.empty(array.nbytes + 128, np.uint8)
    begin = -raw.ctypes.data % 64 + beyond
    view = raw[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view

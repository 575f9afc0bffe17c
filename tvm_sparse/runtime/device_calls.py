"""The short path of a call of a CUDA kernel: arguments that need no binding.

In: a full argument list. Out: whether compiled code and what is remembered of earlier calls check all
that there is to check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi

from .arrays import is_cupy, is_cupy_matrix, is_sparse_matrix, is_torch
from .minimal import CUDA_ALIGNMENT
from .signature import Signature

__all__ = ["device_ready_check", "ready_addresses"]

_TENSOR_TYPES = (tvm_ffi.Tensor, tvm.runtime.Tensor)


def device_ready_check(signature: Signature) -> Callable[[Sequence[Any]], bool]:
    """Return a check that a full argument list of a CUDA kernel needs no binding.

    It looks at what the compiled code does not: alignment, overlap of outputs, and whether index arrays
    were checked before. False only means that the call takes the longer path, as it does for arrays of
    which nothing is known beyond ``__dlpack__``.
    """
    count = len(signature.parameters)
    buffers = [
        (signature.position[p["name"]], signature.dtypes[p["name"]].itemsize)
        for p in signature.buffers
    ]
    outputs = signature.output_positions
    pairs = [
        (output, other)
        for output in outputs
        for other, _ in buffers
        if other != output and not (other in outputs and other < output)
    ]
    structures = [
        (
            signature.checked[axis["name"]].holds,
            signature.position.get(axis.get("indptr")),
            signature.position.get(axis.get("indices")),
            [signature.extent(axis, kind) for kind in ("length", "nnz")],
        )
        for axis in signature.given_axes
    ]
    evaluate = signature.reader()

    def check(args: Sequence[Any]) -> bool:
        if len(args) != count:
            return False
        begins, ends = {}, {}
        for place, itemsize in buffers:
            found = ready_addresses(args[place], itemsize)
            if found is None:
                return False
            begins[place], ends[place] = found
        for output, other in pairs:
            if begins[output] < ends[other] and begins[other] < ends[output]:
                return False
        for holds, pointers_at, indices_at, extents in structures:
            indptr = None if pointers_at is None else args[pointers_at]
            indices = None if indices_at is None else args[indices_at]
            sizes = tuple(extent and evaluate(extent, args) for extent in extents)
            if not holds(indptr, indices, sizes):
                return False
        return True

    return check


def ready_addresses(array: Any, itemsize: int | None = None) -> tuple[int, int] | None:
    """Return where a contiguous array on a GPU begins and ends, None for what needs binding."""
    kind = type(array)
    if kind in _TENSOR_TYPES:
        begin = array.data_ptr()
        size = array.numel() * (itemsize or array.dtype.itemsize)
    elif is_torch(array):
        if not array.is_cuda or array.requires_grad or is_sparse_matrix(array):
            return None
        begin, size = array.data_ptr(), array.numel() * array.element_size()
    elif is_cupy(array) and not is_cupy_matrix(array):
        begin, size = array.data.ptr, array.nbytes
    else:
        return None
    # Where there are no values, strides of other frameworks are not those that compiled code expects.
    is_odd = begin % CUDA_ALIGNMENT or (not size and kind not in _TENSOR_TYPES)
    return None if is_odd else (begin, begin + size)

"""The short path of a call of a CUDA kernel: arguments that need no binding.

In: a full argument list. Out: whether compiled code and what is remembered of earlier calls check all
that there is to check.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi

from .minimal import CUDA_ALIGNMENT
from .signature import Signature

__all__ = ["device_ready_check"]

_TENSOR_TYPES = (tvm_ffi.Tensor, tvm.runtime.Tensor)


def device_ready_check(signature: Signature) -> Callable[[Sequence[Any]], bool]:
    """Return a check that a full argument list of a CUDA kernel needs no binding.

    It looks at what the compiled code does not: alignment, overlap of outputs, and whether index arrays
    were checked before. False only means that the call takes the longer path, as it does for arrays of
    which nothing is known beyond ``__dlpack__``.
    """
    count = len(signature.parameters)
    buffers = [signature.position[p["name"]] for p in signature.buffers]
    outputs = signature.output_positions
    pairs = [
        (output, other)
        for output in outputs
        for other in buffers
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
        ranges = {}
        for place in buffers:
            found = _range(args[place])
            if found is None or found[0] % CUDA_ALIGNMENT:
                return False
            ranges[place] = found
        for output, other in pairs:
            (begin, end), (other_begin, other_end) = ranges[output], ranges[other]
            if begin < other_end and other_begin < end:
                return False
        for holds, pointers_at, indices_at, extents in structures:
            indptr = None if pointers_at is None else args[pointers_at]
            indices = None if indices_at is None else args[indices_at]
            sizes = tuple(extent and evaluate(extent, args) for extent in extents)
            if not holds(indptr, indices, sizes):
                return False
        return True

    return check


def _range(array: Any) -> tuple[int, int] | None:
    """Return the addresses of a contiguous array on a GPU, None for what needs binding."""
    if type(array) in _TENSOR_TYPES:
        begin = array.data_ptr()
        return begin, begin + array.numel() * tvm_ffi.dtype(str(array.dtype)).itemsize
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and type(array) is torch.Tensor:
        if not array.is_cuda or array.requires_grad or array.layout is not torch.strided:
            return None
        begin = array.data_ptr()
        return begin, begin + array.numel() * array.element_size()
    if cupy is not None and type(array) is cupy.ndarray:
        return array.data.ptr, array.data.ptr + array.nbytes
    return None

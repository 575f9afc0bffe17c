"""NVIDIA's cuSPARSE, called directly on PyTorch's tensors.

PyTorch and CuPy call it with the algorithm that they chose, and without its preprocessing. Here all
algorithms that suit row-major operands are tried, preprocessed, and the workspace is allocated once: the
strongest form of this peer. The C interface is NVIDIA's generic API (cuSPARSE 12).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

__all__ = ["SDDMM_ALGORITHMS", "SPMM_ALGORITHMS", "SPMV_ALGORITHMS", "sddmm", "spmm", "spmv"]

SPMM_ALGORITHMS = {"default": 0, "alg1": 4, "alg2": 6, "alg3": 12}
SPMV_ALGORITHMS = {"default": 0, "alg1": 2, "alg2": 3}
SDDMM_ALGORITHMS = {"default": 0}

_INDEX_32, _BASE_ZERO, _ROW_MAJOR = 2, 0, 2
_KEEP, _TRANSPOSE = 0, 1
_FLOAT32 = 0
_TYPES = {"torch.float32": 0, "torch.float64": 1, "torch.float16": 2, "torch.bfloat16": 14}


def spmm(torch: Any, arrays: dict[str, Any], algorithm: int) -> Callable[[], Any]:
    """Return a call that computes ``a @ b`` for ``a`` in CSR."""
    library = _Library(torch)
    result = arrays["b"].new_empty(arrays["m"], arrays["b"].shape[1])
    sparse = library.csr(arrays, arrays["a"], arrays["m"], arrays["n"])
    operands = (sparse, library.dense(arrays["b"]), library.dense(result))
    run = library.product("SpMM", (_KEEP, _KEEP), operands, algorithm)
    return lambda: run() or result


def spmv(torch: Any, arrays: dict[str, Any], algorithm: int) -> Callable[[], Any]:
    """Return a call that computes ``a @ x`` for ``a`` in CSR."""
    library = _Library(torch)
    result = arrays["x"].new_empty(arrays["m"])
    sparse = library.csr(arrays, arrays["a"], arrays["m"], arrays["n"])
    operands = (sparse, library.vector(arrays["x"]), library.vector(result))
    run = library.product("SpMV", (_KEEP,), operands, algorithm)
    return lambda: run() or result


def sddmm(torch: Any, arrays: dict[str, Any], algorithm: int) -> Callable[[], Any]:
    """Return a call that computes the dot products of ``x`` and ``y`` at the entries of a structure."""
    library = _Library(torch)
    result = arrays["x"].new_empty(arrays["nnz"])
    sparse = library.csr(arrays, result, arrays["m"], arrays["n"])
    operands = (library.dense(arrays["x"]), library.dense(arrays["y"]), sparse)
    run = library.product("SDDMM", (_KEEP, _TRANSPOSE), operands, algorithm)
    return lambda: run() or result


class _Library:
    """A handle, and what has to stay alive while it is used."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._library = ctypes.CDLL("libcusparse.so.12")
        self._handle = ctypes.c_void_p()
        self._kept: list[Any] = []
        self._call("cusparseCreate", ctypes.byref(self._handle))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._call("cusparseSetStream", self._handle, stream)

    def csr(self, arrays: dict[str, Any], values: Any, rows: int, columns: int) -> ctypes.c_void_p:
        pointers = (_address(arrays["indptr"]), _address(arrays["indices"]), _address(values))
        sizes = (ctypes.c_int64(size) for size in (rows, columns, arrays["nnz"]))
        kinds = (_INDEX_32, _INDEX_32, _BASE_ZERO, _TYPES[str(values.dtype)])
        self._kept += [arrays["indptr"], arrays["indices"], values]
        return self._made("cusparseCreateCsr", *sizes, *pointers, *kinds)

    def dense(self, values: Any) -> ctypes.c_void_p:
        rows, columns = values.shape
        sizes = (ctypes.c_int64(size) for size in (rows, columns, columns))
        self._kept.append(values)
        kind = _TYPES[str(values.dtype)]
        return self._made("cusparseCreateDnMat", *sizes, _address(values), kind, _ROW_MAJOR)

    def vector(self, values: Any) -> ctypes.c_void_p:
        self._kept.append(values)
        size, kind = ctypes.c_int64(values.shape[0]), _TYPES[str(values.dtype)]
        return self._made("cusparseCreateDnVec", size, _address(values), kind)

    def product(
        self,
        name: str,
        transposed: tuple[int, ...],
        operands: tuple[ctypes.c_void_p, ...],
        algorithm: int,
    ) -> Callable[[], None]:
        """Allocate and preprocess; return the call."""
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        first, second, third = operands
        given = (
            self._handle,
            *transposed,
            ctypes.byref(one),
            first,
            second,
            ctypes.byref(zero),
            third,
            _FLOAT32,
            algorithm,
        )
        size = ctypes.c_size_t()
        self._call(f"cusparse{name}_bufferSize", *given, ctypes.byref(size))
        buffer = self._torch.empty(max(size.value, 16), dtype=self._torch.uint8, device="cuda")
        self._kept += [one, zero, buffer]
        if hasattr(self._library, f"cusparse{name}_preprocess"):
            self._call(f"cusparse{name}_preprocess", *given, _address(buffer))
        return lambda: self._call(f"cusparse{name}", *given, _address(buffer))

    def _made(self, name: str, *given: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._call(name, ctypes.byref(made), *given)
        return made

    def _call(self, name: str, *given: Any) -> None:
        status = getattr(self._library, name)(*given)
        if status:
            raise RuntimeError(f"{name}: status {status}")


def _address(values: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.data_ptr())

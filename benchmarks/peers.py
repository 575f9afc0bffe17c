"""The same operators in other libraries: SciPy, PyTorch, numba, and MKL's inspector-executor.

Each function returns a call that runs the operator, and one that reads its result. Results are
written into one array where the library can; SciPy and PyTorch allocate theirs at each call.
"""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numba
import numpy as np
import scipy.sparse as sp
import torch

from .aligned import aligned_empty

__all__ = [
    "NO_TRANSPOSE",
    "PEERS",
    "mkl_checked",
    "mkl_handle",
    "mkl_library",
    "set_threads",
    "torch_csr",
]

Bound = tuple[Callable[[], object], Callable[[], np.ndarray]]


def set_threads(threads: int) -> None:
    """Set the number of threads of PyTorch, numba and MKL. SciPy's kernels have one."""
    torch.set_num_threads(threads)
    numba.set_num_threads(threads)
    mkl_library().MKL_Set_Num_Threads(threads)


def _returning(call: Callable[[], object]) -> Bound:
    """Bind a call that returns its result."""
    return call, lambda: np.asarray(call())


# SciPy


def scipy_product(matrix: sp.csr_matrix, dense: np.ndarray) -> Bound:
    """Sparse times dense matrix or vector."""
    return _returning(lambda: matrix @ dense)


def scipy_segment_sum(matrix: sp.csr_matrix, rows: np.ndarray) -> Bound:
    """A matrix of ones, whose row ``i`` selects segment ``i``, times the rows."""
    entries = np.arange(matrix.nnz, dtype=np.int32)
    structure = (np.ones(matrix.nnz, np.float32), entries, matrix.indptr)
    ones = sp.csr_matrix(structure, shape=(matrix.shape[0], matrix.nnz))
    return _returning(lambda: ones @ rows)


# PyTorch


def torch_csr(matrix: sp.csr_matrix) -> torch.Tensor:
    """Share the arrays of a matrix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = (torch.from_numpy(array) for array in (matrix.indptr, matrix.indices, matrix.data))
        return torch.sparse_csr_tensor(*parts, size=matrix.shape)


def torch_product(matrix: sp.csr_matrix, dense: np.ndarray) -> Bound:
    """CSR tensor times dense matrix or vector."""
    a, b = torch_csr(matrix), torch.from_numpy(dense)
    return _returning(lambda: a @ b)


def torch_bsr_product(matrix: sp.bsr_matrix, dense: np.ndarray) -> Bound:
    """BSR tensor times dense matrix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = (torch.from_numpy(array) for array in (matrix.indptr, matrix.indices, matrix.data))
        a, b = torch.sparse_bsr_tensor(*parts, size=matrix.shape), torch.from_numpy(dense)
    return _returning(lambda: a @ b)


def torch_dense_product(matrix: sp.spmatrix, dense: np.ndarray) -> Bound:
    """Dense matrix, zeros and all, times dense matrix."""
    a, b = torch.from_numpy(matrix.toarray()), torch.from_numpy(dense)
    return _returning(lambda: a @ b)


def torch_sddmm(matrix: sp.csr_matrix, x: np.ndarray, y: np.ndarray) -> Bound:
    """``torch.sparse.sampled_addmm`` with ``beta=0``."""
    pattern = torch_csr(matrix)
    left, right = torch.from_numpy(x), torch.from_numpy(y).T

    def call() -> torch.Tensor:
        return torch.sparse.sampled_addmm(pattern, left, right, beta=0.0)

    return call, lambda: call().values().numpy()


# numba: the loops that a user would write


@numba.njit(parallel=True, fastmath=True)
def _numba_spmm(indptr, indices, values, b, c):
    for i in numba.prange(indptr.size - 1):
        for k in range(b.shape[1]):
            c[i, k] = 0
        for p in range(indptr[i], indptr[i + 1]):
            for k in range(b.shape[1]):
                c[i, k] += values[p] * b[indices[p], k]


@numba.njit(parallel=True, fastmath=True)
def _numba_spmv(indptr, indices, values, x, y):
    for i in numba.prange(indptr.size - 1):
        total = np.float32(0)
        for p in range(indptr[i], indptr[i + 1]):
            total += values[p] * x[indices[p]]
        y[i] = total


@numba.njit(parallel=True, fastmath=True)
def _numba_sddmm(indptr, indices, x, y, c):
    for i in numba.prange(indptr.size - 1):
        for p in range(indptr[i], indptr[i + 1]):
            total = np.float32(0)
            for k in range(x.shape[1]):
                total += x[i, k] * y[indices[p], k]
            c[p] = total


@numba.njit(parallel=True, fastmath=True)
def _numba_segment_sum(indptr, rows, c):
    for i in numba.prange(indptr.size - 1):
        for k in range(rows.shape[1]):
            c[i, k] = 0
        for p in range(indptr[i], indptr[i + 1]):
            for k in range(rows.shape[1]):
                c[i, k] += rows[p, k]


def numba_spmm(matrix: sp.csr_matrix, b: np.ndarray) -> Bound:
    """A loop nest over rows, entries and features."""
    c = aligned_empty((matrix.shape[0], b.shape[1]))
    arguments = (matrix.indptr, matrix.indices, matrix.data, b, c)
    return lambda: _numba_spmm(*arguments), lambda: c


def numba_spmv(matrix: sp.csr_matrix, x: np.ndarray) -> Bound:
    """A loop nest over rows and entries."""
    y = aligned_empty((matrix.shape[0],))
    arguments = (matrix.indptr, matrix.indices, matrix.data, x, y)
    return lambda: _numba_spmv(*arguments), lambda: y


def numba_sddmm(matrix: sp.csr_matrix, x: np.ndarray, y: np.ndarray) -> Bound:
    """A loop nest over rows, entries and features."""
    c = aligned_empty((matrix.nnz,))
    return lambda: _numba_sddmm(matrix.indptr, matrix.indices, x, y, c), lambda: c


def numba_segment_sum(matrix: sp.csr_matrix, rows: np.ndarray) -> Bound:
    """A loop nest over segments, rows and features."""
    c = aligned_empty((matrix.shape[0], rows.shape[1]))
    return lambda: _numba_segment_sum(matrix.indptr, rows, c), lambda: c


# MKL's inspector-executor, through its C interface

NO_TRANSPOSE, _ROW_MAJOR, _EXPECTED_CALLS = 10, 101, 1000


class _MatrixDescription(ctypes.Structure):
    """``struct matrix_descr``; a general matrix."""

    _fields_ = [("type", ctypes.c_int), ("mode", ctypes.c_int), ("diagonal", ctypes.c_int)]


_GENERAL = _MatrixDescription(20, 0, 0)


@cache
def mkl_library() -> ctypes.CDLL:
    """Load MKL."""
    folders = [Path(sys.prefix) / "lib", Path(sys.prefix) / "Library" / "bin"]
    found = [path for folder in folders for path in folder.glob("*mkl_rt*")]
    if not found:
        raise ImportError("benchmarks need MKL: pip install mkl")
    return ctypes.CDLL(str(found[0]), mode=ctypes.RTLD_GLOBAL)


def mkl_checked(status: int) -> None:
    """Refuse a status that is not success."""
    if status:
        raise RuntimeError(f"MKL returned status {status}")


def _pointer(array: np.ndarray, offset: int = 0) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data + offset * array.itemsize)


def mkl_handle(matrix: sp.csr_matrix) -> ctypes.c_void_p:
    """Make a handle, which holds mere addresses, of a CSR matrix."""
    handle = ctypes.c_void_p()
    pointers = [_pointer(matrix.indptr), _pointer(matrix.indptr, 1)]
    arrays = [*pointers, _pointer(matrix.indices), _pointer(matrix.data)]
    mkl_checked(
        mkl_library().mkl_sparse_s_create_csr(ctypes.byref(handle), 0, *matrix.shape, *arrays)
    )
    return handle


def _mkl_bsr_handle(matrix: sp.bsr_matrix) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    size = matrix.blocksize[0]
    shape = (matrix.shape[0] // size, matrix.shape[1] // size)
    pointers = [_pointer(matrix.indptr), _pointer(matrix.indptr, 1)]
    arrays = [*pointers, _pointer(matrix.indices), _pointer(matrix.data)]
    create = mkl_library().mkl_sparse_s_create_bsr
    mkl_checked(create(ctypes.byref(handle), 0, _ROW_MAJOR, *shape, size, *arrays))
    return handle


def _keeping(call: Callable[[], object], *arrays: object) -> Callable[[], object]:
    """Keep alive what MKL reads and writes: the call holds mere addresses."""
    return lambda _alive=arrays: call()


def mkl_spmm(matrix: sp.csr_matrix | sp.bsr_matrix, b: np.ndarray) -> Bound:
    """``mkl_sparse_s_mm`` on an optimized handle of CSR, or of BSR with square blocks."""
    features = b.shape[1]
    c = aligned_empty((matrix.shape[0], features))
    handle = _mkl_bsr_handle(matrix) if matrix.format == "bsr" else mkl_handle(matrix)
    mkl = mkl_library()
    hint = (NO_TRANSPOSE, _GENERAL, _ROW_MAJOR, features, _EXPECTED_CALLS)
    mkl_checked(mkl.mkl_sparse_set_mm_hint(handle, *hint))
    mkl_checked(mkl.mkl_sparse_optimize(handle))
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    operands = (_pointer(b), features, features, zero, _pointer(c), features)
    arguments = (NO_TRANSPOSE, one, handle, _GENERAL, _ROW_MAJOR, *operands)
    return _keeping(lambda: mkl.mkl_sparse_s_mm(*arguments), matrix, b, c), lambda: c


def mkl_spmv(matrix: sp.csr_matrix, x: np.ndarray) -> Bound:
    """``mkl_sparse_s_mv`` on an optimized handle."""
    y = aligned_empty((matrix.shape[0],))
    handle, mkl = mkl_handle(matrix), mkl_library()
    mkl_checked(mkl.mkl_sparse_set_mv_hint(handle, NO_TRANSPOSE, _GENERAL, _EXPECTED_CALLS))
    mkl_checked(mkl.mkl_sparse_optimize(handle))
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    arguments = (NO_TRANSPOSE, one, handle, _GENERAL, _pointer(x), zero, _pointer(y))
    return _keeping(lambda: mkl.mkl_sparse_s_mv(*arguments), matrix, x, y), lambda: y


PEERS: dict[str, dict[str, Callable[..., Bound]]] = {
    "spmv": {
        "mkl": mkl_spmv,
        "torch": torch_product,
        "scipy": scipy_product,
        "numba": numba_spmv,
    },
    "spmm": {
        "mkl": mkl_spmm,
        "torch": torch_product,
        "scipy": scipy_product,
        "numba": numba_spmm,
    },
    "sddmm": {"torch": torch_sddmm, "numba": numba_sddmm},
    "segment_sum": {"scipy": scipy_segment_sum, "numba": numba_segment_sum},
}

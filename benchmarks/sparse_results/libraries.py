"""Products and sums of sparse matrices in other libraries, with sparse results.

SciPy, MKL and PyTorch are needed. ``sparse`` (compiled by numba, one thread) and SuiteSparse:GraphBLAS
take part if they are installed: ``pip install sparse python-graphblas suitesparse-graphblas``. Operands
are made ready before; the result is allocated by each call, as ours is. GraphBLAS sorts lazily: the export
of a CSR matrix sorts it, or is told not to.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Sequence
from functools import cache, partial, reduce
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from .. import peers
from .measure import Contender

__all__ = ["SORTED", "products", "set_threads", "sums"]

#: Contenders whose products are sorted; sums of all libraries are, as their operands.
SORTED = ("scipy sorted", "mkl sorted", "graphblas sorted")


def set_threads(threads: int) -> None:
    """Set the number of threads of all libraries."""
    peers.set_threads(threads)
    if _has("graphblas"):
        _graphblas().ss.config["nthreads"] = threads


def products(a: sp.csr_matrix, b: sp.csr_matrix) -> dict[str, Contender]:
    """Return ``A B`` in each library."""
    torch_a, torch_b = peers.torch_csr(a), peers.torch_csr(b)
    found = {
        "scipy": Contender(lambda: a @ b),
        "scipy sorted": Contender(lambda: _sorted(a @ b)),
        "mkl": _mkl([a, b], _mkl_product, ordered=False),
        "mkl sorted": _mkl([a, b], _mkl_product, ordered=True),
        "torch": Contender(lambda: torch_a @ torch_b, _read_torch),
    }
    if _has("sparse"):
        found["sparse"] = _sparse([a, b], lambda left, right: left @ right)
    if _has("graphblas"):
        found |= _graphblas_pair([a, b], _graphblas_product)
    return found


def sums(terms: Sequence[sp.csr_matrix]) -> dict[str, Contender]:
    """Return the sum of matrices in each library, two at a time."""
    found = {
        "scipy sorted": Contender(lambda: _sorted(reduce(lambda a, b: a + b, terms))),
        "mkl": _mkl(terms, _mkl_sum, ordered=False),
        "mkl sorted": _mkl(terms, _mkl_sum, ordered=True),
    }
    if _has("sparse"):
        found["sparse"] = _sparse(terms, lambda left, right: left + right)
    if _has("graphblas"):
        found |= _graphblas_pair(terms, _graphblas_sum)
    return found


def _sorted(result: sp.csr_matrix) -> sp.csr_matrix:
    result.sort_indices()
    return result


def _read_torch(result: torch.Tensor) -> sp.csr_matrix:
    parts = result.values(), result.col_indices(), result.crow_indices()
    return sp.csr_matrix(tuple(own.numpy() for own in parts), shape=tuple(result.shape))


@cache
def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


# sparse


def _sparse(terms: Sequence[sp.csr_matrix], combine: Callable[[Any, Any], Any]) -> Contender:
    import sparse  # noqa: PLC0415 (optional)

    own = [sparse.GCXS.from_scipy_sparse(sp.csr_array(term)) for term in terms]
    return Contender(
        lambda: reduce(combine, own), lambda result: sp.csr_matrix(result.to_scipy_sparse())
    )


# MKL: a result is freed before the next call, for nothing else would


class _MklResult:
    """A result in MKL's memory."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self.handle = handle

    def __del__(self) -> None:
        peers.mkl_library().mkl_sparse_destroy(self.handle)

    def read(self) -> sp.csr_matrix:
        """Copy it."""
        base, rows, columns = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        arrays = [ctypes.c_void_p() for _ in range(4)]
        out = [ctypes.byref(own) for own in (base, rows, columns, *arrays)]
        peers.mkl_checked(peers.mkl_library().mkl_sparse_s_export_csr(self.handle, *out))
        begins, ends, indices, values = arrays
        begins = _array(begins, rows.value, ctypes.c_int)
        ends = _array(ends, rows.value, ctypes.c_int)
        indptr = np.append(begins, ends[-1:])
        structure = (
            _array(values, indptr[-1], ctypes.c_float),
            _array(indices, indptr[-1], ctypes.c_int),
            indptr,
        )
        return sp.csr_matrix(structure, shape=(rows.value, columns.value))


def _array(pointer: ctypes.c_void_p, size: int, kind: type) -> np.ndarray:
    if not size:
        return np.empty(0, kind)
    return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(kind)), (int(size),)).copy()


def _mkl(terms: Sequence[sp.csr_matrix], combine: Callable, ordered: bool) -> Contender:
    mkl, handles = peers.mkl_library(), [peers.mkl_handle(term) for term in terms]

    def call(_alive: Any = terms) -> _MklResult:
        result = reduce(combine, [_Borrowed(own) for own in handles])
        if ordered:
            peers.mkl_checked(mkl.mkl_sparse_order(result.handle))
        return result

    return Contender(call, _MklResult.read)


class _Borrowed:
    """An operand of MKL."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self.handle = handle


def _mkl_product(left: Any, right: Any) -> _MklResult:
    result = ctypes.c_void_p()
    plain = peers.NO_TRANSPOSE
    own = peers.mkl_library().mkl_sparse_spmm(
        plain, left.handle, right.handle, ctypes.byref(result)
    )
    peers.mkl_checked(own)
    return _MklResult(result)


def _mkl_sum(left: Any, right: Any) -> _MklResult:
    result, one = ctypes.c_void_p(), ctypes.c_float(1)
    operands = (peers.NO_TRANSPOSE, left.handle, one, right.handle, ctypes.byref(result))
    peers.mkl_checked(peers.mkl_library().mkl_sparse_s_add(*operands))
    return _MklResult(result)


# SuiteSparse:GraphBLAS


@cache
def _graphblas() -> Any:
    import graphblas  # noqa: PLC0415 (optional)

    graphblas.init("suitesparse", blocking=True)
    return graphblas


def _graphblas_product(left: Any, right: Any) -> Any:
    return left.mxm(right, _graphblas().semiring.plus_times).new()


def _graphblas_sum(left: Any, right: Any) -> Any:
    return left.ewise_add(right, _graphblas().binary.plus).new()


def _graphblas_pair(terms: Sequence[sp.csr_matrix], combine: Callable) -> dict[str, Contender]:
    """Export the result without and with a sort."""
    own = [_graphblas().io.from_scipy_sparse(sp.csr_array(term)) for term in terms]

    def call(is_sorted: bool) -> dict:
        result = reduce(combine, own)
        return result.ss.export("csr", sort=is_sorted, give_ownership=True)

    return {
        "graphblas": Contender(partial(call, False), _read_graphblas),
        "graphblas sorted": Contender(partial(call, True), _read_graphblas),
    }


def _read_graphblas(parts: dict) -> sp.csr_matrix:
    shape = parts["nrows"], parts["ncols"]
    size = int(parts["indptr"][-1])
    values = np.broadcast_to(parts["values"], size) if parts.get("is_iso") else parts["values"]
    structure = values[:size], parts["col_indices"][:size], parts["indptr"]
    return sp.csr_matrix(tuple(np.array(own) for own in structure), shape=shape)

"""Programs whose operands tests hold in formats: sums, other reductions, and products at chosen places."""

from __future__ import annotations

import functools
import operator

import numpy as np

import tvm_sparse
from tests.schedule.decompositions import decomposed
from tvm_sparse import schedules
from tvm_sparse.ir import SparseFunc
from tvm_sparse.runtime import Executable
from tvm_sparse.script import from_source

__all__ = ["REDUCTIONS", "reduction", "sampled", "spmm"]

REDUCTIONS = {
    "max": ("T.max(Y[i], A[i, j] * X[j])", np.maximum, -np.inf),
    "min": ("T.min(A[i, j] * X[j], Y[i])", np.minimum, 5.0),
    "product": ("Y[i] * (A[i, j] * X[j])", operator.mul, 1.0),
    "difference": ("Y[i] - A[i, j] * X[j]", operator.sub, 0.0),
    "sum_of_5": ("A[i, j] * X[j] + Y[i]", operator.add, 5.0),
}


@functools.cache
def spmm(name: str, dtype: str = "float32", index: str = "int32") -> Executable:
    return tvm_sparse.compile(decomposed(schedules.spmm.program(dtype, index), "A", name))


def reduction(kind: str, dtype: str = "float32") -> SparseFunc:
    update, _, init = REDUCTIONS[kind]
    written = 'T.min_value("float32")' if init == -np.inf else f"T.{dtype}({init})"
    return from_source(
        f"""
@S.prim_func
def rows(
    a: T.handle, x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle, m: T.int32, n: T.int32,
    nnz: T.int32
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    Jd = S.dense_fixed(n)
    A = S.match_sparse_buffer(a, (I, J), "{dtype}")
    X = S.match_sparse_buffer(x, (Jd,), "{dtype}")
    Y = S.match_sparse_buffer(y, (I,), "{dtype}")
    with S.sp_iter([I, J], "SR", "rows") as [i, j]:
        with T.init():
            Y[i] = {written}
        Y[i] = {update}
"""
    )


def sampled(dtype: str, init: float = 0.0) -> SparseFunc:
    """A product at the entries of a matrix, into a dense result."""
    return from_source(
        f"""
@S.prim_func
def sampled(
    a: T.handle, x: T.handle, z: T.handle, y: T.handle, indptr: T.handle, indices: T.handle,
    m: T.int32, n: T.int32, nnz: T.int32, g: T.int32
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    Jd = S.dense_fixed(n)
    K = S.dense_fixed(g)
    A = S.match_sparse_buffer(a, (I, J), "{dtype}")
    X = S.match_sparse_buffer(x, (I, K), "{dtype}")
    Z = S.match_sparse_buffer(z, (Jd, K), "{dtype}")
    Y = S.match_sparse_buffer(y, (I, Jd), "{dtype}")
    with S.sp_iter([I, J, K], "SSR", "sampled") as [i, j, k]:
        with T.init():
            Y[i, j] = T.{dtype}({init})
        Y[i, j] = Y[i, j] + A[i, j] * X[i, k] * Z[j, k]
"""
    )

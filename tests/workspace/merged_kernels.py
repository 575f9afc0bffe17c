"""Kernels that add and multiply sparse matrices side by side, compiled once."""

from __future__ import annotations

import functools

import numpy as np
import scipy.sparse as sp

import tvm_sparse
from tvm_sparse.script import from_source

__all__ = ["call_twice", "compiled", "filled_row", "random_csr", "remembered", "total"]

#: Two operands of structures of their own.
TWO = """
@S.prim_func
def KIND(a: S.handle, b: S.handle, c: S.handle, a_indptr: S.handle, a_indices: S.handle,
         b_indptr: S.handle, b_indices: S.handle, m: S.int32, n: S.int32, a_nnz: S.int32, b_nnz: S.int32):
    I = S.dense_fixed(m, "INDEX")
    JA = S.sparse_variable(I, (n, a_nnz), (a_indptr, a_indices), "INDEX")
    JB = S.sparse_variable(I, (n, b_nnz), (b_indptr, b_indices), "INDEX")
    JO = S.sparse_output(I, n, "INDEX")
    A = S.match_sparse_buffer(a, (I, JA), "VALUE")
    B = S.match_sparse_buffer(b, (I, JB), "VALUE")
    C = S.match_sparse_buffer(c, (I, JO), "VALUE")
    with S.sp_iter([I, S.KIND(JA, JB)], "SS", "rows") as [i, j]:
        C[i, j] = A[i, j] OPERATOR B[i, j]
"""

#: Three operands, two of them of one structure.
THREE = """
@S.prim_func
def three(a: S.handle, b: S.handle, d: S.handle, c: S.handle, a_indptr: S.handle, a_indices: S.handle,
          b_indptr: S.handle, b_indices: S.handle, m: S.int32, n: S.int32, a_nnz: S.int32, b_nnz: S.int32):
    I = S.dense_fixed(m)
    JA = S.sparse_variable(I, (n, a_nnz), (a_indptr, a_indices), "int32")
    JB = S.sparse_variable(I, (n, b_nnz), (b_indptr, b_indices), "int32")
    JO = S.sparse_output(I, n)
    A = S.match_sparse_buffer(a, (I, JA), "float64")
    D = S.match_sparse_buffer(d, (I, JA), "float64")
    B = S.match_sparse_buffer(b, (I, JB), "float64")
    C = S.match_sparse_buffer(c, (I, JO), "float64")
    with S.sp_iter([I, S.union(JA, JB)], "SS", "rows") as [i, j]:
        C[i, j] = A[i, j] * D[i, j] + B[i, j]
"""


@functools.cache
def compiled(
    kind: str = "union", workspace: str = "auto", index: str = "int32", value: str = "float64"
):
    """Compile ``a + b`` (union), ``a * b`` (intersect) or ``a * d + b`` (three)."""
    if kind == "three":
        return tvm_sparse.compile(from_source(THREE), workspace=workspace)
    text = TWO.replace("KIND", kind).replace("OPERATOR", "+" if kind == "union" else "*")
    text = text.replace("INDEX", index).replace("VALUE", value)
    return tvm_sparse.compile(from_source(text), workspace=workspace)


def random_csr(rows: int, columns: int, density: float, seed: int, dtype="float64", index="int32"):
    """Return a random CSR matrix with some empty rows, of small numbers that add up exactly."""
    rng = np.random.default_rng(seed)
    dense = rng.integers(1, 9, (rows, columns)) * (rng.random((rows, columns)) < density)
    dense[rng.random(rows) < 0.2] = 0
    made = sp.csr_matrix(dense.astype(dtype))
    made.data, made.indices, made.indptr = (
        np.array(made.data),  # no view of another array
        made.indices.astype(index),
        made.indptr.astype(index),
    )
    return made


def total(a, b) -> np.ndarray:
    return a.toarray() + b.toarray()


def call_twice():
    """Return a kernel and two matrices that it was called with twice."""
    a, b = random_csr(40, 50, 0.2, 1), random_csr(40, 50, 0.2, 2)
    kernel = compiled()
    for _ in range(2):
        assert (kernel(a=a, b=b).toarray() == total(a, b)).all()
    return kernel, a, b


def remembered(kernel, **arguments) -> bool:
    return kernel._calls.get((), arguments) is not None


def filled_row(matrix) -> int:
    """Return the first row with two entries or more."""
    return int(np.argmax(np.diff(matrix.indptr) >= 2))

"""Programs with sparse results, compiled once for each policy, and what they should compute."""

from __future__ import annotations

import functools

import numpy as np
import scipy.sparse as sp

import tvm_sparse
from tvm_sparse.script import from_source

BY_ROWS = """
@S.prim_func
def by_rows(a: S.handle, b: S.handle, c: S.handle, a_indptr: S.handle, a_indices: S.handle,
            b_indptr: S.handle, b_indices: S.handle,
            m: S.int32, k: S.int32, n: S.int32, a_nnz: S.int32, b_nnz: S.int32):
    I = S.dense_fixed(m, "INDEX")
    K = S.sparse_variable(I, (k, a_nnz), (a_indptr, a_indices), "INDEX", sorted=False, unique=False)
    K_dense = S.dense_fixed(k, "INDEX")
    J = S.sparse_variable(K_dense, (n, b_nnz), (b_indptr, b_indices), "INDEX", sorted=False, unique=False)
    JO = S.sparse_output(I, n, "INDEX")
    A = S.match_sparse_buffer(a, (I, K), "VALUE")
    B = S.match_sparse_buffer(b, (K_dense, J), "VALUE")
    C = S.match_sparse_buffer(c, (I, JO), "VALUE")
    with S.sp_iter([I, K, S.attach(J, K)], "SRS", "rows") as [i, kk, j]:
        C[i, j] = UPDATE
"""

BY_OUTER_PRODUCTS = """
@S.prim_func
def outer(a: S.handle, b: S.handle, c: S.handle, a_indptr: S.handle, a_indices: S.handle,
          b_indptr: S.handle, b_indices: S.handle,
          m: S.int32, k: S.int32, n: S.int32, a_nnz: S.int32, b_nnz: S.int32):
    K = S.dense_fixed(k)
    I = S.sparse_variable(K, (m, a_nnz), (a_indptr, a_indices), "int32")
    J = S.sparse_variable(K, (n, b_nnz), (b_indptr, b_indices), "int32")
    I_dense = S.dense_fixed(m)
    JO = S.sparse_output(I_dense, n)
    A = S.match_sparse_buffer(a, (K, I), "float64")
    B = S.match_sparse_buffer(b, (K, J), "float64")
    C = S.match_sparse_buffer(c, (I_dense, JO), "float64")
    with S.sp_iter([K, I, J], "RSS", "outer") as [kk, i, j]:
        C[i, j] = C[i, j] + A[kk, i] * B[kk, j]
"""

SUM = """
@S.prim_func
def add(a: S.handle, b: S.handle, c: S.handle, a_indptr: S.handle, a_indices: S.handle,
        b_indptr: S.handle, b_indices: S.handle, m: S.int32, n: S.int32, a_nnz: S.int32, b_nnz: S.int32):
    I = S.dense_fixed(m)
    JA = S.sparse_variable(I, (n, a_nnz), (a_indptr, a_indices), "int32")
    JB = S.sparse_variable(I, (n, b_nnz), (b_indptr, b_indices), "int32")
    JO = S.sparse_output(I, n)
    A = S.match_sparse_buffer(a, (I, JA), "float64")
    B = S.match_sparse_buffer(b, (I, JB), "float64")
    C = S.match_sparse_buffer(c, (I, JO), "float64")
    with S.sp_iter([I, JA], "SS", "first") as [i, j]:
        C[i, j] = FIRST
    with S.sp_iter([I, JB], "SS", "second") as [i, j]:
        C[i, j] = C[i, j] + B[i, j]
"""

POLICIES = ("dense", "list", "hash", "sort", "merge", "bucket")
ADD = "C[i, j] + A[i, kk] * B[kk, j]"


@functools.cache
def by_rows(policy: str, update: str = ADD, value: str = "float64", index: str = "int32"):
    """Compile the product by rows: one dimension of workspace."""
    text = BY_ROWS.replace("UPDATE", update).replace("VALUE", value).replace("INDEX", index)
    return tvm_sparse.compile(from_source(text), workspace=policy)


@functools.cache
def by_outer_products(policy: str):
    """Compile the product that takes the first operand transposed: two dimensions of workspace."""
    return tvm_sparse.compile(from_source(BY_OUTER_PRODUCTS), workspace=policy)


@functools.cache
def total(policy: str, first: str = "C[i, j] + A[i, j]"):
    """Compile the sum of two matrices."""
    return tvm_sparse.compile(from_source(SUM.replace("FIRST", first)), workspace=policy)


def terms(a: sp.csr_matrix, b: sp.csr_matrix, multiply=np.multiply) -> tuple[np.ndarray, ...]:
    """Return row, column and value of every term of a product, in the order of its loops by rows."""
    row = np.repeat(np.arange(a.shape[0]), np.diff(a.indptr))
    each = np.diff(b.indptr)[a.indices]
    offset = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
    at = np.repeat(b.indptr[:-1][a.indices], each) + offset
    return np.repeat(row, each), b.indices[at], multiply(np.repeat(a.data, each), b.data[at])


def combined(
    row: np.ndarray, column: np.ndarray, value: np.ndarray, shape: tuple[int, int], ufunc=np.add
) -> sp.csr_matrix:
    """Combine terms of one place, one after another; places whose terms cancel stay."""
    keys, place = np.unique(row.astype(np.int64) * shape[1] + column, return_inverse=True)
    start = {np.add: 0, np.maximum: -np.inf, np.minimum: np.inf, np.multiply: 1}[ufunc]
    data = np.full(keys.size, start, np.float64)
    with np.errstate(invalid="ignore"):
        ufunc.at(data, place, value)
    counts = (
        np.bincount(keys // shape[1], minlength=shape[0]) if keys.size else np.zeros(shape[0], int)
    )
    return sp.csr_matrix((data, keys % shape[1], np.append(0, np.cumsum(counts))), shape=shape)


def product(a: sp.csr_matrix, b: sp.csr_matrix) -> sp.csr_matrix:
    """Return what a product should be, with structural zeros."""
    return combined(*terms(a, b), (a.shape[0], b.shape[1]))


def check(found: sp.csr_matrix, expected: sp.csr_matrix, rtol: float = 1e-12) -> None:
    """Compare structure exactly and values within rounding."""
    np.testing.assert_array_equal(found.indptr, expected.indptr)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_allclose(found.data.astype("float64"), expected.data, rtol=rtol, atol=rtol)


def sparse(rows: int, columns: int, entries: int, seed: int = 0) -> sp.csr_matrix:
    """A random matrix without repeated places, float64; some rows are empty."""
    rng = np.random.default_rng(seed)
    places = np.unique(rng.integers(0, max(1, rows * columns), entries if rows * columns else 0))
    values = rng.standard_normal(places.size)
    coordinates = (places // max(1, columns), places % max(1, columns))
    matrix = sp.csr_matrix((values, coordinates), shape=(rows, columns))
    matrix.sort_indices()
    return matrix

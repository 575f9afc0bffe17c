"""Programs with sparse results, compiled once for each policy, and what they should compute."""

from __future__ import annotations

BY_ROWS = """
@S.prim_func
def by_rows(a: S.handle, b: S.handle, c: S.handle, a_indptr: S.handle, a_indices: S.handle,
            b_indptr: S.handle, b_indices: S.handle,
            m: S.int32, k: S.int32, n: S.int32, a_nnz: S.int32, b_nnz: S.int32):
    I = S.dense_fixed(m, "{index}")
    K = S.sparse_variable(I, (k, a_nnz), (a_indptr, a_indices), "{index}", sorted=False)
    K_dense = S.dense_fixed(k, "{index}")
    J = S.sparse_variable(K_dense, (n, b_nnz), (b_indptr, b_indices), "{index}", sorted=False)
    JO = S.sparse_output(I, n, "{index}")
    A = S.match_sparse_buffer(a, (I, K), "{value}")
    B = S.match_sparse_buffer(b, (K_dense, J), "{value}")
    C = S.match_sparse_buffer(c, (I, JO), "{value}")
    with S.sp_iter([I, K, S.attach(J, K)], "SRS", "rows") as [i, kk, j]:
        C[i, j] = {update}
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

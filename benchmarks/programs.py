"""Programs with sparse results that the benchmarks compile."""

from __future__ import annotations

from functools import cache

from tvm.script import sparse as S

import tvm_sparse
from tvm_sparse.runtime.sparse_results import SparseResultKernel

__all__ = ["product", "total"]


@cache
def product(workspace: str = "auto") -> SparseResultKernel:
    """``C = A B`` row by row, all in CSR."""

    @S.prim_func
    def spgemm(
        a: S.handle,
        b: S.handle,
        c: S.handle,
        a_indptr: S.handle,
        a_indices: S.handle,
        b_indptr: S.handle,
        b_indices: S.handle,
        m: S.int32,
        k: S.int32,
        n: S.int32,
        a_nnz: S.int32,
        b_nnz: S.int32,
    ):
        I = S.dense_fixed(m)
        K = S.sparse_variable(I, (k, a_nnz), (a_indptr, a_indices), "int32")
        Kd = S.dense_fixed(k)
        J = S.sparse_variable(Kd, (n, b_nnz), (b_indptr, b_indices), "int32")
        JO = S.sparse_output(I, n)
        A = S.match_sparse_buffer(a, (I, K), "float32")
        B = S.match_sparse_buffer(b, (Kd, J), "float32")
        C = S.match_sparse_buffer(c, (I, JO), "float32")
        with S.sp_iter([I, K, S.attach(J, K)], "SRS", "spgemm") as [i, k_, j]:
            with S.init():
                C[i, j] = S.float32(0)
            C[i, j] = C[i, j] + A[i, k_] * B[k_, j]

    return tvm_sparse.compile(spgemm, workspace=workspace)


@cache
def total(workspace: str = "auto") -> SparseResultKernel:
    """``C = A + B``, all in CSR."""

    @S.prim_func
    def add(
        a: S.handle,
        b: S.handle,
        c: S.handle,
        a_indptr: S.handle,
        a_indices: S.handle,
        b_indptr: S.handle,
        b_indices: S.handle,
        m: S.int32,
        n: S.int32,
        a_nnz: S.int32,
        b_nnz: S.int32,
    ):
        I = S.dense_fixed(m)
        JA = S.sparse_variable(I, (n, a_nnz), (a_indptr, a_indices), "int32")
        JB = S.sparse_variable(I, (n, b_nnz), (b_indptr, b_indices), "int32")
        JO = S.sparse_output(I, n)
        A = S.match_sparse_buffer(a, (I, JA), "float32")
        B = S.match_sparse_buffer(b, (I, JB), "float32")
        C = S.match_sparse_buffer(c, (I, JO), "float32")
        with S.sp_iter([I, S.union(JA, JB)], "SS", "add") as [i, j]:
            C[i, j] = A[i, j] + B[i, j]

    return tvm_sparse.compile(add, workspace=workspace)

"""Programs with sparse results that the benchmarks compile."""

from __future__ import annotations

from functools import cache

from tvm.script import sparse as S

import tvm_sparse
from tvm_sparse.runtime.sparse_results import SparseResultKernel
from tvm_sparse.script import from_source

__all__ = ["outer_product", "product", "total"]


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
def outer_product(workspace: str = "auto") -> SparseResultKernel:
    """``C = A^T B`` by outer products of rows: a workspace of two dimensions."""

    @S.prim_func
    def outer(
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
        K = S.dense_fixed(k)
        I = S.sparse_variable(K, (m, a_nnz), (a_indptr, a_indices), "int32")
        J = S.sparse_variable(K, (n, b_nnz), (b_indptr, b_indices), "int32")
        Id = S.dense_fixed(m)
        JO = S.sparse_output(Id, n)
        A = S.match_sparse_buffer(a, (K, I), "float32")
        B = S.match_sparse_buffer(b, (K, J), "float32")
        C = S.match_sparse_buffer(c, (Id, JO), "float32")
        with S.sp_iter([K, I, J], "RSS", "outer") as [k_, i, j]:
            C[i, j] = C[i, j] + A[k_, i] * B[k_, j]

    return tvm_sparse.compile(outer, workspace=workspace)


@cache
def total(workspace: str = "auto", operands: int = 2) -> SparseResultKernel:
    """``A + B``, or the sum of more matrices ``a``, ``b``, ``c``, ..., all in CSR."""
    names = "abcdefgh"[:operands]
    arrays = "".join(f"{x}: S.handle, {x}_indptr: S.handle, {x}_indices: S.handle, " for x in names)
    sizes = "".join(f", {x}_nnz: S.int32" for x in names)
    lines = [
        "@S.prim_func",
        f"def total({arrays}result: S.handle, m: S.int32, n: S.int32{sizes}):",
        "    I = S.dense_fixed(m)",
        "    JO = S.sparse_output(I, n)",
        '    R = S.match_sparse_buffer(result, (I, JO), "float32")',
    ]
    for x in names:
        lines += [
            f'    J{x} = S.sparse_variable(I, (n, {x}_nnz), ({x}_indptr, {x}_indices), "int32")',
            f'    X{x} = S.match_sparse_buffer({x}, (I, J{x}), "float32")',
        ]
    axes = ", ".join(f"J{x}" for x in names)
    lines += [
        f'    with S.sp_iter([I, S.union({axes})], "SS", "add") as [i, j]:',
        f"        R[i, j] = {' + '.join(f'X{x}[i, j]' for x in names)}",
    ]
    return tvm_sparse.compile(from_source("\n".join(lines) + "\n"), workspace=workspace)

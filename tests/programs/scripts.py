"""The nineteen programs that SparseTIR tests itself with, written in this dialect.

Each is the text of one function. ``{sizes}`` stands for its scalar parameters, so that one text
serves symbolic sizes (they are parameters) and literal ones (they are numbers); ``idx`` is the
index dtype.
"""

from __future__ import annotations

from tvm_sparse.ir import SparseFunc
from tvm_sparse.script import from_source

__all__ = ["PROGRAMS", "SIZES", "parse"]


def parse(
    name: str,
    index: str = "int32",
    literal: dict[str, int] | None = None,
    size: str = "int32",
    text: str | None = None,
) -> SparseFunc:
    """Parse a program with index dtype ``index``; ``literal`` writes its sizes as numbers."""
    text = PROGRAMS[name] if text is None else text
    sizes = "" if literal else ", ".join(f"{s}: T.{size}" for s in SIZES[name].split())
    return from_source(text.replace("{sizes}", sizes), {"idx": index, **(literal or {})})


#: Scalar parameters of every program, in order.
SIZES = {
    "csrmm": "m n f nnz",
    "csrmm_dense_iter": "m n f nnz",
    "segment_reduce": "n width nnz",
    "csr_reduce": "n m nnz",
    "bsrmm": "nb mb nnzb blk f",
    "ellmm": "nb mb f col blk",
    "csr_element_wise": "m n nnz",
    "hyper_gnn": "n m nnz f",
    "bmm": "batch width nnz_i nnz_j nnz_k nnz_ij nnz_jk nnz_ik",
    "sddmm": "m n f nnz",
    "fused_sddmm": "m n f nnz",
    "square_sum": "m n1 n2 nnz_j nnz_k",
    "square_sum_two_K": "m n1 n2 nnz_j nnz_k0 nnz_k1",
    "fused_reduction_4d_2d": "n width nnz_j nnz_k nnz_l",
    "fused_reduction_4d_3d": "n width nnz_j nnz_k nnz_l",
    "rgcn_homo": "m n r f nnz",
    "rgcn_hetero": "m n r f nnz_i nnz_j",
    "sparse_softmax": "n nnz",
    "csr2bsr": "m n mb nb nnz nnzb blk",
}

PROGRAMS = {
    "csrmm": """
@S.prim_func
def csrmm(a: T.handle, b: T.handle, c: T.handle, indptr: T.handle, indices: T.handle, {sizes}):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), idx)
    Jd = S.dense_fixed(n)
    F = S.dense_fixed(f)
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (Jd, F), "float32")
    C = S.match_sparse_buffer(c, (I, F), "float32")
    with S.sp_iter([I, J, F], "SRS", "csrmm") as [i, j, k]:
        with T.init():
            C[i, k] = T.float32(0)
        C[i, k] = C[i, k] + A[i, j] * B[j, k]
""",
    "csrmm_dense_iter": """
@S.prim_func
def csrmm_dense_iter(
    a: T.handle, b: T.handle, c: T.handle, indptr: T.handle, indices: T.handle, {sizes}
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), idx)
    Jd = S.dense_fixed(n)
    F = S.dense_fixed(f)
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (Jd, F), "float32")
    C = S.match_sparse_buffer(c, (I, F), "float32")
    with S.sp_iter([I, Jd, F], "SRS", "csrmm") as [i, j, k]:
        with T.init():
            C[i, k] = T.float32(0)
        C[i, k] = C[i, k] + A[i, j] * B[j, k]
""",
    "segment_reduce": """
@S.prim_func
def segment_reduce(a: T.handle, b: T.handle, indptr: T.handle, {sizes}):
    I = S.dense_fixed(n)
    J = S.dense_variable(I, (width, nnz), indptr, idx)
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I, J], "SR", "segment_reduce") as [i, j]:
        with T.init():
            B[i] = T.float32(0)
        B[i] = B[i] + A[i, j]
""",
    "csr_reduce": """
@S.prim_func
def csr_reduce(a: T.handle, b: T.handle, indptr: T.handle, indices: T.handle, {sizes}):
    I = S.dense_fixed(n)
    J = S.sparse_variable(I, (m, nnz), (indptr, indices), idx)
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I, J], "SR", "csr_reduce") as [i, j]:
        with T.init():
            B[i] = T.float32(0)
        B[i] = B[i] + A[i, j]
""",
    "bsrmm": """
@S.prim_func
def bsrmm(a: T.handle, b: T.handle, c: T.handle, indptr: T.handle, indices: T.handle, {sizes}):
    I = S.dense_fixed(nb)
    J = S.sparse_variable(I, (mb, nnzb), (indptr, indices), idx)
    Jd = S.dense_fixed(mb)
    BI = S.dense_fixed(blk)
    BJ = S.dense_fixed(blk)
    F = S.dense_fixed(f)
    A = S.match_sparse_buffer(a, (I, J, BI, BJ), "float32")
    B = S.match_sparse_buffer(b, (Jd, BJ, F), "float32")
    C = S.match_sparse_buffer(c, (I, BI, F), "float32")
    with S.sp_iter([I, BI, BJ, F, J], "SSRSR", "bsrmm") as [i, bi, bj, k, j]:
        with T.init():
            C[i, bi, k] = T.float32(0)
        C[i, bi, k] = C[i, bi, k] + A[i, j, bi, bj] * B[j, bj, k]
""",
    "ellmm": """
@S.prim_func
def ellmm(a: T.handle, b: T.handle, c: T.handle, indices: T.handle, {sizes}):
    I = S.dense_fixed(nb)
    J = S.sparse_fixed(I, (mb, col), indices, idx)
    Jd = S.dense_fixed(mb)
    F = S.dense_fixed(f)
    BI = S.dense_fixed(blk)
    BJ = S.dense_fixed(blk)
    A = S.match_sparse_buffer(a, (I, J, BI, BJ), "float32")
    B = S.match_sparse_buffer(b, (Jd, BJ, F), "float32")
    C = S.match_sparse_buffer(c, (I, BI, F), "float32")
    with S.sp_iter([I, J, BI, BJ, F], "SRSRS", "ellmm") as [i, j, bi, bj, k]:
        with T.init():
            C[i, bi, k] = T.float32(0)
        C[i, bi, k] = C[i, bi, k] + A[i, j, bi, bj] * B[j, bj, k]
""",
    "csr_element_wise": """
@S.prim_func
def csr_element_wise(a: T.handle, b: T.handle, indptr: T.handle, indices: T.handle, {sizes}):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), idx)
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (I, J), "float32")
    with S.sp_iter([I, J], "SS", "csr_element_wise") as [i, j]:
        B[i, j] = A[i, j] * T.float32(2.5)
""",
    # Vertices of a hyperedge, reached through the edges of a vertex.
    "hyper_gnn": """
@S.prim_func
def hyper_gnn(
    x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle,
    indptr_t: T.handle, indices_t: T.handle, {sizes}
):
    I = S.dense_fixed(n)
    F = S.dense_fixed(f)
    J = S.sparse_variable(I, (m, nnz), (indptr, indices), idx)
    Jd = S.dense_fixed(m)
    It = S.sparse_variable(Jd, (n, nnz), (indptr_t, indices_t), idx)
    X = S.match_sparse_buffer(x, (I, F), "float32")
    Y = S.match_sparse_buffer(y, (I, F), "float32")
    with S.sp_iter([I, F, J, S.attach(It, J)], "SSRR", "hyper_gnn") as [i, k, j, v]:
        with T.init():
            Y[i, k] = T.float32(0)
        Y[i, k] = Y[i, k] + X[v, k]
""",
    # Ragged matrix products: batch b multiplies (I_b, J_b) by (J_b, K_b). The columns of X are an
    # axis under its rows, not a sibling of them.
    "bmm": """
@S.prim_func
def bmm(
    x: T.handle, y: T.handle, z: T.handle, indptr_i: T.handle, indptr_j: T.handle,
    indptr_k: T.handle, indptr_ij: T.handle, indptr_jk: T.handle, indptr_ik: T.handle, {sizes}
):
    B = S.dense_fixed(batch)
    I = S.dense_variable(B, (width, nnz_i), indptr_i, idx)
    J = S.dense_variable(B, (width, nnz_j), indptr_j, idx)
    K = S.dense_variable(B, (width, nnz_k), indptr_k, idx)
    IJ = S.dense_variable(I, (width, nnz_ij), indptr_ij, idx)
    JK = S.dense_variable(J, (width, nnz_jk), indptr_jk, idx)
    IK = S.dense_variable(I, (width, nnz_ik), indptr_ik, idx)
    X = S.match_sparse_buffer(x, (B, I, IJ), "float32")
    Y = S.match_sparse_buffer(y, (B, J, JK), "float32")
    Z = S.match_sparse_buffer(z, (B, I, IK), "float32")
    with S.sp_iter([B, I, J, K], "SSRS", "bmm") as [b, i, j, k]:
        with T.init():
            Z[b, i, k] = T.float32(0)
        Z[b, i, k] = Z[b, i, k] + X[b, i, j] * Y[b, j, k]
""",
    "sddmm": """
@S.prim_func
def sddmm(a: T.handle, b: T.handle, c: T.handle, indptr: T.handle, indices: T.handle, {sizes}):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), idx)
    Jd = S.dense_fixed(n)
    K = S.dense_fixed(f)
    A = S.match_sparse_buffer(a, (I, K), "float32")
    B = S.match_sparse_buffer(b, (Jd, K), "float32")
    C = S.match_sparse_buffer(c, (I, J), "float32")
    with S.sp_iter([I, J, K], "SSR", "sddmm") as [i, j, k]:
        with T.init():
            C[i, j] = T.float32(0)
        C[i, j] = C[i, j] + A[i, k] * B[j, k]
""",
    "fused_sddmm": """
@S.prim_func
def fused_sddmm(
    a: T.handle, b: T.handle, c: T.handle, indptr: T.handle, indices: T.handle, {sizes}
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), idx)
    Jd = S.dense_fixed(n)
    K = S.dense_fixed(f)
    A = S.match_sparse_buffer(a, (I, K), "float32")
    B = S.match_sparse_buffer(b, (Jd, K), "float32")
    C = S.match_sparse_buffer(c, (I, J), "float32")
    with S.sp_iter([S.fuse(I, J), K], "SSR", "sddmm") as [i, j, k]:
        with T.init():
            C[i, j] = T.float32(0)
        C[i, j] = C[i, j] + A[i, k] * B[j, k]
""",
    "square_sum": """
@S.prim_func
def square_sum(
    a: T.handle, b: T.handle, indptr_j: T.handle, indices_j: T.handle,
    indptr_k: T.handle, indices_k: T.handle, {sizes}
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n1, nnz_j), (indptr_j, indices_j), idx)
    K = S.sparse_variable(J, (n2, nnz_k), (indptr_k, indices_k), idx)
    A = S.match_sparse_buffer(a, (I, J, K), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I, J, K], "SRR", "square_sum") as [i, j, k]:
        with T.init():
            B[i] = T.float32(0)
        B[i] = B[i] + A[i, j, k]
""",
    # Walks one structure and reads another one: entries that K0 lacks count as zero.
    "square_sum_two_K": """
@S.prim_func
def square_sum_two_K(
    a: T.handle, b: T.handle, indptr_j: T.handle, indices_j: T.handle, indptr_k0: T.handle,
    indices_k0: T.handle, indptr_k1: T.handle, indices_k1: T.handle, {sizes}
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n1, nnz_j), (indptr_j, indices_j), idx)
    K0 = S.sparse_variable(J, (n2, nnz_k0), (indptr_k0, indices_k0), idx)
    K1 = S.sparse_variable(J, (n2, nnz_k1), (indptr_k1, indices_k1), idx)
    A = S.match_sparse_buffer(a, (I, J, K0), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I, J, K1], "SRR", "square_sum") as [i, j, k]:
        with T.init():
            B[i] = T.float32(0)
        B[i] = B[i] + A[i, j, k]
""",
    "fused_reduction_4d_2d": """
@S.prim_func
def fused_reduction_4d_2d(
    x: T.handle, y: T.handle, indptr_j: T.handle, indptr_k: T.handle, indptr_l: T.handle, {sizes}
):
    I = S.dense_fixed(n)
    J = S.dense_variable(I, (width, nnz_j), indptr_j, idx)
    K = S.dense_variable(J, (width, nnz_k), indptr_k, idx)
    L = S.dense_variable(K, (width, nnz_l), indptr_l, idx)
    X = S.match_sparse_buffer(x, (I, J, K, L), "float32")
    Y = S.match_sparse_buffer(y, (I, J), "float32")
    with S.sp_iter([S.fuse(I, J), K, L], "SSRR", "reduction_4d_2d") as [i, j, k, l]:
        with T.init():
            Y[i, j] = T.float32(0)
        Y[i, j] = Y[i, j] + X[i, j, k, l]
""",
    "fused_reduction_4d_3d": """
@S.prim_func
def fused_reduction_4d_3d(
    x: T.handle, y: T.handle, indptr_j: T.handle, indptr_k: T.handle, indptr_l: T.handle, {sizes}
):
    I = S.dense_fixed(n)
    J = S.dense_variable(I, (width, nnz_j), indptr_j, idx)
    K = S.dense_variable(J, (width, nnz_k), indptr_k, idx)
    L = S.dense_variable(K, (width, nnz_l), indptr_l, idx)
    X = S.match_sparse_buffer(x, (I, J, K, L), "float32")
    Y = S.match_sparse_buffer(y, (I, J, K), "float32")
    with S.sp_iter([S.fuse(I, J, K), L], "SSSR", "reduction_4d_3d") as [i, j, k, l]:
        with T.init():
            Y[i, j, k] = T.float32(0)
        Y[i, j, k] = Y[i, j, k] + X[i, j, k, l]
""",
    "rgcn_homo": """
@S.prim_func
def rgcn_homo(
    etype: T.handle, w: T.handle, x: T.handle, y: T.handle,
    indptr: T.handle, indices: T.handle, {sizes}
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), idx)
    Jd = S.dense_fixed(n)
    R = S.dense_fixed(r)
    Fi = S.dense_fixed(f)
    Fo = S.dense_fixed(f)
    E = S.match_sparse_buffer(etype, (I, J), "int32")
    W = S.match_sparse_buffer(w, (R, Fo, Fi), "float32")
    X = S.match_sparse_buffer(x, (Jd, Fi), "float32")
    Y = S.match_sparse_buffer(y, (I, Fo), "float32")
    with S.sp_iter([I, Fo, J, Fi], "SSRR", "rgcn_homo") as [i, fo, j, fi]:
        with T.init():
            Y[i, fo] = T.float32(0)
        Y[i, fo] = Y[i, fo] + W[E[i, j], fo, fi] * X[j, fi]
""",
    # Y is indexed by rows and not by relations, so relations are a reduction.
    "rgcn_hetero": """
@S.prim_func
def rgcn_hetero(
    a: T.handle, w: T.handle, x: T.handle, y: T.handle, indptr_i: T.handle, indices_i: T.handle,
    indptr_j: T.handle, indices_j: T.handle, {sizes}
):
    R = S.dense_fixed(r)
    I = S.sparse_variable(R, (m, nnz_i), (indptr_i, indices_i), idx)
    J = S.sparse_variable(I, (n, nnz_j), (indptr_j, indices_j), idx)
    Id = S.dense_fixed(m)
    Jd = S.dense_fixed(n)
    Fi = S.dense_fixed(f)
    Fo = S.dense_fixed(f)
    A = S.match_sparse_buffer(a, (R, I, J), "float32")
    W = S.match_sparse_buffer(w, (R, Fo, Fi), "float32")
    X = S.match_sparse_buffer(x, (Jd, Fi), "float32")
    Y = S.match_sparse_buffer(y, (Id, Fo), "float32")
    with S.sp_iter([Fo, R, I, J, Fi], "SRSRR", "rgcn_hetero") as [fo, rel, i, j, fi]:
        with T.init():
            Y[i, fo] = T.float32(0)
        Y[i, fo] = Y[i, fo] + A[rel, i, j] * W[rel, fo, fi] * X[j, fi]
""",
    "sparse_softmax": """
@S.prim_func
def sparse_softmax(a: T.handle, b: T.handle, indptr: T.handle, indices: T.handle, {sizes}):
    I = S.dense_fixed(n)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), idx)
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (I, J), "float32")
    peak = S.alloc_sparse_buffer((I,), "float32")
    total = S.alloc_sparse_buffer((I,), "float32")
    with S.sp_iter([I], "S", "sparse_softmax") as [i]:
        with S.sp_iter([J], "R", "row_max") as [j]:
            with T.init():
                peak[i] = T.min_value("float32")
            peak[i] = T.max(peak[i], A[i, j])
        with S.sp_iter([J], "R", "exp_sum") as [j]:
            with T.init():
                total[i] = T.float32(0)
            total[i] = total[i] + T.exp(A[i, j] - peak[i])
        with S.sp_iter([J], "S", "divide") as [j]:
            B[i, j] = T.exp(A[i, j] - peak[i]) / total[i]
""",
    "csr2bsr": """
@S.prim_func
def csr2bsr(
    a: T.handle, b: T.handle, indptr: T.handle, indices: T.handle,
    block_indptr: T.handle, block_indices: T.handle, {sizes}
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), idx)
    Ib = S.dense_fixed(mb)
    Jb = S.sparse_variable(Ib, (nb, nnzb), (block_indptr, block_indices), idx)
    BI = S.dense_fixed(blk)
    BJ = S.dense_fixed(blk)
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (Ib, Jb, BI, BJ), "float32")
    with S.sp_iter([I, J], "SS", "csr2bsr") as [i, j]:
        B[i // blk, j // blk, i % blk, j % blk] = A[i, j]
""",
}

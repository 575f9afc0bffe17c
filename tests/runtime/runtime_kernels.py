"""Hand-written kernels of every argument kind, with the metadata that the compiler would give."""

import tvm
from tvm.script import tirx as T

from tvm_sparse.runtime import Executable, add_launcher_entry


@T.prim_func(s_tir=True)
def spmm_kernel(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    f: T.int32,
    nnz: T.int32,
):
    T.func_attr({"tir.noalias": True})
    A = T.match_buffer(a, (nnz,), "float32", align=4)
    B = T.match_buffer(b, (n, f), "float32", align=4)
    C = T.match_buffer(c, (m, f), "float32", align=4)
    P = T.match_buffer(indptr, (m + 1,), "int32", align=4)
    J = T.match_buffer(indices, (nnz,), "int32", align=4)
    for i in T.parallel(m):
        with T.sblock("row"):
            vi = T.axis.spatial(m, i)
            for k in range(f):
                C[vi, k] = T.float32(0)
            for j in range(P[vi + 1] - P[vi]):
                for k in range(f):
                    C[vi, k] = C[vi, k] + A[P[vi] + j] * B[J[P[vi] + j], k]


@T.prim_func(s_tir=True)
def wide_spmv_kernel(
    a: T.handle,
    x: T.handle,
    y: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int64,
    n: T.int64,
    nnz: T.int64,
):
    T.func_attr({"tir.noalias": True})
    A = T.match_buffer(a, (nnz,), "float64", align=8)
    X = T.match_buffer(x, (n,), "float64", align=8)
    Y = T.match_buffer(y, (m,), "float64", align=8)
    P = T.match_buffer(indptr, (m + T.int64(1),), "int64", align=8)
    J = T.match_buffer(indices, (nnz,), "int64", align=8)
    for i in range(m):
        with T.sblock("row"):
            vi = T.axis.spatial(m, i)
            Y[vi] = T.float64(0)
            for j in range(P[vi + T.int64(1)] - P[vi]):
                Y[vi] = Y[vi] + A[P[vi] + j] * X[J[P[vi] + j]]


@T.prim_func(s_tir=True)
def sddmm_kernel(
    x: T.handle,
    y: T.handle,
    c: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    f: T.int32,
    nnz: T.int32,
):
    T.func_attr({"tir.noalias": True})
    X = T.match_buffer(x, (m, f), "float32", align=4)
    Y = T.match_buffer(y, (n, f), "float32", align=4)
    C = T.match_buffer(c, (nnz,), "float32", align=4)
    P = T.match_buffer(indptr, (m + 1,), "int32", align=4)
    J = T.match_buffer(indices, (nnz,), "int32", align=4)
    for i in T.parallel(m):
        with T.sblock("row"):
            vi = T.axis.spatial(m, i)
            for j in range(P[vi + 1] - P[vi]):
                C[P[vi] + j] = T.float32(0)
                for k in range(f):
                    C[P[vi] + j] = C[P[vi] + j] + X[vi, k] * Y[J[P[vi] + j], k]


@T.prim_func(s_tir=True)
def double_bf16_kernel(x: T.handle, y: T.handle, n: T.int32):
    X = T.match_buffer(x, (n,), "bfloat16", align=2)
    Y = T.match_buffer(y, (n,), "bfloat16", align=2)
    for i in range(n):
        with T.sblock("entry"):
            vi = T.axis.spatial(n, i)
            Y[vi] = T.Cast("bfloat16", T.Cast("float32", X[vi]) * T.float32(2))


@T.prim_func(s_tir=True)
def select_kernel(x: T.handle, mask: T.handle, y: T.handle, n: T.int32, scale: T.float32):
    X = T.match_buffer(x, (n,), "float32", align=4)
    M = T.match_buffer(mask, (n,), "bool", align=1)
    Y = T.match_buffer(y, (n,), "float32", align=4)
    for i in range(n):
        with T.sblock("entry"):
            vi = T.axis.spatial(n, i)
            Y[vi] = T.if_then_else(M[vi], X[vi] * scale, T.float32(0))


def buffer(name, dtype, shape, role="input", axes=(), **extra):
    """Metadata of a buffer parameter whose TIR buffer has the upper-case name."""
    return {
        "name": name,
        "kind": "buffer",
        "buffer": name.upper(),
        "dtype": dtype,
        "shape": list(shape),
        "role": role,
        "axes": list(axes),
        **extra,
    }


def scalar(name, dtype="int32"):
    """Metadata of a scalar parameter."""
    return {"name": name, "kind": "scalar", "dtype": dtype}


def structure(index_dtype):
    """Metadata of the index parameters of a CSR axis J under I."""
    return [
        buffer("indptr", index_dtype, ["m + 1"], index_of="J", index_kind="indptr"),
        buffer("indices", index_dtype, ["nnz"], index_of="J", index_kind="indices"),
    ]


def csr_axes(index_dtype, sorted=True, unique=True):
    """Metadata of the axes I, J of a CSR matrix, and dense ones of the same lengths."""
    return [
        {"name": "I", "kind": "dense_fixed", "length": "m"},
        {
            "name": "J",
            "kind": "sparse_variable",
            "parent": "I",
            "length": "n",
            "nnz": "nnz",
            "indptr": "indptr",
            "indices": "indices",
            "sorted": sorted,
            "unique": unique,
            "dtype": index_dtype,
        },
        {"name": "Jd", "kind": "dense_fixed", "length": "n"},
        {"name": "F", "kind": "dense_fixed", "length": "f"},
    ]


SPMM = {
    "args": [
        buffer("a", "float32", ["nnz"], axes=["I", "J"]),
        buffer("b", "float32", ["n", "f"], axes=["Jd", "F"]),
        buffer("c", "float32", ["m", "f"], "output", axes=["I", "F"]),
        *structure("int32"),
        *map(scalar, ("m", "n", "f", "nnz")),
    ],
    "axes": csr_axes("int32"),
}
WIDE_SPMV = {
    "args": [
        buffer("a", "float64", ["nnz"], axes=["I", "J"]),
        buffer("x", "float64", ["n"], axes=["Jd"]),
        buffer("y", "float64", ["m"], "output", axes=["I"]),
        *structure("int64"),
        *(scalar(name, "int64") for name in ("m", "n", "nnz")),
    ],
    "axes": csr_axes("int64"),
}
SDDMM = {
    "args": [
        buffer("x", "float32", ["m", "f"], axes=["I", "F"]),
        buffer("y", "float32", ["n", "f"], axes=["Jd", "F"]),
        buffer("c", "float32", ["nnz"], "output", axes=["I", "J"]),
        *structure("int32"),
        *map(scalar, ("m", "n", "f", "nnz")),
    ],
    "axes": csr_axes("int32"),
}
DOUBLE = {
    "args": [
        buffer("x", "bfloat16", ["n"]),
        buffer("y", "bfloat16", ["n"], "output"),
        scalar("n"),
    ],
    "axes": [],
}
SELECT = {
    "args": [
        buffer("x", "float32", ["n"]),
        buffer("mask", "bool", ["n"]),
        buffer("y", "float32", ["n"], "output"),
        scalar("n"),
        scalar("scale", "float32"),
    ],
    "axes": [],
}


def build(kernels, target="llvm", cpu_features=()):
    """Compile ``{name: (PrimFunc, metadata)}`` as `tvm_sparse.compile` does."""
    module = tvm.IRModule(
        {name: func.with_attr("global_symbol", name) for name, (func, _) in kernels.items()}
    )
    metadata = {
        "version": 1,
        "functions": {name: function for name, (_, function) in kernels.items()},
        "target": {"kind": "llvm"},
        "cpu_features": list(cpu_features),
    }
    return Executable(tvm.compile(add_launcher_entry(module), target=target), metadata)

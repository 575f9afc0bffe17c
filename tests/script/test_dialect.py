"""The dialect: S holds T, modules of both kinds, SparseTIR's spelling, round trips."""

import numpy as np
import pytest
import scipy.sparse as sp
import tvm
import tvm_ffi

import tvm_sparse
from tvm_sparse import schedules
from tvm_sparse.ir import SparseFunc
from tvm_sparse.script import from_source
from tvm_sparse.script.printer import print_module

# isort: split
from tvm.script import ir as I_
from tvm.script import sparse as S
from tvm.script import tirx as T


def test_S_holds_everything_that_T_holds():
    missing = [name for name in dir(T) if not name.startswith("_") and not hasattr(S, name)]
    assert not missing


def test_a_module_holds_sparse_and_stock_functions():
    @I_.ir_module
    class Module:
        @S.prim_func
        def scale(a: S.handle, b: S.handle, n: S.int32):
            I = S.dense_fixed(n)
            A = S.match_sparse_buffer(a, (I,), "float32")
            B = S.match_sparse_buffer(b, (I,), "float32")
            with S.sp_iter([I], "S", "scale") as [i]:
                B[i] = A[i] * 2.5

        @T.prim_func(s_tir=True)
        def ones(A: T.Buffer((4,), "float32")):
            for i in range(4):
                with T.sblock("ones"):
                    vi = T.axis.spatial(4, i)
                    A[vi] = T.float32(1)

    assert isinstance(Module["scale"], SparseFunc)
    assert isinstance(Module["ones"], tvm.tirx.PrimFunc)
    executable = tvm_sparse.compile(Module)
    x = np.arange(5, dtype=np.float32)
    assert np.array_equal(executable["scale"](a=x), 2.5 * x)
    filled = np.full(4, np.nan, np.float32)
    executable["ones"](filled)
    assert np.array_equal(filled, np.ones(4))
    text = print_module(Module)
    again = from_source(text)
    assert tvm_ffi.structural_equal(again["scale"], Module["scale"])


def test_a_sparse_tir_program_runs_after_changing_import_and_decorator():
    from tvm.script import sparse as T  # the import that SparseTIR programs change

    @T.prim_func
    def csrmm(
        a: T.handle,
        b: T.handle,
        c: T.handle,
        indptr: T.handle,
        indices: T.handle,
        m: T.int32,
        n: T.int32,
        feat_size: T.int32,
        nnz: T.int32,
    ) -> None:
        T.func_attr({"global_symbol": "main", "tir.noalias": True, "sparse_tir_level": 2})
        I = T.dense_fixed(m)
        J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
        J_detach = T.dense_fixed(n)
        K = T.dense_fixed(feat_size)
        A = T.match_sparse_buffer(a, (I, J), "float32")
        B = T.match_sparse_buffer(b, (J_detach, K), "float32")
        C = T.match_sparse_buffer(c, (I, K), "float32")
        with T.iter([I, J, K], "SRS", "csrmm") as [i, j, k]:
            T.iter_attr({"note": 1})
            with T.init():
                C[i, k] = 0.0
            C[i, k] = C[i, k] + A[i, j] * B[j, k]

    assert "sparse_tir_level" not in dict(csrmm.attrs)
    assert dict(csrmm.body.annotations) == {"note": 1}
    a = sp.random(9, 7, 0.3, "csr", dtype=np.float32, random_state=0)
    b = np.random.default_rng(0).random((7, 4), dtype=np.float32)
    assert np.allclose(tvm_sparse.compile(csrmm)(a=a, b=b), a @ b, atol=1e-5)


ROUND_TRIPS = {
    "every axis kind, flags, defaults, index dtypes": """
@S.prim_func
def program(a: S.handle, b: S.handle, c: S.handle, p: S.handle, q: S.handle, r: S.handle,
            m: S.int64, n: S.int64, w: S.int64, nnz: S.int64):
    S.func_attr({"note": "kept", "number": 3})
    I = S.dense_fixed(m)
    J = S.dense_variable(I, (n, nnz), p, "int64")
    K = S.sparse_fixed(I, (n, w), q, "int64", sorted=False)
    L = S.sparse_variable(I, (n * 2, nnz), (p, r), "int64", unique=False)
    A = S.match_sparse_buffer(a, (I, J), "float64", default=1.5)
    B = S.match_sparse_buffer(b, (I, K), "int8", default=-1)
    C = S.match_sparse_buffer(c, (I, L), "float16")
    TMP = S.alloc_sparse_buffer((I, J), "float64", "global", default=2.0)
    with S.sp_iter([I, J], "SS", "copy") as [i, j]:
        TMP[i, j] = A[i, j] + S.float64(1)
    with S.sp_iter([I, L], "SS", "scale") as [i, l]:
        C[i, l] = S.cast(TMP[i, l], "float16") * S.cast(B[i, l], "float16")
""",
    "fuse, attach, init, conditions, annotations": """
@S.prim_func
def program(x: S.handle, y: S.handle, z: S.handle, p: S.handle, q: S.handle, pt: S.handle,
            qt: S.handle, n: S.int32, m: S.int32, nnz: S.int32):
    I = S.dense_fixed(n)
    J = S.sparse_variable(I, (m, nnz), (p, q), "int32")
    Jd = S.dense_fixed(m)
    It = S.sparse_variable(Jd, (n, nnz), (pt, qt), "int32")
    X = S.match_sparse_buffer(x, (I,), "float32")
    Y = S.match_sparse_buffer(y, (I,), "float32")
    Z = S.match_sparse_buffer(z, (I, J), "float32")
    with S.sp_iter([I, J, S.attach(It, J)], "SRR", "hyper") as [i, j, k]:
        S.sp_iter_attr({"unroll": 4, "name": "hyper"})
        with S.init():
            Y[i] = S.float32(0)
        if k > i and j != 3:
            Y[i] = Y[i] + S.exp(X[k]) * S.if_then_else(i == k, S.float32(0), X[i])
        else:
            Y[i] = S.max(Y[i], X[k])
    with S.sp_iter([S.fuse(I, J)], "SS", "edges") as [i, j]:
        Z[i, j] = X[i] - S.Select(i < j, X[i // 2], -X[i % 2])
""",
    "nested iterations and plain buffers": """
@S.prim_func
def program(a: S.handle, b: S.handle, w: S.handle, p: S.handle, q: S.handle, n: S.int32,
            nnz: S.int32):
    I = S.dense_fixed(n)
    J = S.sparse_variable(I, (n, nnz), (p, q), "int32")
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (I, J), "float32")
    W = S.match_buffer(w, (n, 4), "float32")
    TMP = S.alloc_sparse_buffer((I,), "float32")
    with S.sp_iter([I], "S", "rows") as [i]:
        with S.sp_iter([J], "R", "largest") as [j]:
            with S.init():
                TMP[i] = S.min_value("float32")
            TMP[i] = S.max(TMP[i], A[i, j])
        with S.sp_iter([J], "S", "shift") as [j]:
            B[i, j] = A[i, j] - TMP[i] + W[j, 2]
""",
}


@pytest.mark.parametrize("case", ROUND_TRIPS)
def test_printing_and_parsing_gives_an_equal_function(case):
    program = from_source(ROUND_TRIPS[case])
    again = from_source(program.script())
    assert tvm_ffi.structural_equal(program, again), program.script()
    assert again.script() == program.script()
    assert again.arg_names == program.arg_names


@pytest.mark.parametrize("operator", ["spmm", "spmv", "sddmm", "segment_reduce"])
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_operator_programs_round_trip(operator, index_dtype):
    program = getattr(schedules, operator).program(index_dtype=index_dtype)
    assert tvm_ffi.structural_equal(from_source(program.script()), program)


@pytest.mark.parametrize("operation", schedules.segment_reduce.OPERATIONS)
def test_programs_that_read_an_index_array_round_trip(operation):
    program = schedules.segment_reduce.program(operation)
    assert tvm_ffi.structural_equal(from_source(program.script()), program), program.script()


def test_source_spans_are_kept():
    program = from_source(ROUND_TRIPS["nested iterations and plain buffers"])
    lines = []
    tvm_ffi.structural_walk(
        program.body, [(tvm.tirx.BufferStore, lambda s: lines.append(s.span.line))]
    )
    assert sorted(lines) == [14, 15, 17]


def test_use_outside_of_a_function_is_refused():
    with pytest.raises(tvm_sparse.SparseProgramError, match=r"inside an @S\.prim_func"):
        S.dense_fixed(4)

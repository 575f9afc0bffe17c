"""Kernels that TVM generates for scheduled programs, run under the emulator against float64 references."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import tvm
from tvm.s_tir import Schedule
from tvm.script import tirx as T

from tests.cuda.emulation import EmulationError, compiler, emulated, emulated_source, running_order
from tests.cuda.test_fused_kernels import hyb_module
from tests.execution import lower
from tests.programs.merged import program as merged_program
from tvm_sparse import schedules
from tvm_sparse.formats import Hyb
from tvm_sparse.script import from_source

# Sparse kernels.


def uneven(rows: int, columns: int, dtype: str = "float32") -> sp.csr_matrix:
    """Return a matrix with empty rows and one long row."""
    dense = sp.random(rows, columns, 0.04, format="lil", random_state=rows, dtype="float64")
    dense[3, :] = 0
    dense[rows // 2, ::2] = 1.5
    matrix = sp.csr_matrix(dense)
    matrix.eliminate_zeros()
    matrix.data = matrix.data.astype(dtype)
    return matrix


def product(matrix: sp.csr_matrix, dense: np.ndarray) -> np.ndarray:
    return matrix.astype("float64") @ dense.astype("float64")


@pytest.fixture(scope="module")
def hyb_kernel():
    return emulated(hyb_module(Hyb(1, [1, 2, 4, 8])))


@pytest.mark.parametrize("features", [1, 17, 32, 100])
@pytest.mark.parametrize("order", ["forward", "shuffled"])
def test_spmm_on_hyb_in_one_launch(hyb_kernel, features, order):
    matrix = uneven(203, 150)
    dense = np.random.default_rng(0).standard_normal((150, features)).astype("float32")
    result = np.full((203, features), np.nan, "float32")
    with running_order(order, seed=5):
        hyb_kernel(a=Hyb(1, [1, 2, 4, 8]).pack(matrix), b=dense, c=result)
    np.testing.assert_allclose(result, product(matrix, dense), rtol=1e-5, atol=1e-5)


def spmm_by_rows(dtype: str, index: str, features: int) -> Schedule:
    """Eight rows a block, four features a thread."""
    program = schedules.spmm.program(dtype, index).specialize({"f": features})
    sch = Schedule(lower(program))
    sch.work_on("spmm")
    rows, body = sch.get_sblock("spmm_0"), sch.get_sblock("spmm_1")
    entry, feature = sch.get_loops(body)
    tile, lane, vector = sch.split(feature, [None, min(32, features // 4), 4])
    sch.reorder(tile, lane, entry, vector)
    sums = sch.cache_write(body, 0, "local")
    sch.reverse_compute_at(sums, lane)
    sch.vectorize(sch.get_loops(sums)[-1])
    sch.vectorize(vector)
    sch.bind(lane, "threadIdx.x")
    block, row = sch.split(sch.get_loops(rows)[0], [None, 8])
    sch.bind(block, "blockIdx.x")
    sch.bind(row, "threadIdx.y")
    sch.decompose_reduction(body, entry)
    return sch


def test_spmm_by_rows_with_vector_loads():
    cases = [("float32", "int32"), ("float32", "int64"), ("float16", "int32")]
    kernels = emulated([spmm_by_rows(dtype, index, 128) for dtype, index in cases])
    for (dtype, index), kernel in zip(cases, kernels):
        assert ("float4*" if dtype == "float32" else "half4*") in kernel.inspect_source()
        matrix = uneven(101, 80, dtype)
        dense = np.random.default_rng(0).standard_normal((80, 128)).astype(dtype)
        result = np.full((101, 128), np.nan, dtype)
        matrix.indptr, matrix.indices = matrix.indptr.astype(index), matrix.indices.astype(index)
        kernel(a=matrix, b=dense, c=result)
        tolerance = 1e-5 if dtype == "float32" else 2e-3
        np.testing.assert_allclose(result, product(matrix, dense), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["union", "intersect"])
def test_merged_axes_with_a_row_a_thread(kind):
    body = f"""
with S.sp_iter([I, S.{kind}(J0, J1)], "SR", "merged") as [i, j]:
    with S.init():
        Y[i] = S.float32(0)
    Y[i] = Y[i] + A0[i, j] * A1[i, j]
"""
    sch = Schedule(lower(merged_program(2, body, "(I,)", values="float32")))
    sch.work_on("program")
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        outer, inner = sch.split(sch.get_loops(block)[0], [None, 128])
        sch.bind(outer, "blockIdx.x")
        sch.bind(inner, "threadIdx.x")
    left, right = uneven(150, 60), uneven(150, 60)[::-1].tocsr()
    result = emulated(sch)(a0=left, a1=right)
    expected = left.astype("float64").multiply(right.astype("float64")).sum(1)
    np.testing.assert_allclose(result, np.asarray(expected).ravel(), rtol=1e-5, atol=1e-6)


# Workspaces, reductions over threads, atomics.

TWO_STEPS = """
@S.prim_func
def f(a: S.handle, b: S.handle, m: S.int32):
    I = S.dense_fixed(m)
    K = S.dense_fixed(64)
    L = S.dense_fixed({written})
    A = S.match_sparse_buffer(a, (I, K), "float32")
    B = S.match_sparse_buffer(b, (I, K), "float32")
    T = S.alloc_sparse_buffer((I, K), "float32")
    with S.sp_iter([I, L], "SS", "first") as [i, k]:
        T[i, k] = A[i, k] * 2.0
    with S.sp_iter([I, K], "SS", "second") as [i, k]:
        B[i, k] = T[i, 63 - k] + 1.0
"""


def two_steps(written: int) -> Schedule:
    sch = Schedule(lower(from_source(TWO_STEPS.format(written=written))))
    sch.work_on("f")
    for name in ("first", "second"):
        row, column = sch.get_loops(sch.get_sblock(f"{name}_0"))
        sch.bind(row, "blockIdx.x")
        sch.bind(column, "threadIdx.x")
    return sch


def test_workspaces_lie_between_launches():
    complete, partial = emulated([two_steps(64), two_steps(63)])
    values = np.random.default_rng(0).random((5, 64), dtype="float32")
    np.testing.assert_array_equal(complete(a=values), 2 * values[:, ::-1] + 1)
    with pytest.raises(
        EmulationError, match=r"f_kernel_1: uninitialised read of workspace T_ptr, .*index 63 "
    ):
        partial(a=values)
    np.testing.assert_array_equal(complete(a=values), 2 * values[:, ::-1] + 1)


@T.prim_func(s_tir=True)
def row_sums(A: T.Buffer((24, 128), "float32"), B: T.Buffer((24,), "float32")):
    for i, k in T.grid(24, 128):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vi, vk]


def sums_over_threads(rows: int, threads: int) -> Schedule:
    sch = Schedule(row_sums)
    row, entry = sch.get_loops(sch.get_sblock("sum"))
    block, y = sch.split(row, [None, rows])
    sch.bind(block, "blockIdx.x")
    sch.bind(y, "threadIdx.y")
    sch.bind(sch.split(entry, [None, threads])[1], "threadIdx.x")
    return sch


def test_reductions_over_threads():
    cases = [(1, 8), (4, 8), (1, 32), (4, 32), (1, 64), (4, 128)]
    for (rows, threads), kernel in zip(
        cases, emulated([sums_over_threads(*case) for case in cases])
    ):
        values = np.random.default_rng(threads).standard_normal((24, 128)).astype("float32")
        result = np.full(24, np.nan, "float32")
        kernel(values, result)
        np.testing.assert_allclose(result, values.astype("float64").sum(1), rtol=1e-5, atol=1e-5)
        assert ("__syncthreads" in kernel.inspect_source()) == (threads > 32), (rows, threads)


@T.prim_func(s_tir=True)
def histogram(
    A: T.Buffer((64,), "float32"), B: T.Buffer((4,), "float32"), C: T.Buffer((4,), "float32")
):
    block = T.env_thread("blockIdx.x")
    thread = T.env_thread("threadIdx.x")
    T.launch_thread(block, 2)
    T.launch_thread(thread, 32)
    T.evaluate(
        T.call_extern("float32", "atomicAdd", T.address_of(B[thread // 8]), A[block * 32 + thread])
    )
    T.evaluate(T.cuda.atomic_add(T.address_of(C[thread // 8]), A[block * 32 + thread]))


def test_atomics_of_tensor_programs():
    values, by_name, by_intrinsic = np.arange(64, dtype="float32"), *np.zeros((2, 4), "float32")
    emulated(histogram)(values, by_name, by_intrinsic)
    expected = values.reshape(2, 4, 8).sum((0, 2))
    np.testing.assert_array_equal(by_name, expected)
    np.testing.assert_array_equal(by_intrinsic, expected)


# The callable.


def test_a_grid_without_blocks_is_refused():
    with pytest.raises(
        EmulationError, match=r"f_kernel: gridDim\.x: expected 1 to 2147483647, found 0"
    ):
        emulated(two_steps(64))(a=np.zeros((0, 64), "float32"))


def test_the_checks_of_arguments_stay():
    kernel = emulated(two_steps(64))
    with pytest.raises(ValueError, match=r"a.*63"):
        kernel(a=np.zeros((3, 63), "float32"))
    assert "emulated cuda" in repr(kernel)


def test_a_kernel_is_compiled_once(monkeypatch):
    kernel = emulated(two_steps(64))

    def refuse(arguments: list[str]) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiler, "_run", refuse)
    assert emulated(two_steps(64)).inspect_source() == kernel.inspect_source()


def test_an_index_of_a_generated_kernel_that_leaves_its_array_is_named():
    source = emulated(sums_over_threads(1, 64)).inspect_source()
    values, result = np.ones((24, 128), "float32"), np.zeros(24, "float32")
    emulated_source(source)["row_sums_kernel"](24, 64, 0, values, result)
    assert (result == 128).all()
    assert source.count("< 2)") == 1
    wrong = source.replace("< 2)", "< 3)")
    with pytest.raises(
        EmulationError, match=r"out-of-bounds read of shared memory red_buf_staging_ptr: index 2 "
    ):
        emulated_source(wrong)["row_sums_kernel"](24, 64, 0, values, result)


def test_lowering_follows_the_pass_context():
    with tvm.transform.PassContext(config={"tirx.disable_vectorize": True}):
        (kernel,) = emulated([spmm_by_rows("float32", "int32", 32)])
    assert "float4*" not in kernel.inspect_source()

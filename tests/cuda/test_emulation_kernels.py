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
from tvm_sparse.schedules._build import scheduled

TARGET = {"kind": "cuda", "arch": "sm_80"}

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
    return scheduled("schedules.spmm", schedules.spmm.program(dtype, index), TARGET, features)


def test_spmm_by_rows_with_vector_loads():
    cases = [("float32", "int32"), ("float32", "int64"), ("float16", "int32")]
    kernels = emulated([spmm_by_rows(dtype, index, 128) for dtype, index in cases])
    for (dtype, index), kernel in zip(cases, kernels):
        assert ("float4*" if dtype == "float32" else "uint4*") in kernel.inspect_source()
        matrix = uneven(101, 80, dtype)
        dense = np.random.default_rng(0).standard_normal((80, 128)).astype(dtype)
        result = np.full((101, 128), np.nan, dtype)
        ends, columns = matrix.indptr.astype(index), matrix.indices.astype(index)
        kernel(
            a=matrix.data,
            b=dense,
            c=result,
            indptr=ends,
            indices=columns,
            m=101,
            n=80,
            nnz=matrix.nnz,
        )
        expected = product(
            sp.csr_matrix((matrix.data.astype("float64"), columns, ends), matrix.shape), dense
        )
        tolerance = 1e-5 if dtype == "float32" else 2e-3
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


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


@T.prim_func(s_tir=True)
def two_steps(a: T.handle, b: T.handle, m: T.int32, written: T.int32):
    A = T.match_buffer(a, (m, 64), "float32")
    B = T.match_buffer(b, (m, 64), "float32")
    doubled = T.sblock_alloc_buffer((m, 64), "float32")
    for i, k in T.grid(m, written):
        with T.sblock("first"):
            vi, vk = T.axis.remap("SS", [i, k])
            doubled[vi, vk] = A[vi, vk] * T.float32(2)
    for i, k in T.grid(m, 64):
        with T.sblock("second"):
            vi, vk = T.axis.remap("SS", [i, k])
            B[vi, vk] = doubled[vi, 63 - vk] + T.float32(1)


def in_two_launches() -> Schedule:
    sch = Schedule(two_steps)
    for name in ("first", "second"):
        row, column = sch.get_loops(sch.get_sblock(name))
        sch.bind(row, "blockIdx.x")
        sch.bind(sch.split(column, [None, 32])[1], "threadIdx.x")
    return sch


def test_workspaces_lie_between_launches():
    kernel = emulated(in_two_launches())
    values, result = (
        np.random.default_rng(0).random((5, 64), dtype="float32"),
        np.full((5, 64), np.nan, "float32"),
    )
    kernel(values, result, 5, 64)
    np.testing.assert_array_equal(result, 2 * values[:, ::-1] + 1)
    with pytest.raises(
        EmulationError, match=r"_kernel_1: uninitialised read of workspace doubled_ptr, .*index 63 "
    ):
        kernel(values, result, 5, 63)
    kernel(values, result, 5, 64)


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


def test_a_grid_without_blocks_is_not_launched():
    kernel = emulated(spmm_by_rows("float32", "int32", 32))
    empty = sp.csr_matrix((0, 8), dtype="float32")
    assert kernel(a=empty, b=np.ones((8, 32), "float32")).shape == (0, 32)


def test_the_checks_of_arguments_stay():
    kernel = emulated(spmm_by_rows("float32", "int32", 32))
    with pytest.raises(ValueError, match=r"b.*31"):
        kernel(a=uneven(20, 8), b=np.ones((8, 31), "float32"))
    assert "emulated cuda" in repr(kernel)


def test_a_kernel_is_compiled_once(monkeypatch):
    kernel = emulated(in_two_launches())

    def refuse(arguments: list[str]) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiler, "_run", refuse)
    assert emulated(in_two_launches()).inspect_source() == kernel.inspect_source()


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

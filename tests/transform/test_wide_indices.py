"""Kernels whose indices have 64 bits: counters of 32 bits where they do, and bounds of their registers."""

import pytest
import tvm
from tvm.script import tirx as T

from tvm_sparse import schedules
from tvm_sparse.transform import BoundRegisters, NarrowCounters


def same(changed, expected):
    tvm.ir.assert_structural_equal(
        changed["main"].without_attr("global_symbol"), expected.without_attr("global_symbol")
    )


@T.prim_func(s_tir=True)
def counted(
    B: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32"), n: T.int64, limit: T.int64
):
    thread = T.env_thread("threadIdx.x")
    T.launch_thread(thread, 32)
    for j in range(T.int64(2)):
        for k in range(n):
            for many in range(limit, limit + T.int64(4)):
                C[T.Cast("int64", thread) * T.int64(2) + j] = B[j + k + many]


@T.prim_func(s_tir=True)
def narrow(
    B: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32"), n: T.int64, limit: T.int64
):
    thread = T.env_thread("threadIdx.x")
    T.launch_thread(thread, 32)
    for j in range(2):
        for k in range(n):
            for many in range(limit, limit + T.int64(4)):
                C[T.Cast("int64", thread) * T.int64(2) + T.Cast("int64", j)] = B[
                    T.Cast("int64", j) + k + many
                ]


def test_only_loops_between_known_bounds_count_in_32_bits():
    same(NarrowCounters()(tvm.IRModule({"main": counted})), narrow)


def test_loops_that_32_bits_cannot_count_and_loops_of_the_host_stay_as_they_are():
    @T.prim_func(s_tir=True)
    def kernel(B: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
        thread = T.env_thread("threadIdx.x")
        T.launch_thread(thread, 32)
        for j in range(T.int64(2147483648)):
            C[thread] = B[j % T.int64(64)]

    @T.prim_func(s_tir=True)
    def host(B: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
        for j in range(T.int64(64)):
            C[j] = B[j]

    for func in (kernel, host):
        same(NarrowCounters()(tvm.IRModule({"main": func})), func)


@T.prim_func(s_tir=True)
def gathered(
    B: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32"), I: T.Buffer((64,), "int64")
):
    block = T.env_thread("blockIdx.x")
    row = T.env_thread("threadIdx.y")
    thread = T.env_thread("threadIdx.x")
    T.launch_thread(block, 1)
    T.launch_thread(row, 4)
    T.launch_thread(thread, 16)
    C[row * 16 + thread] = B[I[row * 16 + thread]]


def test_blocks_that_must_fit_are_those_that_leave_64_registers_to_a_thread():
    text = BoundRegisters()(tvm.IRModule({"main": gathered}))["main"].script()
    assert text.count("launch_bounds_min_blocks_per_sm") == 1
    assert '"tirx.launch_bounds_min_blocks_per_sm", 16)' in text  # 1024 threads, 64 a block


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_kernels_are_bound_where_indices_have_64_bits(index_dtype):
    kernel = schedules.spmm.build(
        index_dtype=index_dtype, features=64, target={"kind": "cuda", "arch": "sm_80"}
    )
    bound = "__launch_bounds__(256, 4)" in kernel.inspect_source("cuda")
    assert bound == (index_dtype == "int64")

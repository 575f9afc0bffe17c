"""Host code launches no empty grid, refuses one that is too large, and touches no memory of the device."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T

from tests.cuda.emulation import emulated
from tvm_sparse import SparseProgramError
from tvm_sparse.transform import CheckLaunches, pipeline

TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_80"}).with_host("llvm")


@T.prim_func(s_tir=True)
def doubled(x: T.handle, y: T.handle, m: T.int32, n: T.int32):
    X = T.match_buffer(x, (m * n,), "float32")
    Y = T.match_buffer(y, (m * n,), "float32")
    for i in T.thread_binding(m * n, thread="blockIdx.y"):
        with T.sblock("double"):
            vi = T.axis.spatial(m * n, i)
            Y[vi] = X[vi] * T.float32(2)


def host(func):
    """The host's part, without and with the checks."""
    module = tvm.IRModule({"f": func.with_attr("global_symbol", "f")})
    passes = pipeline._passes(tvm.transform.PassContext.current().config)
    names = [one.info.name for one in passes]
    upto = names.index("tvm_sparse.CheckLaunches")
    split = tvm.ir.transform.Sequential(passes[:upto])(tirx.transform.BindTarget(TARGET)(module))
    return split["f"], CheckLaunches()(split)["f"]


def statements(func, kind):
    found = []
    tvm_ffi.structural_walk(func.body, (kind, found.append))
    return found


def test_a_launch_stands_under_the_condition_that_its_grid_is_not_empty():
    before, after = host(doubled)
    assert not statements(before, tirx.IfThenElse)
    (condition,) = statements(after, tirx.IfThenElse)
    assert "> 0" in str(condition.condition)
    assert isinstance(condition.then_case, tirx.Evaluate)


def test_extents_are_checked_in_64_bits():
    _, after = host(doubled)
    texts = {
        str(part.value): stmt.condition
        for stmt in statements(after, tirx.AssertStmt)
        for part in stmt.message_parts
    }
    (most,) = [condition for text, condition in texts.items() if "65535 blocks along y" in text]
    assert str(most).count("int64") >= 2  # m and n are widened before they are multiplied
    assert any("products fit 32 bits" in text for text in texts)


@pytest.fixture(scope="module")
def kernel():
    """The function under the emulation, which refuses what CUDA refuses."""
    return emulated(doubled)


@pytest.mark.parametrize(("m", "n"), [(0, 5), (5, 0), (0, 0), (3, 4)])
def test_empty_grids_are_left_out(kernel, m, n):
    x = np.arange(m * n, dtype="f4")
    y = np.full(m * n, np.nan, "f4")
    kernel(x, y, m, n)
    np.testing.assert_array_equal(y, 2 * x)


def test_grids_beyond_the_limits_are_refused_before_anything_is_written(kernel):
    size = 65536
    y = np.full(size, np.nan, "f4")
    with pytest.raises(
        ValueError, match="expected at most 65535 blocks along y, found more; the ar"
    ):
        kernel(np.ones(size, "f4"), y, size, 1)
    assert np.isnan(y).all()


def test_a_product_of_sizes_that_wraps_around_is_no_empty_grid():
    """65536 * 65536 is 0 in 32 bits."""

    @T.prim_func(s_tir=True)
    def many(x: T.handle, m: T.int32):
        X = T.match_buffer(x, (1,), "float32")
        for _i in T.thread_binding(m * m, thread="blockIdx.x"):
            with T.sblock("one"):
                X[0] = T.float32(1)

    kernel = emulated(many)
    x = np.zeros(1, "f4")
    for m in (65536, 50000):
        with pytest.raises(ValueError, match="at most 2147483647 blocks along x, found more"):
            kernel(x, m)
    assert x[0] == 0
    kernel(x, 1)
    assert x[0] == 1


def test_more_threads_than_a_block_has_are_a_fault_of_the_schedule():
    @T.prim_func(s_tir=True)
    def wide(x: T.handle):
        X = T.match_buffer(x, (4096,), "float32")
        for i in T.thread_binding(64, thread="threadIdx.y"):
            for j in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("one"):
                    v = T.axis.spatial(4096, i * 64 + j)
                    X[v] = T.float32(1)

    with pytest.raises(
        SparseProgramError, match=r"f: kernel f_kernel: expected at most 1024 threads"
    ):
        host(wide)


def test_host_code_that_writes_to_the_device_is_refused():
    @T.prim_func(s_tir=True)
    def halves(x: T.handle):
        X = T.match_buffer(x, (8,), "float32")
        for i in T.thread_binding(4, thread="threadIdx.x"):
            with T.sblock("first"):
                v = T.axis.spatial(8, i)
                X[v] = T.float32(1)
        for i in range(4):
            with T.sblock("second"):
                v = T.axis.spatial(8, i + 4)
                X[v] = T.float32(2)

    with pytest.raises(
        SparseProgramError, match="function f: buffer 'X' is written outside of a k"
    ):
        host(halves)

"""The emulator of CUDA kernels: barriers, what warps exchange, and races.

Each test has a kernel with a hole in it: filled well, it runs and gives the right numbers; filled badly, it
is refused with an error that names the kernel, the array, the thread and the block.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.emulation import EmulationError, emulated_source, running_order
from tests.cuda.small_kernels import counted, empty, launcher

REVERSE = """
extern "C" __global__ void k(float* __restrict__ x, float* __restrict__ y) {
  __shared__ float t[64];
  t[threadIdx.x] = 0.0f;
  __syncthreads();
  t[threadIdx.x] = x[threadIdx.x];
  HOLE
  y[threadIdx.x] = t[63 - threadIdx.x];
}
"""


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_a_missing_barrier_is_a_race(order):
    run, y = launcher(REVERSE), empty(64)
    with running_order(order):
        run("__syncthreads();", 1, 64, counted(64), y)
        np.testing.assert_array_equal(y, counted(64)[::-1])
        with pytest.raises(EmulationError) as caught:
            run("", 1, 64, counted(64), y)
    message = str(caught.value)
    assert message.startswith("kernel k: data race: ")
    for part in (
        "shared memory t",
        "by thread (31, 0, 0) of block (0, 0, 0)",
        "at line 8",
        "y[threadIdx.x] =",
    ):
        assert part in message


def test_a_barrier_in_a_divergent_branch_is_refused():
    run = launcher("""
    extern "C" __global__ void k(float* __restrict__ y) {
      if (threadIdx.x < HOLE) {
        __syncthreads();
      }
      y[threadIdx.x] = 1.0f;
    }""")
    y = empty(64)
    run("64", 1, 64, y)
    assert (y == 1).all()
    with pytest.raises(
        EmulationError, match=r"divergent barrier: .*waits in __syncthreads at line 4, .*ended"
    ):
        run("40", 1, 64, y)


def test_barriers_at_two_places_do_not_meet():
    run = launcher("""
    extern "C" __global__ void k(float* __restrict__ y) {
      if (threadIdx.x < HOLE) {
        __syncthreads();
      } else {
        __syncthreads();
      }
      y[threadIdx.x] = 1.0f;
    }""")
    run("64", 1, 64, empty(64))
    with pytest.raises(EmulationError, match=r"divergent barrier: .*at line 6, .*at line 4"):
        run("32", 1, 64, empty(64))


SHUFFLE = """
extern "C" __global__ void k(float* __restrict__ x, float* __restrict__ y) {
  if (threadIdx.x < 16) {
    float v = x[threadIdx.x];
    y[threadIdx.x] = __shfl_xor_sync(HOLE, v, 1);
  }
}
"""


def test_a_shuffle_waits_for_every_lane_of_its_mask():
    run, y = launcher(SHUFFLE), empty(16)
    run("0x0000ffff", 1, 32, counted(16), y)
    np.testing.assert_array_equal(y, counted(16).reshape(8, 2)[:, ::-1].ravel())
    with pytest.raises(
        EmulationError, match=r"__shfl_xor_sync in a part of its mask: .*0xffffffff.*thread \(16,"
    ):
        run("0xffffffff", 1, 32, counted(16), y)
    run("0xffffffff", 1, 16, counted(16), y)  # lanes that do not exist are not waited for
    with pytest.raises(EmulationError, match=r"mask 0x000000ff lacks the calling lane 8"):
        run("0x000000ff", 1, 32, counted(16), y)


def test_the_active_mask_is_of_those_who_came_to_its_place():
    run, y = launcher(SHUFFLE), empty(16)
    run("__activemask()", 1, 32, counted(16), y)
    np.testing.assert_array_equal(y, counted(16).reshape(8, 2)[:, ::-1].ravel())


def test_what_a_lane_without_part_gives_is_undefined():
    run, y = launcher(SHUFFLE.replace("v, 1)", "v, 16)")), counted(16)
    run("0x0000ffff", 1, 32, counted(16), y)
    assert np.isnan(y).all()


def test_a_warp_orders_its_memory_by_syncwarp_and_not_by_shuffles():
    run = launcher("""
    extern "C" __global__ void k(float* __restrict__ y) {
      __shared__ float t[64];
      t[threadIdx.x] = threadIdx.x;
      HOLE
      y[threadIdx.x] = t[threadIdx.x ^ 1];
    }""")
    y = empty(64)
    run("__syncwarp();", 1, 64, y)
    np.testing.assert_array_equal(y, counted(64).reshape(32, 2)[:, ::-1].ravel())
    with running_order("reverse"), pytest.raises(EmulationError, match=r"data race: .* by thread"):
        run("__shfl_xor_sync(0xffffffff, 1, 1);", 1, 64, y)


def test_syncwarp_does_not_order_warps():
    run = launcher("""
    extern "C" __global__ void k(float* __restrict__ y) {
      __shared__ float t[64];
      t[threadIdx.x] = threadIdx.x;
      HOLE
      y[threadIdx.x] = t[threadIdx.x ^ 32];
    }""")
    run("__syncthreads();", 1, 64, empty(64))
    with pytest.raises(EmulationError, match=r"uninitialised read of shared memory t"):
        run("__syncwarp();", 1, 64, empty(64))


# Races.


def test_two_threads_do_not_write_one_place():
    run = launcher("""
    extern "C" __global__ void k(float* __restrict__ y) {
      y[HOLE] = 1.0f;
    }""")
    run("threadIdx.x", 1, 64, empty(64))
    with pytest.raises(
        EmulationError,
        match=r"data race: write of y, bytes 128 to 131 .*\(32, 0, 0\).*\(33, 0, 0\)",
    ):
        run("threadIdx.x & ~(threadIdx.x >> 5)", 1, 64, empty(64))


def test_two_blocks_do_not_write_one_place():
    run = launcher("""
    extern "C" __global__ void k(float* __restrict__ y) {
      y[HOLE] = 1.0f;
      __syncthreads();
    }""")
    y = empty(64)
    run("blockIdx.x * 32 + threadIdx.x", 2, 32, y)
    assert (y == 1).all()
    with pytest.raises(
        EmulationError,
        match=r"write by thread \(31, 0, 0\) of block \(0, 0, 0\) .*block \(1, 0, 0\)",
    ):
        run("blockIdx.x * 31 + threadIdx.x", 2, 32, y)


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
def test_a_block_does_not_read_what_another_writes(order):
    run = launcher("""
    extern "C" __global__ void k(float* __restrict__ x) {
      float v = x[HOLE];
      __syncthreads();
      if (threadIdx.x == 0) x[blockIdx.x] = v;
    }""")
    x = counted(5)
    run("blockIdx.x", 5, 2, x)
    np.testing.assert_array_equal(x, counted(5))
    with running_order(order), pytest.raises(EmulationError, match=r"data race: .* of x, .*block"):
        run("(blockIdx.x + 1) % 5", 5, 2, counted(5))


def test_launches_are_ordered():
    kernels = emulated_source("""
    extern "C" __global__ void k(float* __restrict__ x, int shift) {
      float v = x[(threadIdx.x + shift) % 64];
      __syncthreads();
      x[threadIdx.x] = v;
    }""")
    x = counted(64)
    for _ in range(3):
        kernels["k"](1, 64, 0, x, 1)
    np.testing.assert_array_equal(x, np.roll(counted(64), -3))


def test_atomic_updates_do_not_race_with_each_other():
    run = launcher("""
    extern "C" __global__ void k(float* __restrict__ x, float* __restrict__ y) {
      HOLE;
    }""")
    y = np.zeros(4, "float32")
    run(
        "atomicAdd(&(y[threadIdx.x >> 3]), x[blockIdx.x * 32 + threadIdx.x])", 3, 32, counted(96), y
    )
    np.testing.assert_array_equal(y, counted(96).reshape(3, 4, 8).sum((0, 2)))
    with pytest.raises(EmulationError, match="data race"):
        run("y[threadIdx.x >> 3] += x[threadIdx.x]", 1, 32, counted(96), y)
    with pytest.raises(EmulationError, match=r"data race: read of y, .*after the atomic update"):
        run("atomicAdd(&(y[0]), 1.0f); if (threadIdx.x == 31) y[1] = y[0]", 1, 32, counted(96), y)

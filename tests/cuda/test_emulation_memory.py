"""The emulator: places in memory and asynchronous copies.

Each test has a kernel with a hole in it: filled well, it runs and gives the right numbers; filled badly, it
is refused with an error that names the kernel, the array, the thread and the block.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.emulation import EmulationError, emulated_source, running_order
from tests.cuda.small_kernels import counted, empty, launcher


def test_leaving_a_global_array_by_one_is_refused():
    run = launcher("""
    extern "C" __global__ void k(float* __restrict__ y) {
      y[(int)threadIdx.x HOLE] = 1.0f;
    }""")
    run("", 1, 8, empty(8))
    with pytest.raises(
        EmulationError, match=r"out-of-bounds write of y: index 8 .*has 8 .*thread \(7, 0, 0\)"
    ):
        run("+ 1", 1, 8, empty(8))
    with pytest.raises(EmulationError, match=r"out-of-bounds write of y: index -1 "):
        run("- 1", 1, 8, empty(8))


def test_an_access_stays_in_the_array_that_was_passed():
    run = launcher("""
    extern "C" __global__ void k(float* __restrict__ y) {
      y[HOLE] = 1.0f;
    }""")
    whole = empty(64)
    run("31", 1, 1, whole[:32])
    with pytest.raises(EmulationError, match=r"out-of-bounds write of y: index 32 "):
        run("32", 1, 1, whole[:32])
    with pytest.raises(EmulationError, match=r"out-of-bounds write of y: index 0 .*has 0 "):
        run("0", 1, 1, whole[:0])


def test_leaving_a_shared_array_by_one_is_refused():
    run = launcher("""
    extern "C" __global__ void k(float* __restrict__ y) {
      __shared__ float before[64];
      __shared__ float t[64];
      __shared__ float after[64];
      before[threadIdx.x] = 0.0f;
      after[threadIdx.x] = 0.0f;
      t[threadIdx.x] = 1.0f;
      __syncthreads();
      y[threadIdx.x] = t[threadIdx.x HOLE];
    }""")
    run("", 1, 64, empty(64))
    with pytest.raises(EmulationError, match=r"out-of-bounds read of shared memory t: index 64 "):
        run("+ 1", 1, 64, empty(64))


def test_dynamic_shared_memory_ends_where_the_launch_says():
    kernels = emulated_source(
        """
    extern "C" __global__ void k(float* __restrict__ x, float* __restrict__ y) {
      extern __shared__ __align__(64) uchar t[];
      ((float*)t)[threadIdx.x] = x[threadIdx.x];
      __syncthreads();
      y[threadIdx.x] = ((float*)t)[63 - threadIdx.x];
    }""".replace("uchar", "unsigned char")
    )
    y = empty(64)
    kernels["k"](1, 64, 256, counted(64), y)
    np.testing.assert_array_equal(y, counted(64)[::-1])
    with pytest.raises(
        EmulationError, match=r"out-of-bounds write of shared memory t: index 63 .*has 63 "
    ):
        kernels["k"](1, 64, 252, counted(64), y)


def test_shared_memory_is_written_before_it_is_read():
    run = launcher("""
    extern "C" __global__ void k(float* __restrict__ y) {
      __shared__ float t[64];
      if (threadIdx.x < HOLE - blockIdx.x) t[threadIdx.x] = 1.0f;
      __syncthreads();
      y[blockIdx.x * 64 + threadIdx.x] = t[threadIdx.x];
    }""")
    y = empty(128)
    run("65", 2, 64, y)
    assert (y == 1).all()
    # What an earlier block wrote there does not count.
    with pytest.raises(
        EmulationError, match=r"uninitialised read of shared memory t, .*index 63 .*block \(1,"
    ):
        run("64", 2, 64, y)


def test_vectors_lie_at_multiples_of_their_size():
    run = launcher("""
    extern "C" __global__ void k(float* __restrict__ x, float* __restrict__ y) {
      __shared__ alignas(16) float t[68];
      *(float4*)(t + (int)threadIdx.x * 4) = *(float4*)(x + (int)threadIdx.x * 4);
      __syncthreads();
      *(float2*)(y + (int)threadIdx.x * 2) = *(float2*)(t + ((int)threadIdx.x * 2 + HOLE));
    }""")
    y = empty(32)
    run("0", 1, 16, counted(64), y)
    np.testing.assert_array_equal(y, counted(32))
    with pytest.raises(
        EmulationError,
        match=r"misaligned read of shared memory t, .* multiple of 8, found offset 4",
    ):
        run("1", 1, 16, counted(64), y)
    with pytest.raises(EmulationError, match=r"misaligned read of x, .* multiple of 16"):
        run("0", 1, 16, counted(65)[1:], y)
    unaligned = launcher("""
    extern "C" __global__ void k(float* __restrict__ y) {
      __shared__ HOLE float t[4];
      *(float4*)(t + 0) = make_float4(1.0f, 2.0f, 3.0f, 4.0f);
      y[0] = t[3];
    }""")
    unaligned("alignas(16)", 1, 1, y)
    assert y[0] == 4
    with pytest.raises(
        EmulationError, match=r"misaligned write of shared memory t, .* aligned to 4"
    ):
        unaligned("", 1, 1, y)


def test_local_arrays_have_bounds_and_alignment():
    run = launcher("""
    extern "C" __global__ void k(float* __restrict__ y, int i) {
      HOLE
      t[i] = 1.0f;
      t[7] = 2.0f;
      float2 v = *(float2*)(t + (i & 6));
      y[0] = v.x + v.y;
    }""")
    y = empty(1)
    run("alignas(8) float t[8];", 1, 1, y, 6)
    assert y[0] == 3
    with pytest.raises(
        EmulationError, match=r"out-of-bounds access of a local array: index 9 .*has 8"
    ):
        run("alignas(8) float t[8];", 1, 1, y, 9)
    with pytest.raises(
        EmulationError, match=r"misaligned access of a local array: .* aligned to 4"
    ):
        run("alignas(4) float t[8];", 1, 1, y, 6)
    with pytest.raises(EmulationError, match=r"out-of-bounds access of a local array .*index 9"):
        run("float t[8];", 1, 1, y, 9)


# Asynchronous copies.

ASYNC = """
__forceinline__ __device__ void copy(void* to, int to_offset, void* from, int from_offset) {
  unsigned char* to_p = (unsigned char*)to + to_offset * 4;
  unsigned char* from_p = (unsigned char*)from + from_offset * 4;
  unsigned int to_address = __cvta_generic_to_shared(to_p);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(to_address), "l"(from_p), "n"(4));
}
__forceinline__ __device__ void commit() { asm volatile("cp.async.commit_group;" : : ); }
extern "C" __global__ void k(float* __restrict__ x, float* __restrict__ y) {
  __shared__ alignas(16) float t[64];
  copy(t, threadIdx.x, x, threadIdx.x);
  commit();
  copy(t, threadIdx.x + 32, x, threadIdx.x + 32);
  commit();
  HOLE
  y[threadIdx.x] = t[31 - threadIdx.x];
}
"""


def test_an_asynchronous_copy_arrives_when_its_group_was_waited_for():
    run, y = launcher(ASYNC), empty(32)
    wait = 'asm volatile("cp.async.wait_group {};" : : : "memory");'
    run(f"{wait.format(1)} __syncthreads();", 1, 32, counted(64), y)
    np.testing.assert_array_equal(y, counted(32)[::-1])
    early = r"read of shared memory t, .*before the asynchronous copy .* by thread \(31, .* was waited for"
    for missing in (f"{wait.format(2)} __syncthreads();", "__syncthreads();"):
        with pytest.raises(EmulationError, match=early):
            run(missing, 1, 32, counted(64), y)


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_a_wait_does_not_order_other_threads(order):
    run = launcher(ASYNC)
    unordered = r"before the asynchronous copy|uninitialised read"
    with running_order(order), pytest.raises(EmulationError, match=unordered):
        run('asm volatile("cp.async.wait_group 0;" : : : "memory");', 1, 32, counted(64), empty(32))


def test_a_wait_passes_by_copies_that_were_not_committed():
    run = launcher(ASYNC.replace("commit();", "", 3))
    with pytest.raises(EmulationError, match="before the asynchronous copy"):
        run(
            'asm volatile("cp.async.wait_group 0;" : : : "memory"); __syncthreads();',
            1,
            32,
            counted(64),
            empty(32),
        )

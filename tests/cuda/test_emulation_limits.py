"""The emulator of CUDA kernels: limits of a launch, and arithmetic.

Each test has a kernel with a hole in it: filled well, it runs and gives the right numbers; filled badly, it
is refused with an error that names the kernel, the array, the thread and the block.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.emulation import EmulationError, compiler, emulated_source
from tests.cuda.small_kernels import empty, launcher

PLAIN = """
extern "C" __global__ void HOLE k(float* __restrict__ y) {
  y[0] = 1.0f;
}
"""


@pytest.mark.parametrize(
    "grid, block, limit",
    [
        ((0, 1, 1), 1, r"gridDim\.x: expected 1 to 2147483647, found 0"),
        ((2**31, 1, 1), 1, r"gridDim\.x: expected 1 to 2147483647, found 2147483648"),
        ((1, 65536, 1), 1, r"gridDim\.y: expected 1 to 65535, found 65536"),
        ((1, 1, 65536), 1, r"gridDim\.z: expected 1 to 65535, found 65536"),
        (1, 1025, r"blockDim\.x: expected 1 to 1024, found 1025"),
        (1, (1, 1, 65), r"blockDim\.z: expected 1 to 64, found 65"),
        (1, (33, 32), r"threads of a block: expected at most 1024, found 1056"),
    ],
)
def test_a_launch_beyond_the_limits_is_refused(grid, block, limit):
    run = launcher(PLAIN)
    run("", 1, 1, empty(1))
    with pytest.raises(EmulationError, match=limit):
        run("", grid, block, empty(1))


def test_a_block_has_no_more_threads_than_its_launch_bounds():
    run = launcher(PLAIN)
    run("__launch_bounds__(64)", 1, 1, empty(1))
    with pytest.raises(EmulationError, match=r"at most 64 \(__launch_bounds__\), found 96"):
        run("__launch_bounds__(64)", 1, 96, empty(1))


def test_shared_memory_has_an_end():
    run = launcher("""
    extern "C" __global__ void k(float* __restrict__ y) {
      __shared__ float t[HOLE];
      t[threadIdx.x] = 1.0f;
      y[threadIdx.x] = t[threadIdx.x];
    }""")
    run("12288", 1, 1, empty(1))
    with pytest.raises(EmulationError, match="declares 49156 bytes of static shared memory"):
        run("12289", 1, 1, empty(1))
    run("1", 1, 1, empty(1), shared=163 * 1024 - 4)
    with pytest.raises(EmulationError, match="needs 4 bytes of static and 166912 of dynamic"):
        run("1", 1, 1, empty(1), shared=163 * 1024)
    run("1", 1, 1, empty(1), shared=227 * 1024 - 4, arch="sm_90")
    with pytest.raises(EmulationError, match="expected at most 232448 bytes"):
        run("1", 1, 1, empty(1), shared=228 * 1024, arch="sm_90")


@pytest.mark.parametrize(
    "narrow, wide, message",
    [
        ("row * features", "(int64_t)row * features", r"overflow of 'int': 65536 \* 65536"),
        (
            "(int)((int64_t)row * features)",
            "(int64_t)row * features",
            "overflow of a cast to int: 4294967296",
        ),
        ("-row * 32769", "-(int64_t)row * 32769", r"overflow of 'int': -65536 \* 32769"),
        ("row / (features - row)", "row / features", "division of 65536 by zero"),
    ],
)
def test_whole_numbers_do_not_overflow(narrow, wide, message):
    run = launcher("""
    extern "C" __global__ void k(int64_t* __restrict__ y, int row, int features) {
      y[0] = HOLE;
    }""")
    y = np.zeros(1, "int64")
    run(wide, 1, 1, y, 65536, 65536)
    assert y[0] in (2**32, -65536 * 32769, 1)
    with pytest.raises(EmulationError, match=message):
        run(narrow, 1, 1, y, 65536, 65536)


def test_a_loop_without_end_is_ended():
    run = launcher("""
    extern "C" __global__ void k(float* __restrict__ y) {
      while (y[threadIdx.x] == HOLE) y[threadIdx.x] = 1.0f;
    }""")
    run("0.0f", 1, 2, np.zeros(2, "float32"))
    with pytest.raises(
        EmulationError, match=r"50000001 accesses .* without an end, by thread \(0, 0, 0\)"
    ):
        run("1.0f", 1, 2, np.ones(2, "float32"))


def test_instructions_without_emulation_are_named():
    with pytest.raises(NotImplementedError, match=r"'mbarrier\.init\.shared\.b64'"):
        emulated_source(
            '__device__ void f() { asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(0)); }'
        )


def test_a_text_that_takes_too_long_to_compile_is_given_up(monkeypatch):
    run = launcher(PLAIN)
    run("", 1, 1, empty(1))
    monkeypatch.setattr(compiler, "_SECONDS", 0.01)
    with pytest.raises(RuntimeError, match=r"the C\+\+ compiler took more than 0\.01 seconds"):
        run("__launch_bounds__(7)", 1, 1, empty(1))

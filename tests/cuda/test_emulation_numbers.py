"""Numbers in emulated kernels: half and bfloat16 to the bit, and what warps compute together."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tests.cuda.emulation import emulated_source
from tests.cuda.small_kernels import NUMPY, counted, empty, exact, launcher, random

NARROW = ["half", "nv_bfloat16"]


def bits_of(array: np.ndarray) -> np.ndarray:
    return array.view(f"uint{8 * array.dtype.itemsize}")


# Conversions and arithmetic.


@pytest.mark.parametrize("kind", NARROW)
def test_every_number_of_sixteen_bits_converts_to_float(kind):
    run = launcher(f"""
    extern "C" __global__ void k({kind}* __restrict__ x, float* __restrict__ y) {{
      y[blockIdx.x * 256 + threadIdx.x] = (float)x[blockIdx.x * 256 + threadIdx.x];
    }}""")
    x, y = np.arange(65536, dtype="uint16").view(NUMPY[kind]), np.zeros(65536, "float32")
    run("", 256, 256, x, y)
    np.testing.assert_array_equal(y, x.astype("float32"))


@pytest.mark.parametrize("kind", NARROW)
def test_floats_round_to_the_nearest_even(kind):
    run = launcher(f"""
    extern "C" __global__ void k(float* __restrict__ x, {kind}* __restrict__ y) {{
      y[blockIdx.x * 256 + threadIdx.x] = ({kind})x[blockIdx.x * 256 + threadIdx.x];
    }}""")
    # Every number, what lies halfway to the next, and the floats on both sides of that.
    every = np.arange(65536, dtype="uint16").view(NUMPY[kind]).astype("float32")
    every = np.sort(every[np.isfinite(every)])
    middle = ((exact(every[1:]) + exact(every[:-1])) / 2).astype("float32")
    x = np.concatenate([every, middle, np.nextafter(middle, np.float32(np.inf))])
    x = np.concatenate(
        [x, np.nextafter(middle, -np.float32(np.inf)), [np.inf, -np.inf, np.nan, 3e38, -3e38]]
    )
    x = np.resize(x, -(-len(x) // 256) * 256).astype("float32")
    y = np.zeros(len(x), NUMPY[kind])
    run("", len(x) // 256, 256, x, y)
    with np.errstate(over="ignore"):
        expected = x.astype(NUMPY[kind])
    number = ~np.isnan(x)
    np.testing.assert_array_equal(bits_of(y)[number], bits_of(expected)[number])
    assert np.isnan(y[~number].astype("float32")).all()


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("sign", ["+", "-", "*", "/"])
def test_each_operation_is_rounded(kind, sign):
    run = launcher(f"""
    extern "C" __global__ void k({kind}* __restrict__ a, {kind}* __restrict__ b, {kind}* __restrict__ y) {{
      int i = blockIdx.x * 256 + threadIdx.x;
      y[i] = a[i] HOLE b[i] HOLE a[i];
    }}""")
    a, b, y = (
        random(4096, NUMPY[kind], 1),
        random(4096, NUMPY[kind], 2),
        np.zeros(4096, NUMPY[kind]),
    )
    run(sign, 16, 256, a, b, y)
    apply = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}[sign]
    once = apply(exact(a), exact(b)).astype("float32").astype(a.dtype)
    expected = apply(exact(once), exact(a)).astype("float32").astype(a.dtype)
    np.testing.assert_array_equal(bits_of(y), bits_of(expected))


def nearest(value: Fraction, dtype: np.dtype) -> np.ndarray:
    """Return the number of a type that is nearest to a fraction, the even one of two."""
    middle = np.float32(float(value)).astype(dtype)
    around = bits_of(np.array([middle]))[0] + np.array([-1, 0, 1])
    candidates = around.astype("uint16").view(dtype)
    distances = [
        (abs(Fraction(float(c)) - value), int(bits) & 1)
        for c, bits in zip(candidates, around.tolist())
    ]
    return candidates[distances.index(min(distances))]


@pytest.mark.parametrize("left", ["int8", "uint8"])
@pytest.mark.parametrize("right", ["int8", "uint8"])
def test_four_bytes_are_multiplied_at_once(left, right):
    run = launcher("""
    extern "C" __global__ void k(int* __restrict__ x, int* __restrict__ y, int* __restrict__ sum) {
      int i = threadIdx.x;
      asm volatile ("HOLE %0, %1, %2, %3;" : "=r"(sum[i]) : "r"(x[i]), "r"(y[i]), "r"(sum[i]));
    }""")
    bytes_of = np.random.default_rng(0).integers(0, 256, (2, 32, 4)).astype("uint8")
    x, y = bytes_of.view("int32")[..., 0]
    products = bytes_of[0].view(left).astype("int32") * bytes_of[1].view(right)
    total = counted(32).astype("int32")
    signs = {"int8": "s32", "uint8": "u32"}
    run(f"dp4a.{signs[left]}.{signs[right]}", 1, 32, x.copy(), y.copy(), total)
    np.testing.assert_array_equal(total, counted(32) + products.sum(1))


@pytest.mark.parametrize("kind", NARROW)
def test_a_fused_multiplication_is_rounded_once(kind):
    run = launcher(f"""
    extern "C" __global__ void k({kind}* __restrict__ a, {kind}* __restrict__ b, {kind}* __restrict__ c,
                                 {kind}* __restrict__ y) {{
      int i = threadIdx.x;
      y[i] = __hfma(a[i], b[i], c[i]);
    }}""")
    a, b, y = random(512, NUMPY[kind], 1), random(512, NUMPY[kind], 2), np.zeros(512, NUMPY[kind])
    # Near the negated product, where bits cancel, and far from it, where few are left.
    c = (
        (-exact(a) * exact(b) * np.resize([1, 1.01, 2.0**-9, 2.0**9], 512))
        .astype("float32")
        .astype(a.dtype)
    )
    run("", 1, 512, a, b, c, y)
    fractions = [
        Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r)) for p, q, r in zip(a, b, c)
    ]
    normal = np.array([abs(f) > 2**-14 for f in fractions])
    expected = np.array([nearest(f, a.dtype) if f else a.dtype.type(0) for f in fractions])
    np.testing.assert_array_equal(exact(y)[normal], exact(expected)[normal])
    assert normal.sum() > 350


def test_pairs_of_halves_are_vectors():
    run = launcher("""
    extern "C" __global__ void k(half* __restrict__ x, half* __restrict__ y) {
      uint4 v = *(uint4*)(x + (int)threadIdx.x * 8);
      uint4 w;
      ((half2*)(&(w.x)))->x = (((half2*)(&(v.x)))->x + ((half2*)(&(v.w)))->y);
      ((half2*)(&(w.x)))->y = (((half2*)(&(v.x)))->y * ((half2*)(&(v.w)))->x);
      w.y = v.y;
      w.z = v.z;
      *((half2*)(&(w.w))) = __hadd2(*((half2*)(&(v.w))), __float22half2_rn(make_float2(1.0f, 2.0f)));
      *(uint4*)(y + (int)threadIdx.x * 8) = w;
    }""")
    x, y = random((32, 8), np.dtype("float16")), np.zeros((32, 8), "float16")
    run("", 1, 32, x, y)
    expected = x.copy()
    expected[:, 0], expected[:, 1] = x[:, 0] + x[:, 7], x[:, 1] * x[:, 6]
    expected[:, 6:] += np.array([1, 2], "float16")
    np.testing.assert_array_equal(y, expected)


# What the lanes of a warp compute together.


def test_warps_and_then_one_warp_sum_a_block():
    run = launcher("""
    extern "C" __global__ void k(float* __restrict__ x, float* __restrict__ y) {
      __shared__ float partial[8];
      float v = x[blockIdx.x * 256 + threadIdx.x];
      for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_down_sync(0xffffffff, v, offset, 32);
      if (threadIdx.x % 32 == 0) partial[threadIdx.x >> 5] = v;
      __syncthreads();
      if (threadIdx.x < 8) {
        float w = partial[threadIdx.x];
        for (int offset = 4; offset > 0; offset >>= 1) w += __shfl_down_sync(0xff, w, offset, 8);
        if (threadIdx.x == 0) y[blockIdx.x] = w;
      }
    }""")
    x, y = random((5, 256), NUMPY["float"]), empty(5)
    run("", 5, 256, x, y)
    np.testing.assert_allclose(y, exact(x).sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "shuffle, source",
    [
        ("__shfl_sync(0xffffffff, v, threadIdx.x * 3, 8)", lambda i: i - i % 8 + i * 3 % 8),
        ("__shfl_up_sync(0xffffffff, v, 3, 8)", lambda i: np.where(i % 8 < 3, i, i - 3)),
        ("__shfl_down_sync(0xffffffff, v, 3, 8)", lambda i: np.where(i % 8 > 4, i, i + 3)),
        ("__shfl_xor_sync(0xffffffff, v, 5, 8)", lambda i: i ^ 5),
    ],
)
@pytest.mark.parametrize("kind", ["float", "half", "double", "long long"])
def test_shuffles_stay_in_segments_of_their_width(shuffle, source, kind):
    run = launcher(f"""
    extern "C" __global__ void k(float* __restrict__ y) {{
      {kind} v = ({kind})((float)threadIdx.x);
      y[threadIdx.x] = (float)HOLE;
    }}""")
    y = empty(32)
    run(shuffle, 1, 32, y)
    np.testing.assert_array_equal(y, source(np.arange(32)))


@pytest.mark.parametrize(
    "vote, expected",
    [
        (
            "__ballot_sync(0xffffffff, x[threadIdx.x] > 3)",
            lambda x: sum(1 << i for i in np.flatnonzero(x > 3)),
        ),
        ("__any_sync(0xffffffff, x[threadIdx.x] == 31)", lambda x: 1),
        ("__all_sync(0xffffffff, x[threadIdx.x] > 0)", lambda x: 0),
        ("__reduce_add_sync(0xffffffff, x[threadIdx.x])", lambda x: x.sum()),
        ("__reduce_max_sync(0xffffffff, x[threadIdx.x])", lambda x: x.max()),
        ("__reduce_min_sync(0xffffffff, x[threadIdx.x] + 7)", lambda x: 7),
        ("__syncthreads_count(x[threadIdx.x] % 3 == 0)", lambda x: (x % 3 == 0).sum()),
        ("__syncthreads_or(x[threadIdx.x] == 5)", lambda x: 1),
        ("__syncthreads_and(x[threadIdx.x] == 5)", lambda x: 0),
    ],
)
def test_votes_and_reductions(vote, expected):
    run = launcher("""
    extern "C" __global__ void k(int* __restrict__ x, unsigned int* __restrict__ y) {
      y[threadIdx.x] = HOLE;
    }""")
    x, y = np.random.default_rng(0).permutation(32).astype("int32"), np.full(32, 77, "uint32")
    run(vote, 1, 32, x, y)
    np.testing.assert_array_equal(y, np.full(32, expected(x)))


def test_atomics_return_what_was_there():
    kernels = emulated_source("""
    extern "C" __global__ void k(int* __restrict__ x, int* __restrict__ y) {
      int i = (int)threadIdx.x;
      y[i] = atomicAdd(&(x[0]), i);
      atomicMax(&(x[1]), i * 7 % 32);
      atomicMin(&(x[2]), i * 7 % 32);
      atomicCAS(&(x[3]), i, i + 1);
      atomicOr(&(x[4]), 1 << (i % 5));
      atomicExch(&(x[5]), i);
    }""")
    x, y = np.array([0, -1, 99, 0, 0, -1], "int32"), np.zeros(32, "int32")
    kernels["k"](1, 32, 0, x, y)
    np.testing.assert_array_equal(x, [31 * 16, 31, 0, 32, 31, 31])
    np.testing.assert_array_equal(y, np.cumsum(counted(32)) - counted(32))

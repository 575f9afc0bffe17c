"""Tensor-core instructions of emulated kernels, through wmma and through inline PTX."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.emulation import EmulationError
from tests.cuda.small_kernels import NUMPY, empty, exact, launcher, random

WMMA = """
using namespace nvcuda;
extern "C" __global__ void k(STORED* __restrict__ a, STORED* __restrict__ b, float* __restrict__ c) {
  wmma::fragment<wmma::matrix_a, M, N, K, TYPE, wmma::LAYOUT_A> x[1];
  wmma::fragment<wmma::matrix_b, M, N, K, TYPE, wmma::LAYOUT_B> y[1];
  wmma::fragment<wmma::accumulator, M, N, K, float> z[1];
  wmma::fill_fragment(z[0], 0.5f);
  for (int i = 0; i < 2; ++i) {
    wmma::load_matrix_sync(x[0], (&(a[i * M * K HOLE])), STRIDE_A);
    wmma::load_matrix_sync(y[0], (&(b[i * K * N])), STRIDE_B);
    wmma::mma_sync(z[0], x[0], y[0], z[0]);
  }
  wmma::store_matrix_sync((&(c[0])), z[0], N, wmma::mem_row_major);
}
"""


def wmma(shape: tuple[int, int, int], kind: str, rows: str = "rr") -> str:
    m, n, k = shape
    layouts = {"r": "row_major", "c": "col_major"}
    strides = (k if rows[0] == "r" else m, n if rows[1] == "r" else k)
    names = {"STORED": "float" if kind == "tf32" else kind, "LAYOUT_A": layouts[rows[0]]}
    names |= {
        "TYPE": "wmma::precision::tf32" if kind == "tf32" else kind,
        "LAYOUT_B": layouts[rows[1]],
    }
    names |= {"STRIDE_A": str(strides[0]), "STRIDE_B": str(strides[1])}
    text = WMMA
    for name, value in names.items():
        text = text.replace(name, value)
    return f"#define M {m}\n#define N {n}\n#define K {k}\n{text}"


def truncated(array: np.ndarray) -> np.ndarray:
    """What a tensor core reads of floats as tf32."""
    return (array.view("uint32") & 0xFFFFE000).view("float32")


@pytest.mark.parametrize("rows", ["rr", "rc", "cr"])
@pytest.mark.parametrize(
    "shape, kind",
    [
        ((16, 16, 16), "half"),
        ((32, 8, 16), "half"),
        ((8, 32, 16), "nv_bfloat16"),
        ((16, 16, 8), "tf32"),
    ],
)
def test_a_warp_multiplies_matrices(shape, kind, rows):
    m, n, k = shape
    dtype = NUMPY.get(kind, NUMPY["float"])
    a, b, c = (
        random((2, m, k), dtype, 1),
        random((2, k, n), dtype, 2),
        np.full((m, n), np.nan, "float32"),
    )
    read_a, read_b = (truncated(a), truncated(b)) if kind == "tf32" else (a, b)
    expected = 0.5 + np.einsum("imk,ikn->mn", exact(read_a), exact(read_b))
    held_a = a if rows[0] == "r" else np.ascontiguousarray(a.transpose(0, 2, 1))
    held_b = b if rows[1] == "r" else np.ascontiguousarray(b.transpose(0, 2, 1))
    launcher(wmma(shape, kind, rows))("", 1, 32, held_a, held_b, c)
    np.testing.assert_allclose(c, expected, rtol=1e-5, atol=2e-5)


def test_matrices_are_loaded_by_whole_warps_from_aligned_places():
    run, a = launcher(wmma((16, 16, 16), "half")), np.zeros(1024, "float16")
    c = empty(256)
    run("", 1, 32, a, a[:512], c)
    assert (c == 0.5).all()
    with pytest.raises(
        EmulationError, match=r"load_matrix_sync: misaligned access of a: .*found offset 16"
    ):
        run("+ 8", 1, 32, a, a[:512], c)
    with pytest.raises(
        EmulationError, match="wmma needs a warp of 32 threads, lane 16 does not exist"
    ):
        run("", 1, 16, a, a[:512], c)
    with pytest.raises(EmulationError, match="lanes 0 and 1 pass different addresses"):
        run("+ (int)threadIdx.x * 16", 1, 32, a, a[:512], c)
    with pytest.raises(EmulationError, match=r"out-of-bounds read of b: index 511 "):
        run("", 1, 32, a, a[:511], c)


MMA = """
extern "C" __global__ void k(STORED* __restrict__ a, STORED* __restrict__ b, float* __restrict__ c) {
  alignas(16) STORED x[M * K / 32];
  alignas(16) STORED y[K * N / 32];
  alignas(16) float z[4];
  int row = (int)threadIdx.x / 4, pair = (int)threadIdx.x % 4;
  for (int i = 0; i < 4; ++i) z[i] = 0.5f;
  for (int i = 0; i < M * K / 32; ++i)
    x[i] = a[(row + i / EACH % 2 * 8) * K + i / EACH / 2 * 4 * EACH + pair * EACH + i % EACH];
  for (int i = 0; i < K * N / 32; ++i)
    y[i] = b[row * K + i / EACH * 4 * EACH + pair * EACH + i % EACH];
  {
    __asm__ __volatile__(
      "mma.sync.aligned.INSTRUCTION"
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};\\n"
      :  "=f"(((float *)(z + 0))[0]), "=f"(((float *)(z + 0))[1]), "=f"(((float *)(z + 0))[2]),
         "=f"(((float *)(z + 0))[3])
      : "r"(((unsigned *)(x + 0))[0]), "r"(((unsigned *)(x + 0))[1]), "r"(((unsigned *)(x + 0))[2]),
        "r"(((unsigned *)(x + 0))[3]), "r"(((unsigned *)(y + 0))[0]), "r"(((unsigned *)(y + 0))[1]),
        "f"(((float *)(z + 0))[0]), "f"(((float *)(z + 0))[1]), "f"(((float *)(z + 0))[2]),
        "f"(((float *)(z + 0))[3]));
  }
  for (int i = 0; i < 4; ++i) c[(row + i / 2 * 8) * N + pair * 2 + i % 2] = z[i];
}
"""


@pytest.mark.parametrize(
    "kind, depth, instruction",
    [
        ("half", 16, "m16n8k16.row.col.f32.f16.f16.f32"),
        ("nv_bfloat16", 16, "m16n8k16.row.col.f32.bf16.bf16.f32"),
        ("float", 8, "m16n8k8.row.col.f32.tf32.tf32.f32"),
    ],
)
def test_mma_multiplies_what_lies_in_registers(kind, depth, instruction):
    text = MMA.replace("STORED", kind).replace("INSTRUCTION", instruction)
    each = 4 // NUMPY[kind].itemsize
    run = launcher(f"#define M 16\n#define N 8\n#define K {depth}\n#define EACH {each}\n{text}")
    a, b, c = (
        random((16, depth), NUMPY[kind], 1),
        random((8, depth), NUMPY[kind], 2),
        empty(128).reshape(16, 8),
    )
    run("", 1, 32, a, b, c)
    if kind == "float":
        a, b = truncated(a), truncated(b)
    np.testing.assert_allclose(c, 0.5 + exact(a) @ exact(b).T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transposed", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_deals_rows_to_lanes(transposed, count):
    registers = ", ".join(f"%{number}" for number in range(count))
    outputs = ", ".join(f'"=r"(((unsigned *)(x + 0))[{number}])' for number in range(count))
    run = launcher(f"""
    extern "C" __global__ void k(half* __restrict__ a, half* __restrict__ y) {{
      __shared__ alignas(16) half t[{64 * count}];
      alignas(16) half x[8];
      for (int i = 0; i < {2 * count}; ++i) t[i * 32 + (int)threadIdx.x] = a[i * 32 + (int)threadIdx.x];
      __syncthreads();
      {{
        unsigned int addr = __cvta_generic_to_shared(t + (int)threadIdx.x % {8 * count} * 8 HOLE);
        __asm__ __volatile__(
          "ldmatrix.sync.aligned.m8n8.x{count}{transposed}.shared.b16 {{{registers}}}, [%{count}];\\n"
          : {outputs}
          : "r"(addr)
        );
      }}
      int row = (int)threadIdx.x / 4, pair = (int)threadIdx.x % 4;
      for (int i = 0; i < {2 * count}; ++i) y[(i / 2 * 8 + row) * 8 + pair * 2 + i % 2] = x[i];
    }}""")
    a, y = random((count, 8, 8), np.dtype("float16")), np.zeros((count, 8, 8), "float16")
    run("", 1, 32, a, y)
    np.testing.assert_array_equal(y, a.transpose(0, 2, 1) if transposed else a)
    with pytest.raises(EmulationError, match="misaligned read of shared memory t"):
        run("+ 4", 1, 32, a, y)
    with pytest.raises(
        EmulationError, match=rf"out-of-bounds read of shared memory t: index {8 * count} "
    ):
        run("+ 8", 1, 32, a, y)


def test_ldmatrix_moves_values_of_32_bits_to_the_lanes_of_tf32():
    run = launcher("""
    extern "C" __global__ void k(float* __restrict__ a, float* __restrict__ y) {
      __shared__ alignas(16) float t[128];
      alignas(16) float x[4];
      for (int i = 0; i < 4; ++i) t[i * 32 + (int)threadIdx.x] = a[i * 32 + (int)threadIdx.x];
      __syncthreads();
      int row = (int)threadIdx.x / 4, column = (int)threadIdx.x % 4;
      {
        unsigned int addr = __cvta_generic_to_shared(
          t + (int)threadIdx.x % 16 * 8 + (int)threadIdx.x / 16 * 4);
        __asm__ __volatile__(
          "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\\n"
          : "=r"(((unsigned *)(x + 0))[0]), "=r"(((unsigned *)(x + 0))[1]), "=r"(((unsigned *)(x + 0))[2]),
            "=r"(((unsigned *)(x + 0))[3])
          : "r"(addr)
        );
      }
      for (int i = 0; i < 4; ++i) y[(row + i % 2 * 8) * 8 + column + i / 2 * 4] = x[i];
    }""")
    a, y = random((16, 8), np.dtype("float32")), np.zeros((16, 8), "float32")
    run("", 1, 32, a, y)
    np.testing.assert_array_equal(y, a)

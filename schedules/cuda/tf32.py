"""Products of a warp in tf32: values of float32 rounded to 10 bits of mantissa, sums in float32."""

from __future__ import annotations

from .fragments import WarpProduct

__all__ = ["tf32_function"]


def tf32_function(product: WarpProduct) -> tuple[str, str]:
    """Return name and source of the device function that multiplies the tile of a warp.

    TVM declares no fragments of tf32; these live inside of the function, those of the sums outside.

    Parameters
    ----------
    product : WarpProduct
        The tile, of float32.
    """
    down, across = product.counts
    a_layout, b_layout = product.layouts
    a_step = "1" if product.a_by_columns else "a_step"
    b_step = "b_step" if product.b_by_columns else "1"
    name = f"tvm_sparse_multiply_tf32_{down}x{across}_{a_layout[0]}{b_layout[0]}"
    fragment = "nvcuda::wmma::fragment<nvcuda::wmma::{}, 16, 16, 8, {}>"
    sums = fragment.format("accumulator", "float")
    a = fragment.format("matrix_a", f"nvcuda::wmma::precision::tf32, nvcuda::wmma::{a_layout}")
    b = fragment.format("matrix_b", f"nvcuda::wmma::precision::tf32, nvcuda::wmma::{b_layout}")
    source = f"""
__forceinline__ __device__ void {name}(
    {sums} (&sums)[{down * across}],
    const float* a, int a_step, const float* b, int b_step) {{
  {b} b_parts[{across}];
#pragma unroll
  for (int j = 0; j < {across}; ++j) {{
    nvcuda::wmma::load_matrix_sync(b_parts[j], b + j * 16 * {b_step}, b_step);
#pragma unroll
    for (int t = 0; t < b_parts[j].num_elements; ++t)
      b_parts[j].x[t] = nvcuda::wmma::__float_to_tf32(b_parts[j].x[t]);
  }}
#pragma unroll
  for (int i = 0; i < {down}; ++i) {{
    {a} a_part;
    nvcuda::wmma::load_matrix_sync(a_part, a + i * 16 * {a_step}, a_step);
#pragma unroll
    for (int t = 0; t < a_part.num_elements; ++t) a_part.x[t] = nvcuda::wmma::__float_to_tf32(a_part.x[t]);
#pragma unroll
    for (int j = 0; j < {across}; ++j)
      nvcuda::wmma::mma_sync(sums[i * {across} + j], a_part, b_parts[j], sums[i * {across} + j]);
  }}
}}
"""
    return name, source

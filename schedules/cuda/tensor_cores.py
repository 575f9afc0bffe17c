"""Products of a warp on tensor cores: intrinsics for ``tensorize``, registered when they are asked for.

TVM's own cover one fragment of 16 x 16 x 16 in float16 and 8-bit integers. Those here multiply all the
fragments of a warp's tile, straight from shared memory, for float16, bfloat16 and float32, each operand
stored by rows or by columns. Values of float32 are rounded to tf32 (10 bits of mantissa); sums are kept in
float32 for all. Tiles of eight rows use fragments of 8 x 32 x 16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

__all__ = ["WARP", "FragmentShape", "WarpProduct", "fragment_shape"]

#: Lanes of a warp.
WARP = 32

_OPERANDS = "shared.dyn"
_SUMS = "wmma.accumulator"


@dataclass(frozen=True)
class FragmentShape:
    """What one instruction multiplies: ``rows x depth`` by ``depth x columns``."""

    rows: int
    columns: int
    depth: int


def fragment_shape(dtype: str, rows: int) -> FragmentShape:
    """Return the fragments for a tile.

    Parameters
    ----------
    dtype : str
        Of the operands: ``"float16"``, ``"bfloat16"`` or ``"float32"``.
    rows : int
        Rows of the tile.

    Raises
    ------
    ValueError
        If tensor cores do not multiply this dtype.

    Examples
    --------
    >>> from tvm_sparse.schedules.cuda.tensor_cores import fragment_shape
    >>> fragment_shape("float16", 8), fragment_shape("float32", 8).rows
    (FragmentShape(rows=8, columns=32, depth=16), 16)
    """
    if dtype == "float32":
        return FragmentShape(16, 16, 8)
    if dtype in ("float16", "bfloat16"):
        return FragmentShape(8, 32, 16) if rows <= 8 else FragmentShape(16, 16, 16)
    raise ValueError(
        f"dtype: expected float16, bfloat16 or float32 for tensor cores, found {dtype}"
    )


@dataclass(frozen=True)
class WarpProduct:
    """The product that a warp adds to its tile of the result.

    Parameters
    ----------
    rows, columns : int
        The tile, multiples of the fragments' sizes.
    dtype : str
        Of the operands, which lie in dynamic shared memory.
    a_by_columns, b_by_columns : bool
        Whether an operand is stored transposed: ``A[k, i]``, ``B[j, k]``.

    Examples
    --------
    >>> from tvm_sparse.schedules.cuda.tensor_cores import WarpProduct
    >>> WarpProduct(16, 32, "bfloat16").multiply
    'tvm_sparse.warp_multiply_16x32_bfloat16'
    """

    rows: int
    columns: int
    dtype: str
    a_by_columns: bool = False
    b_by_columns: bool = False

    @property
    def shape(self) -> FragmentShape:
        """The fragments that the tile consists of."""
        return fragment_shape(self.dtype, self.rows)

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of fragments along rows and columns."""
        return self.rows // self.shape.rows, self.columns // self.shape.columns

    @property
    def multiply(self) -> str:
        """Intrinsic for ``C[i, j] = C[i, j] + A[i, k] * B[k, j]``, one fragment deep."""
        by_columns = f"{'_at' * self.a_by_columns}{'_bt' * self.b_by_columns}"
        build = _multiply_tf32 if self.dtype == "float32" else _multiply_halves
        return _registered(f"multiply_{self._size}_{self.dtype}{by_columns}", build, self)

    @property
    def fill(self) -> str:
        """Intrinsic for ``C[i, j] = 0``."""
        return _registered(f"fill_{self._size}_{self._fragments}", _fill, self)

    @property
    def store(self) -> str:
        """Intrinsic for ``S[i, j] = C[i, j]`` with ``S`` in shared memory."""
        return _registered(f"store_{self._size}_{self._fragments}", _store, self)

    @property
    def _size(self) -> str:
        return f"{self.rows}x{self.columns}"

    @property
    def _fragments(self) -> str:
        return f"m{self.shape.rows}n{self.shape.columns}k{self.shape.depth}"


def _registered(name: str, build, product: WarpProduct) -> str:
    name = f"tvm_sparse.warp_{name}"
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(name, *build(product))
    return name


def _multiply_description(product: WarpProduct) -> PrimFunc:
    rows, columns, depth = product.rows, product.columns, product.shape.depth
    dtype, swap_a, swap_b = product.dtype, product.a_by_columns, product.b_by_columns
    a_shape, b_shape = _swapped(rows, depth, swap_a), _swapped(depth, columns, swap_b)

    @T.prim_func(s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, a_shape, dtype, align=16, offset_factor=8, scope=_OPERANDS)
        B = T.match_buffer(b, b_shape, dtype, align=16, offset_factor=8, scope=_OPERANDS)
        C = T.match_buffer(c, (rows, columns), "float32", align=64, offset_factor=1, scope=_SUMS)
        with T.sblock("root"):
            T.reads(
                C[0:rows, 0:columns],
                A[0 : a_shape[0], 0 : a_shape[1]],
                B[0 : b_shape[0], 0 : b_shape[1]],
            )
            T.writes(C[0:rows, 0:columns])
            for i, j, k in T.grid(rows, columns, depth):
                with T.sblock("multiply"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    ai, ak = T.meta_var(_swapped(vi, vk, swap_a))
                    bk, bj = T.meta_var(_swapped(vk, vj, swap_b))
                    C[vi, vj] = C[vi, vj] + T.Cast("float32", A[ai, ak]) * T.Cast(
                        "float32", B[bk, bj]
                    )

    return description


def _multiply_halves(product: WarpProduct) -> tuple[PrimFunc, PrimFunc]:
    """Multiply with TVM's operations on fragments."""
    rows, columns, shape = product.rows, product.columns, product.shape
    m, n, k = shape.rows, shape.columns, shape.depth
    dtype, swap_a, swap_b = product.dtype, product.a_by_columns, product.b_by_columns
    a_shape, b_shape = _swapped(rows, k, swap_a), _swapped(k, columns, swap_b)
    a_layout, b_layout = _layout(swap_a), _layout(swap_b)
    down, across = product.counts

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        a_step, a_one, b_step, b_one = T.int32(), T.int32(), T.int32(), T.int32()
        A = T.match_buffer(
            a, a_shape, dtype, align=16, offset_factor=8, scope=_OPERANDS, strides=[a_step, a_one]
        )
        B = T.match_buffer(
            b, b_shape, dtype, align=16, offset_factor=8, scope=_OPERANDS, strides=[b_step, b_one]
        )
        C = T.match_buffer(c, (rows, columns), "float32", align=64, offset_factor=1, scope=_SUMS)
        with T.sblock("root"):
            T.reads(
                C[0:rows, 0:columns],
                A[0 : a_shape[0], 0 : a_shape[1]],
                B[0 : b_shape[0], 0 : b_shape[1]],
            )
            T.writes(C[0:rows, 0:columns])
            with T.sblock("fragments"):
                T.reads(
                    C[0:rows, 0:columns],
                    A[0 : a_shape[0], 0 : a_shape[1]],
                    B[0 : b_shape[0], 0 : b_shape[1]],
                )
                T.writes(C[0:rows, 0:columns])
                a_fragment = T.sblock_alloc_buffer((m, k), dtype, scope="wmma.matrix_a")
                b_fragments = T.sblock_alloc_buffer((k, columns), dtype, scope="wmma.matrix_b")
                for j in T.unroll(across):
                    T.evaluate(
                        T.tvm_load_matrix_sync(
                            b_fragments.data,
                            m,
                            n,
                            k,
                            j,
                            B.access_ptr(
                                "r", ptr_type=dtype, offset=j * n * (b_step if swap_b else 1)
                            ),
                            b_step,
                            b_layout,
                            dtype="void",
                        )
                    )
                for i in T.unroll(down):
                    T.evaluate(
                        T.tvm_load_matrix_sync(
                            a_fragment.data,
                            m,
                            n,
                            k,
                            0,
                            A.access_ptr(
                                "r", ptr_type=dtype, offset=i * m * (1 if swap_a else a_step)
                            ),
                            a_step,
                            a_layout,
                            dtype="void",
                        )
                    )
                    for j in T.unroll(across):
                        T.evaluate(
                            T.tvm_mma_sync(
                                C.data,
                                i * across + j,
                                a_fragment.data,
                                0,
                                b_fragments.data,
                                j,
                                C.data,
                                i * across + j,
                                dtype="void",
                            )
                        )

    return _multiply_description(product), implementation


def _multiply_tf32(product: WarpProduct) -> tuple[PrimFunc, PrimFunc]:
    """Multiply by a device function: TVM declares no fragments of tf32."""
    rows, columns, depth = product.rows, product.columns, product.shape.depth
    swap_a, swap_b = product.a_by_columns, product.b_by_columns
    a_shape, b_shape = _swapped(rows, depth, swap_a), _swapped(depth, columns, swap_b)
    name, source = _tf32_function(product)

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        a_step, a_one, b_step, b_one = T.int32(), T.int32(), T.int32(), T.int32()
        A = T.match_buffer(
            a,
            a_shape,
            "float32",
            align=16,
            offset_factor=4,
            scope=_OPERANDS,
            strides=[a_step, a_one],
        )
        B = T.match_buffer(
            b,
            b_shape,
            "float32",
            align=16,
            offset_factor=4,
            scope=_OPERANDS,
            strides=[b_step, b_one],
        )
        C = T.match_buffer(c, (rows, columns), "float32", align=64, offset_factor=1, scope=_SUMS)
        with T.sblock("root"):
            T.reads(
                C[0:rows, 0:columns],
                A[0 : a_shape[0], 0 : a_shape[1]],
                B[0 : b_shape[0], 0 : b_shape[1]],
            )
            T.writes(C[0:rows, 0:columns])
            T.evaluate(
                T.cuda.func_call(
                    name,
                    C.data,
                    A.access_ptr("r", ptr_type="float32"),
                    a_step,
                    B.access_ptr("r", ptr_type="float32"),
                    b_step,
                    source_code=source,
                )
            )

    return _multiply_description(product), implementation


def _tf32_function(product: WarpProduct) -> tuple[str, str]:
    """Return name and source of the function that multiplies a tile in tf32."""
    down, across = product.counts
    a_layout, b_layout = _layout(product.a_by_columns), _layout(product.b_by_columns)
    a_step = "1" if product.a_by_columns else "a_step"
    b_step = "b_step" if product.b_by_columns else "1"
    name = f"tvm_sparse_multiply_tf32_{down}x{across}_{a_layout[0]}{b_layout[0]}"
    fragment = "nvcuda::wmma::fragment<nvcuda::wmma::{}, 16, 16, 8, {}>"
    sums = fragment.format("accumulator", "float")
    a = fragment.format("matrix_a", f"nvcuda::wmma::precision::tf32, nvcuda::wmma::{a_layout}")
    b = fragment.format("matrix_b", f"nvcuda::wmma::precision::tf32, nvcuda::wmma::{b_layout}")
    source = f"""
__forceinline__ __device__ void {name}({sums} (&sums)[{down * across}], const float* a, int a_step, const float* b, int b_step) {{
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


def _fill(product: WarpProduct) -> tuple[PrimFunc, PrimFunc]:
    rows, columns, shape = product.rows, product.columns, product.shape
    m, n, k = shape.rows, shape.columns, shape.depth
    down, across = product.counts

    @T.prim_func(s_tir=True)
    def description(c: T.handle) -> None:
        C = T.match_buffer(c, (rows, columns), "float32", align=64, offset_factor=1, scope=_SUMS)
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:rows, 0:columns])
            for i, j in T.grid(rows, columns):
                with T.sblock("fill"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = T.float32(0)

    @T.prim_func(s_tir=True)
    def implementation(c: T.handle) -> None:
        C = T.match_buffer(c, (rows, columns), "float32", align=64, offset_factor=1, scope=_SUMS)
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:rows, 0:columns])
            for part in T.unroll(down * across):
                T.evaluate(T.tvm_fill_fragment(C.data, m, n, k, part, T.float32(0), dtype="void"))

    return description, implementation


def _store(product: WarpProduct) -> tuple[PrimFunc, PrimFunc]:
    rows, columns, shape = product.rows, product.columns, product.shape
    m, n, k = shape.rows, shape.columns, shape.depth
    down, across = product.counts

    @T.prim_func(s_tir=True)
    def description(c: T.handle, s: T.handle) -> None:
        C = T.match_buffer(c, (rows, columns), "float32", align=64, offset_factor=1, scope=_SUMS)
        S = T.match_buffer(
            s, (rows, columns), "float32", align=16, offset_factor=4, scope=_OPERANDS
        )
        with T.sblock("root"):
            T.reads(C[0:rows, 0:columns])
            T.writes(S[0:rows, 0:columns])
            for i, j in T.grid(rows, columns):
                with T.sblock("store"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    S[vi, vj] = C[vi, vj]

    @T.prim_func(s_tir=True)
    def implementation(c: T.handle, s: T.handle) -> None:
        step, one = T.int32(), T.int32()
        C = T.match_buffer(c, (rows, columns), "float32", align=64, offset_factor=1, scope=_SUMS)
        S = T.match_buffer(
            s,
            (rows, columns),
            "float32",
            align=16,
            offset_factor=4,
            scope=_OPERANDS,
            strides=[step, one],
        )
        with T.sblock("root"):
            T.reads(C[0:rows, 0:columns])
            T.writes(S[0:rows, 0:columns])
            for i, j in T.grid(down, across):
                T.evaluate(
                    T.tvm_store_matrix_sync(
                        C.data,
                        m,
                        n,
                        k,
                        i * across + j,
                        S.access_ptr("w", ptr_type="float32", offset=i * m * step + j * n),
                        step,
                        "row_major",
                        dtype="void",
                    )
                )

    return description, implementation


def _swapped(first, second, swap: bool) -> tuple:
    return (second, first) if swap else (first, second)


def _layout(by_columns: bool) -> Literal["row_major", "col_major"]:
    return "col_major" if by_columns else "row_major"

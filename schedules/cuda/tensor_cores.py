"""Products of a warp on tensor cores: intrinsics for ``tensorize``, registered when they are asked for.

TVM's own cover one fragment of 16 x 16 x 16 in float16 and 8-bit integers. Those here multiply all the
fragments of a warp's tile, straight from shared memory, for float16, bfloat16 and float32, each operand
stored by rows or by columns. Values of float32 are rounded to tf32 (10 bits of mantissa); sums are kept
in float32 for all. Tiles of eight rows use fragments of 8 x 32 x 16.
"""

from __future__ import annotations

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from .fragments import WarpProduct
from .tf32 import tf32_function

__all__ = ["fill_intrinsic", "multiply_intrinsic", "store_intrinsic"]

_OPERANDS = "shared.dyn"
_SUMS = "wmma.accumulator"


def multiply_intrinsic(product: WarpProduct) -> str:
    """Return the intrinsic for ``C[i, j] = C[i, j] + A[i, k] * B[k, j]``, one fragment deep.

    Examples
    --------
    >>> from tvm_sparse.schedules.cuda.fragments import WarpProduct
    >>> from tvm_sparse.schedules.cuda.tensor_cores import multiply_intrinsic
    >>> multiply_intrinsic(WarpProduct(16, 32, "bfloat16"))
    'tvm_sparse.warp_multiply_16x32_bfloat16'
    """
    by_columns = f"{'_at' * product.a_by_columns}{'_bt' * product.b_by_columns}"
    build = _multiply_tf32 if product.dtype == "float32" else _multiply_halves
    return _registered(f"multiply_{_size(product)}_{product.dtype}{by_columns}", build, product)


def fill_intrinsic(product: WarpProduct) -> str:
    """Return the intrinsic for ``C[i, j] = 0``."""
    return _registered(f"fill_{_size(product)}_{_fragments(product)}", _fill, product)


def store_intrinsic(product: WarpProduct) -> str:
    """Return the intrinsic for ``S[i, j] = C[i, j]`` with ``S`` in shared memory."""
    return _registered(f"store_{_size(product)}_{_fragments(product)}", _store, product)


def _size(product: WarpProduct) -> str:
    return f"{product.rows}x{product.columns}"


def _fragments(product: WarpProduct) -> str:
    return f"m{product.shape.rows}n{product.shape.columns}k{product.shape.depth}"


def _registered(name: str, build, product: WarpProduct) -> str:
    name = f"tvm_sparse.warp_{name}"
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(name, *build(product))
    return name


def _multiply_description(product: WarpProduct) -> PrimFunc:
    rows, columns, depth = product.rows, product.columns, product.shape.depth
    dtype, a_shape, b_shape = product.dtype, product.a_shape, product.b_shape
    swap_a, swap_b = product.a_by_columns, product.b_by_columns

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
                    ai, ak = T.meta_var((vk, vi) if swap_a else (vi, vk))
                    bk, bj = T.meta_var((vj, vk) if swap_b else (vk, vj))
                    C[vi, vj] = C[vi, vj] + T.Cast("float32", A[ai, ak]) * T.Cast(
                        "float32", B[bk, bj]
                    )

    return description


def _multiply_halves(product: WarpProduct) -> tuple[PrimFunc, PrimFunc]:
    """Multiply with TVM's operations on fragments."""
    rows, columns, shape = product.rows, product.columns, product.shape
    m, n, k = shape.rows, shape.columns, shape.depth
    dtype, a_shape, b_shape = product.dtype, product.a_shape, product.b_shape
    swap_a, swap_b = product.a_by_columns, product.b_by_columns
    a_layout, b_layout = product.layouts
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
    rows, columns = product.rows, product.columns
    a_shape, b_shape = product.a_shape, product.b_shape
    name, source = tf32_function(product)

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

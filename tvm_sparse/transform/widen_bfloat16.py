"""Widen pairs of bfloat16 in registers by one instruction each.

A bfloat16 is the upper half of a float32. Compilers take a pair apart first and shift each number then;
here the lower one of a pair is shifted up, and of the upper one the other is masked out.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var
from tvm.tirx.buffer import buffer_data

__all__ = ["WidenBfloat16"]

_PAIR_BYTES = 4


def WidenBfloat16() -> tvm.transform.Pass:
    """Build the pass that converts bfloat16 in local arrays to float32 by operations on pairs.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs of flat buffers whose short loops are unrolled.

    Notes
    -----
    Before, for an array ``b`` of bfloat16::

        T.Cast("float32", b[2]), T.Cast("float32", b[3])

    and after, for the same memory as an array ``pairs`` of uint32::

        T.reinterpret("float32", pairs[1] << 16), T.reinterpret("float32", pairs[1] & 0xffff0000)

    Only local arrays of kernels that are aligned to pairs, an even number long, at places that are known.

    Examples
    --------
    >>> from tvm_sparse.transform import WidenBfloat16
    >>> WidenBfloat16().info.name
    'tvm_sparse.WidenBfloat16'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        pairs = {
            buffer: tirx.decl_buffer(
                (int(buffer.ty.shape[0]) // 2,), "uint32", f"{buffer.name}_pairs", scope="local"
            )
            for buffer in _arrays_of_pairs(func.body)
        }
        if not pairs:
            return func

        def cast(node: tirx.Cast, mutator) -> Expr:
            load = node.value
            if not isinstance(load, TensorLoad) or load.source not in pairs:
                return mutator.default_mutate(node)
            if str(node.ty.dtype) != "float32" or not isinstance(load.indices[0], tirx.IntImm):
                return mutator.default_mutate(node)
            place = int(load.indices[0])
            pair = tirx.BufferLoad(pairs[load.source], [tirx.const(place // 2, "int32")])
            if place % 2:
                bits = tirx.bitwise_and(pair, tirx.const(0xFFFF0000, "uint32"))
            else:
                bits = tirx.shift_left(pair, tirx.const(16, "uint32"))
            return tirx.reinterpret("float32", bits)

        def allocate(node: tirx.AllocBuffer, mutator) -> tirx.Stmt:
            if node.buffer not in pairs:
                return mutator.default_mutate(node)
            alias = tirx.DeclBuffer(pairs[node.buffer], data=buffer_data(node.buffer))
            return tirx.SeqStmt([node, alias])

        handlers = [(tirx.Cast, cast), (tirx.AllocBuffer, allocate)]
        return func.with_body(tvm_ffi.structural_mutate(func.body, handlers))

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.WidenBfloat16")


def _arrays_of_pairs(body: tirx.Stmt) -> list[Var]:
    """Local arrays of bfloat16 in kernels."""
    found: list[Var] = []

    def note(node: tirx.AllocBuffer) -> None:
        kind = node.buffer.ty
        if str(kind.dtype) != "bfloat16" or kind.storage_scope != "local" or len(kind.shape) != 1:
            return
        even = isinstance(kind.shape[0], tirx.IntImm) and int(kind.shape[0]) % 2 == 0
        if even and kind.data_alignment >= _PAIR_BYTES:
            found.append(node.buffer)

    def kernel(node: tirx.AttrStmt) -> None:
        if node.attr_key == "thread_extent" and str(node.node.thread_tag).startswith("blockIdx"):
            tvm_ffi.structural_walk(node.body, (tirx.AllocBuffer, note))

    tvm_ffi.structural_walk(body, (tirx.AttrStmt, kernel))
    return found

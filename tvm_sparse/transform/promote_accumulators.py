"""Accumulate half-precision reductions in float32 and round once.

A running sum kept in float16 sticks at 2048; here the reduction goes to a float32 temporary of the
same axes and a second iteration rounds it.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var

from ..ir import SparseBuffer, SparseFunc, SparseIteration

__all__ = ["promote_accumulators"]

_HALF = ("float16", "bfloat16")
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)


def promote_accumulators(func: SparseFunc) -> SparseFunc:
    """Rewrite reductions into float16 or bfloat16 buffers.

    Before::

        with S.sp_iter([I, J], "SR", "rows") as [i, j]:
            with T.init():
                B[i] = T.float16(0)
            B[i] = B[i] + A[i, j]

    After::

        B_sum = S.alloc_sparse_buffer((I,), "float32")
        with S.sp_iter([I, J], "SR", "rows") as [i, j]:
            with T.init():
                B_sum[i] = T.float32(0)
            B_sum[i] = B_sum[i] + T.Cast("float32", A[i, j])
        with S.sp_iter([I], "S", "rows_cast") as [i]:
            B[i] = T.Cast("float16", B_sum[i])
    """
    sparse = func.sparse_buffers
    added: list[SparseBuffer] = []

    def visit(node: SparseIteration, mutator) -> tirx.Stmt:
        targets = _half_targets(node, sparse)
        if not targets:
            return mutator.default_mutate(node)
        sums = {}
        for buffer in targets:
            wide = tirx.decl_buffer(buffer.buffer.ty.shape, "float32", f"{buffer.name}_sum")
            default = tirx.Cast("float32", buffer.default)
            temporary = SparseBuffer(buffer=wide, axes=list(buffer.axes), default=default)
            added.append(temporary)
            sums[buffer.buffer] = wide
        promoted = SparseIteration(
            axes=node.axes,
            kinds=node.kinds,
            iter_vars=node.iter_vars,
            body=_promote(node.body, sums),
            init=_promote(node.init, sums),
            name=node.name,
            annotations=node.annotations,
            span=node.span,
        )
        casts = [_cast_iteration(buf, sums[buf.buffer], node.name) for buf in targets]
        return tirx.SeqStmt([promoted, *casts])

    body = tvm_ffi.structural_mutate(func.body, [(SparseIteration, visit)])
    if not added:
        return func
    return func.with_body(body, temporaries=[*func.temporaries, *added])


def _half_targets(node: SparseIteration, sparse: dict[Var, SparseBuffer]) -> list[SparseBuffer]:
    targets: list[SparseBuffer] = []

    def check(store: tirx.BufferStore) -> None:
        buffer = sparse.get(store.buffer)
        if buffer is not None and buffer.dtype in _HALF and buffer not in targets:
            targets.append(buffer)

    if node.init is not None and "R" in node.kinds:
        tvm_ffi.structural_walk(node.init, [(tirx.BufferStore, check)])
    return targets


def _promote(stmt: tirx.Stmt, sums: dict[Var, Var]) -> tirx.Stmt:
    def store(node: tirx.BufferStore, mutator) -> tirx.Stmt:
        if node.buffer not in sums:
            return mutator.default_mutate(node)
        return tirx.BufferStore(sums[node.buffer], _widen(node.value, sums), node.indices)

    def load(node: TensorLoad, mutator) -> Expr:
        if node.source not in sums:
            return mutator.default_mutate(node)
        return tirx.Cast(str(node.ty.dtype), tirx.BufferLoad(sums[node.source], node.indices))

    return tvm_ffi.structural_mutate(stmt, [(tirx.BufferStore, store), (TensorLoad, load)])


def _widen(expr: Expr, sums: dict[Var, Var]) -> Expr:
    """Evaluate a half-precision expression in float32."""
    if str(expr.ty.dtype) not in _HALF:
        return expr
    if isinstance(expr, TensorLoad) and expr.source in sums:
        return tirx.BufferLoad(sums[expr.source], expr.indices)
    if isinstance(expr, _ARITHMETIC):
        return type(expr)(_widen(expr.a, sums), _widen(expr.b, sums))
    if isinstance(expr, tirx.FloatImm):
        return tirx.FloatImm("float32", expr.value)
    if isinstance(expr, tirx.Cast):
        return tirx.Cast("float32", expr.value)
    return tirx.Cast("float32", expr)


def _cast_iteration(buffer: SparseBuffer, wide: Var, name: str) -> SparseIteration:
    variables = [Var(axis.name.lower(), axis.dtype) for axis in buffer.axes]
    value = tirx.Cast(buffer.dtype, tirx.BufferLoad(wide, variables))
    return SparseIteration(
        axes=list(buffer.axes),
        kinds="S" * len(variables),
        iter_vars=variables,
        body=tirx.BufferStore(buffer.buffer, value, variables),
        init=None,
        name=f"{name}_cast",
        annotations={},
        span=None,
    )

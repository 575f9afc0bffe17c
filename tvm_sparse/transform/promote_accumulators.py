"""Accumulate half-precision reductions in float32 and round once.

A running sum kept in float16 sticks at 2048; here the program computes in a float32 temporary of the
same axes, and its last iteration rounds it. The temporary stands for the result throughout: several
iterations may write parts of it.
"""

from __future__ import annotations

import operator
from collections.abc import Collection

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var

from ..ir import SparseBuffer, SparseFunc, SparseIteration
from ..ir.buffer import declare_buffer
from .fill_outputs import buffer_roles

__all__ = ["promote_accumulators"]

_HALF = ("float16", "bfloat16")
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)


def promote_accumulators(func: SparseFunc, keep: Collection[Var] = ()) -> SparseFunc:
    """Rewrite reductions into float16 or bfloat16 buffers.

    Parameters
    ----------
    func : SparseFunc
        The function.
    keep : collection of tvm.ir.Var
        Buffers to leave as they are.

    Returns
    -------
    SparseFunc
        The function itself if it has no such reductions.

    Notes
    -----
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

    A buffer that the program reads before it writes it is copied to the temporary first.
    """
    targets = [(buffer, node) for buffer, node in _half_targets(func) if buffer.buffer not in keep]
    if not targets:
        return func
    sums: dict[Var, Var] = {}
    temporaries = [*func.temporaries]
    copies: list[tirx.Stmt] = []
    casts: list[tirx.Stmt] = []
    roles = buffer_roles(func)
    for buffer, node in targets:
        wide = declare_buffer(buffer.buffer.ty.shape, "float32", f"{buffer.name}_sum")
        sums[buffer.buffer] = wide
        default = _widen(buffer.default)
        temporaries.append(SparseBuffer(buffer=wide, axes=list(buffer.axes), default=default))
        if buffer in func.temporaries:
            temporaries.remove(buffer)
            continue
        if roles[buffer.buffer] == "inout":
            copies.append(_copy_iteration(buffer, buffer.buffer, wide, node, "copy"))
        casts.append(_copy_iteration(buffer, wide, buffer.buffer, node, "cast"))
    promoted = _promote(func.body, sums)
    body = tirx.SeqStmt([*copies, promoted, *casts]) if copies or casts else promoted
    return func.with_body(body, temporaries=temporaries)


def _half_targets(func: SparseFunc) -> list[tuple[SparseBuffer, SparseIteration]]:
    """Half-precision buffers that iterations reduce into, each with the first of them."""
    sparse = func.sparse_buffers
    found: dict[SparseBuffer, SparseIteration] = {}

    def check(node: SparseIteration) -> None:
        def note(store: tirx.BufferStore) -> None:
            buffer = sparse.get(store.buffer)
            if buffer is not None and buffer.dtype in _HALF:
                found.setdefault(buffer, node)

        if node.init is not None and "R" in node.kinds:
            tvm_ffi.structural_walk(node.init, [(tirx.BufferStore, note)])

    tvm_ffi.structural_walk(func.body, [(SparseIteration, check)])
    return list(found.items())


def _promote(stmt: tirx.Stmt, sums: dict[Var, Var]) -> tirx.Stmt:
    def store(node: tirx.BufferStore, mutator) -> tirx.Stmt:
        if node.buffer not in sums:
            return mutator.default_mutate(node)
        value = _widen(mutator.mutate(node.value))
        indices = [mutator.mutate(index) for index in node.indices]
        return tirx.BufferStore(sums[node.buffer], value, indices, node.span)

    def load(node: TensorLoad, mutator) -> Expr:
        if node.source not in sums:
            return mutator.default_mutate(node)
        indices = [mutator.mutate(index) for index in node.indices]
        return tirx.Cast(str(node.ty.dtype), tirx.BufferLoad(sums[node.source], indices))

    return tvm_ffi.structural_mutate(stmt, [(tirx.BufferStore, store), (TensorLoad, load)])


def _widen(expr: Expr) -> Expr:
    """Evaluate a half-precision expression in float32."""
    if str(expr.ty.dtype) not in _HALF:
        return expr
    if isinstance(expr, _ARITHMETIC):
        return type(expr)(_widen(expr.a), _widen(expr.b))
    if isinstance(expr, tirx.FloatImm):
        return tirx.FloatImm("float32", expr.value)
    if isinstance(expr, tirx.Cast):
        inner = expr.value
        return inner if str(inner.ty.dtype) == "float32" else tirx.Cast("float32", inner)
    return tirx.Cast("float32", expr)


def _copy_iteration(
    buffer: SparseBuffer, source: Var, target: Var, node: SparseIteration, purpose: str
) -> SparseIteration:
    """Copy a buffer in the loops of the iteration that reduces into it, where those are its axes."""
    spatial = [(axis, kinds) for axis, kinds, _ in node.loops if "R" not in kinds]
    members = [member for axis, _ in spatial for member in getattr(axis, "members", [axis])]
    alike = len(members) == len(buffer.axes) and all(map(operator.eq, members, buffer.axes))
    variables = [Var(axis.name.lower(), axis.dtype) for axis in buffer.axes]
    value = tirx.Cast(str(target.ty.dtype), tirx.BufferLoad(source, variables))
    return SparseIteration(
        axes=[axis for axis, _ in spatial] if alike else list(buffer.axes),
        kinds="S" * len(variables),
        iter_vars=variables,
        body=tirx.BufferStore(target, value, variables),
        init=None,
        name=f"{node.name}_{purpose}",
        annotations={},
        span=None,
    )

"""Statements put together: one after another, and bound to the threads of a GPU; integers of 64 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Expr, Range, Var
from tvm.tirx import For, ForKind, IterVar

__all__ = ["as_int64", "in_sequence", "thread_loop", "thread_scope"]


def as_int64(value: Expr | int) -> Expr:
    """Return a number or an expression in 64 bits."""
    return value.astype("int64") if isinstance(value, Expr) else tirx.IntImm("int64", value)


def in_sequence(parts: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """Return statements one after another; a single one as it is."""
    return parts[0] if len(parts) == 1 else tirx.SeqStmt(list(parts))


def thread_loop(
    var: Var, extent: Expr, body: tirx.Stmt, tag: str, annotations: Mapping[str, Any] | None = None
) -> For:
    """Return a loop bound to a thread axis, such as ``"threadIdx.x"``; for what is not lowered yet."""
    zero, size = _bounds(var, extent)
    axis = IterVar(Range.from_min_extent(zero, size), tag, IterVar.ThreadIndex, tag)
    return For(var, zero, size, ForKind.THREAD_BINDING, body, axis, dict(annotations or {}))


def thread_scope(var: Var, extent: Expr, body: tirx.Stmt, tag: str) -> tirx.Stmt:
    """Return a statement in which a variable is a thread axis; for loops that are lowered already."""
    zero, size = _bounds(var, extent)
    axis = IterVar(Range.from_min_extent(zero, size), var, IterVar.ThreadIndex, tag)
    return tirx.AttrStmt(axis, "thread_extent", size, body)


def _bounds(var: Var, extent: Expr) -> tuple[Expr, Expr]:
    dtype = str(var.ty.dtype)
    return tirx.const(0, dtype), extent.astype(dtype)

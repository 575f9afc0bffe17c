"""What tile loops look like once blocks are loops: their predicate, and arithmetic on indices."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

TAIL = "tvm_sparse.tail"
LEAN = "tvm_sparse.lean"


def guards(body: tirx.Stmt, var: tirx.Var) -> list[tirx.LT]:
    """Conditions of the form ``position < extent`` that depend on a loop variable."""
    found = []

    def visit(stmt: tirx.IfThenElse) -> None:
        if is_guard(stmt, var):
            found.append(stmt.condition)

    tvm_ffi.structural_walk(body, (tirx.IfThenElse, visit))
    return found


def is_guard(stmt: tirx.IfThenElse, var: tirx.Var) -> bool:
    return (
        isinstance(stmt.condition, tirx.LT)
        and stmt.else_case is None
        and uses(stmt.condition.a, var)
    )


def tile_guard(loop: tirx.For):
    """Return the width of a tile and the extent that its predicate tests, or None."""
    width, extent = None, None
    for guard in guards(loop.body, loop.loop_var):
        stride = stride_of(guard.a, loop.loop_var)
        if stride is None:
            return None
        if width is None:
            width, extent = stride, guard.b
        if stride != width or not tvm_ffi.structural_equal(guard.b, extent):
            return None
    return None if width is None else (width, extent)


def stride_of(expr, var: tirx.Var) -> int | None:
    """The constant by which an integer expression grows with ``var``, or None."""
    analyzer = Analyzer()
    values = [at_value(expr, var, value) for value in range(3)]
    steps = [analyzer.simplify(values[1] - values[0]), analyzer.simplify(values[2] - values[1])]
    if not all(isinstance(step, tirx.IntImm) for step in steps) or int(steps[0]) != int(steps[1]):
        return None
    return int(steps[0])


def at_value(expr, var: tirx.Var, value):
    """The expression with ``var`` replaced by a constant or another expression."""
    constant = tirx.IntImm(dtype_of(var), value) if isinstance(value, int) else value
    replaced = tvm_ffi.structural_map(
        expr, (tirx.Var, lambda found: constant if found.same_as(var) else found)
    )
    return Analyzer().simplify(replaced)


def variables(node) -> list[tirx.Var]:
    found: list[tirx.Var] = []

    def visit(var: tirx.Var) -> None:
        if not tirx.is_buffer_var(var) and not any(var.same_as(other) for other in found):
            found.append(var)

    tvm_ffi.structural_walk(node, (tirx.Var, visit))
    return found


def uses(node, var: tirx.Var) -> bool:
    return any(var.same_as(other) for other in variables(node))


def dtype_of(expr) -> str:
    return str(expr.ty.dtype)

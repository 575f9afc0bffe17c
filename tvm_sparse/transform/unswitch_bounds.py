"""Leave bounds out of the loops of thread blocks that are full.

A loop that was cut for a thread block is checked in each step against the number of entries. All blocks but
the last are full: they need no checks, and without them loads of several steps are issued together.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Var
from tvm.tirx import For, ForKind

from ..ir.contents import variables_of

__all__ = ["UnswitchBounds"]

#: Statements of a loop body that are worth a second copy.
_LARGEST_BODY = 200


def UnswitchBounds() -> tvm.transform.Pass:
    """Build the pass that makes a version without checks of loops inside of thread blocks.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs of loops in thread blocks.

    Notes
    -----
    Before, with ``group`` one of 32 threads::

        for step in range(8):
            if block * 256 + step * 32 + group < n:
                body(block * 256 + step * 32 + group)

    and after::

        if block * 256 + 255 < n:
            for step in range(8):
                body(block * 256 + step * 32 + group)
        else:
            for step in range(8):
                if block * 256 + step * 32 + group < n:
                    body(block * 256 + step * 32 + group)

    Examples
    --------
    >>> from tvm_sparse.transform import UnswitchBounds
    >>> UnswitchBounds().info.name
    'tvm_sparse.UnswitchBounds'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        def visit(stmt: tirx.Stmt, threads: dict[Var, int]) -> tirx.Stmt:
            def attribute(node: tirx.AttrStmt, mutator) -> tirx.Stmt:
                if node.attr_key != "thread_extent" or not isinstance(node.value, tirx.IntImm):
                    return mutator.default_mutate(node)
                if not str(node.node.thread_tag).startswith("threadIdx"):
                    return mutator.default_mutate(node)
                body = visit(node.body, {**threads, node.node.var: int(node.value)})
                return tirx.AttrStmt(node.node, node.attr_key, node.value, body, node.span)

            def loop(node: For, mutator) -> tirx.Stmt:
                unswitched = _unswitch(node, threads)
                return mutator.default_mutate(node) if unswitched is None else unswitched

            return tvm_ffi.structural_mutate(stmt, [(tirx.AttrStmt, attribute), (For, loop)])

        return func.with_body(visit(func.body, {}))

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.UnswitchBounds")


def _unswitch(loop: For, threads: dict[Var, int]) -> tirx.Stmt | None:
    """Two versions of a loop, None where it checks no bound that a full block keeps."""
    if not threads or not isinstance(loop.extent, tirx.IntImm) or int(loop.extent) < 2:
        return None
    if loop.kind not in (ForKind.SERIAL, ForKind.UNROLLED) or _size(loop.body) > _LARGEST_BODY:
        return None
    within = {**threads, loop.loop_var: int(loop.extent)}
    parts = list(loop.body.seq) if isinstance(loop.body, tirx.SeqStmt) else [loop.body]
    conditions = [c for part in parts for c in _conditions(part) if _is_bound(c, loop, within)]
    if not conditions:
        return None
    full: Expr | None = None
    for condition in conditions:
        most = _at_most(condition, within)
        if full is None or not tvm_ffi.structural_equal(full, most):
            full = most if full is None else tirx.And(full, most)

    def without(node: tirx.IfThenElse, mutator) -> tirx.Stmt:
        left = [c for c in _clauses(node.condition) if not _among(c, conditions)]
        if node.else_case is not None or len(left) == len(_clauses(node.condition)):
            return mutator.default_mutate(node)
        body = mutator.mutate(node.then_case)
        for clause in reversed(left):
            body = tirx.IfThenElse(clause, body, None)
        return body

    unchecked = tvm_ffi.structural_mutate(loop.body, [(tirx.IfThenElse, without)])
    variable = Var(loop.loop_var.name, str(loop.loop_var.ty.dtype))
    unchecked = tvm_ffi.structural_map(
        unchecked, (Var, lambda var: variable if var.same_as(loop.loop_var) else var)
    )
    fast = For(variable, loop.min, loop.extent, loop.kind, unchecked, None, loop.annotations)
    return tirx.IfThenElse(full, fast, loop)


def _conditions(stmt: tirx.Stmt) -> list[Expr]:
    if not isinstance(stmt, tirx.IfThenElse) or stmt.else_case is not None:
        return []
    return _clauses(stmt.condition)


def _clauses(condition: Expr) -> list[Expr]:
    if isinstance(condition, tirx.And):
        return [*_clauses(condition.a), *_clauses(condition.b)]
    return [condition]


def _among(condition: Expr, others: list[Expr]) -> bool:
    return any(tvm_ffi.structural_equal(condition, other) for other in others)


def _is_bound(condition: Expr, loop: For, within: dict[Var, int]) -> bool:
    """Whether it says that a sum which rises with the loop and the threads is below what does not."""
    if not isinstance(condition, tirx.LT) or loop.loop_var not in variables_of(condition.a):
        return False
    if variables_of(condition.b) & within.keys():
        return False
    return all(_rises(term, within) for term in _terms(condition.a))


def _rises(term: Expr, within: dict[Var, int]) -> bool:
    if not variables_of(term) & within.keys():
        return True
    if isinstance(term, tirx.Mul) and isinstance(term.b, tirx.IntImm) and int(term.b) >= 0:
        return _rises(term.a, within)
    if isinstance(term, tirx.Cast):
        return _rises(term.value, within)
    if isinstance(term, tirx.Add):
        return _rises(term.a, within) and _rises(term.b, within)
    return isinstance(term, Var)


def _terms(expr: Expr) -> list[Expr]:
    if isinstance(expr, tirx.Add):
        return [*_terms(expr.a), *_terms(expr.b)]
    return [expr]


def _at_most(condition: Expr, within: dict[Var, int]) -> Expr:
    """The condition for the last thread and step."""

    def last(var: Var) -> Expr:
        return tirx.const(within[var] - 1, str(var.ty.dtype)) if var in within else var

    return tvm.sym.Analyzer().simplify(tvm_ffi.structural_map(condition, (Var, last)))


def _size(stmt: tirx.Stmt) -> int:
    found: list[tirx.Stmt] = []
    tvm_ffi.structural_walk(stmt, (tirx.Stmt, found.append))
    return len(found)

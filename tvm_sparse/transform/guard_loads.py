"""Load values into registers only where they are used.

``cache_read`` loads an operand before the statement that uses it, also where that stands under a
condition: the padding of a format has no row to load. This pass works on loops, after blocks are gone.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, TensorLoad, Var

from ..ir.contents import loads_from, variables_of
from ..ir.statements import in_sequence
from ._store_nests import StoreNest, find_nest, under_conditions

__all__ = ["GuardLoads"]


def GuardLoads() -> tvm.transform.Pass:
    """Build the pass that moves loads into registers under the conditions of their use.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs whose blocks are already lowered to loops.

    Notes
    -----
    Before::

        for k in T.vectorized(4):
            b[k] = B[col[j] * f + k]
        for k in T.unroll(4):
            if col[j] >= 0:
                acc[k] = acc[k] + A[j] * b[k]

    and after::

        if col[j] >= 0:
            for k in T.vectorized(4):
                b[k] = B[col[j] * f + k]
            for k in T.unroll(4):
                acc[k] = acc[k] + A[j] * b[k]

    A condition inside of an expression, as that of ``acc[k] + T.if_then_else(col[j] >= 0, b[k], 0)``, goes
    around the loads alone: the expression says what else to compute. Conditions that depend on the loops
    inside go around single elements, where loads and use have the same loops. Only loads that nothing else
    uses are guarded.

    Examples
    --------
    >>> from tvm_sparse.transform import GuardLoads
    >>> GuardLoads().info.name
    'tvm_sparse.GuardLoads'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        moved = []

        def sequence(node: tirx.SeqStmt) -> tirx.Stmt:
            statements = _guard(list(node.seq), func.body)
            if statements is None:
                return node
            moved.append(node)
            return in_sequence(statements)

        body = tvm_ffi.structural_map(func.body, (tirx.SeqStmt, sequence))
        return func.with_body(body) if moved else func

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.GuardLoads")


def _guard(statements: list[tirx.Stmt], whole: tirx.Stmt) -> list[tirx.Stmt] | None:
    """Move loads that stand right before their conditional use under its conditions."""
    for place in range(len(statements) - 1, 0, -1):
        use = find_nest(statements[place])
        if use is None:
            continue
        first, loads = place, []
        while first > 0 and (load := _load_for(statements[first - 1], use, whole)) is not None:
            first -= 1
            loads.insert(0, load)
        outer = [c for c in use.conditions if _may_move(c, use, loads)] if loads else []
        guarded = [_under_own(load, use) for load in loads]
        if not outer and guarded == loads:
            continue
        together = [*(load.around_store() for load in guarded), statements[place]]
        if outer:
            inner = tuple(c for c in use.conditions if c not in outer)
            together[-1] = StoreNest(use.loops, inner, use.store).around_store()
            together = [under_conditions(outer, tirx.SeqStmt(together))]
        return [*statements[:first], *together, *statements[place + 1 :]]
    return None


def _load_for(stmt: tirx.Stmt, use: StoreNest, whole: tirx.Stmt) -> StoreNest | None:
    """Return a nest that stores to registers which `use` alone reads; None for another statement."""
    nest = find_nest(stmt)
    if nest is None or nest.store.buffer.ty.storage_scope != "local":
        return None
    buffer = nest.store.buffer
    is_own = len(loads_from(use.store, buffer)) == len(loads_from(whole, buffer)) > 0
    return nest if is_own else None


def _may_move(condition: Expr, use: StoreNest, loads: Sequence[StoreNest]) -> bool:
    """Whether a condition of a use can be asked before its loops, and before what is loaded for it."""
    used = variables_of(condition)
    return not used & (use.loop_vars | {load.store.buffer for load in loads})


def _under_own(load: StoreNest, use: StoreNest) -> StoreNest:
    """Put a load under conditions that its use has for it alone, in loops or in an expression."""
    wanted = [c for c in use.conditions if variables_of(c) & use.loop_vars]
    wanted += _conditions_of(use.store.value, load.store.buffer)
    renamed = _same_loops(use, load)
    added = []
    for condition in wanted:
        used = variables_of(condition)
        if load.store.buffer in used or (used & use.loop_vars and renamed is None):
            continue
        if used & use.loop_vars:
            condition = tvm_ffi.structural_map(condition, (Var, lambda v: renamed.get(v, v)))
        if not _is_among(condition, (*load.conditions, *added)):
            added.append(condition)
    if not added:
        return load
    return StoreNest(load.loops, (*load.conditions, *added), load.store)


def _same_loops(use: StoreNest, load: StoreNest) -> dict[Var, Var] | None:
    """Return the loops of a load by those of its use, None where they differ."""
    pairs = list(zip(use.loops, load.loops))
    same = len(use.loops) == len(load.loops) and all(
        tvm_ffi.structural_equal(one.min, other.min)
        and tvm_ffi.structural_equal(one.extent, other.extent)
        for one, other in pairs
    )
    return {one.loop_var: other.loop_var for one, other in pairs} if same else None


def _conditions_of(value: Expr, buffer: Var) -> list[Expr]:
    """Return the conditions in an expression under which all of its loads from a buffer stand."""
    paths: list[list[Expr]] = []

    def under(condition: Expr, node: Expr, visitor) -> None:
        holding.append(condition)
        visitor.visit(node)
        holding.pop()

    def choice(node: Call | tirx.Select, visitor) -> None:
        if isinstance(node, Call):
            if not getattr(node.op, "name", "").endswith("if_then_else"):
                visitor.default_visit(node)
                return
            condition, chosen, otherwise = node.args
        else:
            condition, chosen, otherwise = node.condition, node.true_value, node.false_value
        visitor.visit(condition)
        under(condition, chosen, visitor)
        under(tirx.Not(condition), otherwise, visitor)

    def load(node: TensorLoad, visitor) -> None:
        visitor.default_visit(node)
        if node.source.same_as(buffer):
            paths.append(list(holding))

    holding: list[Expr] = []
    tvm_ffi.structural_visit(value, [((Call, tirx.Select), choice), (TensorLoad, load)])
    first, *others = paths or [[]]
    return [c for c in first if all(_is_among(c, path) for path in others)]


def _is_among(condition: Expr, conditions: Sequence[Expr]) -> bool:
    return any(tvm_ffi.structural_equal(condition, other) for other in conditions)

"""Load values into registers only where they are used.

``cache_read`` loads an operand before the statement that uses it, also where that stands under a
condition: the padding of a format has no row to load. This pass works on loops, after blocks are gone.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr

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

    Only conditions that do not depend on the loops inside move, and only loads that nothing else uses.

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
        nest = find_nest(statements[place])
        if nest is None:
            continue
        outer = [c for c in nest.conditions if not variables_of(c) & nest.loop_vars]
        first = place
        while outer and first > 0 and _loads_for(statements[first - 1], nest, outer, whole):
            first -= 1
        if first < place:
            inner = tuple(c for c in nest.conditions if c not in outer)
            use = StoreNest(nest.loops, inner, nest.store).around_store()
            guarded = under_conditions(outer, tirx.SeqStmt([*statements[first:place], use]))
            return [*statements[:first], guarded, *statements[place + 1 :]]
    return None


def _loads_for(
    stmt: tirx.Stmt, use: StoreNest, conditions: Sequence[Expr], whole: tirx.Stmt
) -> bool:
    """Whether a nest stores to registers that `use` alone reads, under conditions without them."""
    nest = find_nest(stmt)
    if nest is None or nest.store.buffer.ty.storage_scope != "local":
        return False
    buffer = nest.store.buffer
    if any(buffer in variables_of(condition) for condition in conditions):
        return False
    return len(loads_from(use.store, buffer)) == len(loads_from(whole, buffer)) > 0

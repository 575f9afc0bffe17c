"""Sum a reduction in the lanes of vectors, and the lanes at its end.

``rfactor`` does that to blocks with an identity as init and one unconditional store. This pass works on
loops, after blocks are gone, so that it also takes what formats bring: conditions that leave padding out,
sums that add to what other parts have stored, and several results side by side.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, Var
from tvm.tirx import For, ForKind

from ..ir.accumulation import Accumulation, accumulation_of, is_accumulation
from ..ir.contents import variables_of
from ._access import conjunction
from ._marked_loops import marked_loops_pass
from ._store_nests import StoreNest, common_value, find_nest, under_conditions

__all__ = ["LANE", "SUMS", "SumLanes"]

#: Annotation of reduction loops that add to sums in lanes.
SUMS = "tvm_sparse.sums"
#: Annotation of the reduction loops inside whose steps are the lanes of a vector.
LANE = "tvm_sparse.lane"


def SumLanes() -> tvm.transform.Pass:
    """Build the pass that gives annotated sums one accumulator for each lane.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs whose blocks are already lowered to loops.

    Notes
    -----
    Before::

        C[p] = 0
        for k in T.serial(n, annotations={"tvm_sparse.sums": True}):
            for v in T.serial(4, annotations={"tvm_sparse.lane": True}):
                C[p] = C[p] + T.if_then_else(j < columns, X[k * 4 + v], 0) * Y[k * 4 + v]

    and after::

        sums[0:4] = 0
        if j < columns:
            for k in range(n):
                for v in T.vectorized(4):
                    sums[v] = sums[v] + X[k * 4 + v] * Y[k * 4 + v]
        else:
            for k in range(n):
                for v in T.vectorized(4):
                    sums[v] = sums[v] + 0 * Y[k * 4 + v]
        sums[0:2] = sums[0:2] + sums[2:4]
        sums[0:1] = sums[0:1] + sums[1:2]
        C[p] = 0 + sums[0]

    Unrolled loops inside of the annotated one are over several vectors. Loops of constant extent that
    tell results apart may lie there as well; each result gets lanes of its own. Conditions that do not
    change in the loop move out of it; where they depend on loops over results, there is a version for all
    of them true, and one that computes results one after another. A loop is left alone where it is no
    nest around one sum.

    Examples
    --------
    >>> from tvm_sparse.transform.sum_lanes import SumLanes
    >>> SumLanes().info.name
    'tvm_sparse.SumLanes'
    """

    return marked_loops_pass("tvm_sparse.SumLanes", SUMS, _sum_lanes)


def _sum_lanes(loop: For, before: tirx.Stmt | None) -> tuple[tirx.Stmt, bool]:
    """Return what a loop becomes, and whether that replaces the statement before it too."""
    nest = find_nest(loop)
    if nest is None or not _lane_loops(nest) or not _can_sum(nest):
        return loop, False
    results = _results_of(nest)
    start = None if before is None else common_value(before, results)
    replaces = start is not None and len(find_nest(before).conditions) == len(results.conditions)
    first = start if replaces else tirx.BufferLoad(nest.store.buffer, list(nest.store.indices))
    common = [c for c in results.conditions if not variables_of(c) & results.loop_vars]
    return under_conditions(common, _versions(nest, results, first)), replaces


def _versions(nest: StoreNest, results: StoreNest, first: Expr) -> tirx.Stmt:
    """The sums: those of all results at once where all conditions hold, else one after another."""
    reduced = nest.loop_vars - results.loop_vars
    changing = tuple(c for c in nest.conditions if variables_of(c) & reduced)
    of_results = tuple(c for c in results.conditions if variables_of(c) & results.loop_vars)
    choices = _fixed_choices(nest.store.value, reduced)
    chosen = _chosen(nest.store, choices)
    together = _summed(StoreNest(nest.loops, changing, chosen), first)
    if not of_results and not choices:
        return together
    over_sum = tuple(loop for loop in nest.loops if loop.loop_var in reduced)
    one = _summed(StoreNest(over_sum, changing, chosen), first)
    if choices:
        rare = _summed(_plain(StoreNest(over_sum, changing, nest.store)), first)
        known = functools.reduce(conjunction, choices)
        one = tirx.IfThenElse(known, one, rare) if results.loops else rare
    serial = tuple(_with_kind(loop, ForKind.SERIAL) for loop in results.loops)
    one_by_one = StoreNest(serial, of_results, nest.store).around(one)
    holds, look = _look([*of_results, *choices], results.loops)
    version = tirx.IfThenElse(holds, together, one_by_one)
    return tirx.SeqStmt([*look, version]) if look else version


def _summed(nest: StoreNest, first: Expr) -> tirx.Stmt:
    """Sum in lanes of one buffer; each result is ``first`` and its lanes."""
    store, results = nest.store, _results_of(nest)
    result, dtype = store.buffer, str(store.buffer.ty.dtype)
    accumulation = accumulation_of(store, result.name)
    width, lane = _places(_lane_loops(nest))
    count, place = _places(results.loops)
    base = place * width
    sums = tirx.decl_buffer((count * width,), dtype, f"{result.name}_sums")

    neutral = (
        tirx.Broadcast(accumulation.neutral(dtype), width)
        if width > 1
        else accumulation.neutral(dtype)
    )
    clear = tirx.BufferStore(sums, neutral, [_lanes(base, width)])
    added = accumulation.combine(tirx.BufferLoad(sums, [base + lane]), accumulation.term)
    add = StoreNest(
        _with_vectors(nest.loops), nest.conditions, tirx.BufferStore(sums, added, [base + lane])
    )
    total = accumulation.combine(first, tirx.BufferLoad(sums, [base]))
    finish: tirx.Stmt = tirx.BufferStore(result, total, list(store.indices))
    if width > 1:
        finish = tirx.SeqStmt([*_add_lanes(sums, base, width, accumulation), finish])
    every = results.without_conditions
    return tirx.SeqStmt(
        [tirx.AllocBuffer(sums), every.around(clear), add.around_store(), every.around(finish)]
    )


def _lane_loops(nest: StoreNest) -> list[For]:
    """The loops over lanes: vectors, and what is unrolled around them."""
    over_results = {loop.loop_var for loop in nest.tile_loops}
    return [
        loop
        for loop in nest.loops
        if (LANE in loop.annotations or loop.kind == ForKind.UNROLLED)
        and loop.loop_var not in over_results
    ]


def _with_vectors(loops: Sequence[For]) -> tuple[For, ...]:
    return tuple(
        For(loop.loop_var, loop.min, loop.extent, ForKind.VECTORIZED, loop.body)
        if LANE in loop.annotations and int(loop.extent) > 1
        else loop
        for loop in loops
    )


def _can_sum(nest: StoreNest) -> bool:
    """Whether a nest, the annotated loop outermost, is one sum for each result of a constant number."""
    over_results = {loop.loop_var for loop in nest.tile_loops}
    if not is_accumulation(nest.store) or nest.loops[0].loop_var in over_results:
        return False
    counted = [*nest.tile_loops, *_lane_loops(nest)]
    if not all(
        isinstance(loop.extent, tirx.IntImm)
        and isinstance(loop.min, tirx.IntImm)
        and not int(loop.min)
        for loop in counted
    ):
        return False
    inside = nest.loop_vars
    return not any(variables_of(loop.extent) & inside for loop in nest.loops)


def _results_of(nest: StoreNest) -> StoreNest:
    """The nest that visits each result once, under the conditions that do not change in a sum."""
    reduced = nest.loop_vars - {loop.loop_var for loop in nest.tile_loops}
    kept = [c for c in nest.conditions if not variables_of(c) & reduced]
    return StoreNest(nest.tile_loops, tuple(kept), nest.store)


def _places(loops: Sequence[For]) -> tuple[int, Expr]:
    """How many steps loops of constant extent have together, and the number of one."""
    size, place = 1, tirx.const(0, "int64")
    for loop in loops:
        size *= int(loop.extent)
        place = place * int(loop.extent) + loop.loop_var.astype("int64")
    return size, place


def _lanes(begin: Expr, count: int) -> Expr:
    return begin if count == 1 else tirx.Ramp(begin, tirx.const(1, "int64"), count)


def _add_lanes(
    sums: tirx.Buffer, base: Expr, width: int, accumulation: Accumulation
) -> list[tirx.Stmt]:
    """Halve the lanes of one result until one is left."""

    def onto_first(begin: int, count: int) -> tirx.Stmt:
        left, right = (tirx.BufferLoad(sums, [_lanes(base + at, count)]) for at in (0, begin))
        return tirx.BufferStore(sums, accumulation.combine(left, right), [_lanes(base, count)])

    steps = []
    while width > 1 and width % 2 == 0:
        width //= 2
        steps.append(onto_first(width, width))
    return [*steps, *(onto_first(lane, 1) for lane in range(1, width))]


def _fixed_choices(value: Expr, reduced: set[Var]) -> list[Expr]:
    """Conditions of choices in a term that do not change in its sum, outer ones first."""
    found: list[Expr] = []

    def visit(call: Call) -> None:
        if not _is_choice(call) or variables_of(call.args[0]) & reduced:
            return
        if not any(tvm_ffi.structural_equal(call.args[0], other) for other in found):
            found.append(call.args[0])

    tvm_ffi.structural_walk(value, (Call, visit))
    return found


def _is_choice(call: Call) -> bool:
    return getattr(call.op, "name", "").endswith(".if_then_else")


def _chosen(store: tirx.BufferStore, choices: Sequence[Expr]) -> tirx.BufferStore:
    """The store where the conditions of choices hold."""

    def choose(call: Call) -> Expr:
        known = _is_choice(call) and any(
            tvm_ffi.structural_equal(call.args[0], condition) for condition in choices
        )
        return call.args[1] if known else call

    value = tvm_ffi.structural_map(store.value, (Call, choose))
    return tirx.BufferStore(store.buffer, value, list(store.indices))


def _look(conditions: Sequence[Expr], loops: Sequence[For]) -> tuple[Expr, list[tirx.Stmt]]:
    """Whether conditions hold at all steps of loops, and the statements that find that out.

    A condition is looked at where those before it hold.
    """
    if not any(variables_of(condition) & {lp.loop_var for lp in loops} for condition in conditions):
        return functools.reduce(conjunction, conditions), []
    found = tirx.decl_buffer((1,), "int32", "all_hold")
    zero, one = tirx.const(0, "int32"), tirx.const(1, "int32")
    holds = tirx.NE(tirx.BufferLoad(found, [0]), zero)
    statements: list[tirx.Stmt] = [tirx.AllocBuffer(found), tirx.BufferStore(found, one, [0])]
    for condition in conditions:
        used = variables_of(condition)
        own = tuple(_with_kind(loop, ForKind.SERIAL) for loop in loops if loop.loop_var in used)
        look = tirx.if_then_else(holds, condition.astype("int32"), zero)
        store = tirx.BufferStore(found, look, [0])
        statements.append(StoreNest(own, (), store).around_store())
    return holds, statements


def _plain(nest: StoreNest) -> StoreNest:
    """The nest without vectors: for what runs rarely."""
    loops = [_with_kind(loop, ForKind.SERIAL) for loop in nest.loops]
    loops = [For(lp.loop_var, lp.min, lp.extent, lp.kind, lp.body) for lp in loops]
    return StoreNest(tuple(loops), nest.conditions, nest.store)


def _with_kind(loop: For, kind: ForKind) -> For:
    return For(loop.loop_var, loop.min, loop.extent, kind, loop.body, annotations=loop.annotations)

"""The blocks of stage II: loops of an iteration, cut into nested blocks and put together.

Comes in: the loops with the searches to run after each, and the lowered body and init. Goes out: the
loop nest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Range, TensorLoad, Var
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.tirx import IterVar

from ..ir import Axis
from ..ir.contents import buffers_stored, buffers_used, variables_of
from ._access import Iterator, Prologue
from .fill_outputs import COVER_MARK, FILL_MARK, START_MARK

__all__ = [
    "REDUCE",
    "SPATIAL",
    "Loop",
    "assemble_blocks",
    "changed_block",
    "inside_axis",
    "realize",
    "segment_loops",
]

SPATIAL, REDUCE = IterVar.DataPar, IterVar.CommReduce


@dataclass
class Loop:
    """One loop of an iteration: an axis, or a fused group."""

    axis: Axis
    members: list[Iterator]
    loop_var: Var
    block_var: Var
    extent: Expr
    kind: int
    prologue: Prologue
    #: Whether an entry of the loop is one at all; padding slots are not.
    guards: list[tuple[Expr, bool]] = field(default_factory=list)


def assemble_blocks(
    loops: list[Loop],
    body: tirx.Stmt,
    init: tirx.Stmt | None,
    annotations: Mapping[str, Any],
    block_name: Callable[[int], str],
    shares_result: bool = False,
    start: Loop | None = None,
) -> tirx.Stmt:
    """Put loops and nested blocks together, from the inside out.

    Parameters
    ----------
    loops : list of Loop
        The loops of an iteration, outermost first.
    body, init : tvm.tirx.Stmt
        The lowered statements; ``init`` stands in the block of the first reduction loop.
    annotations : dict
        Given to every block.
    block_name : callable
        From the number of a block, counted from outside, to its name.
    shares_result : bool
        Whether other iterations write the result too. The reduction then stands in a block of its
        own, where a schedule finds one writer; so it does under a condition on the outer loops.
    start : Loop, optional
        A reduction loop whose first step alone initialises; later ones start from what is there.
    """
    own_block = shares_result or _has_outer_condition(body, init, loops)
    segments = segment_loops(loops, own_block)
    reductions = [loop for loop in loops if loop.kind == REDUCE and loop is not start]
    first_reduction = reductions[0] if reductions else None
    if init is not None and start is not None:
        init = _only_at_start(init, start)
    predicate = None
    if own_block and len(segments) > 1:
        body, init, predicate = _take_conditions(body, init, segments)
    guards = [guard for loop in loops for guard in loop.guards]
    content = _guarded(body, [condition for condition, _ in guards])
    for number, segment in reversed(list(enumerate(segments))):
        last = segment[-1]
        if last.prologue.statements:
            content = tirx.SeqStmt([*last.prologue.statements, content])
        block_init = None
        if init is not None and first_reduction in segment:
            block_init = _init_nest(init, loops[loops.index(last) + 1 :], guards)
            block_init = _after_searches(block_init, last.prologue)
        content = _block_nest(
            block_name(number),
            segment,
            content,
            block_init,
            annotations,
            predicate if number == 0 else None,
        )
    return content


def _only_at_start(init: tirx.Stmt, start: Loop) -> tirx.Stmt:
    """In all but the first step of a loop, let an init store what the result holds."""
    first = tirx.EQ(start.block_var, tirx.const(0, str(start.block_var.ty.dtype)))

    def store(node: tirx.BufferStore, _mutator) -> tirx.Stmt:
        before = tirx.BufferLoad(node.buffer, node.indices)
        value = tirx.if_then_else(first, node.value, before)
        return tirx.BufferStore(node.buffer, value, node.indices)

    return tvm_ffi.structural_mutate(init, [(tirx.BufferStore, store)])


def _has_outer_condition(body: tirx.Stmt, init: tirx.Stmt | None, loops: list[Loop]) -> bool:
    """Whether all runs only under a condition on the loops before the first reduction."""
    kinds = [loop.kind for loop in loops]
    if REDUCE not in kinds:
        return False
    segments = [loops[: kinds.index(REDUCE)], loops[kinds.index(REDUCE) :]]
    return bool(segments[0]) and bool(_outer_conditions(body, init, segments))


def _take_conditions(
    body: tirx.Stmt, init: tirx.Stmt | None, segments: list[list[Loop]]
) -> tuple[tirx.Stmt, tirx.Stmt | None, Expr | None]:
    """Take the conditions on the outermost block out of a body, for the predicate of that block.

    A block whose rows stick out of the result then does nothing for them, whatever a schedule adds to
    it: a copy of its result has no condition of its own.
    """
    taken = _outer_conditions(body, init, segments)
    if not taken:
        return body, init, None

    def drop(stmt: tirx.IfThenElse, mutator) -> tirx.Stmt:
        known = any(tvm_ffi.structural_equal(stmt.condition, condition) for condition in taken)
        if known and stmt.else_case is None:
            return mutator.mutate(stmt.then_case)
        return mutator.default_mutate(stmt)

    body, init = (
        part and tvm_ffi.structural_mutate(part, [(tirx.IfThenElse, drop)]) for part in (body, init)
    )
    loop_vars = {loop.block_var: loop.loop_var for loop in segments[0]}
    predicate = functools.reduce(tirx.And, taken)
    predicate = tvm_ffi.structural_map(predicate, [(Var, lambda var: loop_vars.get(var, var))])
    return body, init, predicate


def _outer_conditions(
    body: tirx.Stmt, init: tirx.Stmt | None, segments: list[list[Loop]]
) -> list[Expr]:
    """Conditions around all of a body and its init that depend on the outermost block's loops alone.

    One around the body alone is part of the program: the init runs all the same.
    """
    inner = {loop.block_var for segment in segments[1:] for loop in segment}
    inner |= {b for segment in segments for loop in segment for b in loop.prologue.buffers}
    of_init = None if init is None else _conditions_around(init)
    return [
        condition
        for condition in _conditions_around(body)
        if not variables_of(condition) & inner
        and (of_init is None or any(map(partial(tvm_ffi.structural_equal, condition), of_init)))
    ]


def _conditions_around(stmt: tirx.Stmt) -> list[Expr]:
    """Conditions under which all of a statement stands, outermost first."""
    found = []
    while isinstance(stmt, tirx.IfThenElse) and stmt.else_case is None:
        found.append(stmt.condition)
        stmt = stmt.then_case
    return found


def segment_loops(loops: list[Loop], own_reduction: bool = False) -> list[list[Loop]]:
    """Cut the loops where a nested block must begin: at loaded extents and after searches.

    With `own_reduction` one begins at a reduction inside of spatial loops too.
    """
    segments: list[list[Loop]] = []
    bound: set[Var] = set()
    for k, loop in enumerate(loops):
        depends = bound & variables_of(loop.extent)
        outside = segments and all(before.kind == SPATIAL for before in segments[-1])
        cut = own_reduction and outside and loop.kind == REDUCE
        if not segments or cut or depends or loops[k - 1].prologue.statements:
            segments.append([])
            bound = set()
        segments[-1].append(loop)
        bound |= {loop.block_var, *loop.prologue.buffers}
    return segments


def _block_nest(
    name, segment: list[Loop], content, init, annotations, predicate: Expr | None
) -> tirx.Stmt:
    iter_vars = [
        IterVar(
            Range.from_min_extent(tirx.const(0, str(lp.block_var.ty.dtype)), lp.extent),
            lp.block_var,
            lp.kind,
        )
        for lp in segment
    ]
    scratch = [b for lp in segment for b in lp.prologue.buffers]
    nest = realize(
        name,
        iter_vars,
        content,
        [lp.loop_var for lp in segment],
        init,
        scratch,
        annotations,
        predicate,
    )
    for loop in reversed(segment):
        zero = tirx.const(0, str(loop.loop_var.ty.dtype))
        nest = tirx.For(loop.loop_var, zero, loop.extent, tirx.ForKind.SERIAL, nest)
    return nest


def _init_nest(init, later: list[Loop], guards: list[tuple[Expr, bool]]) -> tirx.Stmt:
    """Init of a block: loops over the spatial entries of the blocks inside."""
    spatial = [loop for loop in later if loop.kind == SPATIAL]
    fresh = {
        lp.block_var: Var(f"{lp.loop_var.name}_init", str(lp.block_var.ty.dtype)) for lp in spatial
    }
    inner_guards = [g for g, is_spatial in guards if is_spatial]
    stmt = _guarded(init, inner_guards)
    for loop in reversed(spatial):
        zero = tirx.const(0, str(loop.loop_var.ty.dtype))
        stmt = _after_searches(stmt, loop.prologue)
        stmt = tirx.For(fresh[loop.block_var], zero, loop.extent, tirx.ForKind.SERIAL, stmt)
    return tvm_ffi.structural_map(stmt, [(Var, lambda v: fresh.get(v, v))])


def _after_searches(stmt: tirx.Stmt, prologue: Prologue) -> tirx.Stmt:
    """Precede a statement by the searches of a prologue that it uses, on scratch of their own."""
    searches = _searches_for(stmt, prologue)
    if not searches:
        return stmt
    scratch = {
        b: tirx.decl_buffer(b.ty.shape, str(b.ty.dtype), b.name, scope="local")
        for b in prologue.buffers
    }
    stmt = _with_buffers(tirx.SeqStmt([*searches, stmt]), scratch)
    return realize("searches", [], stmt, buffers=scratch.values())


def _searches_for(stmt: tirx.Stmt, prologue: Prologue) -> list[tirx.Stmt]:
    """The statements of a prologue whose results a statement uses, directly or not."""
    needed = buffers_used(stmt)
    kept: list[tirx.Stmt] = []
    for search in reversed(prologue.statements):
        if needed & buffers_stored(search):
            kept.insert(0, search)
            needed |= buffers_used(search)
    return kept


def _with_buffers(stmt: tirx.Stmt, buffers: dict[Var, Var]) -> tirx.Stmt:
    """Replace buffer variables in loads and stores."""

    def load(node: TensorLoad, mutator) -> Expr:
        indices = [mutator.mutate(e) for e in node.indices]
        return tirx.BufferLoad(buffers.get(node.source, node.source), indices)

    def store(node: tirx.BufferStore, mutator) -> tirx.Stmt:
        value, indices = mutator.mutate(node.value), [mutator.mutate(e) for e in node.indices]
        return tirx.BufferStore(buffers.get(node.buffer, node.buffer), value, indices)

    return tvm_ffi.structural_mutate(stmt, [(TensorLoad, load), (tirx.BufferStore, store)])


def changed_block(block: SBlock, **parts: Any) -> SBlock:
    """Return a block with some of its fields replaced."""
    names = ("iter_vars", "reads", "writes", "name_hint", "body", "init")
    names += ("alloc_buffers", "match_buffers", "annotations", "span")
    return SBlock(**{name: parts.get(name, getattr(block, name)) for name in names})


def realize(
    name: str,
    iter_vars: list[IterVar],
    body: tirx.Stmt,
    values: Iterable[Expr] = (),
    init: tirx.Stmt | None = None,
    buffers: Iterable[Var] = (),
    annotations: Mapping[str, Any] | None = None,
    predicate: Expr | None = None,
) -> SBlockRealize:
    """Make a block whose regions are still to be detected, bound to loop variables."""
    kept = {
        key: value
        for key, value in (annotations or {}).items()
        if key not in (FILL_MARK, COVER_MARK, START_MARK)
    }
    kept["tirx.script_parsing_detect_access"] = tirx.IntImm("int64", 3)
    block = SBlock(iter_vars, [], [], name, body, init, list(buffers), [], kept)
    return SBlockRealize(list(values), True if predicate is None else predicate, block)


def _guarded(stmt: tirx.Stmt, guards: list[Expr]) -> tirx.Stmt:
    for guard in reversed(guards):
        stmt = tirx.IfThenElse(guard, stmt, None)
    return stmt


def inside_axis(coordinate: Expr, length: Expr) -> Expr:
    """Whether a slot of a padded axis is an entry."""
    return tirx.And(coordinate >= 0, coordinate < length.astype(str(coordinate.ty.dtype)))

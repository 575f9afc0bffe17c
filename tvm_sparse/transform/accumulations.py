"""Make blocks that add to a result ordinary reductions: their init reads what the result holds.

TVM's primitives take reductions with an init, and nothing that reads its own result. A block that
accumulates without one (a part of a sum over formats, a program that adds to its argument) gets the init
``C[...] = C_before[...]``, where ``C_before`` is another name of the same memory. As it stands that does
nothing, and :class:`HoistReductionInit` drops it; once a schedule accumulates in registers
(``cache_write``), it is what fills them.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Range, TensorLoad, Var
from tvm.s_tir.stmt import MatchBufferRegion, SBlock
from tvm.tirx import IterVar

from ..ir.accumulation import is_accumulation
from ..ir.contents import buffers_stored, stores_in, variables_of
from ..ir.statements import in_sequence

__all__ = ["aliases_of", "give_init", "is_without_effect", "match_all"]


@dataclass(frozen=True)
class _Guarded:
    """A store and the conditions around it."""

    store: tirx.BufferStore
    conditions: tuple[Expr, ...]


def give_init(body: tirx.Stmt) -> tuple[tirx.Stmt, dict[Var, Var]]:
    """Give accumulating blocks an init.

    Returns
    -------
    tvm.tirx.Stmt
        The statement.
    dict of Var to Var
        The result behind each new name; the root block must match them.
    """
    aliases: dict[Var, Var] = {}

    def block(node: SBlock, mutator) -> SBlock:
        if node.init is not None:
            init = _through_aliases(node, aliases)
        else:
            stores = _accumulations(node)
            later = _reduced(node) | set(node.alloc_buffers)
            init = _init(stores, later, aliases) if stores else None
        if init is None or init is node.init:
            return mutator.default_mutate(node)
        return SBlock(
            node.iter_vars,
            node.reads,
            node.writes,
            node.name_hint,
            node.body,
            init,
            node.alloc_buffers,
            node.match_buffers,
            node.annotations,
            node.span,
        )

    return tvm_ffi.structural_mutate(body, [(SBlock, block)]), aliases


def aliases_of(body: tirx.Stmt) -> dict[Var, Var]:
    """Return the buffer behind each name that a block matches with all of it."""
    found: dict[Var, Var] = {}

    def note(block: SBlock) -> None:
        for match in block.match_buffers:
            if not _same_shape(match.buffer, match.source.source):
                continue  # a view of a part, as tensor intrinsics take of their operands
            if tvm_ffi.structural_equal(match, match_all(match.buffer, match.source.source)):
                found[match.buffer] = match.source.source

    tvm_ffi.structural_walk(body, [(SBlock, note)])
    return found


def _same_shape(first: Var, second: Var) -> bool:
    shapes = first.ty.shape, second.ty.shape
    return len(shapes[0]) == len(shapes[1]) and all(map(tvm_ffi.structural_equal, *shapes))


def match_all(buffer: Var, result: Var) -> MatchBufferRegion:
    """Return the match of a name with all of a buffer."""
    ranges = [
        Range.from_min_extent(tirx.const(0, str(size.ty.dtype)), size) for size in result.ty.shape
    ]
    return MatchBufferRegion(buffer, tirx.BufferRegion(result, ranges))


def is_without_effect(init: tirx.Stmt, aliases: dict[Var, Var]) -> bool:
    """Whether an init stores what is there already."""
    stores = stores_in(init)
    return bool(stores) and all(
        isinstance(store.value, TensorLoad)
        and store.value.source in aliases
        and aliases[store.value.source].same_as(store.buffer)
        and all(map(tvm_ffi.structural_equal, store.value.indices, store.indices))
        for store in stores
    )


def _through_aliases(block: SBlock, aliases: dict[Var, Var]) -> tirx.Stmt:
    """Let an init that starts from what its result holds read that by another name.

    What the init alone stores to, as searches do, is no result.
    """
    init = block.init
    results = buffers_stored(init) & buffers_stored(block.body)
    names: dict[Var, Var] = {}

    def load(node: TensorLoad, mutator) -> Expr:
        indices = [mutator.mutate(index) for index in node.indices]
        if node.source not in results:
            return tirx.BufferLoad(node.source, indices)
        name = names.setdefault(node.source, _another_name(node.source))
        return tirx.BufferLoad(name, indices)

    changed = tvm_ffi.structural_mutate(init, [(TensorLoad, load)])
    aliases.update({name: buffer for buffer, name in names.items()})
    return changed if names else init


def _accumulations(block: SBlock) -> list[_Guarded] | None:
    """The stores of a block that reduces, all of which accumulate; None where some do not."""
    reduced, own = _reduced(block), set(block.alloc_buffers)
    found = _guarded_stores(block.body, own) if reduced else None
    if not found:
        return None
    for guarded in found:
        used = set().union(*map(variables_of, guarded.store.indices))
        if used & (reduced | own) or not is_accumulation(guarded.store):
            return None
    buffers = [guarded.store.buffer for guarded in found]
    return found if len(set(buffers)) == len(buffers) else None


def _reduced(block: SBlock) -> set[Var]:
    return {iv.var for iv in block.iter_vars if iv.iter_type == IterVar.CommReduce}


def _guarded_stores(
    stmt: tirx.Stmt, own: set[Var], conditions: tuple[Expr, ...] = ()
) -> list[_Guarded] | None:
    """Stores to anything but the block's own scratch, which searches fill."""
    if buffers_stored(stmt) <= own:
        return []
    if isinstance(stmt, tirx.BufferStore):
        return [_Guarded(stmt, conditions)]
    if isinstance(stmt, tirx.IfThenElse) and stmt.else_case is None:
        return _guarded_stores(stmt.then_case, own, (*conditions, stmt.condition))
    if isinstance(stmt, tirx.SeqStmt):
        parts = [_guarded_stores(part, own, conditions) for part in stmt.seq]
        return (
            None
            if any(part is None for part in parts)
            else [store for part in parts for store in part]
        )
    return None


def _init(stores: list[_Guarded], later: set[Var], aliases: dict[Var, Var]) -> tirx.Stmt:
    """Store what the results hold, under the conditions that use nothing which is known later."""
    parts = []
    for guarded in stores:
        store = guarded.store
        name = _another_name(store.buffer)
        aliases[name] = store.buffer
        before = tirx.BufferLoad(name, store.indices)
        part: tirx.Stmt = tirx.BufferStore(store.buffer, before, store.indices)
        terms = [term for condition in guarded.conditions for term in _conjuncts(condition)]
        for term in reversed([t for t in terms if not variables_of(t) & later]):
            part = tirx.IfThenElse(term, part, None)
        parts.append(part)
    return in_sequence(parts)


def _another_name(buffer: Var) -> Var:
    ty = buffer.ty
    return tirx.decl_buffer(
        ty.shape,
        str(ty.dtype),
        f"{buffer.name}_before",
        scope=ty.storage_scope,
        data_alignment=ty.data_alignment,
    )


def _conjuncts(condition: Expr) -> list[Expr]:
    if isinstance(condition, tirx.And):
        return [*_conjuncts(condition.a), *_conjuncts(condition.b)]
    return [condition]

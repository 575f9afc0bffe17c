"""What surrounds parts of a decomposed operator on CUDA: initialisations, sums, conversions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr, TensorLoad, Var

from ...ir.contents import buffers_loaded, stores_in, stores_to
from ..cpu.part_blocks import blocks_of
from ..cpu.parts import block_names
from .block_nests import Nest
from .rows import feature_width

__all__ = ["bind_others", "round_at_once"]

#: Threads of a thread block that goes over elements.
_THREADS = 256


def bind_others(sch: s_tir.Schedule, scheduled: Collection[str]) -> None:
    """Bind the iterations around those `scheduled`, whose elements are independent, to threads.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    scheduled : collection of str
        Names of the iterations that have their threads already.
    """
    for name in block_names(sch):
        iteration = name.removesuffix("_0")
        if iteration == name or iteration in scheduled:
            continue
        first, *nested = blocks_of(sch, iteration)
        if feature_width(sch, sch.get_loops([first, *nested][-1])[-1]) == 0:
            continue  # nothing to compute
        if nested:  # rows of elements
            sch.bind(sch.fuse(*sch.get_loops(first)), "blockIdx.x")
            _, thread = sch.split(sch.fuse(*sch.get_loops(nested[-1])), [None, _THREADS])
        else:
            block, thread = sch.split(sch.fuse(*sch.get_loops(first)), [None, _THREADS])
            sch.bind(block, "blockIdx.x")
        sch.bind(thread, "threadIdx.x")


def round_at_once(sch: s_tir.Schedule, nest: Nest) -> Nest:
    """Let a nest round its sums itself, where they would be stored and then converted.

    Before and after, with the rows of all blocks in one nest::

        sums = T.alloc_buffer((m * f,), "float32")
        for i, k: sums[i, k] = 0
        for b, ...: sums[i, k] = sums[i, k] + ...        for i, k: C[i, k] = 0
        for i, k: C[i, k] = T.cast(sums[i, k])           for b, ...: C[i, k] = C[i, k] + ...

    The nest that is returned adds in registers, and reads and writes its result once.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule; the conversion disappears from it.
    nest : Nest
        Reads of a schedule.

    Returns
    -------
    Nest
        The same, or one with the rounded result.
    """
    root_sref = sch.get_sref(nest.loop)
    while root_sref.parent is not None:
        root_sref = root_sref.parent
    root = root_sref.stmt
    if not isinstance(root.body, tirx.SeqStmt):
        return nest
    sums = nest.result
    around = [stmt for stmt in root.body.seq if not stmt.same_as(nest.loop)]
    conversions = [stmt for stmt in around if _converted(stmt, sums) is not None]
    others = [stmt for stmt in around if stmt not in conversions]
    if len(conversions) != 1 or sums in buffers_loaded(*others):
        return nest
    result = _converted(conversions[0], sums)
    kept = [
        stmt if stmt.same_as(nest.loop) else _stored_to(stmt, sums, result)
        for stmt in root.body.seq
        if not stmt.same_as(conversions[0])
    ]
    body = tirx.SeqStmt(kept) if len(kept) > 1 else kept[0]
    sch.state.replace(
        root_sref,
        s_tir.SBlock(
            root.iter_vars,
            root.reads,
            root.writes,
            root.name_hint,
            body,
            root.init,
            [buffer for buffer in root.alloc_buffers if not buffer.same_as(sums)],
            root.match_buffers,
            root.annotations,
            root.span,
        ),
        {},
    )
    return replace(nest, result=result, init=_loaded_from(nest.init, sums, result))


def _converted(stmt: tirx.Stmt, sums: Var) -> Var | None:
    """Return the buffer that a statement converts all sums to, None where it does something else."""
    stores = stores_in(stmt)
    if len(stores) != 1 or not isinstance(stores[0].value, tirx.Cast):
        return None
    store, load = stores[0], stores[0].value.value
    is_copy = isinstance(load, TensorLoad) and load.source.same_as(sums)
    is_copy = is_copy and all(map(tvm_ffi.structural_equal, load.indices, store.indices))
    return store.buffer if is_copy else None


def _stored_to(stmt: tirx.Stmt, sums: Var, result: Var) -> tirx.Stmt:
    """Let a statement store rounded values in place of sums."""

    def store(node: tirx.BufferStore, _mutator) -> tirx.Stmt:
        if not node.buffer.same_as(sums):
            return node
        return tirx.BufferStore(result, tirx.Cast(str(result.ty.dtype), node.value), node.indices)

    def block(node: s_tir.SBlock, mutator) -> s_tir.SBlock:
        made = mutator.default_mutate(node)
        writes = [
            tirx.BufferRegion(result, region.region) if region.source.same_as(sums) else region
            for region in made.writes
        ]
        return s_tir.SBlock(
            made.iter_vars,
            made.reads,
            writes,
            made.name_hint,
            made.body,
            made.init,
            made.alloc_buffers,
            made.match_buffers,
            made.annotations,
            made.span,
        )

    if not stores_to(stmt, sums):
        return stmt
    return tvm_ffi.structural_mutate(stmt, [(tirx.BufferStore, store), (s_tir.SBlock, block)])


def _loaded_from(expr: Expr, sums: Var, result: Var) -> Expr:
    def load(node: TensorLoad, _mutator) -> Expr:
        if not node.source.same_as(sums):
            return node
        return tirx.Cast(str(node.ty.dtype), tirx.BufferLoad(result, node.indices))

    return tvm_ffi.structural_mutate(expr, [(TensorLoad, load)])

"""SpMV over formats on CUDA: a thread for each narrow row, a group of lanes for each of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.target import Target

from ...ir.accumulation import accumulation_of, is_accumulation
from ...transform._blocks import changed_block
from ..cpu.part_blocks import blocks_of, loop_kinds
from .block_nests import guarded_store
from .results import bind_others
from .rows import Block, Loop, bind_rows
from .spmv import DEFAULT_TILE, check_lanes
from .staging import everything
from .tiles import THREADS, RowTile

__all__ = ["prepared", "schedule"]


def prepared(sch: s_tir.Schedule, *, deterministic: bool = False) -> s_tir.Schedule:
    """Bring a lowered program into a form that is scheduled for CUDA.

    Before and after, so that lanes can sum together (TVM sums unconditional terms over threads)::

        if 0 <= column[j] and column[j] < n:      y[i] += T.if_then_else(0 <= column[j] and ...,
            y[i] += A[j] * x[column[j]]                                  A[j] * x[column[j]], 0)

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Holds a decomposed program at stage III, not scheduled yet.
    deterministic : bool
        Not looked at: nothing is updated atomically.

    Returns
    -------
    tvm.s_tir.Schedule
        Works on the same function.
    """
    del deterministic
    changed = tvm.IRModule(attrs=sch.mod.attrs)
    for var, func in sch.mod.functions.items():
        body = tvm_ffi.structural_map(func.body, (s_tir.SBlock, _unconditional))
        changed[var] = func.with_body(body)
    made = s_tir.Schedule(changed)
    made.work_on(next(var.name_hint for var in made.mod.functions))
    return made


def schedule(
    sch: s_tir.Schedule,
    parts: Sequence[str],
    *,
    tile: RowTile | None = None,
    target: Target | str | dict | None = None,
    name: str = "spmv",
    groups: Mapping[str, str] | None = None,
    deterministic: bool = False,
) -> None:
    """Schedule the parts of a decomposed SpMV, each a kernel, and what surrounds them.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Holds the iterations ``name_part``, and ``name_init`` where there is one.
    parts : sequence of str
        Names of the parts.
    tile : RowTile, optional
        Rows of a thread block, and the lanes that share the entries of a row, as for
        :func:`tvm_sparse.schedules.cuda.spmv.schedule`; by default what suits how long rows are.
    target : tvm.target.Target, str, dict or None
        Not looked at.
    name : str
        Name of the iteration that was decomposed.
    groups : dict of str to str, optional
        Not looked at: each part is a kernel.
    deterministic : bool
        Not looked at: nothing is updated atomically.

    Raises
    ------
    ValueError
        If a part has no loop over rows, each with its entries, or the lanes are no power of two up to 32.
    """
    del target, groups, deterministic
    if tile is not None:
        check_lanes(tile)
    for part in parts:
        blocks = blocks_of(sch, f"{name}_{part}")
        kinds = [loop_kinds(sch, block) for block in blocks]
        if len(kinds) != 2 or "R" in kinds[0] or "S" in kinds[1]:
            raise ValueError(
                f"part {part}: expected a format with one loop over rows for SpMV on CUDA (CSR, ELL, DIA, "
                "rows in lists, hyb), found one of blocks, of several ranges of columns, or whose rows are "
                "scattered"
            )
        _schedule_rows(sch, *blocks, tile)
    bind_others(sch, [f"{name}_{part}" for part in parts])


def _schedule_rows(sch: s_tir.Schedule, rows: Block, block: Block, tile: RowTile | None) -> None:
    """Give rows to threads, or to groups of lanes where these can sum together."""
    row, entries = sch.get_loops(rows)[0], sch.get_loops(block)
    lanes = _lanes(sch, entries[-1], tile)
    if lanes == 1 or not _begins_with_constant(sch, block):
        sch.cache_write(block, 0, "local")
        outer, thread = sch.split(row, [None, THREADS])
        sch.bind(outer, "blockIdx.x")
        sch.bind(thread, "threadIdx.x")
        sch.decompose_reduction(block, entries[0])
        return
    bind_rows(sch, row, THREADS // lanes if tile is None else tile.rows)
    _, lane = sch.split(entries[-1], [None, lanes])
    sch.bind(lane, "threadIdx.x")


def _lanes(sch: s_tir.Schedule, entry: Loop, tile: RowTile | None) -> int:
    """How many lanes share the innermost loop over entries: by default two entries or more for each."""
    lanes = DEFAULT_TILE.lanes if tile is None else tile.lanes
    extent = sch.get(entry).extent
    if isinstance(extent, tirx.IntImm):
        least = 2 if tile is None else 1
        while lanes > 1 and least * lanes > int(extent):
            lanes //= 2
    return lanes


def _begins_with_constant(sch: s_tir.Schedule, block: Block) -> bool:
    """Whether sums begin with a constant, not with what other parts have stored."""
    _, store = guarded_store(sch.get(block).init)
    return store is not None and isinstance(store.value, tirx.FloatImm | tirx.IntImm)


def _unconditional(block: s_tir.SBlock) -> s_tir.SBlock:
    """Let a block add zero where it would add nothing."""
    conditions, store = guarded_store(block.body)
    if block.init is None or not conditions or store is None or not is_accumulation(store):
        return block
    added = accumulation_of(store, block.name_hint)
    if added.operator is not tirx.Add:
        return block
    zero = tirx.const(0, str(store.value.ty.dtype))
    term = tirx.if_then_else(everything(conditions), added.term, zero)
    before = tirx.BufferLoad(store.buffer, store.indices)
    return changed_block(block, body=tirx.BufferStore(store.buffer, before + term, store.indices))

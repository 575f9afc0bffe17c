"""The blocks of the iterations of a decomposed program, and their outermost loops in parallel."""

from __future__ import annotations

from collections.abc import Collection

from tvm import s_tir, tirx

from .parts import block_names, part_blocks
from .rows import row_pointers, share_rows

__all__ = [
    "blocks_of",
    "is_spatial",
    "loop_kinds",
    "pointers_of_entries",
    "share_others",
    "share_outermost",
]


def blocks_of(sch: s_tir.Schedule, iteration: str) -> list[s_tir.schedule.SBlockRV]:
    """Return the nested blocks of an iteration, outermost first."""
    return part_blocks(sch, block_names(sch), iteration)


def loop_kinds(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> str:
    """Return a letter for each loop of a block that is not scheduled yet: S spatial, R reduced."""
    spatial = tirx.IterVar.DataPar
    return "".join("S" if iv.iter_type == spatial else "R" for iv in sch.get(block).iter_vars)


def is_spatial(sch: s_tir.Schedule, blocks: list[s_tir.schedule.SBlockRV]) -> bool:
    """Whether the steps of the outermost loop of nested blocks are independent."""
    return bool(blocks) and loop_kinds(sch, blocks[0]).startswith("S")


def share_outermost(
    sch: s_tir.Schedule, blocks: list[s_tir.schedule.SBlockRV], indptr: str | None
) -> s_tir.schedule.LoopRV:
    """Run the outermost loop of nested blocks in parallel, see :func:`share_rows`; return the loop."""
    outermost = sch.get_loops(blocks[0])[0]
    share_rows(sch, outermost, indptr)
    return outermost


def pointers_of_entries(sch: s_tir.Schedule, blocks: list[s_tir.schedule.SBlockRV]) -> str | None:
    """Return the name of the pointers that the extents of loops inside of the outermost one read."""
    loops = [loop for block in blocks for loop in sch.get_loops(block)]
    return next(filter(None, (row_pointers(sch, loop) for loop in loops[1:])), None)


def share_others(sch: s_tir.Schedule, scheduled: Collection[str]) -> None:
    """Run what surrounds the iterations `scheduled` in parallel: inits, conversions, sums of parts."""
    for name in block_names(sch):
        iteration = name.removesuffix("_0")
        if iteration == name or iteration in scheduled:
            continue
        blocks = blocks_of(sch, iteration)
        if is_spatial(sch, blocks):
            share_outermost(sch, blocks, pointers_of_entries(sch, blocks))

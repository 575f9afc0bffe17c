"""SpMM over formats on CUDA: a group of lanes for each row, parts of rows in one kernel, and blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tvm import s_tir, tirx
from tvm.target import Target

from ...transform import MergeRanges, RoundRows
from ...transform.balance import TOGETHER
from ..cpu.parts import block_names, is_reduced, part_blocks
from ..cpu.rows import row_pointers
from .block_tiles import BlockRowsTile, BlockTile
from .blocks import schedule_part, takes
from .results import bind_others
from .rows import (
    Block,
    Loop,
    adds_atomically,
    default_tile,
    feature_width,
    shared_pointers,
    split_rows,
    tile_row,
)
from .scatter import Scatter, schedule_scatter
from .tiles import RowTile

__all__ = ["SHARE", "prepared", "schedule"]

#: Entries that a group of lanes takes at least: narrow rows come several at a time.
_ENTRIES = 8
#: Entries of long rows that a group takes: few enough for a hub to keep all of a card busy.
SHARE = 256


def prepared(sch: s_tir.Schedule, *, deterministic: bool = False) -> s_tir.Schedule:
    """Bring a lowered program into a form that is scheduled for CUDA.

    Rows of half precision are rounded where they are summed, if that is one place (see
    :func:`tvm_sparse.transform.RoundRows`); the rows of all ranges of columns are one loop.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Holds a decomposed program at stage III, not scheduled yet.
    deterministic : bool
        Go over one range of columns after another, instead of adding the rows of all atomically.

    Returns
    -------
    tvm.s_tir.Schedule
        Works on the same function.
    """
    made = s_tir.Schedule(MergeRanges(in_order=deterministic)(RoundRows()(sch.mod)))
    made.work_on(next(var.name_hint for var in made.mod.functions))
    return made


def schedule(
    sch: s_tir.Schedule,
    parts: Sequence[str],
    *,
    tile: RowTile | BlockTile | BlockRowsTile | None = None,
    share: int | None = SHARE,
    target: Target | str | dict | None = None,
    name: str = "spmm",
    groups: Mapping[str, str] | None = None,
    deterministic: bool = False,
) -> None:
    """Bind rows to groups of lanes and features to lanes; parts of a group become one kernel.

    Parts of blocks are scheduled by :func:`tvm_sparse.schedules.cuda.blocks.schedule_part`.

    Parameters
    ----------
    sch, parts, name, groups
        As those of the CPU's :func:`tvm_sparse.schedules.cpu.parts.schedule`.
    tile : RowTile, BlockTile or BlockRowsTile, optional
        Rows and features of a thread block; by default what suits the feature width. One of blocks is
        for parts of blocks, others for parts of rows.
    share : int, optional
        Entries that a group of lanes takes of rows of any length, which are shared in kernels of their
        own (see :func:`tvm_sparse.transform.SplitRows`); None leaves each to one group, in the kernel of
        the others.
    target : tvm.target.Target, str, dict or None
        Not looked at: the tile suits every card.
    deterministic : bool
        Refuse parts whose rows are scattered, which are added atomically, in any order.

    Raises
    ------
    ValueError
        If a part is of another kind than those above, or is not deterministic and should be.
    """
    del target
    names = block_names(sch)
    row_tile = tile if isinstance(tile, RowTile) else None
    block_tile = None if isinstance(tile, RowTile) else tile
    for part in parts:
        if takes(sch, f"{name}_{part}"):
            schedule_part(sch, f"{name}_{part}", tile=block_tile, alone=len(parts) == 1)
            continue
        found = part_blocks(sch, names, f"{name}_{part}")
        block = found[-1]
        if feature_width(sch, sch.get_loops(block)[-1]) == 0:
            continue  # nothing to compute
        if (scatter := Scatter.of(sch, found)) is not None:
            _check_order(part, deterministic)
            schedule_scatter(sch, scatter, row_tile or default_tile(sch, block))
            continue
        loops = _rows_of(sch, found, part)
        together = (groups or {}).get(part, part)
        if adds_atomically(sch, block):
            together += ", atomically"  # never beside rows that are stored
        for ranges in loops[:-1]:
            sch.annotate(ranges, TOGETHER, together)
        is_whole = share is None or len(loops) > 1 or shared_pointers(sch, block) is None
        _schedule_rows(
            sch, loops[-1], block, row_tile or default_tile(sch, block), None if is_whole else share
        )
        if is_whole:
            sch.annotate(sch.get_loops(found[len(loops) - 1])[0], TOGETHER, together)
    bind_others(sch, [f"{name}_{part}" for part in parts])


def _rows_of(sch: s_tir.Schedule, blocks: Sequence[Block], part: str) -> list[Loop]:
    """Return the loop over the rows of a part, after that over ranges of columns where there is one."""
    if len(blocks) == 2 and not is_reduced(sch, blocks[0]):
        return [sch.get_loops(blocks[0])[0]]
    if len(blocks) == 4 and is_reduced(sch, blocks[0]):
        return [sch.get_loops(each)[0] for each in blocks[:2]]
    raise ValueError(
        f"part {part}: expected a format with one loop over rows for CUDA, found one whose "
        "entries of a row are scattered, or lie in several ranges of columns"
    )


def _check_order(part: str, deterministic: bool) -> None:
    """Refuse to add entries of scattered rows in an order that differs from run to run."""
    if deterministic:
        raise ValueError(
            f"deterministic: expected formats that store the entries of a row together, such as CSR or "
            f"hyb, found scattered rows in part {part}, which are added atomically, in any order; pass "
            "deterministic=False, or another format"
        )


def _schedule_rows(
    sch: s_tir.Schedule, row: Loop, block: Block, tile: RowTile, share: int | None
) -> None:
    """Give groups of lanes rows, or shares of the entries of all."""
    width = _entries_of_row(sch, block)
    coarse = max(1, _ENTRIES // width)
    if any(row_pointers(sch, loop) for loop in sch.get_loops(block)):
        coarse = 1
    if share is not None:
        split_rows(sch, row, block, max(1, share // width), tile.rows)
    tile_row(sch, block, tile)
    if share is None:
        outer, inner, _ = sch.split(row, [None, tile.rows, coarse])
        sch.bind(outer, "blockIdx.x")
        sch.bind(inner, "threadIdx.y")


def _entries_of_row(sch: s_tir.Schedule, block: Block) -> int:
    """How many entries the loops of known extent give a row, or each piece of one; at least 1."""
    extents = [sch.get(loop).extent for loop in sch.get_loops(block)[:-1]]
    known = [int(extent) for extent in extents if isinstance(extent, tirx.IntImm)]
    return max(1, math.prod(known))

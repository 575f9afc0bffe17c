"""SpMM over formats on CUDA: a group of lanes for each row, parts of rows in one kernel, and blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tvm import s_tir, tirx
from tvm.target import Target

from ..cpu.parts import block_names, is_reduced, part_blocks
from ..cpu.rows import row_pointers
from .block_tiles import BlockRowsTile, BlockTile
from .blocks import schedule_part, takes
from .results import bind_others
from .rows import Block, default_tile, feature_width, shared_pointers, split_rows, tile_row
from .tiles import RowTile

__all__ = ["SHARE", "schedule"]

#: Entries that a group of lanes takes at least: narrow rows come several at a time.
_ENTRIES = 8
#: Entries of long rows that a group takes: few enough for a hub to keep all of a card busy.
SHARE = 256


def schedule(
    sch: s_tir.Schedule,
    parts: Sequence[str],
    *,
    tile: RowTile | BlockTile | BlockRowsTile | None = None,
    share: int | None = SHARE,
    target: Target | str | dict | None = None,
    name: str = "spmm",
    groups: Mapping[str, str] | None = None,
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

    Raises
    ------
    ValueError
        If a part has no loop over rows, or one for each of several ranges of columns.
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
        if len(found) != 2 or is_reduced(sch, found[0]):
            raise ValueError(
                f"part {part}: expected a format with one loop over rows for CUDA, found one whose "
                "entries of a row are scattered, or lie in several ranges of columns"
            )
        rows, block = found
        if feature_width(sch, sch.get_loops(block)[-1]) == 0:
            continue  # nothing to compute
        chosen = row_tile or default_tile(sch, block)
        row = sch.get_loops(rows)[0]
        width = _entries_of_row(sch, block)
        pointers = [row_pointers(sch, loop) for loop in sch.get_loops(block)]
        is_shared = share is not None and shared_pointers(sch, block) is not None
        if is_shared:
            split_rows(sch, row, block, max(1, share // width), chosen.rows)
        tile_row(sch, block, chosen)
        if is_shared:
            continue
        coarse = 1 if any(pointers) else max(1, _ENTRIES // width)
        outer, inner, _ = sch.split(row, [None, chosen.rows, coarse])
        sch.bind(outer, "blockIdx.x")
        sch.bind(inner, "threadIdx.y")
        sch.annotate(outer, "tvm_sparse.together", (groups or {}).get(part, part))
    bind_others(sch, [f"{name}_{part}" for part in parts])


def _entries_of_row(sch: s_tir.Schedule, block: Block) -> int:
    """How many entries the loops of known extent give a row, or each piece of one; at least 1."""
    extents = [sch.get(loop).extent for loop in sch.get_loops(block)[:-1]]
    known = [int(extent) for extent in extents if isinstance(extent, tirx.IntImm)]
    return max(1, math.prod(known))

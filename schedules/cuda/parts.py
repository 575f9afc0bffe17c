"""SpMM over formats on CUDA: rows a group of lanes, the parts of a format in one kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import s_tir, tirx
from tvm.target import Target

from ..cpu.parts import block_names, is_reduced, part_blocks
from .rows import Block, default_tile, share_elements, tile_row
from .tiles import RowTile

__all__ = ["schedule"]

#: Entries that a group of lanes takes at least: narrow rows come several at a time.
_ENTRIES = 8


def schedule(
    sch: s_tir.Schedule,
    parts: Sequence[str],
    *,
    tile: RowTile | None = None,
    target: Target | str | dict | None = None,
    name: str = "spmm",
    groups: Mapping[str, str] | None = None,
) -> None:
    """Bind rows to groups of lanes and features to lanes; parts of a group become one kernel.

    Parameters
    ----------
    sch, parts, name, groups
        As those of the CPU's :func:`tvm_sparse.schedules.cpu.parts.schedule`.
    tile : RowTile, optional
        Rows and features of a thread block; by default what suits the feature width.
    target : tvm.target.Target, str, dict or None
        Not looked at: the tile suits every card.

    Raises
    ------
    ValueError
        If a part has no loop over rows, or one for each of several ranges of columns.
    """
    del target
    names = block_names(sch)
    for part in parts:
        found = part_blocks(sch, names, f"{name}_{part}")
        if len(found) != 2 or is_reduced(sch, found[0]):
            raise ValueError(
                f"part {part}: expected a format with one loop over rows for CUDA, found one whose "
                "entries of a row are scattered, or lie in several ranges of columns"
            )
        rows, block = found
        chosen = tile or default_tile(sch, block)
        coarse = _rows_together(sch, block)
        tile_row(sch, block, chosen)
        row = sch.get_loops(rows)[0]
        outer, inner, _ = sch.split(row, [None, chosen.rows, coarse])
        sch.bind(outer, "blockIdx.x")
        sch.bind(inner, "threadIdx.y")
        sch.annotate(outer, "tvm_sparse.together", (groups or {}).get(part, part))
    own = {f"{name}_{part}_0" for part in parts}
    for each in names:
        if each.endswith(("_init_0", "_fill_0", "_cast_0")) and each not in own:
            share_elements(sch, sch.get_sblock(each))


def _rows_together(sch: s_tir.Schedule, block: Block) -> int:
    """How many rows a group of lanes takes, by how many entries the format gives a row."""
    entries = 1
    for loop in sch.get_loops(block)[:-1]:
        extent = sch.get(loop).extent
        if not isinstance(extent, tirx.IntImm):
            return 1
        entries *= int(extent)
    return max(1, _ENTRIES // max(1, entries))

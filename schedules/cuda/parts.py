"""SpMM over formats on CUDA: a group of lanes for each row, scattered entries, and blocks.

:func:`prepared` rewrites the lowered program, :func:`schedule` takes its parts by what they go over. Parts
whose rows lie in them as a whole, or range by range, become one kernel; only those that hold parts of rows
in several places add to the result atomically.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    adds_atomically,
    default_tile,
    feature_width,
    shared_pointers,
    split_rows,
    tile_row,
)
from .scatter import Scatter, schedule_scatter
from .tiles import THREADS, RowTile

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

    Parts of blocks are scheduled by :func:`tvm_sparse.schedules.cuda.blocks.schedule_part`, entries of
    scattered rows by :func:`tvm_sparse.schedules.cuda.scatter.schedule_scatter`.

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
        Tensor cores are used from sm_80 on.
    deterministic : bool
        Refuse parts whose rows are scattered, which are added atomically, in any order.

    Raises
    ------
    ValueError
        If a part is of another kind than those above, or is not deterministic and should be, or the tile
        is for no part.
    """
    names = block_names(sch)
    row_tile = tile if isinstance(tile, RowTile) else None
    block_tile = None if isinstance(tile, RowTile) else tile
    of_blocks = [takes(sch, f"{name}_{part}") for part in parts]
    _check_tile(tile, of_blocks)
    for part, is_of_blocks in zip(parts, of_blocks):
        iteration = f"{name}_{part}"
        found = part_blocks(sch, names, iteration)
        if is_of_blocks:
            alone = len(parts) == 1
            schedule_part(sch, iteration, tile=block_tile, alone=alone, target=target)
        elif feature_width(sch, sch.get_loops(found[-1])[-1]) == 0:
            continue  # nothing to compute
        elif (scatter := Scatter.of(sch, found)) is not None:
            _check_order(part, deterministic)
            schedule_scatter(sch, scatter, row_tile or default_tile(sch, found[-1]))
        else:
            rows = _Rows.of(sch, found, part)
            rows.schedule(row_tile or rows.default_tile, share, (groups or {}).get(part, part))
    bind_others(sch, [f"{name}_{part}" for part in parts])


def _check_tile(tile: RowTile | BlockTile | BlockRowsTile | None, of_blocks: list[bool]) -> None:
    """Refuse a tile that no part takes; `of_blocks` says which are parts of blocks."""
    if tile is not None and set(of_blocks) == {isinstance(tile, RowTile)}:
        wanted = "BlockTile or BlockRowsTile" if of_blocks[0] else "RowTile"
        raise ValueError(f"tile: expected a {wanted} for these formats, found {tile!r}")


@dataclass(frozen=True)
class _Rows:
    """The rows of a part, as :func:`prepared` leaves them.

    Attributes
    ----------
    sch : tvm.s_tir.Schedule
        Holds them.
    outer : tuple of SBlockRV
        The block of a row, and before it that of a range of columns where ranges go in order.
    block : SBlockRV
        The innermost block, which adds a product.
    """

    sch: s_tir.Schedule
    outer: tuple[Block, ...]
    block: Block

    @staticmethod
    def of(sch: s_tir.Schedule, blocks: Sequence[Block], part: str) -> _Rows:
        """Tell the blocks of a part apart."""
        in_order = len(blocks) == 4 and is_reduced(sch, blocks[0])
        if not in_order and (len(blocks) != 2 or is_reduced(sch, blocks[0])):
            raise ValueError(
                f"part {part}: expected a format with one loop over rows for CUDA, found one whose "
                "entries of a row are scattered, or lie in several ranges of columns"
            )
        return _Rows(sch, tuple(blocks[: 2 if in_order else 1]), blocks[-1])

    @property
    def is_atomic(self) -> bool:
        """Whether rows are added to the result atomically."""
        return adds_atomically(self.sch, self.block)

    @property
    def default_tile(self) -> RowTile:
        """What suits the feature width; without many sums in a thread where they wait for atomics."""
        tile = default_tile(self.sch, self.block)
        lanes = tile.lanes * tile.vectors
        is_spread = self.is_atomic and tile.vector > 1 and lanes <= THREADS
        return RowTile(tile.vector, lanes, 1, max(1, THREADS // lanes)) if is_spread else tile

    def schedule(self, tile: RowTile, share: int | None, group: str) -> None:
        """Give groups of lanes rows, or shares of the entries of all.

        Parameters
        ----------
        tile : RowTile
            Rows and features of a thread block.
        share : int or None
            Entries of a share, where rows can be shared.
        group : str
            Parts that have it in common become one kernel.
        """
        sch = self.sch
        width, coarse = self._entries_of_row(), self._rows_of_group()
        together = f"{group}, atomically" if self.is_atomic else group  # never beside plain stores
        *ranges, row = (sch.get_loops(block)[0] for block in self.outer)
        for each in ranges:
            sch.annotate(each, TOGETHER, together)
        is_shared = share is not None and not ranges
        if is_shared and shared_pointers(sch, self.block) is not None:
            split_rows(sch, row, self.block, max(1, share // width), tile.rows)
            tile_row(sch, self.block, tile)
            return
        tile_row(sch, self.block, tile)
        outer, inner, _ = sch.split(row, [None, tile.rows, coarse])
        sch.bind(outer, "blockIdx.x")
        sch.bind(inner, "threadIdx.y")
        sch.annotate(outer, TOGETHER, together)

    def _rows_of_group(self) -> int:
        """How many rows a group takes one after another: several narrow ones."""
        entries = self.sch.get_loops(self.block)[:-1]
        if any(row_pointers(self.sch, loop) for loop in entries):
            return 1
        return max(1, _ENTRIES // self._entries_of_row())

    def _entries_of_row(self) -> int:
        """How many entries the loops of known extent give a row, or each piece of one; at least 1."""
        extents = [self.sch.get(loop).extent for loop in self.sch.get_loops(self.block)[:-1]]
        known = [int(extent) for extent in extents if isinstance(extent, tirx.IntImm)]
        return max(1, math.prod(known))


def _check_order(part: str, deterministic: bool) -> None:
    """Refuse to add entries of scattered rows in an order that differs from run to run."""
    if deterministic:
        raise ValueError(
            f"deterministic: expected formats that store the entries of a row together, such as CSR or "
            f"hyb, found scattered rows in part {part}, which are added atomically, in any order; pass "
            "deterministic=False, or another format"
        )

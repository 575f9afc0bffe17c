"""SpMM on CUDA: a row a group of lanes, features in their registers, 128-bit loads of gathered rows."""

from __future__ import annotations

from tvm import s_tir
from tvm.target import Target

from ..cpu.rows import row_and_entry_blocks
from .rows import (
    bind_rows,
    default_tile,
    feature_width,
    lowered,
    share_elements,
    split_rows,
    tile_row,
)
from .tiles import WARP, RowTile

__all__ = ["lowered", "schedule", "space"]


def schedule(
    sch: s_tir.Schedule,
    *,
    tile: RowTile | None = None,
    share: int | None = None,
    target: Target | str | dict | None = None,
    name: str = "spmm",
) -> None:
    """Apply the default schedule to a stage-III program.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Holds the sparse iteration `name` over rows, entries and features, finished in its rows (see
        :func:`tvm_sparse.transform.FuseFollowers`).
    tile : RowTile, optional
        Rows and features of a thread block; by default what suits the feature width.
    share : int, optional
        Entries and ends of rows that a group of lanes takes, so that long rows are shared (see
        :func:`tvm_sparse.transform.SplitRows`); by default a group takes a row, however long.
    target : tvm.target.Target, str, dict or None
        Not looked at: the tile suits every card.
    name : str
        Name of the sparse iteration.

    Examples
    --------
    >>> from tvm.s_tir import Schedule
    >>> from tvm_sparse.runtime import lower
    >>> from tvm_sparse.schedules import cuda, spmm
    >>> sch = Schedule(lower(spmm.program().specialize({"f": 64})))
    >>> cuda.spmm.schedule(sch)
    >>> "threadIdx.x" in sch.mod.script()
    True
    """
    del target
    rows, block = row_and_entry_blocks(sch, name)
    (row,) = sch.get_loops(rows)
    if feature_width(sch, sch.get_loops(block)[-1]) == 0:
        return  # nothing to compute
    tile = tile or default_tile(sch, block)
    if share is not None:
        split_rows(sch, row, block, share, tile.rows)
    tile_row(sch, block, tile)
    if share is None:
        bind_rows(sch, row, tile.rows)
    for follower in sch.get_consumers(rows):
        share_elements(sch, follower)


def space(
    sch: s_tir.Schedule,
    *,
    target: Target | str | dict | None = None,
    name: str = "spmm",
) -> list[s_tir.Schedule]:
    """Return the variants to tune: threads of a block, vectors of a thread, rows whole or shared."""
    _, block = row_and_entry_blocks(sch, name)
    default = default_tile(sch, block)
    vectors = default.lanes * default.vectors
    found = []
    for threads in (128, 256, 512):
        for held in (1, 2, 4):
            lanes = min(WARP, -(-vectors // held))
            tile = RowTile(default.vector, lanes, held, max(1, threads // lanes))
            for share in (None, 64, 256):
                variant = s_tir.Schedule(sch.mod)
                schedule(variant, tile=tile, share=share, target=target, name=name)
                found.append(variant)
    return found

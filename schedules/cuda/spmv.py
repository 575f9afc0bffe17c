"""SpMV on CUDA: a row a thread, or a row a group of lanes that sum its entries together."""

from __future__ import annotations

from tvm import s_tir
from tvm.target import Target

from ..cpu.rows import row_and_entry_blocks
from .rows import bind_rows, lowered, share_elements, split_rows
from .tiles import THREADS, RowTile

__all__ = ["DEFAULT_TILE", "check_lanes", "lowered", "schedule", "space"]

#: Rows of graphs and meshes hold some ten entries: lanes beyond that would idle.
DEFAULT_TILE = RowTile(vector=1, lanes=8, vectors=1, rows=THREADS // 8)


def schedule(
    sch: s_tir.Schedule,
    *,
    tile: RowTile | None = None,
    share: int | None = None,
    target: Target | str | dict | None = None,
    name: str = "spmv",
) -> None:
    """Apply the default schedule to a stage-III program.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Holds the sparse iteration `name` over rows and entries, finished in its rows (see
        :func:`tvm_sparse.transform.FuseFollowers`).
    tile : RowTile, optional
        Rows of a thread block, and the lanes that share the entries of a row: 1 (a thread for each
        row) or a power of two up to 32 (up to a warp).
    share : int, optional
        Entries and ends of rows that a group of lanes takes, so that long rows are shared (see
        :func:`tvm_sparse.transform.SplitRows`); by default a group takes a row, however long.
    target : tvm.target.Target, str, dict or None
        Not looked at.
    name : str
        Name of the sparse iteration.

    Raises
    ------
    ValueError
        If the lanes are no power of two up to 32.

    Examples
    --------
    >>> from tvm.s_tir import Schedule
    >>> from tvm_sparse.runtime import lower
    >>> from tvm_sparse.schedules import cuda, spmv
    >>> sch = Schedule(lower(spmv.program()))
    >>> cuda.spmv.schedule(sch)
    >>> "threadIdx.x" in sch.mod.script()
    True
    """
    del target
    tile = tile or DEFAULT_TILE
    check_lanes(tile)
    rows, block = row_and_entry_blocks(sch, name)
    (row,) = sch.get_loops(rows)
    (entry,) = sch.get_loops(block)
    if share is not None:
        split_rows(sch, row, block, share, tile.rows)
    else:
        bind_rows(sch, row, tile.rows)
    if share is not None or tile.lanes > 1:
        _, lane = sch.split(entry, [None, tile.lanes])
        sch.bind(lane, "threadIdx.x")
    for follower in sch.get_consumers(rows):
        share_elements(sch, follower)


def check_lanes(tile: RowTile) -> None:
    """Refuse lanes that can't sum together by shuffles."""
    if tile.lanes not in (1, 2, 4, 8, 16, 32):
        raise ValueError(
            f"tile: expected lanes that are a power of two up to 32, found {tile.lanes}"
        )


def space(
    sch: s_tir.Schedule,
    *,
    target: Target | str | dict | None = None,
    name: str = "spmv",
) -> list[s_tir.Schedule]:
    """Return the variants to tune: one to 32 lanes a row, rows whole or shared."""
    found = []
    for lanes in (1, 2, 4, 8, 16, 32):
        for share in (None, 32 * lanes):
            variant = s_tir.Schedule(sch.mod)
            tile = RowTile(1, lanes, 1, THREADS // lanes)
            schedule(variant, tile=tile, share=share, target=target, name=name)
            found.append(variant)
    return found

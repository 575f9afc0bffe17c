"""SpMM on CUDA: a row a group of lanes, features in their registers, 128-bit loads of gathered rows."""

from __future__ import annotations

from tvm import s_tir
from tvm.target import Target

from ..cpu.rows import row_and_entry_blocks
from .rows import bind_rows, default_tile, lowered, tile_row
from .tiles import RowTile

__all__ = ["lowered", "schedule"]


def schedule(
    sch: s_tir.Schedule,
    *,
    tile: RowTile | None = None,
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
    tile = tile or default_tile(sch, block)
    tile_row(sch, block, tile)
    bind_rows(sch, row, tile.rows)

"""Segment reduce on CUDA: the feature tiles of SpMM, over rows that lie one after another."""

from __future__ import annotations

from tvm import s_tir
from tvm.target import Target

from . import spmm
from .rows import lowered
from .tiles import RowTile

__all__ = ["lowered", "schedule", "space"]


def schedule(
    sch: s_tir.Schedule,
    *,
    tile: RowTile | None = None,
    share: int | None = None,
    target: Target | str | dict | None = None,
    name: str = "segment_sum",
) -> None:
    """Apply the default schedule to a stage-III program.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Holds the sparse iteration `name` over segments, their rows and features, finished in its
        segments (see :func:`tvm_sparse.transform.FuseFollowers`).
    tile : RowTile, optional
        Rows and features of a thread block; by default what suits the feature width.
    share : int, optional
        As in :func:`tvm_sparse.schedules.cuda.spmm.schedule`.
    target : tvm.target.Target, str, dict or None
        Not looked at: the tile suits every card.
    name : str
        Name of the sparse iteration.
    """
    spmm.schedule(sch, tile=tile, share=share, target=target, name=name)


def space(
    sch: s_tir.Schedule,
    *,
    target: Target | str | dict | None = None,
    name: str = "segment_sum",
) -> list[s_tir.Schedule]:
    """Return the variants to tune, those of SpMM."""
    return spmm.space(sch, target=target, name=name)

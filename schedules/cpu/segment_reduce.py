"""Segment reduce on a CPU: the feature tiles of SpMM, over rows that lie one after another."""

from __future__ import annotations

from tvm import s_tir
from tvm.target import Target

from . import spmm
from .tiles import RowTile

__all__ = ["schedule", "space"]


def schedule(
    sch: s_tir.Schedule,
    *,
    tile: RowTile | None = None,
    target: Target | str | dict | None = None,
    name: str = "segment_sum",
) -> None:
    """Apply the default schedule to a stage-III program.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Holds the sparse iteration `name` over segments, their rows and features.
    tile : RowTile, optional
        The feature tile; by default eight vectors of the target.
    target : tvm.target.Target, str, dict or None
        The CPU to schedule for.
    name : str
        Name of the sparse iteration.
    """
    spmm.schedule(sch, tile=tile, target=target, name=name)


def space(
    sch: s_tir.Schedule,
    *,
    target: Target | str | dict | None = None,
    name: str = "segment_sum",
) -> list[s_tir.Schedule]:
    """Return the variants to tune, those of SpMM."""
    return spmm.space(sch, target=target, name=name)

"""SpMM on a CPU: rows shared by entries, feature tiles in registers, lanes along the features."""

from __future__ import annotations

from tvm import s_tir
from tvm.target import Target

from .rows import (
    row_and_entry_blocks,
    row_pointers,
    sample_grain,
    share_rows,
    tile_row,
    vectorize_followers,
    version_widths,
)
from .tiles import RowTile

__all__ = ["schedule", "space"]

# Widths whose rows get code of their own; wider rows gain too little for the time of compiling.
COMMON_WIDTHS = (32, 64, 128)


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
        Holds the sparse iteration `name` over rows, entries and features.
    tile : RowTile, optional
        The feature tile; by default eight vectors of the target.
    target : tvm.target.Target, str, dict or None
        The CPU to schedule for.
    name : str
        Name of the sparse iteration.

    Examples
    --------
    >>> from tvm.s_tir import Schedule
    >>> from tvm_sparse.runtime import lower
    >>> from tvm_sparse.schedules import cpu, spmm
    >>> sch = Schedule(lower(spmm.program()))
    >>> cpu.spmm.schedule(sch, target="llvm")
    >>> "T.parallel" in sch.mod.script()
    True
    """
    rows, block = row_and_entry_blocks(sch, name)
    (row,) = sch.get_loops(rows)
    indptr = row_pointers(sch, sch.get_loops(block)[0])
    tile = tile or RowTile.of_target(target, _bits(sch, block))
    tile_row(sch, block, tile)
    vectorize_followers(sch, rows, tile.lanes)
    share_rows(sch, row, indptr)
    version_widths(sch, row, COMMON_WIDTHS)


def space(
    sch: s_tir.Schedule,
    *,
    target: Target | str | dict | None = None,
    name: str = "spmm",
) -> list[s_tir.Schedule]:
    """Return the variants to tune: tiles of one to sixteen vectors of two widths, sampled grains."""
    lanes = RowTile.of_target(target, _bits(sch, row_and_entry_blocks(sch, name)[1])).lanes
    variants = []
    for width in (lanes, lanes // 2):
        for vectors in (1, 2, 4, 8, 16):
            variant = s_tir.Schedule(sch.mod)
            schedule(variant, tile=RowTile(vectors * width, width), target=target, name=name)
            sample_grain(variant, name)
            variants.append(variant)
    return variants


def _bits(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> int:
    """Width of a value of the result."""
    return int(sch.get(block).writes[0].source.dtype.bits)

"""SDDMM with blocks of entries on tensor cores: stored blocks in equal numbers to thread blocks.

A thread block takes neighbouring stored blocks, whatever rows they lie under, so that long rows are no
heavier than others; it looks up their rows by bisection of the row pointers. As in :mod:`.blocks`, tile
programs take the place of the loops of lowered parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import s_tir
from tvm.target import Target

from ..cpu.part_blocks import blocks_of
from .block_dots import BlockDots
from .block_nests import read_nest
from .block_tiles import DotBlockTile
from .dot_program import DotProgram
from .results import bind_others, round_at_once
from .tiles import check_staging

__all__ = ["schedule", "schedule_part", "takes"]


def schedule(
    sch: s_tir.Schedule,
    parts: Sequence[str],
    *,
    tile: DotBlockTile | None = None,
    target: Target | str | dict | None = None,
    name: str = "sddmm",
    groups: Mapping[str, str] | None = None,
) -> None:
    """Schedule the parts of a decomposed SDDMM.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Holds the iterations ``name_part``, features reduced.
    parts : sequence of str
        Names of the parts.
    tile : DotBlockTile, optional
        The tile. Tensor cores round float32 to tf32 (10 bits of mantissa), so that they are taken for it
        only if asked for: by default they multiply blocks in half precision, CUDA cores all others.
    target : tvm.target.Target, str, dict or None
        Must be sm_80 or later.
    name : str
        Name of the iteration that was decomposed.
    groups : dict of str to str, optional
        Not needed: no two parts share a result.

    Raises
    ------
    ValueError
        If a part has no blocks of entries, or the target is too old.
    """
    del groups
    check_staging(target, "dot products at blocks of entries")
    for part in parts:
        schedule_part(sch, f"{name}_{part}", tile=tile, alone=len(parts) == 1)
    bind_others(sch, [f"{name}_{part}" for part in parts])


def takes(sch: s_tir.Schedule, iteration: str) -> bool:
    """Whether an iteration goes over blocks of entries under row pointers, and can be scheduled here.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    iteration : str
        Name of the iteration.
    """
    return BlockDots.of(read_nest(sch, blocks_of(sch, iteration))) is not None


def schedule_part(
    sch: s_tir.Schedule, iteration: str, *, tile: DotBlockTile | None = None, alone: bool = False
) -> None:
    """Schedule one part.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    iteration : str
        Name of its iteration.
    tile : DotBlockTile, optional
        As in :func:`schedule`.
    alone : bool
        Whether sums may be rounded at once: no other part is converted with them.

    Raises
    ------
    ValueError
        If it has no blocks of entries under row pointers, or not those that the tile is for.
    """
    nest = read_nest(sch, blocks_of(sch, iteration))
    dots = BlockDots.of(round_at_once(sch, nest) if nest is not None and alone else nest)
    if dots is None:
        raise ValueError(
            f"iteration {iteration}: expected blocks of entries under row pointers and dense features"
        )
    program = DotProgram(dots, tile or _default_tile(dots))
    sch.state.replace(sch.get_sref(dots.nest.loop), program.build(), {})


def _default_tile(dots: BlockDots) -> DotBlockTile:
    halves = dots.dtype in ("float16", "bfloat16") and dots.sum_dtype == "float32"
    cores = halves and dots.has_one_dtype and dots.rows * dots.columns >= 64
    return DotBlockTile.default((dots.rows, dots.columns), dots.dtype, tensor_cores=cores)

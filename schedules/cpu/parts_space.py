"""What tuning may vary of SpMM over formats: the feature tiles of all parts, and how small tasks are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tvm import s_tir
from tvm.target import Target

from .parts import block_names, part_blocks, schedule
from .rows import annotate_grain
from .tiles import RowTile
from .vectors import vector_lanes

__all__ = ["grains", "space"]


def space(
    sch: s_tir.Schedule,
    parts: Sequence[str],
    *,
    target: Target | str | dict | None = None,
    name: str = "spmm",
    groups: Mapping[str, str] | None = None,
    bits: int = 32,
) -> list[s_tir.Schedule]:
    """Return the variants to tune: the default tile, and others of two lane counts; sampled grains.

    Parts of blocks keep their tile, and parts whose entries are scattered what they have.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Holds the iterations of the parts.
    parts, target, name, groups
        As :func:`tvm_sparse.schedules.cpu.parts.schedule` takes them.
    bits : int
        Width of a value of the result.
    """
    lanes = vector_lanes(target, bits)
    tiles = [
        RowTile(vectors * width, width)
        for width in (lanes, lanes // 2)
        for vectors in (1, 2, 4, 8, 16)
    ]
    variants, seen = [], set()
    for tile in (None, *tiles):
        variant = s_tir.Schedule(sch.mod)
        (function,) = sch.mod.functions
        variant.work_on(function.name_hint)
        schedule(variant, parts, tile=tile, target=target, name=name, groups=groups)
        text = variant.mod.script()
        if text in seen:
            continue  # no part has a tile of features
        seen.add(text)
        _sample_grains(variant, parts, name)
        variants.append(variant)
    return variants


def grains(
    sch: s_tir.Schedule,
    parts: Sequence[str],
    schedule_parts: Callable[..., None],
    *,
    target: Target | str | dict | None = None,
    name: str = "sddmm",
    groups: Mapping[str, str] | None = None,
) -> list[s_tir.Schedule]:
    """Return the one variant of an operator whose parts have no tile to choose: sampled grains.

    Parameters
    ----------
    sch, parts, target, name, groups
        As :func:`space` takes them.
    schedule_parts : callable
        Schedules the parts, as :func:`tvm_sparse.schedules.cpu.parts.schedule` does.
    """
    variant = s_tir.Schedule(sch.mod)
    schedule_parts(variant, parts, target=target, name=name, groups=groups)
    _sample_grains(variant, parts, name)
    return [variant]


def _sample_grains(sch: s_tir.Schedule, parts: Sequence[str], name: str) -> None:
    """Let tuning choose the least work of a task, for each part with rows in parallel."""
    names = block_names(sch)
    for part in parts:
        for block in part_blocks(sch, names, f"{name}_{part}"):
            for loop in sch.get_loops(block):
                if "tvm_sparse.balance" in sch.get(loop).annotations:
                    annotate_grain(sch, loop)

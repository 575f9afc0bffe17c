"""What tuning may vary of SpMM over formats: the feature tiles of all parts, and how small tasks are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import s_tir
from tvm.target import Target

from .parts import block_names, schedule
from .tiles import RowTile
from .vectors import vector_lanes

__all__ = ["space"]

#: Candidates for the least work of a task, in inner-loop steps.
_GRAINS = [1 << exponent for exponent in range(14, 21)]


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


def _sample_grains(sch: s_tir.Schedule, parts: Sequence[str], name: str) -> None:
    """Let tuning choose the least work of a task, for each part with rows in parallel."""
    mine = tuple(f"{name}_{part}_" for part in parts)
    for block in block_names(sch):
        loops = sch.get_loops(sch.get_sblock(block)) if block.startswith(mine) else []
        if loops and "tvm_sparse.balance" in sch.get(loops[0]).annotations:
            grain = sch.sample_categorical(_GRAINS, [1 / len(_GRAINS)] * len(_GRAINS))
            sch.annotate(loops[0], "tvm_sparse.grain", grain)

"""SpMM over formats on a CPU: the parts one after the other, each with its rows in parallel."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import tvm_ffi
from tvm import s_tir, tirx
from tvm.target import Target

from ...transform.share_inner import SHARE_INNER
from .blocks import tile_blocks, walks_blocks
from .rows import row_pointers, share_rows, tile_row, version_widths
from .spmm import COMMON_WIDTHS
from .tiles import RowTile
from .vectors import vector_lanes

__all__ = ["block_names", "is_reduced", "part_blocks", "schedule"]

#: More parts than these get less code each: compiling them would take too long.
FEW_PARTS = 2
#: Feature tile of many parts, in vectors.
LEAN_TILE = 4
#: Features that a thread takes where threads cannot share rows.
FEATURE_RANGE = 64


def schedule(
    sch: s_tir.Schedule,
    parts: Sequence[str],
    *,
    tile: RowTile | None = None,
    target: Target | str | dict | None = None,
    name: str = "spmm",
    groups: Mapping[str, str] | None = None,
) -> None:
    """Schedule the parts of a decomposed SpMM, and the initialisation of its result.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Holds the iterations ``name_init`` and ``name_part`` for each part.
    parts : sequence of str
        Names of the parts.
    tile : RowTile, optional
        The feature tile; by default eight vectors of the target.
    target : tvm.target.Target, str, dict or None
        The CPU to schedule for.
    name : str
        Name of the iteration that was decomposed.
    groups : dict of str to str, optional
        Parts of the same group have no row in common, and share one parallel region.
    """
    groups = groups or {}
    names = block_names(sch)
    lean = len(parts) > FEW_PARTS
    for part in parts:
        found = part_blocks(sch, names, f"{name}_{part}")
        *outer, rows, block = found if len(found) > 1 else [*found, *found]
        if is_reduced(sch, rows):  # no loop over rows: entries of a row are scattered
            bits = int(sch.get(rows).writes[0].source.dtype.bits)
            lanes = min(vector_lanes(target, bits), FEATURE_RANGE)
            sch.annotate(sch.get_loops(rows)[0], SHARE_INNER, [FEATURE_RANGE, lanes])
            continue
        if len(found) == 1 or sch.get(block).init is None:
            continue
        if walks_blocks(sch, block):
            widths = () if lean else COMMON_WIDTHS
            tile_blocks(sch, rows, block, target=target, widths=widths)
            continue
        bits = int(sch.get(block).writes[0].source.dtype.bits)
        indptr = row_pointers(sch, sch.get_loops(block)[0])
        chosen = tile or RowTile.of_target(target, bits)
        if lean and tile is None:
            chosen = RowTile(LEAN_TILE * chosen.lanes, chosen.lanes)
        tile_row(sch, block, chosen)
        row = sch.get_loops(rows)[0]
        share_rows(sch, row, indptr)
        if lean:
            sch.annotate(sch.get_loops(block)[0], "tvm_sparse.lean", True)
        if lean or part in groups:
            for loop in [row, *(sch.get_loops(around)[0] for around in outer)]:
                sch.annotate(loop, "tvm_sparse.together", groups.get(part, part))
        if not lean:
            version_widths(sch, row, COMMON_WIDTHS)
    own = {f"{name}_{part}_0" for part in parts}
    for block in names:
        if block.endswith(("_init_0", "_fill_0")) and block not in own:
            _schedule_init(sch, sch.get_sblock(block), target)


def _schedule_init(sch: s_tir.Schedule, block, target) -> None:
    row, *_, feature = sch.get_loops(block)
    features = sch.get(feature).extent
    if isinstance(features, tirx.IntImm) and not int(features):
        return  # nothing to initialise
    lanes = RowTile.of_target(target, int(sch.get(block).writes[0].source.dtype.bits)).lanes
    vectors, lane = sch.split(feature, [None, lanes])
    sch.vectorize(lane)
    sch.annotate(vectors, "tvm_sparse.tail", lanes)
    share_rows(sch, row, None)


def part_blocks(
    sch: s_tir.Schedule, names: Sequence[str], iteration: str
) -> list[s_tir.schedule.SBlockRV]:
    """Return the nested blocks of an iteration, the outermost first.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Holds the iteration.
    names : sequence of str
        Names of all blocks.
    iteration : str
        Its name: block ``iteration_1`` stands inside block ``iteration_0``.
    """
    numbered = (f"{iteration}_{number}" for number in itertools.count())
    return [sch.get_sblock(name) for name in itertools.takewhile(set(names).__contains__, numbered)]


def is_reduced(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> bool:
    """Whether loops around a block reduce, so that they are no rows."""
    return any(iv.iter_type == tirx.IterVar.CommReduce for iv in sch.get(block).iter_vars)


def block_names(sch: s_tir.Schedule) -> list[str]:
    """Return the names of all blocks."""
    found: list[s_tir.SBlock] = []
    for func in sch.mod.functions.values():
        if isinstance(func, tirx.PrimFunc):
            tvm_ffi.structural_walk(func.body, (s_tir.SBlock, found.append))
    return [block.name_hint for block in found]

"""SpMV over formats on a CPU: the parts one after the other, each with its rows in parallel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorLoad
from tvm.target import Target

from ...transform._tile_loops import stride_of
from ...transform.full_blocks import FULL_BLOCKS
from ...transform.hold_tile import HOLD
from .part_blocks import (
    blocks_of,
    is_spatial,
    loop_kinds,
    pointers_of_entries,
    share_others,
    share_outermost,
)
from .tiles import EntryTile
from .vectors import sum_in_lanes, vector_lanes, vectorize_groups

__all__ = ["schedule"]

#: Rows of a strip whose sums stay in registers while reductions go around them.
_STRIP = 64
#: Most rows of a block, and most lanes of a row, that are summed side by side.
_ROWS, _LANES = 8, 16


def schedule(
    sch: s_tir.Schedule,
    parts: Sequence[str],
    *,
    tile: EntryTile | None = None,
    target: Target | str | dict | None = None,
    name: str = "spmv",
    groups: Mapping[str, str] | None = None,
) -> None:
    """Schedule the parts of a decomposed SpMV, and the initialisation of its result.

    A part whose entries of a row are scattered stays serial.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Holds the iterations ``name_part``, and ``name_init`` if no part initialises the result.
    parts : sequence of str
        Names of the parts.
    tile : EntryTile, optional
        How many entries of a row are summed side by side, where they are no block.
    target : tvm.target.Target, str, dict or None
        The CPU to schedule for.
    name : str
        Name of the iteration that was decomposed.
    groups : dict of str to str, optional
        Parts of the same group have no row in common, and share one parallel region.
    """
    groups = groups or {}
    iterations = {part: f"{name}_{part}" for part in parts}
    for part, iteration in iterations.items():
        blocks = blocks_of(sch, iteration)
        outermost = _schedule_part(sch, blocks, tile or EntryTile(), target)
        if outermost is not None and part in groups:
            sch.annotate(outermost, "tvm_sparse.together", groups[part])
    share_others(sch, iterations.values())


def _schedule_part(
    sch: s_tir.Schedule,
    blocks: list[s_tir.schedule.SBlockRV],
    tile: EntryTile,
    target: Target | str | dict | None,
) -> s_tir.schedule.LoopRV | None:
    """Schedule a part; return its parallel loop, None where it has none."""
    block = blocks[-1]
    kinds = loop_kinds(sch, block)
    if sch.get(block).init is None or "R" not in kinds:
        return None
    if len(blocks) == 1 and kinds == "R" * (len(kinds) - 1) + "S":
        return _sum_strips(sch, block, vector_lanes(target, _bits(sch, block)))
    if not is_spatial(sch, blocks):
        return None
    indptr = pointers_of_entries(sch, blocks)
    first = _sum_block_rows(sch, block) if kinds.endswith("S") else _sum_entries(sch, block, tile)
    outermost = share_outermost(sch, blocks, indptr)
    sch.decompose_reduction(block, first)
    return outermost


def _sum_entries(
    sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, tile: EntryTile
) -> s_tir.schedule.LoopRV:
    """Sum the entries of a row in several sums side by side; return the outermost loop over them.

    Before and after, with 4 entries::

        for j in range(n):                       for j0 in range(ceildiv(n, 4)):
            y[i] += A[j] * x[column[j]]              for v in T.vectorized(4):
                                                         sums[v] += A[j0 * 4 + v] * x[...]
                                                 y[i] = sums[0] + sums[1] + sums[2] + sums[3]
    """
    *outer, entry = sch.get_loops(block)
    extent = sch.get(entry).extent
    width = tile.width
    if isinstance(extent, tirx.IntImm):
        width = min(width, int(extent))
    if width < 2:
        return outer[0] if outer else entry  # one product a row
    steps, lane = sch.split(entry, [None, width])
    first = outer[0] if outer else steps
    sum_in_lanes(sch, first, lane, tile.lanes)
    sch.annotate(steps, "tvm_sparse.tail", tile.lanes)
    if not outer:
        sch.annotate(steps, "tvm_sparse.rolled", True)
    return first


def _sum_block_rows(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> s_tir.schedule.LoopRV:
    """Sum the rows of a row of blocks side by side; return the outermost loop that is reduced.

    Vectors go along the values of a block.

    Before and after, for blocks ``b`` of 4 columns ``j`` and 4 rows ``i`` whose values lie row by row::

        for b, j, i in T.grid(n, 4, 4):          for b, i in T.grid(n, 4):
            y[i] += A[b, i, j] * x[b, j]             for v in T.vectorized(4):
                                                         sums[i, v] += A[b, i, v] * x[b, v]
                                                 y[i] = sum of sums[i, :]
    """
    kinds = loop_kinds(sch, block)
    along = _contiguous_loop(sch, block)
    loops = sch.get_loops(block)
    rows = len(kinds) - 1
    reduced, row = loops[:rows], loops[rows]
    strips, row = sch.split(row, [None, _divisor(int(sch.get(row).extent), _ROWS)])
    if along is not None and along < rows:
        vector = reduced.pop(along)
        groups, lane = sch.split(vector, [None, _divisor(int(sch.get(vector).extent), _LANES)])
        sch.reorder(strips, *reduced, groups, row, lane)
        sch.unroll(row)
        reduced = reduced or [groups]
        sum_in_lanes(sch, reduced[0], lane, _LANES)
    else:
        sch.reorder(strips, *reduced, row)
        if along is not None:
            sch.vectorize(row)
        sch.annotate(reduced[0], HOLD, True)
    first = reduced[0]
    sch.annotate(first, FULL_BLOCKS, True)
    return first


def _sum_strips(
    sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, lanes: int
) -> s_tir.schedule.LoopRV:
    """Go over strips of rows in parallel, and over what is reduced once for each.

    Before and after, for diagonals ``d``::

        for d, i in T.grid(n, m):                for i0 in T.parallel(ceildiv(m, 64)):
            y[i] += A[d, i] * x[i + d]               for d, v in T.grid(n, 64):
                                                         held[v] += A[d, i0 * 64 + v] * x[...]
                                                     y[i0 * 64 : ...] = held[:]
    """
    *reduced, row = sch.get_loops(block)
    strips, row = sch.split(row, [None, _STRIP])
    sch.reorder(strips, *reduced, row)
    vectorize_groups(sch, row, lanes)
    sch.annotate(reduced[0], HOLD, True)
    outermost = share_outermost(sch, [block], None)
    sch.decompose_reduction(block, reduced[0])
    return outermost


def _contiguous_loop(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> int | None:
    """Which loop of constant extent walks what it reads value by value, or reads one value."""
    body = sch.get(block)
    for place, iter_var in reversed(list(enumerate(body.iter_vars))):
        if not isinstance(iter_var.dom.extent, tirx.IntImm):
            continue
        strides: list[int | None] = []

        def note(load: TensorLoad, var=iter_var.var, strides=strides) -> None:
            if load.source not in {region.source for region in body.writes}:
                strides.append(stride_of(load.indices[-1], var))

        tvm_ffi.structural_walk(body.body, (TensorLoad, note))
        if set(strides) in ({0, 1}, {1}):
            return place
    return None


def _bits(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> int:
    """Width of a value of the result."""
    return int(sch.get(block).writes[0].source.dtype.bits)


def _divisor(size: int, most: int) -> int:
    return max(number for number in range(1, most + 1) if size % number == 0)

"""SDDMM over formats on a CPU: dot products in vectors, those of a block side by side.

Every stored entry is a result of its own, so that the outermost loop of each part is parallel, whatever
it goes over, and all parts share one parallel region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import s_tir
from tvm.target import Target

from .part_blocks import (
    blocks_of,
    loop_kinds,
    pointers_of_entries,
    share_others,
    share_outermost,
)
from .rows import version_widths
from .sddmm import COMMON_WIDTHS
from .vectors import sum_in_lanes, vector_lanes

__all__ = ["DotTile", "schedule"]

#: Vectors that one dot product is summed in: enough to hide the latency of additions.
_VECTORS = 2
#: Accumulators of a block that leave registers for operands, by how many lanes a vector register has.
_ACCUMULATORS = {16: 16}
_FEW_ACCUMULATORS = 8


@dataclass(frozen=True)
class DotTile:
    """Dot products of a block of entries that are computed side by side.

    Parameters
    ----------
    rows, columns : int
        Entries, divisors of the block's sizes. A vector of the first operand is used `columns` times,
        one of the second `rows` times.
    width : int
        Features of a step, `lanes` times a power of two.
    lanes : int
        Features of a vector.
    """

    rows: int
    columns: int
    width: int
    lanes: int

    @staticmethod
    def of_target(
        target: Target | str | dict | None, rows: int, columns: int, bits: int = 32
    ) -> DotTile:
        """Return the tile that loads least for the products that it computes.

        Parameters
        ----------
        target : tvm.target.Target, str, dict or None
            The CPU.
        rows, columns : int
            Sizes of a block, 1 and 1 for single entries.
        bits : int
            Width of a value of the result.
        """
        lanes = vector_lanes(target, bits)
        most = _ACCUMULATORS.get(vector_lanes(target), _FEW_ACCUMULATORS)
        sizes = [
            (r, c)
            for r in range(1, rows + 1)
            for c in range(1, columns + 1)
            if rows % r == 0 and columns % c == 0 and r * c <= most
        ]
        r, c = min(sizes, key=lambda size: (1 / size[0] + 1 / size[1], size[0] * size[1]))
        vectors = _VECTORS if r * c * _VECTORS <= most else 1
        return DotTile(r, c, vectors * lanes, lanes)


def schedule(
    sch: s_tir.Schedule,
    parts: Sequence[str],
    *,
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
    target : tvm.target.Target, str, dict or None
        The CPU to schedule for.
    name : str
        Name of the iteration that was decomposed.
    groups : dict of str to str, optional
        Not needed: no two parts share a result.
    """
    del groups
    iterations = [f"{name}_{part}" for part in parts]
    for iteration in iterations:
        blocks = blocks_of(sch, iteration)
        indptr = pointers_of_entries(sch, blocks)
        tile, steps = _sum_dots(sch, blocks[-1], target)
        outermost = share_outermost(sch, blocks, indptr)
        sch.decompose_reduction(blocks[-1], steps)
        if len(parts) > 1:
            sch.annotate(outermost, "tvm_sparse.together", name)
        elif tile.rows * tile.columns == 1:
            version_widths(sch, outermost, COMMON_WIDTHS)
    share_others(sch, iterations)


def _sum_dots(
    sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, target: Target | str | dict | None
) -> tuple[DotTile, s_tir.schedule.LoopRV]:
    """Sum dot products in the lanes of vectors, those of a block tile by tile.

    Before and after, for blocks ``b`` of 8 rows ``i`` and 8 columns ``j``::

        for b, k, i, j in T.grid(n, f, 8, 8):        for b, i0, j0 in T.grid(n, 2, 2):
            C[b, i, j] += X[i, k] * Y[j, k]              for k0 in range(ceildiv(f, 16)):
                                                             for i, j, k in T.grid(4, 4, 16):
                                                                 c[i, j, k] += X[i, k] * Y[j, k]
                                                         C[b, i, j] = sum of c[i, j, :]

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    block : SBlockRV
        The innermost block; its only reduced loop goes over features, and those of constant extent
        inside of it over the entries of a block.

    Returns
    -------
    DotTile
        The tile that was chosen.
    LoopRV
        The loop over features that is left.
    """
    loops = sch.get_loops(block)
    feature = loop_kinds(sch, block).index("R")
    around, over_features, inside = loops[:feature], loops[feature], loops[feature + 1 :]
    sizes = [int(sch.get(loop).extent) for loop in inside]
    rows, columns = [1, 1, *sizes][-2:]
    bits = int(sch.get(block).writes[0].source.dtype.bits)
    tile = DotTile.of_target(target, rows, columns, bits)
    steps, lane = sch.split(over_features, [None, tile.width])
    wanted = ([1] * len(inside) + [tile.rows, tile.columns])[-len(inside) :] if inside else []
    cut = [sch.split(loop, [None, size]) for loop, size in zip(inside, wanted)]
    outer, within = [pair[0] for pair in cut], [pair[1] for pair in cut]
    sch.reorder(*around, *outer, steps, *within, lane)
    for loop in within:
        sch.unroll(loop)
    sum_in_lanes(sch, steps, lane, tile.lanes)
    sch.annotate(steps, "tvm_sparse.tail", tile.lanes)
    return tile, steps

"""Products with blocks of entries on a CPU: several rows of a block at once, in registers."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.target import Target

from ...transform.full_blocks import FULL_BLOCKS
from ...transform.hold_tile import HOLD
from .rows import row_pointers, share_rows, version_widths
from .vectors import vector_lanes, vectorize_groups

__all__ = ["BlockTile", "tile_blocks", "walks_blocks"]

#: Accumulators of a tile, in vectors: 16 hide the latency of additions and leave registers for operands.
_ACCUMULATORS = 16


@dataclass(frozen=True)
class BlockTile:
    """Part of a dense result under a row of blocks that is computed at once.

    Parameters
    ----------
    rows : int
        Rows of a block, a divisor of their number. Each vector of the dense operand is used so often.
    width : int
        Features, `lanes` times a power of two.
    lanes : int
        Features of a vector.
    """

    rows: int
    width: int
    lanes: int

    @staticmethod
    def of_target(
        target: Target | str | dict | None, rows: int, bits: int = 32, features: int | None = None
    ) -> BlockTile:
        """Return the default tile: up to eight rows, and vectors for sixteen accumulators.

        Parameters
        ----------
        target : tvm.target.Target, str, dict or None
            The CPU.
        rows : int
            Rows of a block.
        bits : int
            Width of a value of the result.
        features : int, optional
            Feature width, if it is known.
        """
        lanes = vector_lanes(target, bits)
        together = max(size for size in range(1, 9) if rows % size == 0)
        vectors = 1
        while 2 * vectors * together <= _ACCUMULATORS:
            vectors *= 2
        width = vectors * lanes
        if features is not None:
            width = min(width, 1 << (max(1, features).bit_length() - 1))
        return BlockTile(together, width, min(lanes, width))


def walks_blocks(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> bool:
    """Whether a block is inside loops over the rows of a block of entries and over features.

    The loops are those over stored blocks, then a spatial one of constant extent, then features.
    """
    loops = sch.get_loops(block)
    kinds = [iter_var.iter_type for iter_var in sch.get(block).iter_vars]
    if len(loops) < 3 or len(kinds) != len(loops):
        return False
    rows, features = kinds[-2:]
    spatial = tirx.IterVar.DataPar
    constant = isinstance(sch.get(loops[-2]).extent, tirx.IntImm)
    return rows == spatial and features == spatial and spatial not in kinds[:-2] and constant


def tile_blocks(
    sch: s_tir.Schedule,
    rows: s_tir.schedule.SBlockRV,
    block: s_tir.schedule.SBlockRV,
    *,
    target: Target | str | dict | None,
    tile: BlockTile | None = None,
    widths: tuple[int, ...] = (),
) -> None:
    """Compute the rows under a row of blocks tile by tile, each in registers.

    Before and after, for blocks ``b`` of 8 rows ``i`` and 8 columns ``j``::

        for b, j, i, k in T.grid(blocks, 8, 8, f):    for k0 in range(ceildiv(f, width)):
            if A[b, i, j] is no padding:                  c[i, ..] = C[i, ..] for i in rows
                C[i, k] += A[b, i, j] * B[j, k]           for b in range(blocks):
                                                              for j, i, v in T.grid(8, 8, vectors):
                                                                  c[i, v] += A[b, i, j] * B[j, ..]
                                                          C[i, ..] = c[i, ..] for i in rows

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    rows : SBlockRV
        The block around it, one instance a row of blocks.
    block : SBlockRV
        The block, of which :func:`walks_blocks` is true.
    target : tvm.target.Target, str, dict or None
        The CPU.
    tile : BlockTile, optional
        The tile.
    widths : tuple of int
        Feature widths that get code of their own.
    """
    *entries, row, feature = sch.get_loops(block)
    indptr = row_pointers(sch, entries[0])
    features = sch.get(feature).extent
    known = int(features) if isinstance(features, tirx.IntImm) else None
    bits = int(sch.get(block).writes[0].source.dtype.bits)
    tile = tile or BlockTile.of_target(target, int(sch.get(row).extent), bits, known)
    strips, within = sch.split(row, [None, tile.rows])
    tile_loop, inner = sch.split(feature, [None, tile.width])
    sch.reorder(strips, tile_loop, *entries, within, inner)
    vectorize_groups(sch, inner, tile.lanes)
    sch.unroll(within)
    sch.annotate(entries[0], HOLD, True)
    sch.annotate(entries[0], FULL_BLOCKS, True)
    sch.annotate(tile_loop, "tvm_sparse.tail", tile.lanes)
    outer = sch.get_loops(rows)[0]
    share_rows(sch, outer, indptr)
    if widths:
        version_widths(sch, outer, widths)

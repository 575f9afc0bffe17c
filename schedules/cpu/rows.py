"""Row loops: shared between threads by entries, and cut into feature tiles held in registers."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import s_tir
from tvm.target import Target

from .vectors import vector_lanes, vectorize_groups

__all__ = ["RowTile", "share_rows", "tile_row"]


@dataclass(frozen=True)
class RowTile:
    """Part of one row of a dense result that is computed at once.

    Parameters
    ----------
    width : int
        Features of a tile, `lanes` times a power of two. They stay in registers while all entries of the
        row are added, so ``width // lanes`` must be below the number of vector registers.
    lanes : int
        Features of a vector.
    """

    width: int
    lanes: int

    def __post_init__(self) -> None:
        vectors = self.width // self.lanes
        if self.width % self.lanes or vectors & (vectors - 1):
            raise ValueError(
                f"width: expected lanes times a power of two, found {self.width} with {self.lanes} lanes"
            )

    @staticmethod
    def of_target(target: Target | str | dict | None, bits: int = 32) -> RowTile:
        """Return the default tile: eight vectors of the target."""
        lanes = vector_lanes(target, bits)
        return RowTile(width=8 * lanes, lanes=lanes)


def share_rows(
    sch: s_tir.Schedule, row: s_tir.schedule.LoopRV, entry: s_tir.schedule.LoopRV
) -> None:
    """Run a row loop in parallel, rows shared by stored entries.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    row : LoopRV
        The loop over rows.
    entry : LoopRV
        The loop over the entries of a row; its extent names the row pointers.
    """
    indptr: list[str] = []
    tvm_ffi.structural_walk(
        sch.get(entry).extent,
        (tvm.ir.TensorLoad, lambda load: indptr.append(load.source.name)),
    )
    sch.parallel(row)
    if indptr:
        sch.annotate(row, "tvm_sparse.balance", indptr[0])


def tile_row(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, tile: RowTile) -> None:
    """Compute the row of a dense result tile by tile, each in registers.

    Before and after, for the sum over the entries ``j`` of a row::

        for j, k in T.grid(entries, f):         for k0 in range(ceildiv(f, width)):
            C[i, k] += A[j] * B[col[j], k]          for v in vectors: acc[v] = 0
                                                    for j in range(entries):
                                                        for v in vectors: acc[v] += A[j] * B[col[j], ..]
                                                    for v in vectors: C[i, ..] = acc[v]

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    block : SBlockRV
        The block inside the loops over entries (a reduction) and features, in this order.
    tile : RowTile
        The tile.
    """
    entry, feature = sch.get_loops(block)
    tile_loop, inner = sch.split(feature, [None, tile.width])
    sch.reorder(tile_loop, entry, inner)
    write = sch.cache_write(block, 0, "global")
    sch.reverse_compute_at(write, tile_loop)
    # One row of registers, whatever the position of the tile: a constant extent for the compiler.
    sch.transform_layout(
        block,
        ("write", 0),
        lambda *index: [*index[:-1], index[-1] // tile.width, index[-1] % tile.width],
        assume_injective_transform=True,
    )
    vectorize_groups(sch, sch.get_loops(write)[-1], tile.lanes)
    vectorize_groups(sch, inner, tile.lanes)
    init = sch.decompose_reduction(block, entry)
    vectorize_groups(sch, sch.get_loops(init)[-1], tile.lanes)
    sch.annotate(tile_loop, "tvm_sparse.tail", tile.lanes)

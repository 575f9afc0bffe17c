"""SpMV on a CPU: rows shared by entries, each summed in short vectors of gathered products."""

from __future__ import annotations

from tvm import s_tir
from tvm.target import Target

from .rows import row_and_entry_blocks, row_pointers, sample_grain, share_rows
from .tiles import EntryTile
from .vectors import reduce_lanes, vectorize_groups

__all__ = ["schedule", "space"]


def schedule(
    sch: s_tir.Schedule,
    *,
    tile: EntryTile | None = None,
    target: Target | str | dict | None = None,
    name: str = "spmv",
) -> None:
    """Apply the default schedule to a stage-III program.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Holds the sparse iteration `name` over rows and entries, the entries reduced.
    tile : EntryTile, optional
        How many entries are summed side by side.
    target : tvm.target.Target, str, dict or None
        The CPU to schedule for.
    name : str
        Name of the sparse iteration.
    """
    del target  # The same tile is best with every vector width measured.
    tile = tile or EntryTile()
    rows, block = row_and_entry_blocks(sch, name)
    (row,) = sch.get_loops(rows)
    (entry,) = sch.get_loops(block)
    indptr = row_pointers(sch, entry)

    # 1. Partial sums: one for each entry of a tile, then half as many, down to two.
    _, inner = sch.split(entry, [None, tile.width])
    partial = [sch.rfactor(inner, 1)]
    partial += reduce_lanes(sch, block, tile.width, 1)

    # 2. Rows in parallel: after the inner loops are cut, for TVM would else change the module that
    #    the schedule was made from; before the reductions are decomposed.
    share_rows(sch, row, indptr)

    # 3. Vectors.
    for part in partial:
        steps, lane = sch.get_loops(part)
        vectorize_groups(sch, lane, tile.lanes)
        if part is partial[0]:
            sch.annotate(steps, "tvm_sparse.tail", tile.lanes)
            sch.annotate(steps, "tvm_sparse.rolled", True)
        else:
            sch.unroll(steps)
        init = sch.decompose_reduction(part, steps)
        vectorize_groups(sch, sch.get_loops(init)[-1], tile.lanes)
    last = sch.get_loops(block)[-1]
    sch.unroll(last)
    sch.decompose_reduction(block, last)


def space(
    sch: s_tir.Schedule,
    *,
    target: Target | str | dict | None = None,
    name: str = "spmv",
) -> list[s_tir.Schedule]:
    """Return the variants to tune: entries summed side by side, sampled grains."""
    variants = []
    for width, lanes in ((4, 4), (8, 4), (16, 4), (8, 8), (16, 8), (16, 16)):
        variant = s_tir.Schedule(sch.mod)
        schedule(variant, tile=EntryTile(width, lanes), target=target, name=name)
        sample_grain(variant, name)
        variants.append(variant)
    return variants

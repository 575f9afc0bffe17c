"""SDDMM on a CPU: rows shared by entries, a dot product in vector accumulators for each entry."""

from __future__ import annotations

from tvm import s_tir
from tvm.target import Target

from .rows import row_and_entry_blocks, row_pointers, sample_grain, share_rows, version_widths
from .tiles import RowTile
from .vectors import reduce_lanes, vector_lanes, vectorize_groups

__all__ = ["schedule", "space"]

# Widths whose rows get code of their own: it keeps the row of the first operand in registers.
COMMON_WIDTHS = (32, 64, 128, 256)


def schedule(
    sch: s_tir.Schedule,
    *,
    tile: RowTile | None = None,
    target: Target | str | dict | None = None,
    name: str = "sddmm",
) -> None:
    """Apply the default schedule to a stage-III program.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Holds the sparse iteration `name` over rows, entries and features, the features reduced.
    tile : RowTile, optional
        Features that one step of a dot product takes, and so the number of accumulators; by
        default two vectors of the target.
    target : tvm.target.Target, str, dict or None
        The CPU to schedule for.
    name : str
        Name of the sparse iteration.
    """
    if tile is None:
        lanes = vector_lanes(target)
        tile = RowTile(width=2 * lanes, lanes=lanes)
    rows, block = row_and_entry_blocks(sch, name)
    (row,) = sch.get_loops(rows)
    entry, feature = sch.get_loops(block)
    indptr = row_pointers(sch, entry)

    # 1. Results indexed by the entry of the row, not by its position in the matrix: the compiler
    #    sees that one of them is alive at a time.
    write = sch.reindex_cache_write(block, 0, "global", lambda entry, _feature: [entry])

    # 2. Partial sums: one for each feature of a tile, then half as many, down to two.
    _, inner = sch.split(feature, [None, tile.width])
    partial = [sch.rfactor(inner, 1)]
    partial += reduce_lanes(sch, block, tile.width, 1)

    # 3. One loop over the entries of a row.
    sch.merge(*[sch.get_loops(part)[0] for part in [*partial, block, write]])

    # 4. Vectors.
    for part in partial:
        _, steps, lane = sch.get_loops(part)
        vectorize_groups(sch, lane, tile.lanes)
        if part is partial[0]:
            sch.annotate(steps, "tvm_sparse.tail", tile.lanes)
        else:
            sch.unroll(steps)
        init = sch.decompose_reduction(part, steps)
        vectorize_groups(sch, sch.get_loops(init)[-1], tile.lanes)
    last = sch.get_loops(block)[-1]
    sch.unroll(last)
    sch.decompose_reduction(block, last)
    share_rows(sch, row, indptr)
    version_widths(sch, row, COMMON_WIDTHS)


def space(
    sch: s_tir.Schedule,
    *,
    target: Target | str | dict | None = None,
    name: str = "sddmm",
) -> list[s_tir.Schedule]:
    """Return the variants to tune: one to eight vectors of accumulators, sampled grains."""
    lanes = vector_lanes(target)
    variants = []
    for vectors in (1, 2, 4, 8):
        variant = s_tir.Schedule(sch.mod)
        schedule(variant, tile=RowTile(vectors * lanes, lanes), target=target, name=name)
        sample_grain(variant, name)
        variants.append(variant)
    return variants

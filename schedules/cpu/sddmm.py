"""SDDMM on a CPU: rows shared by entries, a dot product in vector accumulators for each entry."""

from __future__ import annotations

from tvm import s_tir
from tvm.target import Target

from .rows import RowTile, share_rows
from .vectors import reduce_lanes, vector_lanes, vectorize_groups

__all__ = ["schedule", "space"]


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
        Features that one step of a dot product takes, and so the number of accumulators; by default four
        vectors of the target.
    target : tvm.target.Target, str, dict or None
        The CPU to schedule for.
    name : str
        Name of the sparse iteration.
    """
    if tile is None:
        lanes = vector_lanes(target)
        tile = RowTile(width=4 * lanes, lanes=lanes)
    rows, block = sch.get_sblock(f"{name}_0"), sch.get_sblock(f"{name}_1")
    (row,) = sch.get_loops(rows)
    _, feature = sch.get_loops(block)

    # 1. Partial sums: one for each feature of a tile, then half as many, down to two.
    _, inner = sch.split(feature, [None, tile.width])
    partial = [sch.rfactor(inner, 1)]
    partial += reduce_lanes(sch, block, tile.width, 1)

    # 2. One loop over the entries of a row.
    entry = sch.merge(*[sch.get_loops(part)[0] for part in [*partial, block]])

    # 3. Vectors.
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

    # 4. Partial sums live for one entry: drop the position of the entry from their index.
    for part in partial:
        sch.transform_layout(
            part, ("write", 0), lambda _entry, lane: [lane], assume_injective_transform=True
        )
    share_rows(sch, row, entry)


def space(
    sch: s_tir.Schedule,
    *,
    target: Target | str | dict | None = None,
    name: str = "sddmm",
) -> list[s_tir.Schedule]:
    """Return the variants that differ in the number of accumulators, from one vector to eight."""
    lanes = vector_lanes(target)
    variants = []
    for vectors in (1, 2, 4, 8):
        variant = sch.copy()
        schedule(variant, tile=RowTile(vectors * lanes, lanes), target=target, name=name)
        variants.append(variant)
    return variants

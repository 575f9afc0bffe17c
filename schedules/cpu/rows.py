"""Row loops: shared between threads by entries, and cut into feature tiles held in registers."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from .tiles import RowTile
from .vectors import vectorize_groups

#: Candidates for the least work of a task, in inner-loop steps.
_GRAINS = [1 << exponent for exponent in range(14, 21)]

__all__ = [
    "annotate_grain",
    "row_and_entry_blocks",
    "row_pointers",
    "sample_grain",
    "share_rows",
    "tile_row",
    "vectorize_followers",
    "version_widths",
]


def row_and_entry_blocks(
    sch: s_tir.Schedule, name: str
) -> tuple[s_tir.schedule.SBlockRV, s_tir.schedule.SBlockRV]:
    """Return the two blocks of a sparse iteration over rows and their entries.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Holds the iteration in any of its functions.
    name : str
        Name of the iteration.

    Returns
    -------
    tuple of SBlockRV
        The blocks ``<name>_0``, one instance a row, and ``<name>_1`` inside it.

    Raises
    ------
    ValueError
        If no function holds them.
    """
    wanted = f"{name}_1"
    for var, func in sch.mod.functions.items():
        if wanted in _block_names(func):
            function = var.name_hint
            return sch.get_sblock(f"{name}_0", function), sch.get_sblock(wanted, function)
    raise ValueError(f"name: expected a sparse iteration of the schedule, found {name!r}")


def vectorize_followers(
    sch: s_tir.Schedule, row_block: s_tir.schedule.SBlockRV, lanes: int
) -> None:
    """Vectorize the elementwise iterations that finish the result of a row block, rows in parallel.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    row_block : SBlockRV
        The block that computes the rows.
    lanes : int
        Lanes of a vector.
    """
    for follower in sch.get_consumers(row_block):
        row, feature = sch.get_loops(follower)
        vectors, lane = sch.split(feature, [None, lanes])
        sch.vectorize(lane)
        sch.annotate(vectors, "tvm_sparse.tail", lanes)
        share_rows(sch, row, None)


def _block_names(func: tirx.PrimFunc) -> list[str]:
    names: list[str] = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, lambda block: names.append(block.name_hint)))
    return names


def row_pointers(sch: s_tir.Schedule, entry: s_tir.schedule.LoopRV) -> str | None:
    """Return the name of the row pointers that the extent of an entry loop reads, if it does."""
    extent = sch.get(entry).extent
    loads: list[tvm.ir.TensorLoad] = []
    tvm_ffi.structural_walk(extent, (tvm.ir.TensorLoad, loads.append))
    inner: list[tvm.ir.TensorLoad] = []  # in an index, as the pointers of an outer axis are
    for load in loads:
        for index in load.indices:
            tvm_ffi.structural_walk(index, (tvm.ir.TensorLoad, inner.append))
    nested = {load.source for load in inner}
    names = [load.source.name for load in loads if load.source not in nested]
    return names[0] if names else None


def share_rows(sch: s_tir.Schedule, row: s_tir.schedule.LoopRV, indptr: str | None) -> None:
    """Run a row loop in parallel, rows shared by stored entries.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    row : LoopRV
        The loop over rows.
    indptr : str or None
        Name of the row pointers; None shares rows by count.
    """
    sch.parallel(row)
    sch.annotate(row, "tvm_sparse.balance", indptr or "")


def sample_grain(sch: s_tir.Schedule, name: str) -> None:
    """Let tuning choose the least work of a task of a scheduled row loop."""
    for var, func in sch.mod.functions.items():
        if f"{name}_0" in _block_names(func):
            (row, *_) = sch.get_loops(sch.get_sblock(f"{name}_0", var.name_hint))
            annotate_grain(sch, row)


def annotate_grain(sch: s_tir.Schedule, row: s_tir.schedule.LoopRV) -> None:
    """Let tuning choose the least work of a task of a row loop."""
    grain = sch.sample_categorical(_GRAINS, [1 / len(_GRAINS)] * len(_GRAINS))
    sch.annotate(row, "tvm_sparse.grain", grain)


def version_widths(
    sch: s_tir.Schedule, row: s_tir.schedule.LoopRV, widths: tuple[int, ...]
) -> None:
    """Compile the rows for each of some common feature widths besides any width."""
    sch.annotate(row, "tvm_sparse.versions", list(widths))


def tile_row(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, tile: RowTile) -> None:
    """Compute the row of a dense result tile by tile, each in registers.

    Before and after, for the sum over the entries ``j`` of a row::

        for j, k in T.grid(entries, f):         for k0 in range(ceildiv(f, width)):
            C[i, k] += A[j] * B[col[j], k]          for v in vectors: acc[v] = 0
                                                    for j in range(entries):
                                                        for v in vectors:
                                                            acc[v] += A[j] * B[col[j], ..]
                                                    for v in vectors: C[i, ..] = acc[v]

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    block : SBlockRV
        The block inside the loops over entries (reductions) and features, in this order.
    tile : RowTile
        The tile.
    """
    *entries, feature = sch.get_loops(block)
    features = sch.get(feature).extent
    if isinstance(features, tirx.IntImm):
        if int(features) < 2:
            return  # nothing to tile
        tile = tile.within(int(features))
    tile_loop, inner = sch.split(feature, [None, tile.width])
    sch.reorder(tile_loop, *entries, inner)
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
    init = sch.decompose_reduction(block, entries[0])
    vectorize_groups(sch, sch.get_loops(init)[-1], tile.lanes)
    sch.annotate(tile_loop, "tvm_sparse.tail", tile.lanes)

"""SDDMM on CUDA: entries shared evenly, a dot product a group of lanes, vector loads of both rows.

The loop goes over all entries at once, so that no row keeps a thread block waiting; the rows of a block's
entries are searched together, once each, and kept in shared memory.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import tvm
from tvm import s_tir
from tvm.target import Target

from ...ir import SparseFunc
from ...runtime import lower
from ...schedule import SparseSchedule
from ...transform import SeparateSearches
from ..cpu.rows import row_and_entry_blocks
from .rows import (
    Block,
    Loop,
    cut_features,
    default_tile,
    feature_width,
    gathered_operands,
    load_registers,
    share_elements,
    vectorize_moves,
)
from .tiles import THREADS, WARP, check_sizes, check_threads, check_vector, vector_width

__all__ = ["DotTile", "lowered", "schedule", "space"]

#: Lanes of a dot product: three shuffles sum them, and eight loads of 16 bytes are a cache line.
_LANES = 8
#: Vectors of each operand that a thread holds.
_MOST_VECTORS = 4
#: Entries that a group takes one after another.
_ENTRIES = 8


@dataclass(frozen=True)
class DotTile:
    """Dot products that a thread block computes, and who computes which features of them.

    Parameters
    ----------
    vector : int
        Features that a thread loads at once: a power of two up to 16.
    lanes : int
        Threads (``threadIdx.x``) of one dot product: a power of two up to 32.
    vectors : int
        Vectors of each operand that a thread holds.
    groups : int
        Dot products (``threadIdx.y``) at a time.
    entries : int
        Times that a block does so.

    Raises
    ------
    ValueError
        If a size is not positive, lanes are no power of two up to 32 or the vector none up to 16, or the
        block has more than 1024 threads.

    Examples
    --------
    >>> from tvm_sparse.schedules.cuda import DotTile
    >>> DotTile.of_width(128, bits=32)
    DotTile(vector=4, lanes=8, vectors=4, groups=32, entries=8)
    """

    vector: int
    lanes: int
    vectors: int
    groups: int
    entries: int

    def __post_init__(self) -> None:
        check_sizes(self, "vector", "lanes", "vectors", "groups", "entries")
        check_vector(self.vector)
        if self.lanes not in (1, 2, 4, 8, 16, 32):
            raise ValueError(f"lanes: expected a power of two up to 32, found {self.lanes}")
        check_threads(self, "lanes", "groups")

    @staticmethod
    def of_width(features: int | None, bits: int = 32) -> DotTile:
        """Return the tile that suits a feature width; None where it is known at run time only."""
        if features is None:
            return DotTile(1, _LANES, _MOST_VECTORS, THREADS // _LANES, _ENTRIES)
        vector = vector_width(features, bits)
        count = max(1, features // vector)
        lanes = 1
        while lanes < min(_LANES, count):
            lanes *= 2
        while lanes < WARP and -(-count // lanes) > _MOST_VECTORS:
            lanes *= 2
        vectors = min(_MOST_VECTORS, -(-count // lanes))
        return DotTile(vector, lanes, vectors, THREADS // lanes, _ENTRIES)


def schedule(
    sch: s_tir.Schedule,
    *,
    tile: DotTile | None = None,
    target: Target | str | dict | None = None,
    name: str = "sddmm",
) -> None:
    """Apply the default schedule to a stage-III program.

    Before and after, for entries ``p`` in rows ``row[p]`` and columns ``col[p]``::

        for p in range(nnz):                for block in T.thread_binding(..., "blockIdx.x"):
            row[p] = search of p                row[...] = searches of the block's entries, in shared memory
        for p, k in T.grid(nnz, f):             for step in range(entries):
            C[p] += X[row[p], k] *                  for group in T.thread_binding(groups, "threadIdx.y"):
                    Y[col[p], k]                        for lane in T.thread_binding(lanes, "threadIdx.x"):
                                                            part = sum of products of vectors
                                                        C[p] = sum of the lanes' parts

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Holds the sparse iteration `name` over fused entries and features, with its searches in a block
        of their own (see :func:`tvm_sparse.transform.SeparateSearches`).
    tile : DotTile, optional
        Entries and features of a thread block; by default what suits the feature width.
    target : tvm.target.Target, str, dict or None
        Not looked at: the tile suits every card.
    name : str
        Name of the sparse iteration.
    """
    del target
    entries, block = row_and_entry_blocks(sch, name)
    if feature_width(sch, sch.get_loops(block)[-1]) == 0:
        for each in (*sch.get_producers(entries), entries, *sch.get_consumers(entries)):
            share_elements(sch, each)
        return
    tile = tile or default_tile(sch, block, DotTile)
    (entry,) = sch.get_loops(entries)
    outer, _, group = sch.split(entry, [None, tile.entries, tile.groups])
    sch.bind(outer, "blockIdx.x")
    sch.bind(group, "threadIdx.y")
    for finish in sch.get_consumers(entries):
        sch.set_scope(entries, 0, "local")
        sch.reverse_compute_at(finish, group)
    for search in sch.get_producers(entries):
        _stage_searches(sch, search, outer, tile)
    _sum_dot(sch, block, tile)


def lowered(program: SparseFunc) -> tvm.ir.IRModule:
    """Lower the program to one loop over entries, the searches of their rows in a block of their own."""
    fused = SparseSchedule(program)
    iteration = fused.get_sparse_iteration(program.name)
    fused.sparse_fuse(iteration, fused.get_axes(iteration)[:2])
    return SeparateSearches()(lower(fused))


def _sum_dot(sch: s_tir.Schedule, block: Block, tile: DotTile) -> None:
    """Sum the products of a thread's vectors in a register, then those of the lanes by shuffles."""
    step = tile.vectors * tile.vector * tile.lanes
    held = lambda k: ((k % step) // (tile.lanes * tile.vector), k % tile.vector)  # noqa: E731
    gathered = gathered_operands(sch, block) if tile.vector > 1 else []
    loads = [load_registers(sch, block, number, held) for number in gathered]
    lanes = [cut_features(sch, each, tile).lane for each in (*loads, block)]
    if loads:
        sch.merge(*lanes)
        for each in loads:
            vectorize_moves(sch, each)
    _, lane, *registers = sch.get_loops(block)
    sch.bind(lane, "threadIdx.x")
    for register in registers:
        sch.unroll(register)


def _stage_searches(sch: s_tir.Schedule, search: Block, outer: Loop, tile: DotTile) -> None:
    """Search the rows of a thread block's entries with all of its threads, into shared memory."""
    count = tile.entries * tile.groups
    sch.compute_at(search, outer)
    sch.set_scope(search, 0, "shared")
    sch.transform_layout(
        search, ("write", 0), lambda entry: (entry % count,), assume_injective_transform=True
    )
    # A single search has no loop of its own.
    entry = sch.add_unit_loop(search) if count == 1 else sch.get_loops(search)[-1]
    _, group, lane = sch.split(entry, [None, tile.groups, tile.lanes])
    sch.bind(group, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")


def space(
    sch: s_tir.Schedule,
    *,
    target: Target | str | dict | None = None,
    name: str = "sddmm",
) -> list[s_tir.Schedule]:
    """Return the variants to tune: lanes of a dot product, and dot products one after another."""
    _, block = row_and_entry_blocks(sch, name)
    default = default_tile(sch, block, DotTile)
    found = []
    for lanes in (4, 8, 16, 32):
        for entries in (4, 8, 16):
            tile = dataclasses.replace(
                default, lanes=lanes, groups=THREADS // lanes, entries=entries
            )
            variant = s_tir.Schedule(sch.mod)
            schedule(variant, tile=tile, target=target, name=name)
            found.append(variant)
    return found

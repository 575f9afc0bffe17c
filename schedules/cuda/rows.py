"""Rows of a dense result on CUDA: features across threads and in their registers, rows across warps.

What SpMM, segment reduction and the parts of formats share. A row is summed in registers and written
once; values of the gathered operand are loaded as vectors into registers first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr, TensorLoad, Var

from ...ir import SparseFunc
from ...ir.contents import stores_in, variables_of
from ...runtime import lower
from ...transform import FuseFollowers
from ...transform.split_rows import SPLIT_ROWS
from ..cpu.rows import row_pointers
from .tiles import THREADS, FeatureTile, RowTile

__all__ = [
    "Block",
    "CutLoops",
    "Loop",
    "adds_atomically",
    "bind_rows",
    "bits_of",
    "cut_features",
    "default_tile",
    "feature_width",
    "gathered_operands",
    "load_registers",
    "lowered",
    "share_elements",
    "shared_pointers",
    "split_rows",
    "tile_row",
    "vectorize_moves",
]

#: Bytes of the widest load or store.
_MOVE_BYTES = 16
#: Entries of the largest share: no card waits for one group so long, and sums with it fit 32 bits.
_MOST_SHARE = 2**24

Loop = s_tir.schedule.LoopRV
Block = s_tir.schedule.SBlockRV
_Tile = TypeVar("_Tile", bound=FeatureTile)


def tile_row(sch: s_tir.Schedule, block: Block, tile: RowTile) -> None:
    """Sum the rows of a block in registers, features across threads.

    Before and after, for the sum over the entries ``j`` of a row::

        for j, k in T.grid(entries, f):     for k0 in range(ceildiv(f, tile.width)):
            C[i, k] += A[j] * B[col[j], k]      for lane in T.thread_binding(lanes, "threadIdx.x"):
                                                    for v, k in T.grid(vectors, vector): acc[v, k] = 0
                                                    for j in range(entries):
                                                        for v in range(vectors):
                                                            b[v, 0:vector] = B[col[j], ...]
                                                        for v, k in T.grid(vectors, vector):
                                                            acc[v, k] += A[j] * b[v, k]
                                                    for v in range(vectors):
                                                        C[i, ...] = acc[v, 0:vector]

    Sums that a block of their own adds to the result atomically are added one by one at the end.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    block : SBlockRV
        The block inside the loops over entries (reductions) and features, in this order.
    tile : RowTile
        The tile; what lies beyond a row is left out.
    """
    tile = tile.within(feature_width(sch, sch.get_loops(block)[-1]))
    # 1. Registers: sums, what becomes of them, and gathered values.
    held = lambda k: ((k % tile.width) // (tile.lanes * tile.vector), k % tile.vector)  # noqa: E731
    *computed, last = [block, *sch.get_consumers(block)]
    is_atomic = adds_atomically(sch, block)
    if not is_atomic:
        computed.append(last)
        last = sch.cache_write(last, 0, "local")
    for each in computed:
        sch.transform_layout(each, ("write", 0), held, assume_injective_transform=True)
    gathered = gathered_operands(sch, block) if tile.vector > 1 else []
    loads = [load_registers(sch, block, number, held) for number in gathered]

    # 2. The same loops around each: tiles and lanes outside, vectors inside.
    cut = [cut_features(sch, each, tile) for each in (*computed, last)]
    inner = [cut_features(sch, each, tile).innermost_entry for each in loads]
    if inner:
        sch.merge(*inner, cut[0].innermost_entry)
    sch.merge(sch.get_loops(block)[1], *(each.lane for each in cut[1:]))

    # 3. Threads, registers, vectors.
    sch.bind(sch.get_loops(block)[1], "threadIdx.x")
    for each in computed:
        _unroll_registers(sch, each)
    for each in (*loads, last):
        (_unroll_registers if is_atomic and each is last else vectorize_moves)(sch, each)
    sch.decompose_reduction(block, sch.get_loops(block)[2])


def adds_atomically(sch: s_tir.Schedule, block: Block) -> bool:
    """Whether the sums of a block are added to the result atomically, by the block after it."""
    (*_, last) = [block, *sch.get_consumers(block)]
    return not stores_in(sch.get(last).body)


def _unroll_registers(sch: s_tir.Schedule, block: Block) -> None:
    for register in sch.get_loops(block)[-2:]:
        sch.unroll(register)


def lowered(program: SparseFunc) -> tvm.ir.IRModule:
    """Lower a program whose rows are finished where they are summed."""
    return FuseFollowers()(lower(program))


def bind_rows(sch: s_tir.Schedule, row: Loop, count: int) -> tuple[Loop, Loop]:
    """Bind a loop over rows: `count` rows to the ``threadIdx.y`` of each ``blockIdx.x``."""
    block, inner = sch.split(row, [None, count])
    sch.bind(block, "blockIdx.x")
    sch.bind(inner, "threadIdx.y")
    return block, inner


def split_rows(sch: s_tir.Schedule, row: Loop, block: Block, share: int, groups: int) -> None:
    """Share rows by entries instead of binding them, see :func:`tvm_sparse.transform.SplitRows`.

    Goes before what changes the innermost block.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    row : LoopRV
        The loop over rows.
    block : SBlockRV
        The innermost block of the iteration.
    share : int
        Entries and ends of rows that a group of threads takes.
    groups : int
        Groups (``threadIdx.y``) of a thread block.

    Raises
    ------
    ValueError
        If `share` is not positive or beyond any use, or the rows can't be shared (see
        :func:`shared_pointers`).
    """
    if isinstance(share, bool) or not isinstance(share, int) or share < 1:
        raise ValueError(f"share: expected a positive integer, found {share!r}")
    if share > _MOST_SHARE:
        raise ValueError(f"share: expected at most {_MOST_SHARE}, found {share}")
    pointers = shared_pointers(sch, block)
    if pointers is None:
        raise ValueError("share: expected rows whose entries are found by pointers to them alone")
    sch.annotate(row, SPLIT_ROWS, [pointers, share, groups])


def shared_pointers(sch: s_tir.Schedule, block: Block) -> str | None:
    """Return the name of the pointers to the entries of a row, None if rows can't be shared by entries.

    They can't where the place of an entry in its row says more than where it is stored: its column, say.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    block : SBlockRV
        The innermost block of the iteration, as it was lowered.
    """
    variables = [each.var for each in sch.get(block).iter_vars]
    for loop, entry in zip(sch.get_loops(block), variables[-len(sch.get_loops(block)) :]):
        name = row_pointers(sch, loop)
        if name is not None:
            body = sch.get(block).body
            return name if _found_by_pointers(body, entry, name) else None
    return None


def _found_by_pointers(body: tirx.Stmt, entry: Var, pointers: str) -> bool:
    """Whether a statement uses the place of an entry only as added to where its row begins."""
    analyzer = tvm.sym.Analyzer()
    begin, number = (Var(name, str(entry.ty.dtype)) for name in ("begin", "number"))

    def read(load: TensorLoad, mutator) -> Expr:
        is_pointer = load.source.name == pointers
        return (
            begin.astype(str(load.source.ty.dtype)) if is_pointer else mutator.default_mutate(load)
        )

    def tells_place(expr: Expr) -> bool:
        """Whether it depends on where the row begins, for an entry of a given number among all."""
        expr = tvm_ffi.structural_mutate(expr, [(TensorLoad, read)])
        place = number - begin
        expr = tvm_ffi.structural_map(expr, (Var, lambda v: place if v.same_as(entry) else v))
        return begin in variables_of(analyzer.simplify(expr))

    stores: list[tirx.BufferStore] = []
    conditions: list[Expr] = []
    tvm_ffi.structural_walk(
        body,
        [
            (tirx.BufferStore, stores.append),
            (tirx.IfThenElse, lambda node: conditions.append(node.condition)),
        ],
    )
    written = [expr for store in stores for expr in (store.value, *store.indices)]
    return not any(tells_place(expr) for expr in (*written, *conditions))


def share_elements(sch: s_tir.Schedule, block: Block) -> None:
    """Give each thread an element of an elementwise iteration."""
    *_, feature = loops = sch.get_loops(block)
    if feature_width(sch, feature) == 0:
        return  # nothing to compute
    outer, thread = sch.split(sch.fuse(*loops), [None, THREADS])
    sch.bind(outer, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")


def feature_width(sch: s_tir.Schedule, loop: Loop) -> int | None:
    """Return the extent of a loop over features; None where it is known at run time only."""
    extent = sch.get(loop).extent
    return int(extent) if isinstance(extent, tirx.IntImm) else None


def bits_of(sch: s_tir.Schedule, block: Block) -> int:
    """Return the width of the values of the operand that a block gathers, else of its result."""
    gathered = gathered_operands(sch, block)
    found = sch.get(block)
    source = (found.reads[gathered[0]] if gathered else found.writes[0]).source
    return int(source.dtype.bits)


def gathered_operands(sch: s_tir.Schedule, block: Block) -> list[int]:
    """Return which reads of a block vary with its features: the rows of dense operands."""
    found = sch.get(block)
    feature = found.iter_vars[-1].var
    written = found.writes[0].source
    return [
        number
        for number, region in enumerate(found.reads)
        if not region.source.same_as(written)
        and len(region.region) == 1
        and feature in variables_of(region.region[0].min)
    ]


def default_tile(sch: s_tir.Schedule, block: Block, kind: type[_Tile] = RowTile) -> _Tile:
    """Return the default tile of a kind for the innermost block of an iteration."""
    return kind.of_width(feature_width(sch, sch.get_loops(block)[-1]), bits_of(sch, block))


@dataclass(frozen=True)
class CutLoops:
    """Loops over tiles of features: the threads along a row, and the innermost one over entries."""

    lane: Loop
    innermost_entry: Loop


def cut_features(sch: s_tir.Schedule, block: Block, tile: FeatureTile) -> CutLoops:
    """Cut a block's innermost loop, over features, and order all: tiles, lanes, entries, vectors, values.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    block : SBlockRV
        The block; its loops over entries, if it has any, go between lanes and vectors.
    tile : RowTile or DotTile
        The features of a value, of lanes, and of the vectors of a lane.
    """
    *entries, feature = sch.get_loops(block)
    vectors, value = sch.split(feature, [None, tile.vector])
    outer, vector, lane = sch.split(vectors, [None, tile.vectors, tile.lanes])
    sch.reorder(outer, lane, *entries, vector, value)
    return CutLoops(lane, entries[-1] if entries else lane)


def load_registers(sch: s_tir.Schedule, block: Block, number: int, held: Callable) -> Block:
    """Load the values of a read that a step needs into registers first.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    block : SBlockRV
        The block.
    number : int
        Which of its reads.
    held : callable
        From the feature to the place in the registers; other iterators have a place each.

    Returns
    -------
    SBlockRV
        The block that loads.
    """
    iterators = sch.get(block).iter_vars
    index_map = tirx.IndexMap.from_func(
        lambda *places: (*places[:-1], *held(places[-1])),
        ndim=len(iterators),
        index_dtype=str(iterators[0].var.ty.dtype),
    )
    return sch.reindex_cache_read(block, number, "local", index_map)


def vectorize_moves(sch: s_tir.Schedule, block: Block) -> None:
    """Move the values of the innermost loop at once, or in moves of the widest kind."""
    *_, group, value = sch.get_loops(block)
    sch.unroll(group)
    dtype = sch.get(block).writes[0].source.dtype
    is_bool = str(dtype) == "bool"  # CUDA has no vectors of bool
    most = 1 if is_bool else _MOVE_BYTES * 8 // int(dtype.bits)
    if int(sch.get(value).extent) > most:
        group, value = sch.split(value, [None, most])
        sch.unroll(group)
    sch.vectorize(value)

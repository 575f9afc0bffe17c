"""Entries of scattered rows on CUDA: neighbours of a row are added up, then to the result atomically.

For formats that store entries one by one (COO) or by columns (CSC). The part of a lowered program is
replaced by a program of tiles: stock primitives do not tell where one row ends and the next one begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr, TensorLoad, Var
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from ...ir.accumulation import accumulation_of, is_accumulation
from ...ir.contents import loads_in
from ...transform.atomic_sums import atomic_sum
from ...transform.kernel_fusion import LEAST_BLOCKS
from .block_nests import at, buffers_loaded, guarded_store, stride, uses
from .copies import load_chunk
from .staging import allocate, axis, bind, cast, everything_of, loop, loop_over, when
from .tiles import RowTile

__all__ = ["Scatter", "schedule_scatter"]

#: Entries that a group of lanes takes where each has a row of its own to be found.
_RUN = 32


@dataclass(frozen=True)
class Scatter:
    """A nest that adds products to rows of a result, each at a place that its entry tells.

    Attributes
    ----------
    loop : tirx.For
        The outermost loop, over entries or over columns.
    name : str
        Name of the outermost block.
    variables : tuple of (Var, Expr)
        Variables of all blocks but the feature, the outermost first, and their extents.
    feature, features
        The innermost variable, and its extent.
    conditions : tuple of Expr
        All must hold for a product to be added.
    result : Var
        What products are added to.
    place : Expr
        Where in it.
    term : Expr
        The product.
    """

    loop: tirx.For
    name: str
    variables: tuple[tuple[Var, Expr], ...]
    feature: Var
    features: Expr
    conditions: tuple[Expr, ...]
    result: Var
    place: Expr
    term: Expr

    @staticmethod
    def of(sch: s_tir.Schedule, blocks: Sequence[s_tir.schedule.SBlockRV]) -> Scatter | None:
        """Return what nested blocks do, or None where that is something else.

        Parameters
        ----------
        sch : tvm.s_tir.Schedule
            Holds the blocks, not scheduled yet.
        blocks : sequence of SBlockRV
            Those of an iteration, the outermost first.
        """
        found = [sch.get(block) for block in blocks]
        if not found or any(block.init is not None or block.alloc_buffers for block in found):
            return None
        conditions, store = guarded_store(found[-1].body)
        if store is None or len(store.indices) != 1 or not is_accumulation(store):
            return None
        *outer, last = (iter_var for block in found for iter_var in block.iter_vars)
        added = accumulation_of(store, found[0].name_hint)
        is_row = stride(store.indices[0], last.var) == 1
        if added.operator is not tirx.Add or not outer or not is_row:
            return None
        if any(uses(condition, last.var) for condition in conditions):
            return None
        return Scatter(
            sch.get(sch.get_loops(blocks[0])[0]),
            found[0].name_hint,
            tuple((iter_var.var, iter_var.dom.extent) for iter_var in outer),
            last.var,
            last.dom.extent,
            conditions,
            store.buffer,
            store.indices[0],
            added.term,
        )

    @property
    def gathered(self) -> list[TensorLoad]:
        """Loads of neighbouring values for neighbouring features."""
        found: list[TensorLoad] = []
        for load in loads_in(self.term):
            is_flat = len(load.indices) == 1 and stride(load.indices[0], self.feature) == 1
            if is_flat and not any(load.same_as(other) for other in found):
                found.append(load)
        return found

    @property
    def expressions(self) -> list[Expr]:
        """All expressions that load something."""
        extents = [extent for _, extent in self.variables]
        return [*extents, *self.conditions, self.place, self.term]


def schedule_scatter(sch: s_tir.Schedule, scatter: Scatter, tile: RowTile) -> None:
    """Put the program of a nest in its place.

    Before and after, for entries one by one::

        for e, k in T.grid(nnz, f):         for group of 32 entries, for lane:
            C[row[e], k] += product(e, k)       row = -1
                                                for e in the group:
                                                    if row[e] != row:
                                                        add sums to C[row] atomically, unless row is -1
                                                        row, sums = row[e], 0
                                                    sums += product(e, ...)
                                                add sums to C[row] atomically

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    scatter : Scatter
        The nest.
    tile : RowTile
        Features of a group of lanes, and groups of a thread block.
    """
    sch.state.replace(sch.get_sref(scatter.loop), _ScatterProgram(scatter, tile).build(), {})


class _ScatterProgram:
    """The program of a nest; its methods emit one phase each."""

    def __init__(self, scatter: Scatter, tile: RowTile) -> None:
        self.scatter = scatter
        features = scatter.features
        known = int(features) if isinstance(features, tirx.IntImm) else None
        if known is None or known % tile.vector:
            tile = replace(tile, vector=1, vectors=tile.vectors * tile.vector)
        self.tile = tile.within(known)
        self._is_whole = known is not None and known % self.tile.width == 0
        self._features = cast(features, "int64")
        self._dtype = str(scatter.result.ty.dtype)
        (_, self._count), *inner = scatter.variables
        # Columns have entries enough; a group takes one.
        is_listed = all(isinstance(extent, tirx.IntImm) for _, extent in inner)
        self._run = _RUN if is_listed else 1

    def build(self) -> tirx.For:
        """Return the loops over thread blocks and threads around the program."""
        tile, count = self.tile, cast(self._count, "int64")
        groups = tirx.ceildiv(count, cast(self._run * tile.rows, "int64"))
        axes = (("blockIdx.x", groups), ("threadIdx.y", tile.rows), ("threadIdx.x", tile.lanes))
        with IRBuilder() as made, T.prim_func(s_tir=True), ExitStack() as nest:
            block, group, lane = (
                nest.enter_context(loop(name, T.thread_binding(extent, thread)))
                for name, (thread, extent) in zip(("entries", "group", "lane"), axes)
            )
            nest.enter_context(T.sblock(self.scatter.name))
            where = axis("ventries", T.axis.spatial(groups, block))
            self._group = axis("vgroup", T.axis.spatial(tile.rows, group))
            self._lane = axis("vlane", T.axis.spatial(tile.lanes, lane))
            self._allocate()
            first = bind("first", (where * tile.rows + cast(self._group, "int64")) * self._run)
            tiles = tirx.ceildiv(self._features, cast(tile.width, "int64"))
            nest.enter_context(T.attr(tirx.const(0, "int32"), LEAST_BLOCKS, tirx.const(1, "int32")))
            with loop("tile", T.serial(tiles)) as number:
                self._tile = number
                self._add_up(first)
        return loop_over(made.get().body, block)

    def _allocate(self) -> None:
        scatter, held = self.scatter, (self.tile.vectors, self.tile.vector)
        self._row = allocate("row", (1,), "int64", "local")
        self._sums = allocate("sums", held, self._dtype, "local")
        self._held = [
            allocate(f"{load.source.name}_held", held, str(load.ty.dtype), "local")
            for load in scatter.gathered
        ]
        T.reads(*map(everything_of, buffers_loaded(scatter.expressions)))
        T.writes(everything_of(scatter.result))

    def _add_up(self, first: Expr) -> None:
        """Go over entries; add sums where the row changes, and at the end."""
        scatter = self.scatter
        (outermost, count), *inner = scatter.variables
        T.buffer_store(self._row, cast(-1, "int64"), [0])
        with (
            loop("e", T.serial(self._run)) as step,
            when(first + cast(step, "int64") < cast(count, "int64")),
            ExitStack() as nest,
        ):
            places: dict[Var, Expr] = {outermost: bind("entry", first + cast(step, "int64"))}
            for var, extent in inner:
                is_one = isinstance(extent, tirx.IntImm) and int(extent) == 1
                frame = None if is_one else loop("i", T.serial(at(extent, places)))
                places[var] = tirx.const(0, "int32") if frame is None else nest.enter_context(frame)
            nest.enter_context(when(*(at(each, places) for each in scatter.conditions)))
            self._begin_row(cast(at(scatter.place, {**places, scatter.feature: 0}), "int64"))
            self._add(places)
        self._add_to_result()

    def _begin_row(self, place: Expr) -> None:
        """Finish the row before, if this is another one."""
        here = bind("place", place)
        with when(tirx.NE(here, tirx.BufferLoad(self._row, [0]))):
            self._add_to_result()
            T.buffer_store(self._row, here, [0])
            with self._each_vector() as v, loop("k", T.unroll(self.tile.vector)) as k:
                T.buffer_store(self._sums, cast(0, self._dtype), [v, k])

    def _add(self, places: dict[Var, Expr]) -> None:
        """Add the product of an entry to the sums."""
        scatter, vector = self.scatter, self.tile.vector
        gathered = scatter.gathered
        with self._each_vector() as v, self._within(v):
            for load, held in zip(gathered, self._held):
                here = {**places, scatter.feature: self._feature(v, 0)}
                index = cast(at(load.indices[0], here), "int64")
                load_chunk(held, [v, cast(0, "int32")], load.source, index, vector)
            with loop("k", T.unroll(vector)) as k:
                term = self._term(gathered, places, v, k)
                total = tirx.BufferLoad(self._sums, [v, k])
                T.buffer_store(self._sums, total + term, [v, k])

    def _term(
        self, gathered: Sequence[TensorLoad], places: dict[Var, Expr], v: Expr, k: Expr
    ) -> Expr:
        """The product for a feature, whose loads of neighbours are in registers."""

        def load(node: TensorLoad, mutator) -> Expr:
            for each, held in zip(gathered, self._held):
                if tvm_ffi.structural_equal(node, each):
                    return tirx.BufferLoad(held, [v, k])
            return mutator.default_mutate(node)

        term = tvm_ffi.structural_mutate(self.scatter.term, [(TensorLoad, load)])
        return at(term, {**places, self.scatter.feature: self._feature(v, k)})

    def _add_to_result(self) -> None:
        """Add the sums of a row, if there is one, to the result."""
        row = tirx.BufferLoad(self._row, [0])
        with (
            when(row >= cast(0, "int64")),
            self._each_vector() as v,
            self._within(v),
            loop("k", T.unroll(self.tile.vector)) as k,
        ):
            total = tirx.BufferLoad(self._sums, [v, k])
            added = atomic_sum(self.scatter.result, row + self._feature(v, k), total)
            T.evaluate(added.value)

    def _each_vector(self):
        return loop("v", T.unroll(self.tile.vectors))

    def _within(self, v: Expr):
        """Where the vector lies in the row; vectors do not stick out of it."""
        return when(*([] if self._is_whole else [self._feature(v, 0) < self._features]))

    def _feature(self, v: Expr, k: Expr | int) -> Expr:
        """The feature of a place in the registers."""
        tile = self.tile
        lane = cast(self._lane, "int64")
        vector = (self._tile * tile.vectors + cast(v, "int64")) * tile.lanes + lane
        return vector * tile.vector + cast(k, "int64")

"""SDDMM with blocks of entries on tensor cores: stored blocks in equal numbers to thread blocks.

A thread block takes neighbouring stored blocks, whatever rows they lie under, so that long rows are no heavier
than others; it looks up their rows by bisection of the row pointers. As in :mod:`.blocks`, tile programs take
the place of the loops of lowered parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.ir import Expr, TensorLoad, Var
from tvm.target import Target
from tvm.tirx.script import builder as T

from ..cpu.part_blocks import blocks_of
from .block_nests import Factor, Nest, at, buffers_loaded, read_nest, stride, uses
from .block_tiles import DotBlockTile
from .results import bind_others, round_at_once
from .staging import (
    Threads,
    allocate,
    axis,
    barrier,
    bind,
    cast,
    choose,
    chunk_lanes,
    copy_chunk,
    copy_values,
    everything,
    everything_of,
    kernel,
    loop,
    pipeline,
    when,
)
from .tensor_cores import WarpProduct
from .warp_sums import WarpSums

__all__ = ["BlockDots", "schedule"]


def schedule(
    sch: s_tir.Schedule,
    parts: Sequence[str],
    *,
    tile: DotBlockTile | None = None,
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
    tile : DotBlockTile, optional
        The tile; :meth:`DotBlockTile.default` for each part unless given.
    target : tvm.target.Target, str, dict or None
        Not looked at.
    name : str
        Name of the iteration that was decomposed.
    groups : dict of str to str, optional
        Not needed: no two parts share a result.

    Raises
    ------
    ValueError
        If a part has no blocks of entries.
    """
    del target, groups
    for part in parts:
        nest = read_nest(sch, blocks_of(sch, f"{name}_{part}"))
        if nest is not None and len(parts) == 1:
            nest = round_at_once(sch, nest)
        dots = BlockDots.of(nest)
        if dots is None:
            raise ValueError(f"part {part}: expected blocks of entries under row pointers")
        chosen = tile or DotBlockTile.default((dots.rows, dots.columns), dots.dtype)
        program = _TileProgram(dots, chosen)
        sch.state.replace(sch.get_sref(dots.nest.loop), program.build(), {})
        program.sums.tensorize(sch)
    bind_others(sch, [f"{name}_{part}" for part in parts])


@dataclass(frozen=True)
class BlockDots:
    """SDDMM of one part: ``C[b, i, j] += X[i, k] * Y[column(b, j), k]``, perhaps times ``A[b, i, j]``.

    Attributes
    ----------
    nest : Nest
        Where it comes from.
    block, feature, row, column : Var
        Variables of its loops ``b``, ``k``, ``i`` and ``j``.
    pointers : Var
        Buffer of the row pointers: blocks ``pointers[r] .. pointers[r + 1] - 1`` lie under row ``r``.
    features : Expr
        Feature width.
    rows, columns : int
        Size of a block.
    first, second : Factor
        ``X`` and ``Y``.
    scale : tuple of Factor
        ``A``, or nothing.
    """

    nest: Nest
    block: Var
    feature: Var
    row: Var
    column: Var
    pointers: Var
    features: Expr
    rows: int
    columns: int
    first: Factor
    second: Factor
    scale: tuple[Factor, ...]

    @staticmethod
    def of(nest: Nest | None) -> BlockDots | None:
        """Return what a nest computes, or None where it is no such."""
        if nest is None or nest.kinds[-4:] != "SRSS" or len(nest.factors) not in (2, 3):
            return None
        *_, (block, count), (feature, features), (row, rows), (column, columns) = nest.variables
        dense = [factor for factor in nest.factors if uses(factor.load, feature)]
        scale = tuple(factor for factor in nest.factors if not uses(factor.load, feature))
        sizes = isinstance(columns, tirx.IntImm) and isinstance(rows, tirx.IntImm)
        pointers = _pointers(nest, count)
        if not sizes or len(dense) != 2 or pointers is None:
            return None
        first, second = dense if uses(dense[0].load, row) else dense[::-1]
        if uses(first.load, column) or uses(second.load, row):
            return None
        if any(stride(factor.index, feature) != 1 for factor in dense):
            return None
        return BlockDots(
            nest,
            block,
            feature,
            row,
            column,
            pointers,
            features,
            int(rows),
            int(columns),
            first,
            second,
            scale,
        )

    @property
    def dtype(self) -> str:
        """Of the dense operands, where it is the same for both."""
        return str(self.first.buffer.ty.dtype)

    @property
    def total(self) -> Expr:
        """Number of stored blocks."""
        size = self.nest.result.ty.shape[0]
        return tirx.floordiv(size, cast(self.rows * self.columns, str(size.ty.dtype)))


def _pointers(nest: Nest, count: Expr) -> Var | None:
    """Return the row pointers that a number of blocks is a difference of."""
    (row, _), *others = nest.variables[:-4]
    if "R" in nest.kinds[:-4] or any(
        not (isinstance(extent, tirx.IntImm) and int(extent) == 1) for _, extent in others
    ):
        return None
    if not isinstance(count, tirx.Sub) or not all(
        isinstance(x, TensorLoad) for x in (count.a, count.b)
    ):
        return None
    steps = stride(count.b.indices[0], row)
    same = count.a.source.same_as(count.b.source)
    return count.b.source if same and steps == 1 else None


class _TileProgram:
    """The tile program of dot products; its methods emit one phase each."""

    def __init__(self, dots: BlockDots, tile: DotBlockTile) -> None:
        self.dots, self.tile = dots, tile
        shape = WarpProduct(16, 16, dots.dtype).shape
        self._rows, self._columns = (
            -(-size // least) * least
            for size, least in ((dots.rows, shape.rows), (dots.columns, shape.columns))
        )
        each = tile.warps // tile.blocks
        self._across = min(each, self._columns // shape.columns)
        self._down = each // self._across
        self._warp = WarpProduct(
            self._rows // self._down, self._columns // self._across, dots.dtype, b_by_columns=True
        )
        self.sums = WarpSums(self._warp)

    def build(self) -> tirx.For:
        """Return the loop that takes the place of the nest."""
        total = cast(self.dots.total, "int64")
        number = tirx.ceildiv(total, cast(self.tile.blocks, "int64"))
        return kernel(self.dots.nest.name, number, self.tile.warps, self._body)

    def _body(self, where: Var, warp: Var, lane: Var) -> None:
        tile = self.tile
        self._allocate()
        self._threads = Threads(warp, lane, tile.warps)
        self._total = cast(self.dots.total, "int64")
        self._features = cast(self.dots.features, "int64")
        self._first_block = bind("first_block", where * tile.blocks)
        self._find_rows()
        each = tile.warps // tile.blocks
        block, part = tirx.truncdiv(warp, each), tirx.truncmod(warp, each)
        self._warp_row = tirx.truncdiv(part, self._across) * self._warp.rows
        self._warp_column = tirx.truncmod(part, self._across) * self._warp.columns
        self._warp_block = block
        self.sums.fill()
        steps = tirx.ceildiv(self._features, cast(tile.depth, "int64"))
        pipeline(cast(steps, "int32"), tile.stages, self._fetch, self._multiply)
        barrier()
        self.sums.store(self._c, block * self._rows + self._warp_row, self._warp_column)
        barrier()
        self._write()

    def _allocate(self) -> None:
        dots, tile = self.dots, self.tile
        x_shape = (tile.stages, tile.blocks * self._rows, tile.depth)
        y_shape = (tile.stages, tile.blocks * self._columns, tile.depth)
        self._x = allocate("x_staged", x_shape, dots.dtype, "shared.dyn")
        self._y = allocate("y_staged", y_shape, dots.dtype, "shared.dyn")
        self._c = allocate(
            "c_staged", (tile.blocks * self._rows, self._columns), "float32", "shared.dyn"
        )
        index = str(dots.nest.variables[0][0].ty.dtype)
        self._row_of = allocate("row_of", (tile.blocks,), index, "shared")
        self._row = allocate("row", (1,), index, "local")
        self._low = allocate("low", (1,), index, "local")
        self._high = allocate("high", (1,), index, "local")
        self.sums.allocate()
        T.reads(*map(everything_of, buffers_loaded([*dots.nest.expressions, dots.total])))
        T.writes(everything_of(dots.nest.result))

    def _find_rows(self) -> None:
        """Look up the row of every block by bisection."""
        index = str(self._low.ty.dtype)
        rows = cast(self.dots.nest.variables[0][1], index)
        low, high = (tirx.BufferLoad(buffer, [0]) for buffer in (self._low, self._high))

        def look_up(number: Expr) -> None:
            position = self._position(number)
            T.buffer_store(self._low, cast(0, index), [0])
            T.buffer_store(self._high, rows, [0])
            with T.While(low + cast(1, index) < high):
                middle = bind("middle", tirx.truncdiv(low + high, cast(2, index)))
                pointer = tirx.BufferLoad(self.dots.pointers, [middle])
                choose(
                    cast(pointer, "int64") <= position,
                    lambda: T.buffer_store(self._low, middle, [0]),
                    lambda: T.buffer_store(self._high, middle, [0]),
                )
            T.buffer_store(self._row_of, low, [number])

        self._threads.share(self.tile.blocks, look_up)
        barrier()

    def _position(self, number: Expr) -> Expr:
        """The stored block of a number in the thread block, the last for those beyond it."""
        last = self._total - cast(1, "int64")
        return tirx.min(self._first_block + cast(number, "int64"), last)

    def _places(self, number: Expr) -> dict[Var, Expr]:
        """Look up what a stored block determines of the variables."""
        nest = self.dots.nest
        (row, _), *others = nest.variables[:-4]
        places: dict[Var, Expr] = {var: cast(0, str(var.ty.dtype)) for var, _ in others}
        T.buffer_store(self._row, tirx.BufferLoad(self._row_of, [number]), [0])
        places[row] = tirx.BufferLoad(self._row, [0])
        begin = tirx.BufferLoad(self.dots.pointers, [places[row]])
        places[self.dots.block] = self._position(number) - cast(begin, "int64")
        return places

    def _fetch(self, step: Expr, stage: Expr) -> None:
        tile = self.tile
        with T.sblock("fetch"):
            vstep = axis("vstep", T.axis.opaque(step + 1, step))
            vstage = axis("vstage", T.axis.opaque(tile.stages, stage))
            T.reads(
                *map(everything_of, buffers_loaded(self.dots.nest.expressions)),
                everything_of(self._row_of),
            )
            T.writes(*(_stage(buffer, vstage) for buffer in (self._x, self._y)))
            pitch = (16, 8) if self.dots.dtype != "float32" else (8, 4)
            T.sblock_attr({"buffer_dim_align": [[0, 1, *pitch], [1, 1, *pitch]]})
            choose(
                self._is_wide,
                lambda: self._fetch_both(vstep, vstage, True),
                lambda: self._fetch_both(vstep, vstage, False),
            )

    @property
    def _is_wide(self) -> Expr | bool:
        lanes = chunk_lanes(self.dots.dtype)
        if isinstance(self.dots.features, tirx.IntImm):
            return int(self.dots.features) % lanes == 0
        return tirx.truncmod(self._features, cast(lanes, "int64")) == cast(0, "int64")

    def _fetch_both(self, step: Expr, stage: Expr, wide: bool) -> None:
        dots = self.dots
        first = (self._x, dots.first, dots.row, dots.rows, self._rows)
        second = (self._y, dots.second, dots.column, dots.columns, self._columns)
        for operand in (first, second):
            self._fetch_rows(step, stage, wide, *operand)

    def _fetch_rows(
        self,
        step: Expr,
        stage: Expr,
        wide: bool,
        target: Var,
        factor: Factor,
        var: Var,
        extent: int,
        padded: int,
    ) -> None:
        """Copy features of the rows of an operand that blocks need, zeros for rows that pad a tile."""
        tile, feature = self.tile, self.dots.feature
        lanes = chunk_lanes(self.dots.dtype)
        chunks = tile.depth // lanes

        def copy(piece: Expr) -> None:
            line, first = tirx.truncdiv(piece, chunks), tirx.truncmod(piece, chunks) * lanes
            number, within = tirx.truncdiv(line, padded), tirx.truncmod(line, padded)
            places = self._places(number)
            conditions = [self._first_block + cast(number, "int64") < self._total]
            if padded > extent:
                conditions.append(within < extent)
                within = tirx.min(within, extent - 1)
            places[var] = within
            conditions += [at(test, places) for test in factor.conditions]
            begin = cast(step, "int64") * tile.depth + cast(first, "int64")

            def index_of(lane: Expr | int) -> Expr:
                return at(factor.index, {**places, feature: begin + cast(lane, "int64")})

            def valid(lane: Expr | int) -> Expr:
                return everything([*conditions, begin + cast(lane, "int64") < self._features])

            place = [stage, line, first]
            if wide:
                copy_chunk(
                    target, place, factor.buffer, index_of(0), lanes, valid(0), tile.async_copy
                )
            else:
                copy_values(target, place, factor.buffer, index_of, valid, T.serial(lanes))

        self._threads.share(tile.blocks * padded * chunks, copy)

    def _multiply(self, stage: Expr) -> None:
        block = self._warp_block

        def x_at(vstage: Var, row: Var, k: Var) -> Expr:
            line = block * self._rows + self._warp_row + row
            return tirx.BufferLoad(self._x, [vstage, line, k])

        def y_at(vstage: Var, k: Var, column: Var) -> Expr:
            line = block * self._columns + self._warp_column + column
            return tirx.BufferLoad(self._y, [vstage, line, k])

        self.sums.multiply(self.tile.stages, stage, self.tile.depth, x_at, y_at)

    def _write(self) -> None:
        """Write the blocks, which lie next to each other."""
        dots, tile = self.dots, self.tile
        nest = dots.nest
        out = str(nest.result.ty.dtype)
        lanes = chunk_lanes(out, dots.columns)
        size = dots.rows * dots.columns // lanes

        def write(piece: Expr) -> None:
            number, within = tirx.truncdiv(piece, size), tirx.truncmod(piece, size) * lanes
            row, column = tirx.truncdiv(within, dots.columns), tirx.truncmod(within, dots.columns)

            def total(lane: Expr) -> Expr:
                here = {**places, dots.column: column + lane}
                value = tirx.BufferLoad(self._c, [number * self._rows + row, column + lane])
                init = at(nest.init, here)
                for factor in dots.scale:
                    value = tirx.Cast("float32", at(factor.load, here)) * value
                tests = [at(test, here) for test in nest.conditions]
                value = init + value
                return tirx.if_then_else(everything(tests), value, init) if tests else value

            with when(self._first_block + cast(number, "int64") < self._total):
                places = {**self._places(number), dots.row: row}
                index = at(nest.index, {**places, dots.column: column})
                frame = T.vectorized(lanes) if lanes > 1 else T.serial(1)
                if dots.scale:
                    frame = T.unroll(lanes)
                with loop("j", frame) as j:
                    T.buffer_store(nest.result, cast(total(j), out), [index + cast(j, "int64")])

        self._threads.share(tile.blocks * size, write, unroll=False)


def _stage(buffer: Var, stage: Var):
    return buffer[(stage, *(slice(0, size) for size in buffer.ty.shape[1:]))]

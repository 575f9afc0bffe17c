"""SDDMM with blocks of entries on tensor cores: stored blocks in equal numbers to thread blocks.

A thread block takes neighbouring stored blocks, whatever rows they lie under, so that long rows are no heavier
than others; it looks up their rows by bisection of the row pointers. As in :mod:`.blocks`, tile programs take
the place of the loops of lowered parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import s_tir, tirx
from tvm.ir import Expr, Var
from tvm.target import Target
from tvm.tirx.script import builder as T

from ..cpu.part_blocks import blocks_of
from .block_dots import BlockDots
from .block_nests import Factor, at, buffers_loaded, read_nest
from .block_tiles import DotBlockTile, arrange_warps, thread_tile
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
from .tensor_cores import WARP, WarpProduct, fragment_shape
from .warp_sums import ThreadSums, WarpSums

__all__ = ["schedule"]


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
        chosen = tile or _default_tile(dots)
        program = _TileProgram(dots, chosen)
        sch.state.replace(sch.get_sref(dots.nest.loop), program.build(), {})
        program.sums.tensorize(sch)
    bind_others(sch, [f"{name}_{part}" for part in parts])


def _default_tile(dots: BlockDots) -> DotBlockTile:
    halves = dots.dtype in ("float16", "bfloat16") and dots.sum_dtype == "float32"
    cores = halves and dots.has_one_dtype and dots.rows * dots.columns >= 64
    return DotBlockTile.default((dots.rows, dots.columns), dots.dtype, tensor_cores=cores)


class _TileProgram:
    """The tile program of dot products; its methods emit one phase each."""

    def __init__(self, dots: BlockDots, tile: DotBlockTile) -> None:
        self.dots, self.tile = dots, tile
        self._down, self._across = (
            -(-size // step)
            for size, step in ((dots.rows, tile.rows), (dots.columns, tile.columns))
        )
        self.sums = self._on_tensor_cores() if tile.tensor_cores else self._on_cuda_cores()

    def _on_tensor_cores(self) -> WarpSums:
        """Let warps share the columns of a part first, then the rows."""
        dots, tile = self.dots, self.tile
        shape = fragment_shape(dots.dtype, 16)
        counts = tile.rows // shape.rows, tile.columns // shape.columns
        down, self._abreast = arrange_warps(tile.warps // tile.parts, *counts)
        self._own = tile.rows // down, tile.columns // self._abreast
        self._workers = tile.warps // tile.parts
        return WarpSums(WarpProduct(*self._own, dots.dtype, b_by_columns=True))

    def _on_cuda_cores(self) -> ThreadSums:
        """Let each thread compute a few rows and columns of a part."""
        tile = self.tile
        self._own = thread_tile(tile.rows), thread_tile(tile.columns)
        self._abreast = tile.columns // self._own[1]
        self._workers = tile.rows // self._own[0] * self._abreast
        return ThreadSums(*self._own, self.dots.sum_dtype)

    def build(self) -> tirx.For:
        """Return the loop that takes the place of the nest."""
        number = tirx.ceildiv(self._total, cast(self.tile.parts, "int64"))
        return kernel(self.dots.nest.name, number, self.tile.warps, self._allocate, self._body)

    @property
    def _total(self) -> Expr:
        """Number of parts of all stored blocks."""
        return cast(self.dots.total, "int64") * (self._down * self._across)

    def _body(self, where: Var, warp: Var, lane: Var) -> None:
        tile = self.tile
        self._threads = Threads(warp, lane, tile.warps)
        self._features = cast(self.dots.features, "int64")
        self._first_part = bind("first_part", where * tile.parts)
        self._find_rows()
        worker = warp if tile.tensor_cores else warp * WARP + lane
        part = bind("own_part", tirx.truncdiv(worker, self._workers))
        all_work = tile.tensor_cores or tile.warps * WARP == tile.parts * self._workers
        self._own_part = part if all_work else tirx.min(part, tile.parts - 1)
        place = tirx.truncmod(worker, self._workers)
        self._own_row = tirx.truncdiv(place, self._abreast) * self._own[0]
        self._own_column = tirx.truncmod(place, self._abreast) * self._own[1]
        self.sums.fill()
        steps = tirx.ceildiv(self._features, cast(tile.depth, "int64"))
        pipeline(cast(steps, "int32"), tile.stages, self._fetch, self._multiply)
        barrier()
        with when(*[part < tile.parts] * (not all_work)):
            self.sums.store(self._c, part * tile.rows + self._own_row, self._own_column)
        barrier()
        self._write()

    def _allocate(self) -> None:
        dots, tile = self.dots, self.tile
        rows, columns = tile.parts * tile.rows, tile.parts * tile.columns
        self._x = allocate("x_staged", (tile.stages, rows, tile.depth), dots.dtype, "shared.dyn")
        self._y = allocate("y_staged", (tile.stages, columns, tile.depth), dots.dtype, "shared.dyn")
        self._c = allocate("c_staged", (rows, tile.columns), dots.sum_dtype, "shared.dyn")
        index = str(dots.nest.variables[0][0].ty.dtype)
        self._row_of = allocate("row_of", (tile.parts,), index, "shared")
        self._row = allocate("row", (1,), index, "local")
        self._low = allocate("low", (1,), index, "local")
        self._high = allocate("high", (1,), index, "local")
        self.sums.allocate()
        T.reads(*map(everything_of, buffers_loaded([*dots.nest.expressions, dots.total])))
        T.writes(everything_of(dots.nest.result))

    def _find_rows(self) -> None:
        """Look up the row of the block of every part by bisection."""
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

        self._threads.share(self.tile.parts, look_up)
        barrier()

    def _part(self, number: Expr) -> Expr:
        """A part of the thread block, the last of all for those beyond it."""
        last = self._total - cast(1, "int64")
        return tirx.min(self._first_part + cast(number, "int64"), last)

    def _position(self, number: Expr) -> Expr:
        """The stored block of a part."""
        return tirx.truncdiv(self._part(number), cast(self._down * self._across, "int64"))

    def _within(self, number: Expr) -> tuple[Expr, Expr]:
        """Where in its block a part begins."""
        place = cast(
            tirx.truncmod(self._part(number), cast(self._down * self._across, "int64")), "int32"
        )
        row, column = tirx.truncdiv(place, self._across), tirx.truncmod(place, self._across)
        return row * self.tile.rows, column * self.tile.columns

    def _exists(self, number: Expr) -> Expr:
        """Whether there is such a part."""
        return self._first_part + cast(number, "int64") < self._total

    def _places(self, number: Expr) -> dict[Var, Expr]:
        """Look up what the stored block of a part determines of the variables."""
        (row, _), *others = self.dots.nest.variables[:-4]
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
            odd = chunk_lanes(self.dots.dtype)
            pitch = (2 * odd, odd)  # rows begin at odd multiples of 16 bytes: on other banks
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
        dots, tile = self.dots, self.tile
        self._fetch_rows(step, [stage], wide, self._x, dots.first, dots.row, (dots.rows, tile.rows))
        extents = (dots.columns, tile.columns)
        self._fetch_rows(step, [stage], wide, self._y, dots.second, dots.column, extents)

    def _fetch_rows(
        self,
        step: Expr,
        stage: list[Expr],
        wide: bool,
        target: Var,
        factor: Factor,
        var: Var,
        extents: tuple[int, int],
    ) -> None:
        """Copy features of the rows of an operand that parts need, zeros for rows that pad a part."""
        tile, feature = self.tile, self.dots.feature
        lanes = chunk_lanes(self.dots.dtype)
        chunks = tile.depth // lanes
        extent, length = extents

        def copy(piece: Expr) -> None:
            line, first = tirx.truncdiv(piece, chunks), tirx.truncmod(piece, chunks) * lanes
            number = tirx.truncdiv(line, length)
            place = self._within(number)[var.same_as(self.dots.column)] + tirx.truncmod(
                line, length
            )
            places = self._places(number)
            conditions = [self._exists(number)]
            if extent % length:
                conditions.append(place < extent)
                place = tirx.min(place, extent - 1)
            places[var] = place
            conditions += [at(test, places) for test in factor.conditions]
            begin = cast(step, "int64") * tile.depth + cast(first, "int64")

            def index_of(lane: Expr | int) -> Expr:
                return at(factor.index, {**places, feature: begin + cast(lane, "int64")})

            def valid(lane: Expr | int) -> Expr:
                return everything([*conditions, begin + cast(lane, "int64") < self._features])

            to, source = [*stage, line, first], factor.buffer
            if wide:
                copy_chunk(target, to, source, index_of(0), lanes, valid(0), tile.async_copy)
            else:
                copy_values(target, to, source, index_of, valid, T.serial(lanes))

        self._threads.share(tile.parts * length * chunks, copy)

    def _multiply(self, stage: Expr) -> None:
        def x_at(vstage: Expr, row: Expr, k: Expr) -> Expr:
            line = self._own_part * self.tile.rows + self._own_row + row
            return tirx.BufferLoad(self._x, [vstage, line, k])

        def y_at(vstage: Expr, k: Expr, column: Expr) -> Expr:
            line = self._own_part * self.tile.columns + self._own_column + column
            return tirx.BufferLoad(self._y, [vstage, line, k])

        self.sums.multiply(self.tile.stages, stage, self.tile.depth, x_at, y_at)

    def _write(self) -> None:
        """Write the parts to the stored blocks."""
        dots, tile = self.dots, self.tile
        out = str(dots.nest.result.ty.dtype)
        rows, columns = min(dots.rows, tile.rows), min(dots.columns, tile.columns)
        lanes = chunk_lanes(out, dots.columns, columns)
        size = rows * columns // lanes

        def write(piece: Expr) -> None:
            number, within = tirx.truncdiv(piece, size), tirx.truncmod(piece, size) * lanes
            row, column = tirx.truncdiv(within, columns), tirx.truncmod(within, columns)
            first_row, first_column = self._within(number)
            conditions = [self._exists(number)]
            for place, extent, length in (
                (first_row + row, dots.rows, rows),
                (first_column + column, dots.columns, columns),
            ):
                conditions += [place < extent] * (extent % length > 0)
            with when(*conditions):
                places = self._places(number)
                places.update({dots.row: first_row + row, dots.column: first_column + column})
                self._write_chunk(places, [number * tile.rows + row, column], lanes)

        self._threads.share(tile.parts * size, write, unroll=False)

    def _write_chunk(self, places: dict[Var, Expr], staged: list[Expr], lanes: int) -> None:
        """Write neighbouring sums, multiplied by what is stored at their places if the program says so."""
        dots, nest = self.dots, self.dots.nest

        def total(lane: Expr) -> Expr:
            here = {**places, dots.column: places[dots.column] + lane}
            value = tirx.BufferLoad(self._c, [staged[0], staged[1] + lane])
            for factor in dots.scale:
                value = cast(at(factor.load, here), dots.sum_dtype) * value
            init = at(nest.init, here)
            tests = [at(test, here) for test in nest.conditions]
            return (
                tirx.if_then_else(everything(tests), init + value, init) if tests else init + value
            )

        out = str(nest.result.ty.dtype)
        index = at(nest.index, places)
        together = lanes > 1 and not dots.scale
        with loop("j", T.vectorized(lanes) if together else T.unroll(lanes)) as j:
            T.buffer_store(nest.result, cast(total(j), out), [index + cast(j, "int64")])


def _stage(buffer: Var, stage: Var):
    return buffer[(stage, *(slice(0, size) for size in buffer.ty.shape[1:]))]

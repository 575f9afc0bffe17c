"""The tile program of SDDMM with blocks of entries: rows looked up, staged copies, products, one write."""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr, Var
from tvm.tirx.script import builder as T

from .block_dots import BlockDots, StagedRows
from .block_nests import Factor, at, buffers_loaded
from .block_tiles import DotBlockTile, check_tensor_tile, thread_tile
from .copies import ChunkStores, chunk_lanes, copy_chunk, copy_values, row_lanes
from .fragments import WARP, WarpProduct
from .staging import (
    Threads,
    allocate,
    barrier,
    bind,
    cast,
    choose,
    everything,
    everything_of,
    kernel,
    loop,
    pipeline,
    when,
)
from .warp_sums import ThreadSums, WarpSums

__all__ = ["DotProgram"]


class DotProgram:
    """The program of dot products and a tile; its methods emit one phase each.

    Parameters
    ----------
    dots : BlockDots
        The dot products.
    tile : DotBlockTile
        What a thread block computes.

    Raises
    ------
    ValueError
        If the tile does not suit the blocks, or tensor cores do not multiply the dtype.
    """

    def __init__(self, dots: BlockDots, tile: DotBlockTile) -> None:
        self.dots, self.tile = dots, tile
        self._down, self._across = (
            -(-size // step)
            for size, step in ((dots.rows, tile.rows), (dots.columns, tile.columns))
        )
        self._sums = self._on_tensor_cores() if tile.tensor_cores else self._on_cuda_cores()

    def _on_tensor_cores(self) -> WarpSums:
        """Let warps share the columns of a part first, then the rows."""
        dots, tile = self.dots, self.tile
        self._workers = tile.warps // tile.parts
        if tile.warps % tile.parts:
            raise ValueError(f"tile: expected a multiple of {tile.parts} warps, found {tile.warps}")
        down, self._abreast = check_tensor_tile(
            dots.dtype,
            tile.rows,
            tile.columns,
            tile.depth,
            self._workers,
            dots.sum_dtype,
            dots.has_one_dtype,
        )
        self._own = tile.rows // down, tile.columns // self._abreast
        return WarpSums(WarpProduct(*self._own, dots.dtype, b_by_columns=True))

    def _on_cuda_cores(self) -> ThreadSums:
        """Let each thread compute a few rows and columns of a part."""
        tile = self.tile
        self._own = thread_tile(tile.rows), thread_tile(tile.columns)
        self._abreast = tile.columns // self._own[1]
        self._workers = tile.rows // self._own[0] * self._abreast
        if tile.rows % self._own[0] or tile.columns % self._own[1]:
            raise ValueError(
                f"tile: expected multiples of {self._own[0]} rows and {self._own[1]} columns, found "
                f"{tile.rows} and {tile.columns}"
            )
        if tile.warps * WARP < tile.parts * self._workers:
            raise ValueError(
                f"tile: expected {tile.parts * self._workers} threads or more, found {tile.warps * WARP}"
            )
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
        self._find_operands()
        worker = warp if tile.tensor_cores else warp * WARP + lane
        part = tirx.truncdiv(worker, self._workers)
        all_work = tile.tensor_cores or tile.warps * WARP == tile.parts * self._workers
        self._own_part = part if all_work else tirx.min(part, tile.parts - 1)
        place = tirx.truncmod(worker, self._workers)
        self._own_row = tirx.truncdiv(place, self._abreast) * self._own[0]
        self._own_column = tirx.truncmod(place, self._abreast) * self._own[1]
        self._sums.fill(lane)
        steps = tirx.ceildiv(self._features, cast(tile.depth, "int64"))
        odd = chunk_lanes(self.dots.dtype)
        pitch = (2 * odd, odd)  # rows begin at odd multiples of 16 bytes: on other banks
        staged = {operand.staged: pitch for operand in self._operands}
        pipeline(cast(steps, "int32"), tile.stages, staged, self._fetch, self._multiply)
        barrier()
        with when(*[part < tile.parts] * (not all_work)):
            self._sums.store(self._c, part * tile.rows + self._own_row, self._own_column)
        barrier()
        self._write()

    def _allocate(self) -> None:
        dots, tile = self.dots, self.tile
        rows = tile.parts * tile.rows
        self._operands = [
            self._operand("x", 0, dots.first, dots.row, dots.rows, tile.rows),
            self._operand("y", 1, dots.second, dots.column, dots.columns, tile.columns),
        ]
        self._c = allocate("c_staged", (rows, tile.columns), dots.sum_dtype, "shared.dyn")
        index = str(dots.nest.variables[0][0].ty.dtype)
        self._row_of = allocate("row_of", (tile.parts,), index, "shared")
        self._row = allocate("row", (1,), index, "local")
        self._low = allocate("low", (1,), index, "local")
        self._high = allocate("high", (1,), index, "local")
        self._sums.allocate()
        suit = ChunkStores.suit(str(dots.nest.result.ty.dtype), self._write_lanes)
        self._stores = ChunkStores(dots.nest.result, self._write_lanes) if suit else None
        T.reads(*map(everything_of, buffers_loaded([*dots.nest.expressions, dots.total])))
        T.writes(everything_of(dots.nest.result))

    def _operand(
        self, name: str, side: int, factor: Factor, var: Var, extent: int, length: int
    ) -> StagedRows:
        tile, dtype = self.tile, self.dots.dtype
        pieces = tile.parts * length * (tile.depth // self._lanes)
        rounds = -(-pieces // (tile.warps * WARP))
        return StagedRows(
            side,
            factor,
            var,
            extent,
            length,
            pieces,
            allocate(
                f"{name}_staged",
                (tile.stages, tile.parts * length, tile.depth),
                dtype,
                "shared.dyn",
            ),
            allocate(f"{name}_begin", (rounds,), "int64", "local"),
            allocate(f"{name}_exists", (rounds,), "int32", "local"),
        )

    def _find_rows(self) -> None:
        """Look up the row of the block of every part by bisection."""
        index = str(self._low.ty.dtype)
        rows = cast(self.dots.nest.variables[0][1], index)
        low, high = (tirx.BufferLoad(buffer, [0]) for buffer in (self._low, self._high))

        def look_up(number: Expr, _round: Expr) -> None:
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

    def _find_operands(self) -> None:
        """Find the rows of the dense operands that a thread copies, the same in all steps."""
        dots, tile = self.dots, self.tile
        for operand in self._operands:

            def find(piece: Expr, round: Expr, operand: StagedRows = operand) -> None:
                line = tirx.truncdiv(piece, tile.depth // self._lanes)
                number, within = (
                    tirx.truncdiv(line, operand.length),
                    tirx.truncmod(line, operand.length),
                )
                place = self._within(number)[operand.side] + within
                conditions = [self._exists(number)]
                if operand.extent % operand.length:
                    conditions.append(place < operand.extent)
                    place = tirx.min(place, operand.extent - 1)
                places = {**self._places(number), operand.var: place, dots.feature: 0}
                conditions += [at(test, places) for test in operand.factor.conditions]
                T.buffer_store(operand.begin, at(operand.factor.index, places), [round])
                T.buffer_store(operand.exists, cast(everything(conditions), "int32"), [round])

            self._threads.share(operand.pieces, find)

    def _fetch(self, step: Expr, stage: Expr) -> None:
        for operand in self._operands:
            self._fetch_rows(step, stage, operand)

    @property
    def _lanes(self) -> int:
        """Features that are copied together."""
        return row_lanes(self.dots.dtype, self.dots.known_features)

    @property
    def _is_wide(self) -> Expr | bool:
        """Whether rows of features consist of such."""
        if self.dots.known_features is not None:
            return self.dots.known_features % self._lanes == 0
        return tirx.truncmod(self._features, cast(self._lanes, "int64")) == cast(0, "int64")

    def _fetch_rows(self, step: Expr, stage: Expr, operand: StagedRows) -> None:
        """Copy features of the rows of an operand that parts need, zeros for rows that pad a part."""
        tile, lanes = self.tile, self._lanes
        chunks = tile.depth // lanes

        def copy(piece: Expr, round: Expr, wide: bool) -> None:
            line, first = tirx.truncdiv(piece, chunks), tirx.truncmod(piece, chunks) * lanes
            begin = cast(step, "int64") * tile.depth + cast(first, "int64")
            exists = tirx.BufferLoad(operand.exists, [round]) != cast(0, "int32")

            def index_of(lane: Expr | int) -> Expr:
                return tirx.BufferLoad(operand.begin, [round]) + begin + cast(lane, "int64")

            def valid(lane: Expr | int) -> Expr:
                return tirx.And(exists, begin + cast(lane, "int64") < self._features)

            to, source, is_async = [stage, line, first], operand.factor.buffer, tile.async_copy
            if wide:
                shared = operand.side == 0  # parts next to each other lie under the same rows
                copy_chunk(
                    operand.staged, to, source, index_of(0), lanes, valid(0), is_async, shared
                )
            else:
                copy_values(operand.staged, to, source, index_of, valid, T.serial(lanes))

        choose(
            self._is_wide,
            lambda: self._threads.share(operand.pieces, lambda *piece: copy(*piece, True)),
            lambda: self._threads.share(operand.pieces, lambda *piece: copy(*piece, False)),
        )

    def _multiply(self, stage: Expr) -> None:
        def x_at(vstage: Expr, row: Expr, k: Expr) -> Expr:
            line = self._own_part * self.tile.rows + self._own_row + row
            return tirx.BufferLoad(self._operands[0].staged, [vstage, line, k])

        def y_at(vstage: Expr, k: Expr, column: Expr) -> Expr:
            line = self._own_part * self.tile.columns + self._own_column + column
            return tirx.BufferLoad(self._operands[1].staged, [vstage, line, k])

        self._sums.multiply(stage, self.tile.depth, x_at, y_at)

    @property
    def _write_lanes(self) -> int:
        """Values that are written together."""
        columns = min(self.dots.columns, self.tile.columns)
        return chunk_lanes(str(self.dots.nest.result.ty.dtype), self.dots.columns, columns)

    def _write(self) -> None:
        """Write the parts to the stored blocks."""
        dots, tile = self.dots, self.tile
        rows, columns = min(dots.rows, tile.rows), min(dots.columns, tile.columns)
        lanes = self._write_lanes
        size = rows * columns // lanes

        def write(piece: Expr, _round: Expr) -> None:
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

        def total(lane: Expr | int) -> Expr:
            here = {**places, dots.column: places[dots.column] + lane}
            value = tirx.BufferLoad(self._c, [staged[0], staged[1] + lane])
            for factor in dots.scale:
                value = cast(at(factor.load, here), dots.sum_dtype) * value
            init = at(nest.init, here)
            tests = [at(test, here) for test in nest.conditions]
            return (
                tirx.if_then_else(everything(tests), init + value, init) if tests else init + value
            )

        index = at(nest.index, places)
        if self._stores is not None:
            self._stores.store(index, total)
            return
        with loop("j", T.unroll(lanes)) as j:
            value = cast(total(j), str(nest.result.ty.dtype))
            T.buffer_store(nest.result, value, [index + cast(j, "int64")])

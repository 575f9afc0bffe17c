"""The tile program of SpMM with blocks of entries on tensor cores: staged copies, products, one write."""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr, Var
from tvm.tirx.script import builder as T

from .block_nests import buffers_loaded
from .block_products import BlockProduct, Outside, Steps
from .block_tiles import BlockTile, check_tensor_tile
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
from .warp_sums import WarpSums

__all__ = ["BlockProgram"]


class BlockProgram:
    """The program of a product and a tile; its methods emit one phase each.

    Parameters
    ----------
    product : BlockProduct
        The product.
    tile : BlockTile
        What a thread block computes.

    Raises
    ------
    ValueError
        If the tile does not suit the product, or tensor cores do not multiply its dtype.
    """

    def __init__(self, product: BlockProduct, tile: BlockTile) -> None:
        self.product, self.tile = product, tile
        down, self._abreast = check_tensor_tile(
            product.dtype,
            tile.rows,
            tile.features,
            tile.depth,
            tile.warps,
            product.sum_dtype,
            product.has_one_dtype,
        )
        self._warp = WarpProduct(
            tile.rows // down,
            tile.features // self._abreast,
            product.dtype,
            a_by_columns=product.by_columns,
        )
        self._sums = WarpSums(self._warp)

    def build(self) -> tirx.For:
        """Return the loop that takes the place of the product's."""
        product, tile = self.product, self.tile
        self._row_tiles = -(-product.rows // tile.rows)
        feature_tiles = tirx.ceildiv(cast(product.features, "int64"), cast(tile.features, "int64"))
        total = product.strips * self._row_tiles * feature_tiles
        return kernel(product.nest.name, total, tile.warps, self._allocate, self._body)

    def _body(self, where: Var, warp: Var, lane: Var) -> None:
        self._place(where)
        self._threads = Threads(warp, lane, self.tile.warps)
        self._warp_row = tirx.truncdiv(warp, self._abreast) * self._warp.rows
        self._warp_column = tirx.truncmod(warp, self._abreast) * self._warp.columns
        self._sums.fill(lane)
        self._load_entries(cast(0, str(self._steps.count.ty.dtype)))
        staged = {self._a: self._a_pitch, self._b: self._b_pitch}
        pipeline(self._steps.number, self.tile.stages, staged, self._fetch, self._multiply)
        barrier()
        self._sums.store(self._c, self._warp_row, self._warp_column)
        barrier()
        self._write()

    def _allocate(self) -> None:
        product, tile = self.product, self.tile
        a_shape = (tile.depth, tile.rows) if product.by_columns else (tile.rows, tile.depth)
        b_shape = (tile.depth, tile.features)
        out = str(product.nest.result.ty.dtype)
        self._a = allocate("a_staged", (tile.stages, *a_shape), product.dtype, "shared.dyn")
        self._b = allocate("b_staged", (tile.stages, *b_shape), product.dtype, "shared.dyn")
        self._c = allocate("c_staged", (tile.rows, tile.features), "float32", "shared.dyn")
        self._sums.allocate()
        rounds = -(-tile.depth * self._dense_chunks[1] // (tile.warps * WARP))
        self._entries = [
            allocate(f"{load.source.name}_ahead", (rounds,), str(load.ty.dtype), "local")
            for load, *_ in product.entry_loads
        ]
        self._out_lanes = row_lanes(out, product.known_features)
        self._held = allocate("held", (self._out_lanes,), "float32", "local")
        self._stores = ChunkStores(product.nest.result, self._out_lanes)
        self._exact = allocate("exact", (1,), "float32", "local")
        T.reads(*map(everything_of, buffers_loaded(product.nest.expressions)))
        T.writes(everything_of(product.nest.result))

    def _place(self, where: Var) -> None:
        """Compute what the thread block works on."""
        product, tile = self.product, self.tile
        number, strips = (cast(value, "int32") for value in (where, product.strips))
        strip = bind("strip", tirx.truncmod(number, strips))
        rest = bind("rest", tirx.truncdiv(number, strips))
        self._first_row = tirx.truncmod(rest, self._row_tiles) * tile.rows
        feature_tile = cast(tirx.truncdiv(rest, self._row_tiles), "int64")
        self._first_feature = bind("first_feature", feature_tile * tile.features)
        self._outside = Outside(product, strip)
        self._features = cast(product.features, "int64")
        count = bind("count", self._outside.at(product.count))
        self._steps = Steps(product, tile.depth, count)

    def _fetch(self, step: Expr, stage: Expr) -> None:
        self._fetch_values(step, stage)
        choose(
            self._is_aligned(self._dense_chunks[0]),
            lambda: self._fetch_dense(step, stage, True),
            lambda: self._fetch_dense(step, stage, False),
        )
        self._load_entries(step + 1)

    @property
    def _a_pitch(self) -> tuple[int, int]:
        """Modulus and remainder of a staged row's length, for which no two threads meet at a bank."""
        if self.product.dtype != "float32":
            return 16, 8
        return (32, 8) if self.product.by_columns else (8, 4)

    @property
    def _b_pitch(self) -> tuple[int, int]:
        return (16, 8) if self.product.dtype != "float32" else (32, 8)

    def _is_aligned(self, lanes: int) -> Expr | bool:
        """Whether rows of features consist of chunks of so many."""
        known = self.product.known_features
        if known is not None:
            return known % lanes == 0
        return tirx.truncmod(self._features, cast(lanes, "int64")) == cast(0, "int64")

    def _fetch_values(self, step: Expr, stage: Expr) -> None:
        product, tile = self.product, self.tile
        lines, length = self._a.ty.shape[1:]
        lanes = chunk_lanes(
            product.dtype, product.rows if product.by_columns else product.columns, int(length)
        )
        chunks = int(length) // lanes

        def copy(piece: Expr, _round: Expr) -> None:
            line, first = tirx.truncdiv(piece, chunks), tirx.truncmod(piece, chunks) * lanes
            k, row = (line, first) if product.by_columns else (first, line)
            along_k, along_rows = (1, lanes) if product.by_columns else (lanes, 1)
            places, conditions = self._steps.entry(step, k, along_k)
            row = self._first_row + row
            if product.rows % tile.rows:
                conditions.append(row < product.rows)
                row = tirx.min(row, product.rows - along_rows)
            index = self._outside.at(product.values.index, {**places, product.row: row})
            valid = everything(conditions)
            buffer = product.values.buffer
            copy_chunk(self._a, [stage, line, first], buffer, index, lanes, valid, tile.async_copy)

        self._threads.share(int(lines) * chunks, copy)

    def _fetch_dense(self, step: Expr, stage: Expr, wide: bool) -> None:
        """Copy rows of the dense operand by vectors, or value by value."""
        product = self.product
        lanes, chunks = self._dense_chunks
        buffer = product.dense.buffer

        def copy(piece: Expr, round: Expr) -> None:
            k, first = tirx.truncdiv(piece, chunks), tirx.truncmod(piece, chunks) * lanes
            places, conditions = self._steps.entry(step, k)
            held = [
                (load, tirx.BufferLoad(values, [round]))
                for loads, values in zip(product.entry_loads, self._entries)
                for load in loads
            ]
            tests = [self._outside.at(test, places, held) for test in product.entry_conditions]

            def feature(lane: Expr | int) -> Expr:
                return self._first_feature + cast(first, "int64") + cast(lane, "int64")

            def index_of(lane: Expr | int) -> Expr:
                here = {**places, product.feature: feature(lane)}
                return self._outside.at(product.dense.index, here, held)

            def valid(lane: Expr | int) -> Expr:
                return everything([*conditions, *tests, feature(lane) < self._features])

            to, is_async = [stage, k, first], self.tile.async_copy
            if wide:
                copy_chunk(self._b, to, buffer, index_of(0), lanes, valid(0), is_async)
            else:
                copy_values(self._b, to, buffer, index_of, valid, T.serial(lanes))

        self._threads.share(self.tile.depth * chunks, copy)

    def _load_entries(self, step: Expr) -> None:
        """Load which rows of the dense operand a thread copies in a step, ahead of it."""
        product = self.product
        _, chunks = self._dense_chunks

        def load(piece: Expr, round: Expr) -> None:
            places, _ = self._steps.entry(step, tirx.truncdiv(piece, chunks))
            for loads, values in zip(product.entry_loads, self._entries):
                T.buffer_store(values, self._outside.at(loads[0], places), [round])

        with when(step < self._steps.number):
            self._threads.share(self.tile.depth * chunks, load)

    @property
    def _dense_chunks(self) -> tuple[int, int]:
        """Features of a copy, and copies of a row."""
        lanes = row_lanes(self.product.dtype, self.product.known_features)
        return lanes, self.tile.features // lanes

    def _multiply(self, stage: Expr) -> None:
        def a_at(vstage: Var, row: Var, k: Var) -> Expr:
            place = [self._warp_row + row, k]
            return tirx.BufferLoad(
                self._a, [vstage, *(place[::-1] if self.product.by_columns else place)]
            )

        def b_at(vstage: Var, k: Var, column: Var) -> Expr:
            return tirx.BufferLoad(self._b, [vstage, k, self._warp_column + column])

        self._sums.multiply(stage, self.tile.depth, a_at, b_at)

    def _write(self) -> None:
        """Write the tile to the result."""
        product, tile = self.product, self.tile
        lanes = self._out_lanes
        chunks = tile.features // lanes

        def write(piece: Expr, _round: Expr) -> None:
            row, first = tirx.truncdiv(piece, chunks), tirx.truncmod(piece, chunks) * lanes
            feature = self._first_feature + cast(first, "int64")
            places = {product.row: self._first_row + row}
            tests = [self._outside.at(test, places) for test in product.row_conditions]
            if product.rows % tile.rows:
                tests.append(self._first_row + row < product.rows)
            with when(feature < self._features, *tests):
                with loop("f", T.vectorized(lanes)) as f:
                    T.buffer_store(self._held, tirx.BufferLoad(self._c, [row, first + f]), [f])
                self._write_chunk(lanes, feature, places)

        self._threads.share(tile.rows * chunks, write, unroll=False)

    def _write_chunk(self, lanes: int, feature: Expr, places: dict[Var, Expr]) -> None:
        """Write neighbouring sums, which are held."""
        nest = self.product.nest

        def here(lane: Expr | int) -> dict[Var, Expr]:
            return {**places, self.product.feature: feature + cast(lane, "int64")}

        def held(lane: Expr | int) -> Expr:
            return tirx.BufferLoad(self._held, [lane])

        def store(lane: Expr, total: Expr) -> None:
            total = cast(total, str(nest.result.ty.dtype))
            T.buffer_store(nest.result, total, [self._outside.at(nest.index, here(lane))])

        def one_by_one() -> None:
            with (
                loop("f", T.unroll(lanes)) as f,
                when(feature + cast(f, "int64") < self._features),
            ):
                store(f, self._outside.at(nest.init, here(f)) + held(f))

        def together() -> None:
            index = self._outside.at(nest.index, here(0))
            self._stores.store(
                index, lambda lane: self._outside.at(nest.init, here(lane)) + held(lane)
            )

        self._repair(lanes, feature, places)
        choose(self._is_aligned(lanes), together, one_by_one)

    def _repair(self, lanes: int, feature: Expr, places: dict[Var, Expr]) -> None:
        """Add up again where a sum is no number, as padding may have made it one that is none.

        The other sums of the vector are then added up again, too.
        """
        held = [tirx.BufferLoad(self._held, [lane]) for lane in range(lanes)]
        total = held[0]
        for value in held[1:]:
            total = total + value
        with when(tirx.isnan(total)), loop("f", T.serial(lanes, unroll=False)) as f:
            place = feature + cast(f, "int64")
            with when(place < self._features):
                exact = self._exact_sum(place, places)
                for lane, value in enumerate(held):  # registers have no address
                    T.buffer_store(self._held, tirx.Select(f == lane, exact, value), [lane])

    def _exact_sum(self, feature: Expr, places: dict[Var, Expr]) -> Expr:
        """Add up the products of entries alone, as the program says."""
        product = self.product
        T.buffer_store(self._exact, tirx.const(0.0, "float32"), [0])
        with (
            loop("block", T.serial(self._steps.count, unroll=False)) as block,
            loop("column", T.serial(product.columns, unroll=False)) as column,
        ):
            here = {
                **places,
                product.block: block,
                product.column: column,
                product.feature: feature,
            }
            tests = [*product.nest.conditions, *product.dense.conditions]
            with when(*(self._outside.at(test, here) for test in tests)):
                a, b = (
                    tirx.Cast("float32", self._outside.at(factor.load, here))
                    for factor in (product.values, product.dense)
                )
                T.buffer_store(self._exact, tirx.BufferLoad(self._exact, [0]) + a * b, [0])
        return tirx.BufferLoad(self._exact, [0])

"""SpMM with blocks of entries on CUDA cores: a warp for rows of a block, vectors of features in lanes.

For what tensor cores do not multiply: blocks of few rows, float32 in full, float64 and integers. Products
are added one by one, those of padding left out, as the program says.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr, Var
from tvm.tirx.script import builder as T

from .block_nests import buffers_loaded
from .block_products import BlockProduct, Outside
from .block_tiles import BlockRowsTile
from .copies import ChunkStores, chunk_lanes, load_chunk
from .fragments import WARP
from .staging import allocate, bind, cast, choose, everything_of, kernel, loop, when

__all__ = ["rows_program"]


def rows_program(product: BlockProduct, tile: BlockRowsTile) -> tirx.For:
    """Return the loop that takes the place of a product's.

    Parameters
    ----------
    product : BlockProduct
        The product.
    tile : BlockRowsTile
        What a warp computes.
    """
    return _RowsProgram(product, tile).build()


class _RowsProgram:
    """The program of a product; its methods emit one phase each."""

    def __init__(self, product: BlockProduct, tile: BlockRowsTile) -> None:
        self.product, self.tile = product, tile
        self._out = str(product.nest.result.ty.dtype)
        self._sum = product.sum_dtype
        self._row_tiles = -(-product.rows // tile.rows)
        sizes = (tile.rows, product.rows) if product.by_columns else (product.columns,)
        self._together = chunk_lanes(str(product.values.buffer.ty.dtype), *sizes)

    def build(self) -> tirx.For:
        """Return the loops."""
        product, tile = self.product, self.tile
        strip_tiles = tirx.ceildiv(product.strips, cast(tile.warps, "int64"))
        width = cast(WARP * tile.lanes, "int64")
        feature_tiles = tirx.ceildiv(cast(product.features, "int64"), width)
        total = strip_tiles * self._row_tiles * feature_tiles
        return kernel(product.nest.name, total, tile.warps, self._allocate, self._body)

    def _body(self, where: Var, warp: Var, lane: Var) -> None:
        product, tile = self.product, self.tile
        strips = cast(product.strips, "int32")  # as many as blockIdx counts
        strip_tiles = tirx.ceildiv(strips, tile.warps)
        number = cast(where, "int32")
        strip = bind("strip", tirx.truncmod(number, strip_tiles) * tile.warps + warp)
        rest = bind("rest", tirx.truncdiv(number, strip_tiles))
        self._first_row = tirx.truncmod(rest, self._row_tiles) * tile.rows
        features = cast(tirx.truncdiv(rest, self._row_tiles), "int64") * WARP + cast(lane, "int64")
        self._feature = bind("feature", features * tile.lanes)
        self._features = cast(product.features, "int64")
        with when(strip < strips, self._feature < self._features):
            self._outside = Outside(product, strip)
            self._add_up()
            self._write()

    def _allocate(self) -> None:
        product, tile = self.product, self.tile
        held = (1, tile.rows) if product.by_columns else (tile.rows, self._together)
        self._sums = allocate("sums", (tile.rows, tile.lanes), self._sum, "local")
        self._a = allocate("a_held", held, str(product.values.buffer.ty.dtype), "local")
        self._b = allocate("b_held", (tile.lanes,), product.dtype, "local")
        suit = ChunkStores.suit(self._out, tile.lanes)
        self._stores = ChunkStores(product.nest.result, tile.lanes) if suit else None
        T.reads(*map(everything_of, buffers_loaded(product.nest.expressions)))
        T.writes(everything_of(product.nest.result))

    def _add_up(self) -> None:
        product, tile = self.product, self.tile
        with (
            loop("i", T.unroll(tile.rows)) as i,
            loop("f", T.unroll(tile.lanes)) as f,
        ):
            T.buffer_store(self._sums, cast(0, self._sum), [i, f])
        group = 1 if product.by_columns else self._together
        count = bind("count", self._outside.at(product.count))
        with (
            loop("block", T.serial(count)) as block,
            loop("group", T.serial(product.columns // group)) as number,
        ):
            places = {product.block: block, product.column: number * group}
            self._load_values(places)
            with loop("j", T.unroll(group)) as j:
                here = {**places, product.column: number * group + j}
                tests = [self._outside.at(test, here) for test in product.entry_conditions]
                with when(*tests):
                    self._load_dense(here)
                    self._add(here, j)

    def _load_values(self, places: dict[Var, Expr]) -> None:
        """Load values of the entries under a group of columns."""
        product, tile = self.product, self.tile
        lanes = self._together
        along_rows = lanes if product.by_columns else 1
        with loop("i", T.unroll(tile.rows // along_rows)) as i:
            first = self._first_row + i * along_rows
            row = tirx.min(first, product.rows - along_rows) if self._is_ragged else first
            index = self._outside.at(product.values.index, {**places, product.row: row})
            place = [cast(0, "int32"), i * lanes] if product.by_columns else [i, cast(0, "int32")]
            load_chunk(self._a, place, product.values.buffer, index, lanes)

    @property
    def _is_ragged(self) -> bool:
        return self.product.rows % self.tile.rows > 0

    @property
    def _is_wide(self) -> Expr | bool:
        """Whether all features of a thread are there, and aligned to vectors."""
        lanes = self.tile.lanes
        known = self.product.known_features
        if lanes == 1 or known is not None:
            return lanes == 1 or known % lanes == 0
        return tirx.truncmod(self._features, cast(lanes, "int64")) == cast(0, "int64")

    def _load_dense(self, here: dict[Var, Expr]) -> None:
        """Load features of a row of the dense operand."""
        product, lanes = self.product, self.tile.lanes

        def index_of(f: Expr | int) -> Expr:
            places = {**here, product.feature: self._feature + cast(f, "int64")}
            return self._outside.at(product.dense.index, places)

        buffer = product.dense.buffer

        def together() -> None:
            load_chunk(self._b, [cast(0, "int32")], buffer, index_of(0), lanes)

        def one_by_one() -> None:
            with loop("f", T.unroll(lanes)) as f:
                within = self._feature + cast(f, "int64") < self._features
                value = tirx.BufferLoad(buffer, [index_of(f)])
                chosen = tirx.if_then_else(within, value, cast(0, product.dtype))
                T.buffer_store(self._b, chosen, [f])

        choose(self._is_wide, together, one_by_one)

    def _add(self, here: dict[Var, Expr], j: Expr) -> None:
        """Add the products of a row of the dense operand to the sums of those rows that have an entry."""
        product, tile = self.product, self.tile
        with loop("i", T.unroll(tile.rows)) as i:
            a = tirx.BufferLoad(self._a, [0, i] if product.by_columns else [i, j])
            with when(*product.padding_tests(a)), loop("f", T.unroll(tile.lanes)) as f:
                total = tirx.BufferLoad(self._sums, [i, f])
                b = tirx.BufferLoad(self._b, [f])
                T.buffer_store(self._sums, total + cast(a, self._sum) * cast(b, self._sum), [i, f])

    def _write(self) -> None:
        product, tile = self.product, self.tile
        nest = product.nest

        def here(i: Expr, f: Expr | int) -> dict[Var, Expr]:
            feature = self._feature + cast(f, "int64")
            return {product.row: self._first_row + i, product.feature: feature}

        def total(i: Expr, f: Expr | int) -> Expr:
            return self._outside.at(nest.init, here(i, f)) + tirx.BufferLoad(self._sums, [i, f])

        def store(i: Expr, f: Expr) -> None:
            index = self._outside.at(nest.index, here(i, f))
            T.buffer_store(nest.result, cast(total(i, f), self._out), [index])

        def together(i: Expr) -> None:
            if self._stores is None:
                with loop("f", T.unroll(tile.lanes)) as f:
                    store(i, f)
                return
            self._stores.store(self._outside.at(nest.index, here(i, 0)), lambda f: total(i, f))

        def one_by_one(i: Expr) -> None:
            with (
                loop("f", T.unroll(tile.lanes)) as f,
                when(self._feature + cast(f, "int64") < self._features),
            ):
                store(i, f)

        with loop("i", T.unroll(tile.rows)) as i:
            places = {product.row: self._first_row + i}
            tests = [self._outside.at(test, places) for test in product.row_conditions]
            if self._is_ragged:
                tests.append(self._first_row + i < product.rows)
            with when(*tests):
                choose(self._is_wide, lambda: together(i), lambda: one_by_one(i))

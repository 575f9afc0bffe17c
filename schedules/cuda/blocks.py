"""SpMM with blocks of entries on tensor cores: a thread block for the rows of a block and a tile of features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.ir import Expr, Var
from tvm.script.ir_builder import IRBuilder
from tvm.sym import Analyzer
from tvm.target import Target
from tvm.tirx.script import builder as T

from ..cpu.part_blocks import blocks_of
from .block_nests import Factor, Nest, at, conjunction, read_nest, uses
from .block_tiles import BlockTile
from .staging import Threads, bind, chunk_lanes, copy_chunk, itemsize, loop, pipeline, when
from .tensor_cores import WarpProduct

__all__ = ["schedule"]


def schedule(
    sch: s_tir.Schedule,
    parts: Sequence[str],
    *,
    tile: BlockTile | None = None,
    target: Target | str | dict | None = None,
    name: str = "spmm",
    groups: Mapping[str, str] | None = None,
) -> None:
    del target, groups
    for part in parts:
        blocks = blocks_of(sch, f"{name}_{part}")
        nest = read_nest(sch, blocks)
        product = BlockProduct.of(nest)
        features = product.feature[1]
        known = int(features) if isinstance(features, tirx.IntImm) else None
        chosen = tile or BlockTile.default((product.rows, product.columns), known, product.dtype)
        program = _Program(product, chosen)
        sch.state.replace(sch.get_sref(nest.loop), program.build(), {})
        program.tensorize(sch)


@dataclass(frozen=True)
class BlockProduct:
    """An SpMM over blocks: for each row of blocks, ``C[i, k] += A[b, i, j] * B[column(b, j), k]``."""

    nest: Nest
    block: tuple[Var, Expr]
    column: tuple[Var, Expr]
    row: tuple[Var, Expr]
    feature: tuple[Var, Expr]
    values: Factor
    dense: Factor
    row_conditions: tuple[Expr, ...]
    entry_conditions: tuple[Expr, ...]
    by_columns: bool

    @staticmethod
    def of(nest: Nest | None) -> BlockProduct | None:
        """Return the product that a nest computes, or None where it is no such."""
        if nest is None or nest.kinds != "RRSS" or len(nest.factors) != 2:
            return None
        block, column, row, feature = nest.inner
        if not all(isinstance(extent, tirx.IntImm) for _, extent in (column, row)):
            return None
        values, dense = nest.factors
        if uses(values.load, feature[0]):
            values, dense = dense, values
        if uses(values.load, feature[0]) or uses(dense.load, row[0]):
            return None
        tested = [c for c in nest.conditions if not uses(c, values.load.source)]
        row_conditions = tuple(c for c in tested if not uses(c, block[0], column[0]))
        entry_conditions = tuple(c for c in tested if uses(c, block[0], column[0]))
        index = values.load.indices[0]
        return BlockProduct(
            nest,
            block,
            column,
            row,
            feature,
            values,
            dense,
            row_conditions,
            (*entry_conditions, *dense.conditions),
            _stride(index, column[0]) != 1 and _stride(index, row[0]) == 1,
        )

    @property
    def rows(self) -> int:
        return int(self.row[1])

    @property
    def columns(self) -> int:
        return int(self.column[1])

    @property
    def dtype(self) -> str:
        return str(self.dense.load.source.ty.dtype)


def _stride(index: Expr, var: Var) -> int | None:
    step = Analyzer().simplify(at(index, {var: 1}) - at(index, {var: 0}))
    return int(step) if isinstance(step, tirx.IntImm) else None


class _Program:
    """The tile program of a product."""

    def __init__(self, product: BlockProduct, tile: BlockTile) -> None:
        self.product, self.tile = product, tile
        across = min(tile.warps, tile.features // self._fragments().columns)
        self.warps = (tile.warps // across, across)
        self.warp = WarpProduct(
            tile.rows // self.warps[0],
            tile.features // across,
            product.dtype,
            a_by_columns=product.by_columns,
        )

    def _fragments(self):
        from .tensor_cores import fragment_shape

        return fragment_shape(self.product.dtype, self.tile.rows)

    # ---- geometry

    @property
    def padded_columns(self) -> int:
        columns, depth = self.product.columns, self.tile.depth
        if columns >= depth:
            return -(-columns // depth) * depth
        return next(size for size in range(columns, depth + 1) if depth % size == 0)

    def build(self) -> tirx.For:
        product, tile = self.product, self.tile
        nest = product.nest
        extents = [extent for _, extent in nest.outer]
        strips = _product([_int32(extent) for extent in extents])
        row_tiles = -(-product.rows // tile.rows)
        features = product.feature[1]
        feature_tiles = tirx.ceildiv(features, tirx.const(tile.features, str(features.ty.dtype)))
        total = _int64(strips) * row_tiles * _int64(feature_tiles)
        with IRBuilder() as ib:
            with T.prim_func(s_tir=True):
                T.func_name("tile")
                with (
                    loop("tile", T.thread_binding(total, "blockIdx.x")) as where,
                    loop("warp", T.thread_binding(tile.warps, "threadIdx.y")) as warp,
                    loop("lane", T.thread_binding(32, "threadIdx.x")) as lane,
                    T.sblock(nest.name),
                ):
                    where = _axis("vtile", T.axis.spatial(total, where))
                    self.vwarp = _axis("vwarp", T.axis.spatial(tile.warps, warp))
                    self.vlane = _axis("vlane", T.axis.spatial(32, lane))
                    self._declare()
                    self._body(where, strips, row_tiles)
        body = ib.get().body
        while not isinstance(body, tirx.For):
            body = body.block.body
        return body

    def _declare(self) -> None:
        product, tile = self.product, self.tile
        buffers = _buffers(product)
        a_shape = (tile.depth, tile.rows) if product.by_columns else (tile.rows, tile.depth)
        dtype = product.dtype
        alloc = T.sblock_alloc_buffer
        self.a = _named("a_staged", alloc((tile.stages, *a_shape), dtype, scope="shared.dyn", strides=_strides(a_shape, 4 if dtype == "float32" and not product.by_columns else 8)))
        self.b = _named("b_staged", alloc((tile.stages, tile.depth, tile.features), dtype, scope="shared.dyn", strides=_strides((tile.depth, tile.features), 8)))
        self.c = _named("c_staged", alloc((tile.rows, tile.features), "float32", scope="shared.dyn", strides=_strides((tile.rows, tile.features), 4)[1:]))
        self.sums = _named("sums", alloc((self.warp.rows, self.warp.columns), "float32", scope="wmma.accumulator"))
        self.exact = _named("exact", alloc((1,), "float32", scope="local"))
        self.held = _named("held", alloc((chunk_lanes(str(product.nest.result.ty.dtype)),), "float32", scope="local"))
        T.reads(*[_all(buffer) for buffer in buffers])
        T.writes(_all(self.a), _all(self.b), _all(self.c), _all(product.nest.result))

    def _body(self, where: Expr, strips: Expr, row_tiles: int) -> None:
        product, tile = self.product, self.tile
        threads = Threads(self.vwarp, self.vlane, tile.warps)
        strip = bind("strip", tirx.truncmod(_int32(where), strips))
        rest = bind("rest", tirx.truncdiv(_int32(where), strips)) if True else None
        row_tile = tirx.truncmod(rest, row_tiles) if row_tiles > 1 else tirx.const(0, "int32")
        feature_tile = tirx.truncdiv(rest, row_tiles) if row_tiles > 1 else rest
        self.first_row = row_tile * tile.rows
        self.first_feature = bind("first_feature", _int64(feature_tile) * tile.features)
        self.outer = {}
        place = strip
        for number, (var, extent) in enumerate(product.nest.outer):
            if isinstance(extent, tirx.IntImm) and int(extent) == 1:
                self.outer[var] = tirx.const(0, str(var.ty.dtype))
                continue
            self.outer[var] = bind(var.name, tirx.Cast(str(var.ty.dtype), place)) if str(var.ty.dtype) != "int32" else place
        self.count = bind("count", at(product.block[1], self.outer))
        per = max(1, tile.depth // self.padded_columns)
        each = max(1, self.padded_columns // tile.depth)
        steps = bind("steps", tirx.truncdiv(self.count + (per - 1), tirx.const(per, str(self.count.ty.dtype))) * each)
        wide = self._is_wide()

        with T.grid(self.warp.rows, self.warp.columns) as (i, j):
            with T.sblock("fill"):
                vi = T.axis.spatial(self.warp.rows, i)
                vj = T.axis.spatial(self.warp.columns, j)
                T.buffer_store(self.sums, T.float32(0), [vi, vj])

        def fetch(step, stage):
            self._fetch_values(threads, step, stage)
            _choose(
                wide,
                lambda: self._fetch_dense(threads, step, stage, True),
                lambda: self._fetch_dense(threads, step, stage, False),
            )

        pipeline(steps, tile.stages, fetch, self._multiply)
        T.evaluate(T.tvm_storage_sync("shared"))
        warp_row, warp_column = self._warp_place()
        with T.grid(self.warp.rows, self.warp.columns) as (i, j):
            with T.sblock("store"):
                vi = T.axis.spatial(self.warp.rows, i)
                vj = T.axis.spatial(self.warp.columns, j)
                T.buffer_store(self.c, tirx.BufferLoad(self.sums, [vi, vj]), [warp_row + vi, warp_column + vj])
        T.evaluate(T.tvm_storage_sync("shared"))
        self._write(threads, wide)

    def _warp_place(self):
        down, across = self.warps
        return tirx.truncdiv(self.vwarp, across) * self.warp.rows, tirx.truncmod(self.vwarp, across) * self.warp.columns

    def _is_wide(self):
        lanes = self._lanes()
        features = self.product.feature[1]
        if isinstance(features, tirx.IntImm):
            return int(features) % lanes == 0
        return tirx.truncmod(features, tirx.const(lanes, str(features.ty.dtype))) == tirx.const(0, str(features.ty.dtype))

    def _lanes(self):
        return chunk_lanes(self.product.dtype)

    def _entry(self, step: Expr, k: Expr):
        """Block and column of the k-th entry of a step, both in range, and whether there is such."""
        product, tile = self.product, self.tile
        padded = self.padded_columns
        conditions = []
        kind = str(self.count.ty.dtype)
        if padded <= tile.depth:
            per = tile.depth // padded
            block = step * per + _as(tirx.truncdiv(k, padded), kind) if per > 1 else step
            column = tirx.truncmod(k, padded)
            if per > 1:
                conditions.append(block < self.count)
                block = tirx.min(block, self.count - 1)
        else:
            each = padded // tile.depth
            block = tirx.truncdiv(step, tirx.const(each, kind))
            column = _int32(tirx.truncmod(step, tirx.const(each, kind))) * tile.depth + k
        if padded != product.columns:
            conditions.append(column < product.columns)
            column = tirx.min(column, product.columns - 1)
        return {product.block[0]: block, product.column[0]: column}, conditions

    def _fetch_values(self, threads: Threads, step, stage) -> None:
        product, tile = self.product, self.tile
        lines, length = (tile.depth, tile.rows) if product.by_columns else (tile.rows, tile.depth)
        lanes = chunk_lanes(product.dtype, product.rows if product.by_columns else product.columns)

        def copy(piece):
            line, first = tirx.truncdiv(piece, length // lanes), tirx.truncmod(piece, length // lanes) * lanes
            k, row = (line, first) if product.by_columns else (first, line)
            places, conditions = self._entry(step, k)
            row = self.first_row + row
            if product.rows % tile.rows:
                conditions.append(row < product.rows)
                row = tirx.min(row, product.rows - lanes if product.by_columns else product.rows - 1)
            index = at(product.values.load.indices[0], {**self.outer, **places, product.row[0]: row})
            copy_chunk(self.a, [stage, line, first], product.values.load.source, index, lanes, conjunction(conditions), tile.async_copy)

        threads.share(lines * length // lanes, copy)

    def _fetch_dense(self, threads: Threads, step, stage, wide: bool) -> None:
        product, tile = self.product, self.tile
        lanes = self._lanes()
        chunks = tile.features // lanes

        def copy(piece):
            k, first = tirx.truncdiv(piece, chunks), tirx.truncmod(piece, chunks) * lanes
            places, conditions = self._entry(step, k)
            values = {**self.outer, **places}
            conditions += [at(c, values) for c in product.entry_conditions]
            feature = self.first_feature + _int64(first)
            extent = _int64(product.feature[1])
            if wide:
                index = at(product.dense.load.indices[0], {**values, product.feature[0]: feature})
                copy_chunk(self.b, [stage, k, first], product.dense.load.source, index, lanes, conjunction([*conditions, feature < extent]), tile.async_copy)
                return
            with loop("f", T.serial(lanes)) as f:
                place = feature + _int64(f)
                index = at(product.dense.load.indices[0], {**values, product.feature[0]: place})
                valid = conjunction([*conditions, place < extent])
                value = tirx.if_then_else(valid, tirx.BufferLoad(product.dense.load.source, [index]), tirx.const(0, product.dtype))
                T.buffer_store(self.b, value, [stage, k, first + f])

        threads.share(tile.depth * chunks, copy)

    def _multiply(self, stage) -> None:
        product, tile, warp = self.product, self.tile, self.warp
        depth = warp.shape.depth
        warp_row, warp_column = self._warp_place()
        with T.sblock("step"):
            vstage = _axis("vstage", T.axis.opaque(tile.stages, stage))
            with loop("part", T.unroll(tile.depth // depth)) as part:
                with T.grid(warp.rows, warp.columns, depth) as (i, j, k):
                    with T.sblock("multiply"):
                        vi = T.axis.spatial(warp.rows, i)
                        vj = T.axis.spatial(warp.columns, j)
                        vk = T.axis.reduce(tile.depth, part * depth + k)
                        a_place = [warp_row + vi, vk]
                        if product.by_columns:
                            a_place.reverse()
                        a = tirx.Cast("float32", tirx.BufferLoad(self.a, [vstage, *a_place]))
                        b = tirx.Cast("float32", tirx.BufferLoad(self.b, [vstage, vk, warp_column + vj]))
                        T.buffer_store(self.sums, tirx.BufferLoad(self.sums, [vi, vj]) + a * b, [vi, vj])

    def _write(self, threads: Threads, wide) -> None:
        product, tile = self.product, self.tile
        out = str(product.nest.result.ty.dtype)
        lanes = chunk_lanes(out)
        chunks = tile.features // lanes

        def write(piece):
            row, first = tirx.truncdiv(piece, chunks), tirx.truncmod(piece, chunks) * lanes
            feature = self.first_feature + _int64(first)
            extent = _int64(product.feature[1])
            block_row = self.first_row + row
            values = {**self.outer, product.row[0]: block_row}
            conditions = [feature < extent, *(at(c, values) for c in product.row_conditions)]
            if product.rows % tile.rows:
                conditions.append(block_row < product.rows)

            def store(lane, total):
                here = {**values, product.feature[0]: feature + _int64(lane)}
                T.buffer_store(
                    product.nest.result, at(product.nest.init, here) + total, [at(product.nest.index, here)]
                )

            def scalars(total_of):
                with loop("f", T.serial(lanes)) as f, when(feature + _int64(f) < extent):
                    store(f, total_of(f))

            def held(lane):
                return tirx.BufferLoad(self.held, [lane])

            def vector():
                with loop("f", T.vectorized(lanes)) as f:
                    store(f, held(f))

            with when(conjunction(conditions)):
                with loop("f", T.vectorized(lanes)) as f:
                    T.buffer_store(self.held, tirx.BufferLoad(self.c, [row, first + f]), [f])
                with T.If(tirx.isnan(_sum([held(lane) for lane in range(lanes)]))):
                    with T.Then():
                        scalars(lambda f: self._exact(feature + _int64(f), values))
                    with T.Else():
                        _choose(wide, vector, lambda: scalars(held))

        threads.share(tile.rows * chunks, write, unroll=False)

    def _exact(self, feature, values) -> Expr:
        """Add up without padding, which a factor that is no number, or infinite, makes no number."""
        product = self.product
        T.buffer_store(self.exact, T.float32(0), [0])
        with (
            loop("block", T.serial(self.count)) as block,
            loop("column", T.serial(product.columns)) as column,
        ):
            here = {
                **values,
                product.block[0]: block,
                product.column[0]: column,
                product.feature[0]: feature,
            }
            tests = [at(c, here) for c in (*product.nest.conditions, *product.dense.conditions)]
            with when(conjunction(tests)):
                a, b = (
                    tirx.Cast("float32", at(factor.load, here))
                    for factor in (product.values, product.dense)
                )
                T.buffer_store(self.exact, tirx.BufferLoad(self.exact, [0]) + a * b, [0])
        return tirx.BufferLoad(self.exact, [0])

    def tensorize(self, sch: s_tir.Schedule) -> None:
        for block, intrinsic, loops in (("fill", self.warp.fill, 2), ("multiply", self.warp.multiply, 3), ("store", self.warp.store, 2)):
            sch.tensorize(sch.get_loops(sch.get_sblock(block))[-loops], intrinsic)


def _buffers(product: BlockProduct) -> list[Var]:
    """The global buffers that are read."""
    import tvm_ffi
    from tvm.ir import TensorLoad

    found = {}

    def note(load):
        found.setdefault(load.source, load.source)

    for expr in (product.block[1], product.values.load, product.dense.load, product.nest.index, product.nest.init, *product.nest.conditions, *product.dense.conditions):
        tvm_ffi.structural_walk(expr, (TensorLoad, note))
    return list(found)


def _all(buffer: Var):
    return buffer[tuple(slice(0, size) for size in buffer.ty.shape)]


def _strides(shape, pad):
    return [shape[0] * (shape[1] + pad), shape[1] + pad, 1]


def _choose(condition, yes, no):
    if isinstance(condition, bool):
        (yes if condition else no)()
        return
    with T.If(condition):
        with T.Then():
            yes()
        with T.Else():
            no()


def _sum(values):
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def _named(name, value):
    return IRBuilder.name(name, value)


_axis = _named


def _as(value, dtype):
    return value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)


def _int32(value: Expr) -> Expr:
    return tirx.Cast("int32", value) if str(value.ty.dtype) != "int32" else value


def _int64(value: Expr) -> Expr:
    return tirx.Cast("int64", value) if str(value.ty.dtype) != "int64" else value


def _product(values):
    total = values[0]
    for value in values[1:]:
        total = total * value
    return total

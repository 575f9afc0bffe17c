"""Other tile sizes than the defaults, by which CUDA kernels are compared on a GPU.

In: a kernel of :mod:`benchmarks.cuda_kernels`. Out: fields of the tile that its schedule takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from tvm_sparse.schedules.cuda import DotTile, RowTile, vector_width
from tvm_sparse.schedules.cuda.block_tiles import BlockTile, DotBlockTile

if TYPE_CHECKING:
    from .cuda_kernels import KernelCase

__all__ = ["block_dot_tiles", "block_tiles", "dot_tiles", "lane_tiles", "no_tiles", "row_tiles"]

Tiles = Iterator[dict[str, int]]


def no_tiles(case: KernelCase) -> Tiles:
    """Yield nothing: only the default is measured."""
    yield from ()


def lane_tiles(case: KernelCase) -> Tiles:
    """Yield other numbers of lanes that share a row."""
    for lanes in (1, 2, 4, 16, 32):
        yield asdict(RowTile(1, lanes, 1, 256 // lanes))


def row_tiles(case: KernelCase) -> Tiles:
    """Yield other numbers of vectors of a thread, and of threads of a block."""
    bits = 8 * case.value_bytes
    default, vector = RowTile.of_width(case.features, bits), vector_width(case.features, bits)
    for vectors in (1, 2, 4):
        lanes = -(-case.features // (vector * vectors))
        if 1 <= lanes <= 32:
            for threads in (128, 256, 512):
                tile = RowTile(vector, lanes, vectors, max(1, threads // lanes))
                if tile != default:
                    yield asdict(tile)


def dot_tiles(case: KernelCase) -> Tiles:
    """Yield other numbers of lanes of a dot product, and of dot products of a thread block."""
    bits = 8 * case.value_bytes
    default, vector = DotTile.of_width(case.features, bits), vector_width(case.features, bits)
    for lanes in (4, 8, 16, 32):
        vectors = case.features // (vector * lanes)
        if 1 <= vectors <= 8:
            for threads, entries in ((128, 8), (256, 4), (256, 8), (256, 16)):
                tile = DotTile(vector, lanes, vectors, threads // lanes, entries)
                if tile != default:
                    yield asdict(tile)


def block_tiles(case: KernelCase) -> Tiles:
    """Yield other tiles of a product with blocks on tensor cores; none where CUDA cores multiply."""
    if not case.tensor_cores:
        return
    default = BlockTile.default(case.block, case.features, case.dtype)
    for changed in (
        {"stages": 2},
        {"stages": 4},
        {"depth": 2 * default.depth},
        {"warps": 2 * default.warps},
        {"features": default.features // 2},
        {"features": 2 * default.features, "warps": 2 * default.warps},
    ):
        yield asdict(replace(default, **changed))


def block_dot_tiles(case: KernelCase) -> Tiles:
    """Yield other tiles of dot products at blocks on tensor cores."""
    if not case.tensor_cores:
        return
    default = DotBlockTile.default(case.block, case.dtype)
    for changed in ({"stages": 2}, {"stages": 4}, {"depth": 2 * default.depth}):
        yield asdict(replace(default, **changed))

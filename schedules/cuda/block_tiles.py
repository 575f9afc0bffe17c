"""Sizes of the tiles that tensor cores multiply, and their defaults."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import DataType

from .tensor_cores import fragment_shape

__all__ = ["BlockTile", "DotBlockTile", "BlockRowsTile"]

#: Features of a tile where their number is symbolic.
_FEATURES = 64
_MOST_FEATURES = 128
_MOST_ROWS = 64
_MOST_WARPS = 4
#: Sums of a thread, which stay in registers, and features that it loads together.
_ACCUMULATORS = 32
_WIDEST = 4
#: Bytes of a staged row of entries.
_DEPTH_BYTES = 64


@dataclass(frozen=True)
class BlockTile:
    """What a thread block computes of a product with blocks of entries.

    Parameters
    ----------
    rows : int
        Rows, all or a part of those of a block of entries.
    features : int
        Features.
    depth : int
        Entries of each row that are staged in shared memory together.
    warps : int
        Warps; they share the features first, then the rows.
    stages : int
        Buffers in shared memory, two or more: all but one are filled while one is multiplied.
    async_copy : bool
        Copy to shared memory without registers in between (``cp.async``).
    """

    rows: int
    features: int
    depth: int
    warps: int
    stages: int = 3
    async_copy: bool = True

    @staticmethod
    def default(
        block: tuple[int, int], features: int | None = None, dtype: str = "float16"
    ) -> BlockTile:
        """Return the tile for blocks of a size.

        Parameters
        ----------
        block : tuple of int
            Rows and columns of a block of entries.
        features : int, optional
            Feature width, if it is known.
        dtype : str
            Of the operands.

        Examples
        --------
        >>> from tvm_sparse.schedules.cuda.block_tiles import BlockTile
        >>> BlockTile.default((16, 16), 128)
        BlockTile(rows=16, features=128, depth=32, warps=4, stages=3, async_copy=True)
        """
        shape = fragment_shape(dtype, block[0])
        rows = min(_round_up(block[0], shape.rows), _MOST_ROWS)
        wanted = _FEATURES if features is None else min(_power_of_two(features), _MOST_FEATURES)
        wide = max(wanted, shape.columns)
        fragments = (rows // shape.rows) * (wide // shape.columns)
        warps = max(1, min(_MOST_WARPS, fragments // 2))
        depth = max(shape.depth, _DEPTH_BYTES // _bytes(dtype))
        return BlockTile(rows, wide, depth, warps)


@dataclass(frozen=True)
class BlockRowsTile:
    """What a warp computes of a product with blocks of entries on CUDA cores.

    Parameters
    ----------
    rows : int
        Rows, all or a part of those of a block of entries.
    lanes : int
        Features of each thread, loaded together.
    warps : int
        Warps of a thread block; each has rows of its own.
    """

    rows: int
    lanes: int
    warps: int = 4

    @staticmethod
    def default(
        block: tuple[int, int], features: int | None = None, dtype: str = "float32"
    ) -> BlockRowsTile:
        """Return the tile for blocks of a size.

        Parameters
        ----------
        block : tuple of int
            Rows and columns of a block of entries.
        features : int, optional
            Feature width, if it is known.
        dtype : str
            Of the operands.

        Examples
        --------
        >>> from tvm_sparse.schedules.cuda.block_tiles import BlockRowsTile
        >>> BlockRowsTile.default((4, 4), 128)
        BlockRowsTile(rows=4, lanes=4, warps=4)
        """
        widest = max(1, min(_WIDEST, 16 // _bytes(dtype)))
        wanted = _FEATURES if features is None else features
        lanes = min(widest, _power_of_two(-(-wanted // 32)))
        rows = next(size for size in range(_ACCUMULATORS // lanes, 0, -1) if block[0] % size == 0)
        return BlockRowsTile(rows, lanes)


@dataclass(frozen=True)
class DotBlockTile:
    """What a thread block computes of dot products at blocks of entries.

    Parameters
    ----------
    blocks : int
        Stored blocks.
    depth : int
        Features that are staged in shared memory together.
    warps : int
        Warps, a multiple of `blocks`; they share the columns of a block first, then the rows.
    stages : int
        Buffers in shared memory, two or more.
    async_copy : bool
        Copy to shared memory without registers in between.
    """

    blocks: int
    depth: int
    warps: int
    stages: int = 3
    async_copy: bool = True

    @staticmethod
    def default(block: tuple[int, int], dtype: str = "float16") -> DotBlockTile:
        """Return the tile for blocks of a size.

        Parameters
        ----------
        block : tuple of int
            Rows and columns of a block of entries.
        dtype : str
            Of the operands.

        Examples
        --------
        >>> from tvm_sparse.schedules.cuda.block_tiles import DotBlockTile
        >>> DotBlockTile.default((16, 16)), DotBlockTile.default((64, 64)).blocks
        (DotBlockTile(blocks=4, depth=32, warps=4, stages=3, async_copy=True), 1)
        """
        shape = fragment_shape(dtype, 16)
        fragments = -(-block[0] // shape.rows) * -(-block[1] // shape.columns)
        each = max(1, min(_MOST_WARPS, fragments // 2))
        each = 1 << (each.bit_length() - 1)
        depth = max(shape.depth, _DEPTH_BYTES // _bytes(dtype))
        return DotBlockTile(_MOST_WARPS // each, depth, _MOST_WARPS)


def _power_of_two(number: int) -> int:
    """The least power of two that is no less than a number."""
    return 1 << max(0, number - 1).bit_length()


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _bytes(dtype: str) -> int:
    return DataType(dtype).bits // 8

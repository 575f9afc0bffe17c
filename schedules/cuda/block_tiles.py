"""Sizes of the tiles that tensor cores multiply, and their defaults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from tvm import DataType

from .fragments import WARP, fragment_shape
from .tiles import check_sizes

__all__ = [
    "BlockRowsTile",
    "BlockTile",
    "DotBlockTile",
    "arrange_warps",
    "check_tensor_tile",
    "round_up",
    "thread_tile",
]

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

    Raises
    ------
    ValueError
        If a size is not positive.
    """

    rows: int
    features: int
    depth: int
    warps: int
    stages: int = 3
    async_copy: bool = True

    def __post_init__(self) -> None:
        check_sizes(self, "rows", "features", "depth", "warps")
        _check_stages(self.stages)

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
        rows = min(round_up(block[0], shape.rows), _MOST_ROWS)
        wanted = _FEATURES if features is None else min(_power_of_two(features), _MOST_FEATURES)
        wide = max(wanted, shape.columns)
        counts = rows // shape.rows, wide // shape.columns
        warps = max(1, min(_MOST_WARPS, counts[0] * counts[1] // 2))
        while arrange_warps(warps, *counts) is None:
            warps -= 1
        depth = max(shape.depth, _DEPTH_BYTES // _bytes(dtype))
        return BlockTile(rows, wide, depth, warps)

    @staticmethod
    def candidates(
        block: tuple[int, int], features: int | None = None, dtype: str = "float16"
    ) -> list[BlockTile]:
        """Return tiles that are worth being measured, the default first; parameters as its.

        Examples
        --------
        >>> from tvm_sparse.schedules.cuda.block_tiles import BlockTile
        >>> len(BlockTile.candidates((16, 16), 64)), len(BlockTile.candidates((64, 64), 128))
        (30, 48)
        """
        default = BlockTile.default(block, features, dtype)
        shape = fragment_shape(dtype, block[0])
        found = [default]
        for wide in (default.features // 2, default.features):
            counts = default.rows // shape.rows, wide // shape.columns
            for warps, depth, stages in product((1, 2, 4, 8), (1, 2), (2, 3, 4)):
                tile = BlockTile(default.rows, max(1, wide), depth * default.depth, warps, stages)
                if (
                    wide % shape.columns == 0
                    and arrange_warps(warps, *counts)
                    and tile not in found
                ):
                    found.append(tile)
        return found


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

    Raises
    ------
    ValueError
        If a size is not positive.
    """

    rows: int
    lanes: int
    warps: int = 4

    def __post_init__(self) -> None:
        check_sizes(self, "rows", "lanes", "warps")

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
        widest = 1 if dtype == "bool" else max(1, min(_WIDEST, 16 // _bytes(dtype)))
        wanted = _FEATURES if features is None else features
        lanes = min(widest, _power_of_two(-(-wanted // 32)))
        rows = next(size for size in range(_ACCUMULATORS // lanes, 0, -1) if block[0] % size == 0)
        return BlockRowsTile(rows, lanes)


@dataclass(frozen=True)
class DotBlockTile:
    """What a thread block computes of dot products at blocks of entries.

    Parameters
    ----------
    rows, columns : int
        A part of a stored block, or all of it and what makes it fit to fragments of tensor cores.
    parts : int
        Parts of a thread block, neighbours.
    depth : int
        Features that are staged in shared memory together.
    warps : int
        Warps, a multiple of `parts`; they share the columns of a part first, then the rows.
    stages : int
        Buffers in shared memory, two or more.
    async_copy : bool
        Copy to shared memory without registers in between.
    tensor_cores : bool
        Multiply on tensor cores, which round float32 to tf32; otherwise on CUDA cores, where each thread
        computes a few rows and columns of a part, and threads must be enough for all parts.

    Raises
    ------
    ValueError
        If a size is not positive.
    """

    rows: int
    columns: int
    parts: int
    depth: int
    warps: int
    stages: int = 3
    async_copy: bool = True
    tensor_cores: bool = True

    def __post_init__(self) -> None:
        check_sizes(self, "rows", "columns", "parts", "depth", "warps")
        _check_stages(self.stages)

    @staticmethod
    def default(
        block: tuple[int, int], dtype: str = "float16", tensor_cores: bool = True
    ) -> DotBlockTile:
        """Return the tile for blocks of a size.

        Parameters
        ----------
        block : tuple of int
            Rows and columns of a block of entries.
        dtype : str
            Of the operands.
        tensor_cores : bool
            Whether tensor cores multiply.

        Examples
        --------
        >>> from tvm_sparse.schedules.cuda.block_tiles import DotBlockTile
        >>> DotBlockTile.default((16, 16))
        DotBlockTile(rows=16, columns=16, parts=4, depth=32, warps=4, stages=3, async_copy=True, \
tensor_cores=True)
        """
        depth = max(1, _DEPTH_BYTES // _bytes(dtype))
        if not tensor_cores:
            sizes = [min(round_up(size, thread_tile(size)), _MOST_ROWS) for size in block]
            threads = (sizes[0] // thread_tile(sizes[0])) * (sizes[1] // thread_tile(sizes[1]))
            warps = max(_MOST_WARPS, -(-threads // WARP))
            return DotBlockTile(*sizes, warps * WARP // threads, depth, warps, tensor_cores=False)
        shape = fragment_shape(dtype, block[0])
        rows = min(round_up(block[0], shape.rows), _MOST_ROWS)
        columns = min(round_up(block[1], shape.columns), _MOST_ROWS)
        counts = rows // shape.rows, columns // shape.columns
        each = max(1, min(_MOST_WARPS, counts[0] * counts[1] // 2))
        while _MOST_WARPS % each or arrange_warps(each, *counts) is None:
            each -= 1
        return DotBlockTile(
            rows, columns, _MOST_WARPS // each, max(shape.depth, depth), _MOST_WARPS
        )

    @staticmethod
    def candidates(block: tuple[int, int], dtype: str = "float16") -> list[DotBlockTile]:
        """Return tiles of tensor cores that are worth being measured, the default first.

        Examples
        --------
        >>> from tvm_sparse.schedules.cuda.block_tiles import DotBlockTile
        >>> len(DotBlockTile.candidates((16, 16)))
        16
        """
        default = DotBlockTile.default(block, dtype)
        return [default, *(tile for tile in _split_of(default) if tile != default)]


def _split_of(default: DotBlockTile) -> list[DotBlockTile]:
    """Tiles with other numbers of parts, depths and stages."""
    each = default.warps // default.parts
    return [
        replace(
            default, parts=parts, warps=parts * each, depth=depth * default.depth, stages=stages
        )
        for parts, depth, stages in product((1, 2, 4, 8), (1, 2), (2, 3))
        if parts * each <= 8
    ]


def check_tensor_tile(
    dtype: str, rows: int, columns: int, depth: int, warps: int, sum_dtype: str, same_dtype: bool
) -> tuple[int, int]:
    """Return how warps share a tile on tensor cores; see :func:`arrange_warps`.

    Parameters
    ----------
    dtype : str
        Of the operands, if `same_dtype`.
    rows, columns, depth, warps : int
        The tile.
    sum_dtype : str
        In which the program adds up.
    same_dtype : bool
        Whether both operands have the same dtype.

    Raises
    ------
    ValueError
        If tensor cores do not multiply the dtypes, or the tile does not consist of fragments.
    """
    if not same_dtype or sum_dtype != "float32":
        raise ValueError(
            f"tile: expected operands of one dtype and sums in float32 for tensor cores, found {dtype} and "
            f"sums in {sum_dtype}"
        )
    shape = fragment_shape(dtype, rows)
    for name, size, least in (
        ("rows", rows, shape.rows),
        ("columns or features", columns, shape.columns),
        ("depth", depth, shape.depth),
    ):
        if size % least:
            raise ValueError(
                f"tile: expected a multiple of {least} {name} for {dtype}, found {size}"
            )
    counts = rows // shape.rows, columns // shape.columns
    arranged = arrange_warps(warps, *counts)
    if arranged is None:
        raise ValueError(
            f"tile: expected warps that share {counts[0]} x {counts[1]} fragments, found {warps}"
        )
    return arranged


def arrange_warps(warps: int, down: int, across: int) -> tuple[int, int] | None:
    """Return how many warps share the rows and the columns of a tile, None where they cannot.

    Parameters
    ----------
    warps : int
        Their number.
    down, across : int
        Fragments of the tile.

    Examples
    --------
    >>> from tvm_sparse.schedules.cuda.block_tiles import arrange_warps
    >>> arrange_warps(4, 2, 2), arrange_warps(4, 3, 4), arrange_warps(4, 3, 2)
    ((2, 2), (1, 4), None)
    """
    for abreast in range(min(warps, across), 0, -1):
        if warps % abreast == 0 and across % abreast == 0 and down % (warps // abreast) == 0:
            return warps // abreast, abreast
    return None


def _check_stages(stages: int) -> None:
    if isinstance(stages, bool) or not isinstance(stages, int) or stages < 2:
        raise ValueError(f"stages: expected two or more, found {stages!r}")


def _power_of_two(number: int) -> int:
    """The least power of two that is no less than a number."""
    return 1 << max(0, number - 1).bit_length()


def thread_tile(size: int) -> int:
    """Return how many rows or columns of a block of a size a thread computes on CUDA cores."""
    return 4 if size >= 32 else 2 if size >= 8 else 1


def round_up(number: int, multiple: int) -> int:
    """Return the least multiple that is no less than a number."""
    return -(-number // multiple) * multiple


def _bytes(dtype: str) -> int:
    return DataType(dtype).bits // 8

"""The CUDA kernels of the package, each with a name: what the report, the tests and the GPU kit go over.

In: nothing, or limits on operators, widths and types. Out: :class:`KernelCase` objects, whose ``build``
gives the scheduled module that the package itself would compile. A kernel with default tile sizes is a
*default*; the grid of other tile sizes is what the GPU kit measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import tvm
from tvm.target import Target

from tvm_sparse import schedules
from tvm_sparse.formats import BSR, SRBCRS, Hyb
from tvm_sparse.schedules._build import scheduled, scheduled_parts
from tvm_sparse.schedules.cuda import DotTile, RowTile, block_tiles, vector_width
from tvm_sparse.schedules.cuda.block_tiles import BlockTile

__all__ = [
    "DTYPES",
    "FEATURES",
    "INDEX_DTYPES",
    "KernelCase",
    "default_kernels",
    "find_kernel",
    "tile_grid",
]

FEATURES = (1, 17, 32, 64, 100, 128, 256)
DTYPES = ("float32", "float16", "bfloat16")
INDEX_DTYPES = ("int32", "int64")
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8}

#: Widths and dtypes that the GPU kit measures.
_ROW_GRID = ((32, 64, 128, 256), ("float32",))
_BLOCK_GRID = ((128, 512), DTYPES)
_ON_BLOCKS = ("bsr_spmm", "srbcrs_spmm", "bsr_sddmm")
_HYB_WIDTHS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class KernelCase:
    """One kernel to be compiled.

    Parameters
    ----------
    operator, variant : str
        Such as ``"spmm"`` and ``"hyb"``.
    dtype, index_dtype : str
        Of values and of indices.
    features : int or None
        Width of the dense operands; None where there is none.
    tile : tuple of (str, int)
        Tile sizes that differ from the defaults.
    formats : object
        The format that the sparse operand is packed in; None for plain index arrays.
    wide_loads, tensor_cores : bool
        Claims: that it has 128-bit loads, and matrix instructions.
    bounded : bool
        Whether the inner loop is compared with the operation's minimum.
    """

    operator: str
    variant: str
    dtype: str
    index_dtype: str
    features: int | None = None
    tile: tuple[tuple[str, int], ...] = ()
    formats: Any = field(default=None, compare=False)
    wide_loads: bool = False
    tensor_cores: bool = False
    bounded: bool = False

    @property
    def name(self) -> str:
        """A name that no other case has."""
        parts = [self.operator, self.variant]
        parts += [] if self.features is None else [f"f{self.features}"]
        parts += [self.dtype, self.index_dtype, *(f"{key}={value}" for key, value in self.tile)]
        return "/".join(parts)

    @property
    def is_default(self) -> bool:
        """Whether all tile sizes are the defaults."""
        return not self.tile

    @property
    def value_bytes(self) -> int:
        """Size of a value."""
        return ITEM_BYTES[self.dtype]

    @property
    def index_bytes(self) -> int:
        """Size of an index."""
        return ITEM_BYTES[self.index_dtype]

    def build(self) -> tvm.IRModule:
        """Return the scheduled module, of stage III."""
        return _BUILDERS[self.operator, self.variant](self)


def default_kernels(
    operators: Sequence[str] | None = None,
    features: Sequence[int] = FEATURES,
    dtypes: Sequence[str] = DTYPES,
    index_dtypes: Sequence[str] = INDEX_DTYPES,
) -> list[KernelCase]:
    """Return every kernel with default tile sizes, of some or all operators, widths and types.

    Examples
    --------
    >>> [case.name for case in default_kernels(["spmm"], [64], ["float32"], ["int32"])][-1]
    'spmm/hyb/f64/float32/int32'
    """
    found = []
    for operator, variants in _VARIANTS.items():
        if operators is None or operator in operators:
            for variant in variants:
                found += _cases(operator, variant, features, dtypes, index_dtypes)
    return found


def tile_grid(operators: Sequence[str] | None = None) -> list[KernelCase]:
    """Return the kernels that the GPU kit measures: defaults, each followed by other tile sizes.

    Operators on rows in float32, those on tensor cores in float16, bfloat16 and tf32.
    """
    found = []
    for operator in _VARIANTS if operators is None else operators:
        on_blocks = operator in _ON_BLOCKS
        widths, dtypes = _BLOCK_GRID if on_blocks else _ROW_GRID
        for case in default_kernels([operator], widths, dtypes, ["int32"]):
            found.append(case)
            tiles = _GRIDS[case.operator, case.variant](case)
            found += [replace(case, tile=tuple(tile.items())) for tile in tiles]
    return found


def find_kernel(name: str) -> KernelCase:
    """Return the case of a name, among the defaults and the grid.

    Raises
    ------
    KeyError
        If there is none.
    """
    for case in [*default_kernels(), *tile_grid()]:
        if case.name == name:
            return case
    raise KeyError(f"no CUDA kernel is called {name!r}")


def _cases(
    operator: str,
    variant: str,
    features: Sequence[int],
    dtypes: Sequence[str],
    index_dtypes: Sequence[str],
) -> Iterator[KernelCase]:
    fixed = _VARIANTS[operator][variant]
    for dtype in dtypes:
        for index_dtype in index_dtypes:
            for width in features if operator in _HAS_FEATURES else [None]:
                own = fixed(width, width is not None and width * ITEM_BYTES[dtype] % 16 == 0)
                yield KernelCase(operator, variant, dtype, index_dtype, width, **own)


# From a case to its module


def _rows(case: KernelCase) -> tvm.IRModule:
    """Schedule an operator on a matrix in CSR."""
    operator = {"segment_sum": "segment_reduce"}.get(case.operator, case.operator)
    program = getattr(schedules, operator).program(dtype=case.dtype, index_dtype=case.index_dtype)
    return scheduled(f"schedules.{operator}", program, _TARGET, case.features, tile=_tile(case)).mod


def _parts(case: KernelCase) -> tvm.IRModule:
    """Schedule an operator on a matrix in a format."""
    is_dot = case.operator.endswith("sddmm")
    program = getattr(schedules, "sddmm" if is_dot else "spmm").program(
        case.dtype, case.index_dtype
    )
    module = {"spmm": "parts", "bsr_sddmm": "sddmm_blocks"}.get(case.operator, "blocks")
    operand = "C" if is_dot else "A"
    return scheduled_parts(
        module, program, operand, case.formats, _TARGET, case.features, tile=_tile(case)
    ).mod


def _tile(case: KernelCase) -> Any:
    """Return the tile sizes of a case; None for the default."""
    return _TILES.get(case.operator, RowTile)(**dict(case.tile)) if case.tile else None


# Other tile sizes


def _row_tiles(case: KernelCase) -> Iterator[dict[str, int]]:
    """Yield other numbers of vectors of a thread, and of threads of a block."""
    default = RowTile.of_width(case.features, 8 * case.value_bytes)
    vector = vector_width(case.features, 8 * case.value_bytes)
    for vectors in (1, 2, 4):
        lanes = -(-case.features // (vector * vectors))
        if 1 <= lanes <= 32:
            for threads in (128, 256, 512):
                tile = RowTile(vector, lanes, vectors, max(1, threads // lanes))
                if tile != default:
                    yield asdict(tile)


def _dot_tiles(case: KernelCase) -> Iterator[dict[str, int]]:
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


def _lane_tiles(case: KernelCase) -> Iterator[dict[str, int]]:
    """Yield other numbers of lanes that share a row."""
    for lanes in (1, 2, 4, 16, 32):
        yield asdict(RowTile(1, lanes, 1, 256 // lanes))


def _block_tiles(case: KernelCase) -> Iterator[dict[str, int]]:
    """Yield other tiles of a product with blocks on tensor cores."""
    shape = _block_shape(case.formats)
    default = BlockTile.default(shape, case.features, case.dtype)
    for changed in (
        {"stages": 2},
        {"stages": 4},
        {"depth": 2 * default.depth},
        {"warps": 2 * default.warps},
        {"features": default.features // 2},
        {"features": 2 * default.features, "warps": 2 * default.warps},
    ):
        yield asdict(replace(default, **changed))


def _block_dot_tiles(case: KernelCase) -> Iterator[dict[str, int]]:
    """Yield other tiles of dot products at blocks on tensor cores."""
    default = block_tiles.DotTile.default(_block_shape(case.formats), case.dtype)
    for changed in ({"stages": 2}, {"stages": 4}, {"depth": 2 * default.depth}):
        yield asdict(replace(default, **changed))


def _block_shape(formats: BSR | SRBCRS) -> tuple[int, int]:
    if isinstance(formats, BSR):
        return formats.rows, formats.columns
    return formats.t, formats.g


def _blocks(block: int) -> Callable[[int | None, bool], Mapping[str, Any]]:
    """Return what kernels on blocks of a size have in common."""
    return lambda width, wide: {
        "formats": BSR(block, block),
        "wide_loads": wide,
        "tensor_cores": True,
    }


_TILES: dict[str, Callable[..., Any]] = {
    "sddmm": DotTile,
    "bsr_spmm": BlockTile,
    "srbcrs_spmm": BlockTile,
    "bsr_sddmm": block_tiles.DotTile,
}
_TARGET = Target({"kind": "cuda", "arch": "sm_80"})
_HAS_FEATURES = ("spmm", "sddmm", "segment_sum", "bsr_spmm", "srbcrs_spmm", "bsr_sddmm")
_VARIANTS: dict[str, dict[str, Callable[[int | None, bool], Mapping[str, Any]]]] = {
    "spmv": {"csr": lambda width, wide: {}},
    "spmm": {
        "csr": lambda width, wide: {"wide_loads": wide, "bounded": wide and width % 32 == 0},
        "hyb": lambda width, wide: {
            "formats": Hyb(1, _HYB_WIDTHS),
            "wide_loads": wide,
            "bounded": wide and width % 32 == 0,
        },
    },
    "sddmm": {"csr": lambda width, wide: {"wide_loads": wide, "bounded": wide and width % 32 == 0}},
    "segment_sum": {"csr": lambda width, wide: {"wide_loads": wide}},
    "bsr_spmm": {f"bsr{block}": _blocks(block) for block in (16, 32, 64)},
    "srbcrs_spmm": {
        "srbcrs8x32": lambda width, wide: {"formats": SRBCRS(8, 32), "tensor_cores": True},
    },
    "bsr_sddmm": {f"bsr{block}": _blocks(block) for block in (16, 32)},
}
_BUILDERS: dict[tuple[str, str], Callable[[KernelCase], tvm.IRModule]] = {
    ("spmv", "csr"): _rows,
    ("spmm", "csr"): _rows,
    ("spmm", "hyb"): _parts,
    ("sddmm", "csr"): _rows,
    ("segment_sum", "csr"): _rows,
    **{("bsr_spmm", f"bsr{block}"): _parts for block in (16, 32, 64)},
    ("srbcrs_spmm", "srbcrs8x32"): _parts,
    **{("bsr_sddmm", f"bsr{block}"): _parts for block in (16, 32)},
}
_GRIDS: dict[tuple[str, str], Callable[[KernelCase], Iterator[dict[str, int]]]] = {
    ("spmv", "csr"): _lane_tiles,
    ("spmm", "csr"): _row_tiles,
    ("spmm", "hyb"): _row_tiles,
    ("sddmm", "csr"): _dot_tiles,
    ("segment_sum", "csr"): _row_tiles,
    **{("bsr_spmm", f"bsr{block}"): _block_tiles for block in (16, 32, 64)},
    ("srbcrs_spmm", "srbcrs8x32"): _block_tiles,
    **{("bsr_sddmm", f"bsr{block}"): _block_dot_tiles for block in (16, 32)},
}

"""The CUDA kernels of the package, each with a name: what the report, the tests and the GPU kit go over.

In: nothing, or limits on operators, widths and types. Out: :class:`KernelCase` objects, whose ``build``
gives the scheduled module that the package itself would compile. A kernel with default tile sizes is a
*default*; the grid of other tile sizes is what the GPU kit measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
from tvm.target import Target

from tvm_sparse import schedules
from tvm_sparse.formats import BSR, COO, SRBCRS, Hyb
from tvm_sparse.schedules._build import scheduled, scheduled_parts
from tvm_sparse.schedules.cuda import DotTile, RowTile
from tvm_sparse.schedules.cuda.block_tiles import BlockTile, DotBlockTile

from . import cuda_tiles

__all__ = [
    "DTYPES",
    "FEATURES",
    "INDEX_DTYPES",
    "OPERATORS",
    "KernelCase",
    "default_kernels",
    "find_kernel",
    "tile_grid",
]

FEATURES = (1, 17, 32, 64, 100, 128, 256)
DTYPES = ("float32", "float16", "bfloat16")
INDEX_DTYPES = ("int32", "int64")
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8}

_HALVES = ("float16", "bfloat16")
#: Bytes of the widest load.
_WIDEST = 16
#: Widths and dtypes that the GPU kit measures, of operators on rows and on blocks.
_ROW_GRID = ((32, 64, 128, 256), ("float32",))
_BLOCK_GRID = ((128, 512), DTYPES)
_ON_BLOCKS = ("bsr_spmm", "bsr_sddmm", "srbcrs_spmm")
#: Entries and ends of rows that a group of lanes takes where rows are shared.
_SHARE = 256
_HYB = Hyb(1, (1, 2, 4, 8, 16, 32))
_HYB2 = Hyb(2, (1, 2, 4, 8, 16, 32))


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
        Tile sizes, if they are not the defaults.
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

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of a block of its format."""
        if isinstance(self.formats, SRBCRS):
            return self.formats.t, self.formats.g
        return self.formats.rows, self.formats.columns

    def build(self) -> tvm.IRModule:
        """Return the scheduled module, of stage III."""
        return _VARIANTS[self.operator][self.variant].build(self)


def default_kernels(
    operators: Sequence[str] | None = None,
    features: Sequence[int] = FEATURES,
    dtypes: Sequence[str] = DTYPES,
    index_dtypes: Sequence[str] = INDEX_DTYPES,
) -> list[KernelCase]:
    """Return every kernel with default tile sizes, of some or all operators, widths and types.

    Examples
    --------
    >>> [case.name for case in default_kernels(["spmm"], [64], ["float32"], ["int32"])][2]
    'spmm/hyb/f64/float32/int32'
    """
    found = []
    for operator in _VARIANTS if operators is None else operators:
        for name, variant in _VARIANTS[operator].items():
            for dtype in dtypes:
                if dtype in variant.dtypes:
                    widths = features if variant.has_features else [None]
                    found += [
                        _case(operator, name, dtype, index_dtype, width)
                        for index_dtype in index_dtypes
                        for width in widths
                    ]
    return found


def tile_grid(operators: Sequence[str] | None = None) -> list[KernelCase]:
    """Return the kernels that the GPU kit measures: defaults, each followed by other tile sizes.

    Operators on rows in float32, those on blocks in all dtypes.
    """
    found = []
    for operator in _VARIANTS if operators is None else operators:
        widths, dtypes = _BLOCK_GRID if operator in _ON_BLOCKS else _ROW_GRID
        for case in default_kernels([operator], widths, dtypes, ["int32"]):
            measured = _VARIANTS[operator][case.variant].measured
            if measured is not None and case.features not in measured:
                continue
            found.append(case)
            if case.dtype != "bfloat16":  # as fast as float16
                tiles = _VARIANTS[operator][case.variant].tiles(case)
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


@dataclass(frozen=True)
class _Variant:
    """One way to compute an operator.

    Parameters
    ----------
    build : callable
        From a case to its module.
    tiles : callable
        Other tile sizes of a case.
    formats : object
        As in :class:`KernelCase`.
    dtypes, tensor_cores : sequence of str
        Dtypes that there are, and those that tensor cores multiply.
    has_features, bounded : bool
        Whether it has dense operands with a width, and as in :class:`KernelCase`.
    measured : sequence of int, optional
        Widths that the GPU kit measures; by default all of its grid.
    """

    build: Callable[[KernelCase], tvm.IRModule]
    tiles: Callable[[KernelCase], Iterator[dict[str, int]]] = cuda_tiles.no_tiles
    formats: Any = None
    dtypes: Sequence[str] = DTYPES
    tensor_cores: Sequence[str] = ()
    has_features: bool = True
    bounded: bool = False
    measured: Sequence[int] | None = None


def _case(
    operator: str, variant: str, dtype: str, index_dtype: str, features: int | None
) -> KernelCase:
    """Return the case with default tile sizes, and the claims that go with its width."""
    known = _VARIANTS[operator][variant]
    is_wide = features is not None and features * ITEM_BYTES[dtype] % _WIDEST == 0
    return KernelCase(
        operator,
        variant,
        dtype,
        index_dtype,
        features,
        formats=known.formats,
        wide_loads=is_wide,
        tensor_cores=dtype in known.tensor_cores,
        bounded=known.bounded and is_wide and features % 32 == 0,
    )


def _rows(case: KernelCase, **options: Any) -> tvm.IRModule:
    """Schedule an operator on a matrix in CSR."""
    operator = {"segment_sum": "segment_reduce"}.get(case.operator, case.operator)
    program = getattr(schedules, operator).program(dtype=case.dtype, index_dtype=case.index_dtype)
    kind = DotTile if operator == "sddmm" else RowTile
    tile = kind(**dict(case.tile)) if case.tile else None
    name = f"schedules.{operator}"
    return scheduled(name, program, _TARGET, case.features, tile=tile, **options).mod


def _shared_rows(case: KernelCase) -> tvm.IRModule:
    """Schedule an operator on a matrix in CSR, rows shared by entries."""
    return _rows(case, share=_SHARE)


def _formats(case: KernelCase, **options: Any) -> tvm.IRModule:
    """Schedule SpMM or SpMV with a matrix in formats of rows or entries."""
    program = getattr(schedules, case.operator).program(case.dtype, case.index_dtype)
    tile = RowTile(**dict(case.tile)) if case.tile else None
    parts = {"spmm": "parts", "spmv": "spmv_parts"}[case.operator]
    return scheduled_parts(
        parts, program, "A", case.formats, _TARGET, case.features, tile=tile, **options
    ).mod


def _formats_in_order(case: KernelCase) -> tvm.IRModule:
    """Schedule SpMM with a matrix in formats, without atomics."""
    return _formats(case, deterministic=True)


def _block_product(case: KernelCase) -> tvm.IRModule:
    """Schedule SpMM with blocks; in float32 on tensor cores only if the variant says so."""
    program = schedules.spmm.program(case.dtype, case.index_dtype)
    tile = None
    if case.tile:
        tile = BlockTile(**dict(case.tile))
    elif case.tensor_cores:
        tile = BlockTile.default(case.block, case.features, case.dtype)
    return scheduled_parts(
        "blocks", program, "A", case.formats, _TARGET, case.features, tile=tile
    ).mod


def _block_dots(case: KernelCase) -> tvm.IRModule:
    """Schedule SDDMM at blocks."""
    program = schedules.sddmm.program(case.dtype, case.index_dtype)
    tile = None
    if case.tile:
        tile = DotBlockTile(**dict(case.tile))
    elif case.tensor_cores:
        tile = DotBlockTile.default(case.block, case.dtype)
    return scheduled_parts(
        "sddmm_blocks", program, "C", case.formats, _TARGET, case.features, tile=tile
    ).mod


def _with_tf32(
    name: str,
    build: Callable[[KernelCase], tvm.IRModule],
    tiles: Callable[[KernelCase], Iterator[dict[str, int]]],
    formats: Any,
) -> dict[str, _Variant]:
    """Return a variant of all dtypes, and one that multiplies float32 as tf32 on tensor cores."""
    return {
        name: _Variant(build, tiles, formats, DTYPES, _HALVES),
        f"{name}_tf32": _Variant(build, tiles, formats, ("float32",), ("float32",)),
    }


_TARGET = Target({"kind": "cuda", "arch": "sm_80"})
_VARIANTS: dict[str, dict[str, _Variant]] = {
    "spmv": {
        "csr": _Variant(_rows, cuda_tiles.lane_tiles, has_features=False),
        "csr_shared": _Variant(_shared_rows, cuda_tiles.lane_tiles, has_features=False),
        "hyb": _Variant(_formats, formats=_HYB, has_features=False),
    },
    "spmm": {
        "csr": _Variant(_rows, cuda_tiles.row_tiles, bounded=True),
        "csr_shared": _Variant(_shared_rows),
        "hyb": _Variant(_formats, cuda_tiles.row_tiles, _HYB, bounded=True),
        "hyb2": _Variant(_formats, formats=_HYB2, measured=(128,)),
        "hyb2_deterministic": _Variant(_formats_in_order, formats=_HYB2, measured=(128,)),
        "coo": _Variant(_formats, formats=COO(), measured=(128,)),
    },
    "sddmm": {"csr": _Variant(_rows, cuda_tiles.dot_tiles, bounded=True)},
    "segment_sum": {
        "csr": _Variant(_rows, cuda_tiles.row_tiles),
        "csr_shared": _Variant(_shared_rows),
    },
    "bsr_spmm": {
        **_with_tf32("bsr16", _block_product, cuda_tiles.block_tiles, BSR(16, 16)),
        **_with_tf32("bsr32", _block_product, cuda_tiles.block_tiles, BSR(32, 32)),
        **_with_tf32("bsr64", _block_product, cuda_tiles.block_tiles, BSR(64, 64)),
    },
    "bsr_sddmm": {
        **_with_tf32("bsr16", _block_dots, cuda_tiles.block_dot_tiles, BSR(16, 16)),
        **_with_tf32("bsr32", _block_dots, cuda_tiles.block_dot_tiles, BSR(32, 32)),
    },
    "srbcrs_spmm": _with_tf32("srbcrs8x32", _block_product, cuda_tiles.block_tiles, SRBCRS(8, 32)),
}
#: Names of the operators.
OPERATORS = tuple(_VARIANTS)

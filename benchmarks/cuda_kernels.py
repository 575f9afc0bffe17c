"""The CUDA kernels of the package, each with a name: what the report, the tests and the GPU kit go over.

In: nothing, or limits on operators, widths and types. Out: :class:`KernelCase` objects, whose ``build``
gives the scheduled module that the package itself would compile. A kernel with default tile sizes is a
*default*; the grid of other tile sizes is what the GPU kit measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm

from tvm_sparse import SparseSchedule, schedules
from tvm_sparse.formats import Hyb
from tvm_sparse.schedules.cuda import parts

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


def tile_grid(
    operators: Sequence[str] | None = None,
    features: Sequence[int] = (32, 64, 128, 256),
    dtypes: Sequence[str] = ("float32",),
) -> list[KernelCase]:
    """Return kernels with the default and with other tile sizes, for the GPU to choose from."""
    found = []
    for case in default_kernels(operators, features, dtypes, ["int32"]):
        found.append(case)
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
            for width in features:
                wide = width * ITEM_BYTES[dtype] % 16 == 0
                yield KernelCase(operator, variant, dtype, index_dtype, width, **fixed(wide))


def _hyb_spmm(case: KernelCase) -> tvm.IRModule:
    program = schedules.spmm.program(case.dtype, case.index_dtype)
    decomposed = SparseSchedule(program.specialize({"f": case.features}))
    decomposed.decompose_format("spmm", "A", case.formats)
    schedule = decomposed.lower()
    schedule.work_on("spmm")
    parts.schedule(schedule, list(case.formats.parts), groups=case.formats.disjoint_rows)
    return schedule.mod


_VARIANTS: dict[str, dict[str, Callable[[bool], Mapping[str, Any]]]] = {
    "spmm": {"hyb": lambda wide: {"formats": Hyb(1, _HYB_WIDTHS)}},
}
_BUILDERS: dict[tuple[str, str], Callable[[KernelCase], tvm.IRModule]] = {
    ("spmm", "hyb"): _hyb_spmm,
}

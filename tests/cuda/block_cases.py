"""Block-sparse kernels under the emulator: matrices, calls, and comparison with float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import scipy.sparse as sp

from tests.cuda.emulation import emulated
from tvm_sparse import schedules
from tvm_sparse.formats import Composition, Entries
from tvm_sparse.runtime import Executable
from tvm_sparse.schedules._build import scheduled_parts
from tvm_sparse.schedules.cuda.block_tiles import BlockTile

__all__ = [
    "CUDA",
    "MATRICES",
    "Kernel",
    "as_dtype",
    "build",
    "check_sddmm",
    "check_spmm",
    "entries",
    "kernel_name",
    "operand",
    "rounded_to_tf32",
    "scheduled",
    "tf32",
]

CUDA = {"kind": "cuda", "arch": "sm_80"}
#: Half of the distance to the next number, relative.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


@dataclass(frozen=True)
class Kernel:
    """What a kernel is made for."""

    operator: str
    formats: Any
    dtype: str = "float16"
    out_dtype: str | None = None
    features: int | None = None
    index_dtype: str = "int32"
    scaled: bool = False
    tile: Any = None


def kernel_name(kernel: Kernel) -> str:
    """Return a name for a case of a test."""
    formats = getattr(kernel.formats, "name", "composition")
    given = (kernel.operator, formats, kernel.dtype, kernel.out_dtype, kernel.index_dtype)
    return "-".join(map(str, [*given, kernel.features]))


def tf32(rows: int, columns: int) -> BlockTile:
    """Return the tile that multiplies blocks of float32 on tensor cores."""
    return BlockTile.default((rows, columns), None, "float32")


def scheduled(kernel: Kernel):
    """Return the schedule of a kernel."""
    given = (kernel.dtype, kernel.index_dtype, kernel.out_dtype)
    options = {} if kernel.tile is None else {"tile": kernel.tile}
    if kernel.operator == "spmm":
        program, operands, parts = schedules.spmm.program(*given), "A", "parts"
    else:
        program = schedules.sddmm.program(*given, kernel.scaled)
        operands, parts = (["A", "C"] if kernel.scaled else "C"), "sddmm_parts"
    formats = kernel.formats
    return scheduled_parts(parts, program, operands, formats, CUDA, kernel.features, **options)


def build(kernels: list[Kernel], edited: Callable[[str], str] | None = None) -> list[Executable]:
    """Compile kernels for the emulator, several at a time; `edited` changes their CUDA C before."""
    return emulated([scheduled(kernel) for kernel in kernels], edited=edited)


def as_dtype(name: str) -> np.dtype:
    """Return NumPy's type of a dtype."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def entries(rows: int, columns: int, density: float, dtype: str, skewed: bool = False) -> Entries:
    """Return random entries; `skewed`, a few rows have most of them."""
    rng = np.random.default_rng(rows + columns)
    if skewed:
        share = 1 / np.arange(1, rows + 1) ** 1.2
        counts = np.minimum(columns, (share * density * rows * columns / share.sum()).astype(int))
        row = np.repeat(rng.permutation(rows), counts)
        column = np.concatenate([rng.choice(columns, count, replace=False) for count in counts])
        matrix = sp.coo_array((np.ones(row.size), (row, column)), shape=(rows, columns))
    else:
        matrix = sp.random(rows, columns, density, random_state=rng)
    matrix = matrix.tocsr().tocoo()
    coordinates = (matrix.row.astype(np.int32), matrix.col.astype(np.int32))
    values = rng.standard_normal(matrix.nnz).astype(as_dtype(dtype))
    return Entries(coordinates, values, matrix.shape)


#: Rows and columns that are no multiples of blocks, skewed rows, empty rows, no entries, one entry.
MATRICES = (
    (70, 90, 0.05, False),
    (133, 61, 0.10, True),
    (128, 128, 0.01, False),
    (64, 48, 0.0, False),
    (1, 1, 1.0, False),
)


def operand(rows: int, width: int, dtype: str, seed: int = 0) -> np.ndarray:
    """Return a random dense operand."""
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(as_dtype(dtype))


def rounded_to_tf32(values: np.ndarray) -> np.ndarray:
    """Round float32 to 10 bits of mantissa, ties away from zero as tensor cores' conversion does."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def check_spmm(
    call: Executable, kernel: Kernel, tensor: Entries, dense: np.ndarray, is_repaired: bool = False
) -> None:
    """Call an SpMM kernel and compare: the error of sums in float32, and of rounding them once.

    Where sums were no numbers and are added up again, float32 is not rounded to tf32 first.
    """
    out = as_dtype(kernel.out_dtype or kernel.dtype)
    rows, width = tensor.shape[0], dense.shape[1]
    guard = 32  # as many elements before and after, so that the result is aligned
    memory = np.full(2 * guard + rows * width, np.nan, out)
    result = memory[guard : guard + rows * width].reshape(rows, width)
    call(a=_packing(kernel).pack(tensor, kernel.index_dtype), b=dense, c=result)
    a = tensor.values.astype(np.float64)
    b = dense.astype(np.float64)
    has_tf32 = kernel.dtype == "float32" and _is_on_tensor_cores(kernel)
    if has_tf32 and not is_repaired:
        a, b = rounded_to_tf32(tensor.values), rounded_to_tf32(dense)
    expected, terms = np.zeros((rows, width)), np.zeros((rows, width))
    row, column = tensor.coordinates
    with np.errstate(invalid="ignore"):
        np.add.at(expected, row, a[:, None].astype(float) * b[column].astype(float))
        np.add.at(terms, row, abs(a[:, None].astype(float) * b[column].astype(float)))
    _check(result, expected, terms, out, 2.0**-10 if has_tf32 and is_repaired else 0)
    assert np.isnan(np.delete(memory, np.s_[guard : guard + rows * width]).astype(float)).all()


def check_sddmm(
    call: Executable, kernel: Kernel, tensor: Entries, x: np.ndarray, y: np.ndarray
) -> None:
    """Call an SDDMM kernel and compare, as :func:`check_spmm` does."""
    out = as_dtype(kernel.out_dtype or kernel.dtype)
    packing = _packing(kernel)
    result = packing.pack(
        tensor.with_values(np.full(tensor.values.shape, np.nan, out)), kernel.index_dtype
    )
    scale = {"a": packing.pack(tensor, kernel.index_dtype)} if kernel.scaled else {}
    call(x=x, y=y, c=result, **scale)
    row, column = tensor.coordinates
    if kernel.dtype == "float32" and _is_on_tensor_cores(kernel):
        x, y = rounded_to_tf32(x), rounded_to_tf32(y)
    products = x.astype(np.float64)[row] * y.astype(np.float64)[column]
    factor = tensor.values.astype(np.float64) if kernel.scaled else np.ones(row.size)
    found = np.asarray(result.unpack().todense())[row, column] if row.size else np.zeros(0, out)
    _check(found, products.sum(1) * factor, abs(products).sum(1) * abs(factor), out)


def _packing(kernel: Kernel):
    formats = kernel.formats
    return formats if hasattr(formats, "pack") else Composition(formats)


def _is_on_tensor_cores(kernel: Kernel) -> bool:
    return getattr(kernel.tile, "tensor_cores", hasattr(kernel.tile, "features"))


def _check(
    found: np.ndarray, expected: np.ndarray, terms: np.ndarray, out: np.dtype, inputs: float = 0
) -> None:
    """Compare, where inputs may be wrong by as much, relative."""
    found = found.astype(np.float64)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    step = float(np.finfo(np.float32).eps if out.itemsize < 8 else np.finfo(np.float64).eps)
    bound = (4 * step + inputs) * terms + 1.01 * ROUNDING.get(out.name, step) * abs(expected) + 6e-8
    with np.errstate(invalid="ignore"):
        assert (abs(found - expected) <= bound)[finite].all()

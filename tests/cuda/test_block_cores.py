"""Block-sparse kernels on CUDA cores: what tensor cores do not multiply, entry by entry."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.cuda.block_cases import (
    MATRICES,
    Kernel,
    build,
    check_sddmm,
    check_spmm,
    entries,
    operand,
    scheduled,
)
from tests.cuda.source import cubin_of, cuda_source
from tvm_sparse.formats import BSR, DBSR, SRBCRS
from tvm_sparse.schedules.cuda.block_tiles import BlockRowsTile, DotBlockTile

WIDTHS = (1, 17, 64, 100, 256)
SPMM = [
    Kernel("spmm", BSR(2, 2), "float32"),
    Kernel("spmm", BSR(4, 4), "float16"),
    Kernel("spmm", BSR(16, 16), "float32", index_dtype="int64"),
    Kernel("spmm", BSR(64, 64), "float32", features=128),
    Kernel("spmm", BSR(3, 5), "bfloat16", "float32"),
    Kernel("spmm", DBSR(4, 2), "float16"),
    Kernel("spmm", SRBCRS(4, 8), "float32", features=100),
    Kernel("spmm", SRBCRS(8, 8), "float64"),
    Kernel("spmm", BSR(8, 8), "float16", tile=BlockRowsTile(3, 2, 2)),  # rows of a block in three
]
SDDMM = [
    Kernel("sddmm", BSR(2, 2), "float32"),
    Kernel("sddmm", BSR(16, 16), "float32", scaled=True, index_dtype="int64"),
    Kernel("sddmm", BSR(24, 12), "float32", scaled=True, features=64),
    Kernel("sddmm", BSR(128, 64), "float64"),
    Kernel("sddmm", BSR(4, 4), "float16", scaled=True),
    Kernel("sddmm", DBSR(1, 7), "float32", scaled=True),
]


def name(kernel: Kernel) -> str:
    return f"{kernel.operator}-{kernel.formats.name}-{kernel.dtype}-{kernel.index_dtype}"


@functools.cache
def compiled(operator: str) -> dict[str, object]:
    kernels = {"spmm": SPMM, "sddmm": SDDMM}[operator]
    return dict(zip(map(name, kernels), build(kernels)))


@pytest.mark.parametrize("kernel", SPMM, ids=name)
def test_spmm_is_right_for_all_structures_and_widths(kernel):
    call = compiled("spmm")[name(kernel)]
    for place, width in enumerate([kernel.features] if kernel.features else WIDTHS):
        tensor = entries(*MATRICES[place][:3], kernel.dtype, MATRICES[place][3])
        check_spmm(call, kernel, tensor, operand(tensor.shape[1], width, kernel.dtype))


@pytest.mark.parametrize("kernel", SDDMM, ids=name)
def test_sddmm_is_right_for_all_structures_and_widths(kernel):
    call = compiled("sddmm")[name(kernel)]
    for place, width in enumerate([kernel.features] if kernel.features else WIDTHS):
        tensor = entries(*MATRICES[place][:3], kernel.dtype, MATRICES[place][3])
        x, y = (operand(size, width, kernel.dtype, size) for size in tensor.shape)
        check_sddmm(call, kernel, tensor, x, y)


@pytest.mark.parametrize("kernel", SPMM, ids=name)
def test_padding_adds_nothing_to_what_is_infinite_or_no_number(kernel):
    tensor = entries(70, 90, 0.05, kernel.dtype)
    dense = operand(90, kernel.features or 40, kernel.dtype)
    dense[3], dense[17, 5:9], dense[89] = np.inf, np.nan, -np.inf
    check_spmm(compiled("spmm")[name(kernel)], kernel, tensor, dense)


def test_integers_are_added_up_exactly():
    kernels = [Kernel("spmm", BSR(4, 4), "int32"), Kernel("sddmm", BSR(4, 4), "int32", scaled=True)]
    spmm, sddmm = build(kernels)
    tensor = entries(70, 90, 0.1, "float32")
    values = np.random.default_rng(0).integers(1, 9, tensor.values.size).astype(np.int32)
    tensor = tensor.with_values(values)
    x, y = (np.random.default_rng(size).integers(-9, 9, (size, 36), np.int32) for size in (70, 90))
    row, column = tensor.coordinates
    expected = np.zeros((70, 36), np.int32)
    np.add.at(expected, row, values[:, None] * y[column])
    result = np.full((70, 36), 77, np.int32)
    spmm(a=BSR(4, 4).pack(tensor), b=y, c=result)
    np.testing.assert_array_equal(result, expected)
    products = BSR(4, 4).pack(tensor.with_values(np.full_like(values, 77)))
    sddmm(a=BSR(4, 4).pack(tensor), x=x, y=y, c=products)
    found = np.asarray(products.unpack().todense())[row, column]
    np.testing.assert_array_equal(found, values * (x[row] * y[column]).sum(1))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("rows", [4, 16])
def test_vectors_are_loaded_and_all_sums_stay_in_registers(rows, arch):
    from benchmarks.cuda_report.cubin import read_resources

    source = cuda_source(
        scheduled(Kernel("spmm", BSR(rows, rows), "float32", features=128)).mod, arch
    )
    assert "ld.global.v4.f32" in source and "st.global.v4.b32" in source
    (resources,) = read_resources(cubin_of(source, arch)).values()
    assert resources.stack == 0 and resources.registers <= 128


def test_threads_that_are_too_few_are_refused():
    tile = DotBlockTile(16, 16, 4, 16, 1, tensor_cores=False)
    with pytest.raises(ValueError, match="expected 256 threads or more, found 32"):
        scheduled(Kernel("sddmm", BSR(16, 16), "float32", tile=tile))

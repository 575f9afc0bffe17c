"""Block-sparse kernels on tensor cores are right, as they run: every access checked, against float64."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.cuda.block_cases import (
    MATRICES,
    Kernel,
    as_dtype,
    build,
    check_sddmm,
    check_spmm,
    entries,
    kernel_name,
    operand,
    scheduled,
    tf32,
)
from tests.cuda.source import cuda_source
from tvm_sparse.formats import BSR, CSR, DBSR, SRBCRS
from tvm_sparse.schedules.cuda.block_tiles import BlockTile, DotBlockTile

WIDTHS = (1, 17, 32, 64, 100, 128, 256)


TWO_SIZES = {"large": BSR(16, 16, min_fill=0.05), "small": BSR(8, 8)}
SPMM = [
    Kernel("spmm", BSR(16, 16)),
    Kernel("spmm", BSR(16, 16), "float16", "float32", index_dtype="int64"),
    Kernel("spmm", BSR(8, 8), "bfloat16"),
    Kernel("spmm", BSR(32, 32), "bfloat16", "float32"),
    Kernel("spmm", BSR(64, 64)),
    Kernel("spmm", BSR(128, 16), "float16", "float32"),  # rows of a block in two tiles
    Kernel("spmm", BSR(24, 12), "float16", "float32"),  # both padded
    Kernel("spmm", DBSR(16, 16)),
    Kernel("spmm", TWO_SIZES),
    Kernel("spmm", SRBCRS(8, 16)),
    Kernel("spmm", SRBCRS(16, 8), "bfloat16", "float32", index_dtype="int64"),
    Kernel("spmm", SRBCRS(32, 3)),
    Kernel("spmm", SRBCRS(8, 32), "bfloat16"),
    Kernel("spmm", BSR(64, 64), "bfloat16", "float32"),
    Kernel("spmm", BSR(16, 16), "float32", tile=tf32(16, 16)),
    Kernel("spmm", BSR(16, 16), "float32", "float16", tile=tf32(16, 16)),
    Kernel("spmm", BSR(8, 8), "float32", tile=tf32(8, 8)),
    Kernel("spmm", BSR(64, 64), "float32", index_dtype="int64", tile=tf32(64, 64)),
    Kernel("spmm", SRBCRS(8, 32), "float32", index_dtype="int64", tile=tf32(8, 32)),
]
#: Widths that are known: aligned, a multiple of 8 bytes alone, odd, and more than a tile.
KNOWN = [
    Kernel("spmm", BSR(16, 16), features=64),
    Kernel("spmm", BSR(16, 16), features=100),
    Kernel("spmm", SRBCRS(8, 16), features=17),
    Kernel("spmm", BSR(32, 32), "float32", features=256, tile=tf32(32, 32)),
    Kernel("spmm", BSR(16, 16), "bfloat16", "float32", features=100),
    Kernel("spmm", BSR(16, 16), "float32", "float16", features=100, tile=tf32(16, 16)),
]
SDDMM = [
    Kernel("sddmm", BSR(16, 16)),
    Kernel("sddmm", BSR(16, 16), "bfloat16", "float32", scaled=True, index_dtype="int64"),
    Kernel("sddmm", BSR(8, 8), scaled=True),
    Kernel("sddmm", BSR(64, 64), "float16", "float32"),
    Kernel("sddmm", BSR(96, 80), scaled=True),  # in parts
    Kernel("sddmm", DBSR(16, 32), "bfloat16"),
    Kernel(
        "sddmm", BSR(16, 16), "float32", tile=DotBlockTile.default((16, 16), "float32"), scaled=True
    ),
    Kernel("sddmm", BSR(32, 32), "float32", tile=DotBlockTile.default((32, 32), "float32")),
    Kernel("sddmm", BSR(8, 32), "float32", tile=DotBlockTile.default((8, 32), "float32")),
    Kernel("sddmm", BSR(32, 32), features=64),
    Kernel("sddmm", BSR(16, 16), "bfloat16", features=100),
]


@functools.cache
def compiled(group: str) -> dict[str, object]:
    kernels = {"spmm": SPMM, "known": KNOWN, "sddmm": SDDMM}[group]
    return dict(zip(map(kernel_name, kernels), build(kernels)))


@pytest.mark.parametrize("kernel", SPMM, ids=kernel_name)
def test_spmm_is_right_for_all_structures_and_widths(kernel):
    call = compiled("spmm")[kernel_name(kernel)]
    for place, width in enumerate(WIDTHS):
        tensor = entries(*MATRICES[place % len(MATRICES)][:3], kernel.dtype, place % 2 == 1)
        check_spmm(call, kernel, tensor, operand(tensor.shape[1], width, kernel.dtype))


@pytest.mark.parametrize("kernel", KNOWN, ids=kernel_name)
def test_spmm_is_right_for_a_known_width(kernel):
    call = compiled("known")[kernel_name(kernel)]
    for shape in MATRICES:
        tensor = entries(*shape[:3], kernel.dtype, shape[3])
        check_spmm(call, kernel, tensor, operand(tensor.shape[1], kernel.features, kernel.dtype))


@pytest.mark.parametrize("kernel", SDDMM, ids=kernel_name)
def test_sddmm_is_right_for_all_structures_and_widths(kernel):
    call = compiled("sddmm")[kernel_name(kernel)]
    for place, width in enumerate([kernel.features] if kernel.features else WIDTHS):
        tensor = entries(*MATRICES[place % len(MATRICES)][:3], kernel.dtype, place % 2 == 1)
        x, y = (operand(size, width, kernel.dtype, size) for size in tensor.shape)
        check_sddmm(call, kernel, tensor, x, y)


@pytest.mark.parametrize("kernel", SPMM, ids=kernel_name)
def test_padding_adds_nothing_to_what_is_infinite_or_no_number(kernel):
    tensor = entries(70, 90, 0.05, kernel.dtype)
    dense = operand(90, 40, kernel.dtype)
    dense[3] = np.inf
    dense[17, 5:9] = np.nan
    dense[40, 0] = -np.inf
    dense[89] = np.nan  # the last row: blocks stick out behind it
    check_spmm(compiled("spmm")[kernel_name(kernel)], kernel, tensor, dense, is_repaired=True)


@pytest.mark.parametrize(
    "kernel", [kernel for kernel in SDDMM if kernel.features is None], ids=kernel_name
)
def test_what_is_no_number_stays_in_its_row_of_sddmm(kernel):
    tensor = entries(70, 90, 0.05, kernel.dtype)
    x, y = (operand(size, 40, kernel.dtype, size) for size in tensor.shape)
    x[3], y[89] = np.nan, np.nan
    check_sddmm(compiled("sddmm")[kernel_name(kernel)], kernel, tensor, x, y)


TILES = [
    BlockTile(16, 32, 64, 1, stages=2),
    BlockTile(16, 128, 16, 8, stages=4),
    BlockTile(16, 64, 32, 2, async_copy=False),
    BlockTile(64, 128, 64, 8, stages=4),  # more than 48 KiB of shared memory
]


def test_any_tile_gives_the_same_result():
    sizes = {16: BSR(16, 16), 64: BSR(64, 64)}
    kernels = [Kernel("spmm", sizes[tile.rows], tile=tile) for tile in TILES]
    tensor = entries(133, 61, 0.1, "float16", skewed=True)
    for call, kernel in zip(build(kernels), kernels):
        for width in (17, 128):
            check_spmm(call, kernel, tensor, operand(61, width, "float16"))
    dots = [Kernel("sddmm", BSR(16, 16), tile=DotBlockTile(16, 16, 2, 64, 2, stages=2))]
    x, y = operand(133, 100, "float16", 1), operand(61, 100, "float16", 2)
    check_sddmm(build(dots)[0], dots[0], tensor, x, y)


def test_candidates_are_tiles_that_can_be_scheduled():
    for tile in BlockTile.candidates((16, 16), 64)[::5]:
        scheduled(Kernel("spmm", BSR(16, 16), features=64, tile=tile))
    for tile in DotBlockTile.candidates((32, 32))[::5]:
        scheduled(Kernel("sddmm", BSR(32, 32), tile=tile))


def test_results_of_half_precision_need_no_memory_of_their_own():
    for kernel in (Kernel("spmm", BSR(16, 16)), Kernel("sddmm", BSR(16, 16), scaled=True)):
        source = cuda_source(scheduled(kernel).mod)
        assert source.count("__launch_bounds__") == 2  # declaration and definition of one kernel
        assert "C_sum" not in source


@pytest.mark.parametrize(
    "kernel, message",
    [
        (Kernel("spmm", BSR(16, 16), "float64", tile=TILES[0]), "for tensor cores, found float64"),
        (Kernel("spmm", BSR(16, 16), tile=BlockTile(16, 40, 32, 1)), "multiple of 16 columns"),
        (Kernel("spmm", BSR(16, 16), tile=BlockTile(16, 64, 24, 1)), "multiple of 16 depth"),
        (Kernel("spmm", BSR(16, 16), tile=BlockTile(16, 64, 32, 3)), "1 x 4 fragments, found 3"),
        (Kernel("sddmm", BSR(16, 16), tile=DotBlockTile(16, 16, 3, 32, 4)), "multiple of 3 warps"),
        (Kernel("sddmm", CSR()), "expected blocks of entries under row pointers"),
    ],
)
def test_what_does_not_suit_is_refused(kernel, message):
    with pytest.raises(ValueError, match=message):
        scheduled(kernel)


def test_sizes_of_tiles_are_positive_and_stages_several():
    with pytest.raises(ValueError, match="depth: expected a positive integer, found 0"):
        BlockTile(16, 64, 0, 1)
    with pytest.raises(ValueError, match="stages: expected two or more, found 1"):
        DotBlockTile(16, 16, 1, 32, 1, stages=1)


def test_operands_are_rounded_to_the_dtype_once():
    """Sums are exact where terms are small integers: nothing is lost in float32."""
    kernel = SPMM[1]
    tensor = entries(70, 90, 0.3, "float16")
    whole = np.random.default_rng(0).integers(-8, 9, tensor.values.size).astype(as_dtype("float16"))
    dense = np.random.default_rng(1).integers(-8, 9, (90, 64)).astype(np.float16)
    result = np.full((70, 64), np.nan, np.float32)
    tensor = tensor.with_values(np.where(whole == 0, 1, whole).astype(np.float16))
    compiled("spmm")[kernel_name(kernel)](a=BSR(16, 16).pack(tensor, "int64"), b=dense, c=result)
    expected = np.zeros((70, 64))
    row, column = tensor.coordinates
    np.add.at(expected, row, tensor.values[:, None].astype(float) * dense[column].astype(float))
    np.testing.assert_array_equal(result, expected)

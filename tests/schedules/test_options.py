"""Options of builds are those that the operator has for the kind of target, of the types that it says."""

import pytest

from tvm_sparse import schedules
from tvm_sparse.formats import BSR, Hyb
from tvm_sparse.schedules.cuda import BlockTile, DotTile, RowTile

CUDA = {"kind": "cuda", "arch": "sm_80"}
DOTS = DotTile(1, 8, 1, 32, 8)
ROWS = RowTile(4, 16, 1, 16)
BLOCKS = BlockTile.default((16, 16), 64, "float16")


@pytest.mark.parametrize(
    "operator, options, message",
    [
        (
            "spmm",
            {"tile": DOTS},
            r"tile: expected tvm_sparse.*cuda.RowTile or None, found DotTile\(",
        ),
        (
            "spmm",
            {"tile": (4, 16, 1, 16)},
            r"tile: expected .*cuda.RowTile or None, found \(4, 16, 1, 16\)",
        ),
        ("spmm", {"share": True}, "share: expected int or None, found True"),
        ("spmm", {"share": 256.0}, "share: expected int or None, found 256.0"),
        ("sddmm", {"tile": ROWS}, r"tile: expected .*cuda.DotTile or None, found RowTile\("),
        ("sddmm", {"share": 256}, r"share: expected one of the options .* on CUDA \(tile\), found"),
        ("segment_reduce", {"tiles": ROWS}, r"tiles: expected one of .* \(tile, share\), found"),
        ("spmv", {"tile": 32}, "tile: expected .*cuda.RowTile or None, found 32"),
    ],
)
def test_other_options_are_refused_by_name(operator, options, message):
    with pytest.raises(TypeError, match=message):
        getattr(schedules, operator).build(target=CUDA, **options)


def test_a_cpu_has_options_of_its_own():
    with pytest.raises(TypeError, match=r"share: expected one of the options .* on a CPU \(tile\)"):
        schedules.spmm.build(share=256)
    with pytest.raises(TypeError, match=r"tile: expected .*cpu.RowTile or None, found RowTile"):
        schedules.spmm.build(tile=ROWS)  # that of CUDA


@pytest.mark.parametrize(
    "formats, tile, message",
    [
        (BSR(16, 16), ROWS, "tile: expected a BlockTile or BlockRowsTile for these formats, found"),
        (Hyb(1, (1, 2)), BLOCKS, "tile: expected a RowTile for these formats, found BlockTile"),
    ],
)
def test_a_tile_that_no_part_takes_is_refused(formats, tile, message):
    with pytest.raises(ValueError, match=message):
        schedules.spmm.build(features=64, formats=formats, tile=tile, target=CUDA)

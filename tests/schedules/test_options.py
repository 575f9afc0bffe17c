"""Options of builds are those that the operator has for the kind of target, of the types that it says."""

import numpy as np
import pytest
import scipy.sparse as sp
import tvm

import tvm_sparse
from tvm_sparse import SparseProgramError, schedules, tune
from tvm_sparse.formats import BSR, Hyb
from tvm_sparse.runtime import lower
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


def test_tensor_cores_before_sm_80_are_refused_or_left_alone():
    old, blocks = {"kind": "cuda", "arch": "sm_75"}, BSR(16, 16)
    with pytest.raises(
        ValueError, match=r"expected sm_80 or later for a BlockTile, .* found sm_75"
    ):
        schedules.spmm.build("float16", features=64, formats=blocks, tile=BLOCKS, target=old)
    with pytest.raises(ValueError, match="expected sm_80 or later for blocks in bfloat16"):
        schedules.spmm.build("bfloat16", features=64, formats=blocks, target=old)
    with pytest.raises(ValueError, match="expected sm_80 or later for dot products at blocks"):
        schedules.sddmm.build("float16", features=64, formats=blocks, target=old)
    kernel = schedules.spmm.build("float16", features=64, formats=blocks, target=old)
    assert "mma" not in kernel.inspect_source("cuda")


def test_features_are_any_integers_where_there_are_features():
    kernel = schedules.spmm.build(features=np.int64(64), target=CUDA)
    assert "float4" in kernel.inspect_source("cuda")
    with pytest.raises(ValueError, match="features: expected none for spmv, which has no feature"):
        schedules.spmv.build(features=64)


def test_searches_that_time_kernels_are_for_cpus():
    matrix = sp.random(20, 20, 0.2, "csr", dtype=np.float32)
    with pytest.raises(ValueError, match=r"target: expected a CPU \(llvm\), found"):
        tune.tune(schedules.spmm.program(), {"a": matrix, "b": np.ones((20, 8), "f4")}, target=CUDA)
    with pytest.raises(ValueError, match=r"target: expected a CPU \(llvm\), on which"):
        schedules.spmm.choose_format(matrix, 64, target=CUDA)


def test_more_shared_memory_than_a_block_has_is_refused_with_both_numbers():
    tile = BlockTile(64, 256, 64, 4, stages=8)
    with pytest.raises(
        SparseProgramError, match=r"at most 166912 bytes .* for sm_80, found \d{6};"
    ):
        schedules.spmm.build("float16", features=64, formats=BSR(64, 64), tile=tile, target=CUDA)


def test_loops_on_threads_of_a_gpu_want_a_target_that_has_some():
    schedule = tvm.s_tir.Schedule(lower(schedules.spmm.program().specialize({"f": 64})))
    schedule.work_on("spmm")
    (row,) = schedule.get_loops(schedule.get_sblock("spmm_0"))
    schedule.bind(row, "blockIdx.x")
    with pytest.raises(
        ValueError, match=r"loop i is bound to blockIdx.x, found llvm; pass target="
    ):
        tvm_sparse.compile(schedule)

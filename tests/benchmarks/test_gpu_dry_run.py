"""The GPU benchmark kit as a whole: packed, and run under the emulation of CUDA."""

from __future__ import annotations

import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from benchmarks.cuda_kernels import default_kernels, tile_grid
from benchmarks.gpu.dry_run import dry_run
from benchmarks.gpu.pack import LIMIT, folder_bytes, pack
from benchmarks.gpu.report import write
from tests.cuda.emulation import emulated

_ON_ROWS = ("spmv", "spmm", "sddmm", "segment_sum")
_ON_BLOCKS = ("bsr_spmm", "bsr_sddmm", "srbcrs_spmm")


def test_the_kit_packs_and_its_script_runs_with_every_operator(tmp_path):
    cases = default_kernels(_ON_ROWS, [32], ["float32"], ["int32"])
    cases += default_kernels(_ON_BLOCKS, [64], ["float16"], ["int32"])
    cases += default_kernels(["bsr_spmm"], [64], ["float32"], ["int32"])
    cases = [case for case in cases if not case.variant.startswith(("bsr32", "bsr64"))]
    cases += [case for case in tile_grid(["spmv"]) if case.tile][:1]
    results = dry_run(tmp_path / "kit", cases, emulated)
    assert folder_bytes(tmp_path / "kit") < LIMIT / 2
    timed = {
        (row["operator"], row["kind"])
        for section in results["sections"].values()
        for row in section["rows"]
        if row["cold_seconds"] > 0
    }
    assert {(case.operator, "ours") for case in cases} | {("spmv", "tile")} <= timed
    assert all((operator, "peer") in timed for operator, _ in timed)
    assert write(results, tmp_path / "report")[0].stat().st_size > 1000
    with pytest.raises(ValueError, match="expected a new or an empty folder"):
        pack(tmp_path / "kit", cases)

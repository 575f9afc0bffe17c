"""The GPU benchmark kit as a whole: packed, and run under the emulation of CUDA."""

from __future__ import annotations

import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from benchmarks.gpu.dry_run import dry_run, dry_run_kernels
from benchmarks.gpu.pack import LIMIT, folder_bytes, pack
from benchmarks.gpu.report import write
from tests.cuda.emulation import emulated


def test_the_kit_packs_and_its_script_runs_with_every_operator(tmp_path):
    cases = dry_run_kernels()
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

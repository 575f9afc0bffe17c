"""The GPU benchmark kit: what it packs, how it runs without a GPU, and what it makes of results."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks.gpu import report
from benchmarks.gpu.kit import __main__ as command
from benchmarks.gpu.kit import peers, problems, table
from benchmarks.gpu.kit.contenders import OURS, PEER, TILE, Contender, measured
from benchmarks.gpu.kit.graphs import TINY, Graph, block_matrix, power_law, scattered
from benchmarks.gpu.kit.layouts import bsr_arrays, coo_arrays, hyb_arrays, sr_bcrs_arrays
from benchmarks.gpu.kit.library import Kernels
from benchmarks.gpu.kit.machine import Gpu, Host, Limits
from benchmarks.gpu.kit.run import Run, read_results
from tvm_sparse.formats import BSR, COO, SRBCRS, Hyb

LIMITS = Limits(1e9, dict.fromkeys(("float32", "float16", "bfloat16", "tf32"), 1e9))


def tiny(name: str = "tiny_skewed") -> Graph:
    return power_law(name, *TINY[name])


def as_csr(graph: Graph, values: np.ndarray) -> sp.csr_matrix:
    return sp.csr_matrix((values, graph.indices, graph.indptr), (graph.rows, graph.rows))


def test_made_graphs_have_about_the_asked_shape():
    rows, entries, most, spread = 5000, 60000, 900, 2.0
    graph = power_law("g", rows, entries, most, spread)
    degrees = np.diff(graph.indptr)
    matrix = as_csr(graph, np.ones(graph.entries))
    assert matrix.has_canonical_format
    assert 0.85 * entries < graph.entries <= 1.05 * entries
    assert 0.3 * most < degrees.max() <= most
    assert 0.6 * spread < degrees.std() / degrees.mean() < 1.4 * spread
    again = power_law("g", rows, entries, most, spread)
    assert (again.indices == graph.indices).all()


@pytest.mark.parametrize("column_parts", [1, 2, 3])
@pytest.mark.parametrize("widths", [[1, 2, 4, 8], [3], [2, 64]])
@pytest.mark.parametrize("name", list(TINY))
def test_hyb_is_packed_as_the_package_packs_it(name, widths, column_parts):
    graph = tiny(name)
    graph.indptr[-5:] = graph.indptr[-5]  # some empty rows
    graph = replace(graph, indices=graph.indices[: graph.indptr[-1]])
    values = np.random.default_rng(0).standard_normal(graph.entries).astype("float32")
    packed = Hyb(column_parts, widths).pack(as_csr(graph, values))
    expected = {
        key: value
        for part, own in packed.parts.items()
        for key, value in own.arguments(f"a_{part}").items()
    }
    found = hyb_arrays(graph, values, widths, column_parts)
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)
        assert np.shape(found[key]) == np.shape(value), key


def test_entries_are_packed_as_the_package_packs_them():
    graph = tiny()
    values = np.random.default_rng(0).standard_normal(graph.entries).astype("float32")
    found = coo_arrays(graph)
    for key, value in COO().pack(as_csr(graph, values)).arguments("a").items():
        if key != "a":  # the values as they are
            np.testing.assert_array_equal(found[key], value, err_msg=key)
            assert np.shape(found[key]) == np.shape(value), key


def test_blocks_are_packed_as_the_package_packs_them():
    matrix = block_matrix(96, 16, 0.3)
    values = np.random.default_rng(0).standard_normal((matrix.blocks, 16, 16)).astype("float32")
    scipy_matrix = sp.bsr_matrix((values, matrix.indices, matrix.indptr), (96, 96))
    packed = BSR(16, 16).pack(scipy_matrix)
    found = {"a": values, **bsr_arrays(matrix)}
    for key, value in packed.arguments("a").items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)


@pytest.mark.parametrize(("t", "g"), [(8, 32), (3, 4)])
def test_strips_are_packed_as_the_package_packs_them(t, g):
    graph = scattered(70, 0.1)
    values = np.random.default_rng(0).standard_normal(graph.entries).astype("float32")
    packed = SRBCRS(t, g).pack(as_csr(graph, values))
    found = sr_bcrs_arrays(graph, values, t, g)
    for key, value in packed.arguments("a").items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)


class TorchOnHost(Gpu):
    """The code for GPUs on PyTorch's CPU tensors; nothing is timed."""

    device = "cpu"

    def __init__(self) -> None:
        self.torch = pytest.importorskip("torch")

    def time(self, call, seconds):
        return Host().time(call, seconds)

    def check(self) -> None:
        pass


MAKERS = {
    "spmm": lambda machine, dtype: problems.spmm(machine, tiny(), 17, dtype),
    "spmv": lambda machine, dtype: problems.spmv(machine, tiny(), dtype),
    "sddmm": lambda machine, dtype: problems.sddmm(machine, tiny(), 32, dtype),
    "segment_sum": lambda machine, dtype: problems.segment_sum(machine, tiny(), 17, dtype),
    "bsr_spmm": lambda machine, dtype: problems.bsr_spmm(
        machine, block_matrix(96, 16, 0.3), 24, dtype
    ),
    "bsr_sddmm": lambda machine, dtype: problems.bsr_sddmm(
        machine, block_matrix(96, 16, 0.3), 24, dtype
    ),
    "srbcrs_spmm": lambda machine, dtype: problems.srbcrs_spmm(
        machine, scattered(70, 0.1), 24, dtype
    ),
}
DATA = {
    "bsr_spmm": block_matrix(96, 16, 0.3),
    "bsr_sddmm": block_matrix(96, 16, 0.3),
    "srbcrs_spmm": scattered(70, 0.1),
}
TORCH_PEERS = {
    "spmm": ["torch csr"],
    "spmv": ["torch csr"],
    "sddmm": ["torch gather", "torch sampled_addmm"],
    "segment_sum": ["torch"],
    "bsr_spmm": ["dense product", "torch bsr"],
    "bsr_sddmm": ["dense product", "torch bmm"],
    "srbcrs_spmm": ["dense product", "torch csr"],
}


@pytest.mark.parametrize("operator", list(MAKERS))
def test_peers_in_pytorch_compute_the_problems(operator):
    machine = TorchOnHost()
    problem = MAKERS[operator](machine, "float32")
    data = DATA.get(operator, tiny())
    rows = [
        measured(machine, LIMITS, problem, contender, 0.001)
        for contender in peers.peers_of(machine, problem, data)
    ]
    right = [row["contender"] for row in rows if "refused" not in row]
    assert set(TORCH_PEERS[operator]) <= set(right), rows


@pytest.mark.parametrize("operator", list(MAKERS))
def test_problems_are_the_same_on_either_machine(operator):
    gpu, host = TorchOnHost(), Host()
    for machine in (gpu, host):  # the same operands: only references are compared
        machine.random = lambda shape, dtype, seed=0, own=machine: own.array(
            np.random.default_rng(seed).standard_normal(shape).astype(dtype)
        )
    one, other = (MAKERS[operator](machine, "float32") for machine in (gpu, host))
    np.testing.assert_allclose(one.reference.numpy(), other.reference, rtol=1e-12, atol=1e-12)
    assert (one.moved, one.operations) == (other.moved, other.operations)


def test_values_go_into_padded_slots():
    machine, host = TorchOnHost(), Host()
    places = np.array([[3, 0], [1, 2]], np.int32)
    expected = [[30.0, 0.0], [10.0, 20.0]]
    values = np.array([10.0, 20.0, 30.0], np.float32)
    assert host.padded(values, places).tolist() == expected
    assert machine.padded(machine.array(values), places).tolist() == expected


def test_what_is_wrong_or_fails_is_refused():
    machine = Host()
    problem = MAKERS["spmm"](machine, "float32")
    right = peers.peers_of(machine, problem, tiny())[0].prepare()
    unwritten = np.full((70, 17), np.nan)

    def fails():
        raise MemoryError("too large")

    for call, expected in (
        (lambda: right() + 1, "wrong: relative error"),
        (lambda: unwritten, "wrong: relative error nan"),
        (fails, "MemoryError: too large"),
    ):
        contender = Contender("x", PEER, lambda call=call: call)
        row = measured(machine, LIMITS, problem, contender, 0.001)
        assert expected in row["refused"]
        assert "cold_seconds" not in row
    row = measured(machine, LIMITS, problem, Contender("x", PEER, lambda: right), 0.001)
    assert row["cold_seconds"] > 0
    assert row["bound_seconds"] == problem.moved / 1e9


def host_run(path: Path) -> Run:
    return Run(Host(), Kernels([]), lambda: iter([tiny()]), command.TINY_PLAN, path)


def test_results_are_kept_when_the_process_ends_in_the_middle(tmp_path, monkeypatch):
    run = host_run(tmp_path / "results.json")
    run.measure_machine()
    widths = []

    def ends_at_the_second(machine, problem, data):
        def prepare():
            widths.append(problem.features)
            if len(widths) == 2:
                raise KeyboardInterrupt
            return peers._on_host(problem, data)

        return [Contender("scipy", PEER, prepare)]

    monkeypatch.setattr("benchmarks.gpu.kit.run.peers_of", ends_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        run.measure_section("spmm", time.time() + 60)
    section = read_results(run.path)["sections"]["spmm"]
    assert [row["features"] for row in section["rows"]] == [32]
    assert section["next"]["features"] == 17

    command._note_crash(run.path, "spmm")
    run.measure_section("spmm", time.time() + 60)
    section = read_results(run.path)["sections"]["spmm"]
    assert [row.get("refused") for row in section["rows"]] == [None, "ended the process"]
    assert widths == [32, 17]  # neither is measured again
    assert section["seconds"] > 0


def test_nothing_is_measured_after_the_time_is_over(tmp_path):
    run = host_run(tmp_path / "results.json")
    run.measure_machine()
    run.measure_section("spmm", time.time() - 1)
    section = read_results(run.path)["sections"]["spmm"]
    assert section["rows"] == []
    assert section["skipped"] == ["tiny_skewed 32 float32", "tiny_skewed 17 float32"] * 2


def row(contender: str, kind: str, micros: float, **facts) -> dict:
    known = {"operator": "spmm", "problem": "g", "features": 32, "dtype": "float32"}
    times = {"cold_seconds": micros * 1e-6, "warm_seconds": micros * 0.5e-6}
    return {**known, "bound_seconds": 1e-6, "contender": contender, "kind": kind, **times, **facts}


def results_of(*rows: dict) -> dict:
    sections: dict[str, dict] = {}
    for own in rows:
        found = sections.setdefault(own["operator"], {"rows": [], "skipped": [], "seconds": 1.0})
        found["rows"].append(own)
    return {
        "machine": {"device": "a GPU"},
        "libraries": {"cupy": None, "torch": "2"},
        "limits": {"bytes_per_second": 4e12, "flops": {"float32": 5e13}},
        "sections": sections,
        "seconds": 3.0,
    }


EXAMPLE = results_of(
    row("csr", OURS, 40),
    row("hyb", OURS, 10),
    row("hyb (rows 4)", TILE, 5),
    row("cusparse alg2", PEER, 20),
    row("torch csr", PEER, 90),
    row("pyg scatter", PEER, 15),
    row("hyb", OURS, 10, problem="h"),
    row("cusparse alg2", PEER, 80, problem="h"),
    row("cusparse default", PEER, 0, problem="h", refused="no"),
    row("bsr", OURS, 30, operator="bsr_spmm"),
    row("triton", PEER, 15, operator="bsr_spmm"),
)
del EXAMPLE["sections"]["spmm"]["rows"][-1]["cold_seconds"]


def test_goals_are_geometric_means_over_problems_against_the_named_peers():
    spmm, sddmm, blocks = table.goals(EXAMPLE)
    assert spmm == ["SpMM on hyb / cuSPARSE", "1.5", "4.00", f"{(4 * 8) ** 0.5:.2f}", "2"]
    assert sddmm[2:] == ["-", "-", "0"]
    assert blocks[2:] == ["0.50", "0.50", "1"]


def test_summary_takes_the_fastest_of_ours_and_of_the_peers():
    (spmm, blocks) = table.summary(EXAMPLE)
    assert spmm == [
        "spmm",
        "float32",
        "2",
        f"{(1.5 * 8) ** 0.5:.2f}",
        *spmm[4:5],
        f"{(3 * 8) ** 0.5:.2f}",
    ]
    assert blocks[:4] == ["bsr_spmm", "float32", "1", "0.50"]


def test_the_report_is_tables_and_plots(tmp_path):
    written = report.write(EXAMPLE, tmp_path)
    assert [path.name for path in written] == ["gpu.md", "gpu_spmm.png", "gpu_bsr_spmm.png"]
    text = written[0].read_text()
    assert (
        "| g | 32 | float32 | hyb | 10.0 | 5.0 | 10% | hyb (rows 4) | 5.0 | pyg scatter | 15.0 | 1.50 |"
        in text
    )
    assert "Not installed: cupy." in text
    assert "- cusparse default, 1 times: no" in text


def test_a_process_that_crashes_is_started_again_and_a_section_given_up_at_last(tmp_path):
    starts: list[str] = []

    def start(part: str, until: float) -> int:
        starts.append(part)
        return int(part == "spmv")

    options = command._parse(["--out", str(tmp_path / "r.json"), "--sections", "spmv", "sddmm"])
    assert command._all_parts(options, time.time(), start) is False
    assert starts == ["machine", *["spmv"] * 5, "sddmm"]
    assert json.loads((tmp_path / "r.json").read_text())["sections"]["spmv"]["rows"] == []

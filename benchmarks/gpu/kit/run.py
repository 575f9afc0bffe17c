"""One section of the run: its problems and contenders, measured while there is time.

First come our default kernels and the peers on every problem, then our kernels with other tile sizes.
Results are written after each contender, together with the one that is next, so that a run that is killed
or crashes loses nothing, and one that starts again goes on behind what stopped it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from . import problems
from .contenders import OURS, PEER, TILE, Contender, Problem, measured, our_contenders
from .graphs import BlockMatrix, Graph, block_matrix, scattered
from .layouts import bsr_arrays, coo_arrays, csr_arrays, hyb_arrays, sr_bcrs_arrays
from .library import Kernel, Kernels
from .machine import Limits, Machine
from .peers import available, peers_of

__all__ = ["SECTIONS", "Plan", "Run", "read_results", "write_results"]

#: Share of the whole time for each section.
SECTIONS = {
    "spmm": 0.36,
    "sddmm": 0.18,
    "bsr_spmm": 0.2,
    "bsr_sddmm": 0.08,
    "srbcrs_spmm": 0.06,
    "spmv": 0.06,
    "segment_sum": 0.06,
}
_BLOCK_PROBLEMS = {"bsr_spmm": problems.bsr_spmm, "bsr_sddmm": problems.bsr_sddmm}
_GRAPH_PROBLEMS = {
    "spmm": problems.spmm,
    "sddmm": problems.sddmm,
    "segment_sum": problems.segment_sum,
}


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    Parameters
    ----------
    seconds : float
        For the whole run.
    each : float
        For one contender on one problem.
    product : int
        Size of the square matrices whose product tells the machine's rate.
    features, block_features : sequence of int
        Widths for graphs, and for matrices of blocks.
    blocks : sequence of (int, int, float)
        Size, block and share of stored blocks of matrices of blocks.
    scattered : sequence of (int, float)
        Size and share of stored entries of matrices without blocks.
    """

    seconds: float = 440.0
    each: float = 0.06
    product: int = 8192
    features: Sequence[int] = (32, 64, 128, 256)
    block_features: Sequence[int] = (128, 512)
    blocks: Sequence[tuple[int, int, float]] = (
        (4096, 32, 0.05),
        (4096, 32, 0.1),
        (8192, 32, 0.05),
        (4096, 16, 0.05),
        (4096, 64, 0.1),
    )
    scattered: Sequence[tuple[int, float]] = ((4096, 0.02), (4096, 0.1))


@dataclass
class Run:
    """A run on one machine.

    Parameters
    ----------
    machine : Machine
        Where.
    kernels : Kernels
        Ours.
    graphs : callable
        Yields the graphs, small ones first.
    plan : Plan
        How much.
    path : pathlib.Path
        The JSON file of the results; what it holds is not measured again.
    most_seconds : float, optional
        End the process if a contender takes longer, as one that hangs.
    """

    machine: Machine
    kernels: Kernels
    graphs: Callable[[], Iterator[Graph]]
    plan: Plan
    path: Path
    most_seconds: float | None = None

    def measure_machine(self) -> None:
        """Measure what the machine can do."""
        results = read_results(self.path)
        results |= {
            "machine": self.machine.describe(),
            "libraries": available(),
            "limits": asdict(self.machine.limits(self.plan.product)),
        }
        write_results(self.path, results)

    def measure_section(self, name: str, until: float) -> None:
        """Measure a section until a time of :func:`time.time`."""
        results = read_results(self.path)
        section = results["sections"].setdefault(name, {"rows": [], "skipped": []})
        section.pop("next", None)
        begin = time.time()
        for kinds in ((OURS, PEER), (TILE,)):
            for problem, data in self._problems(name, section, until):
                self._measure_problem(problem, data, kinds, results, section, until)
        section["seconds"] = section.get("seconds", 0.0) + time.time() - begin
        write_results(self.path, results)

    def _problems(
        self, name: str, section: dict[str, Any], until: float
    ) -> Iterator[tuple[Problem, Graph | BlockMatrix]]:
        """Yield the problems of a section while there is time."""
        for label, data, make in self._cases(name):
            if time.time() > until:
                section["skipped"].append(label)
                continue
            with self.machine.released():
                try:
                    problem = make()
                except Exception as error:  # too large for this machine, say
                    section["skipped"].append(f"{label}: {str(error)[:200]}")
                    continue
                yield problem, data

    def _measure_problem(
        self,
        problem: Problem,
        data: Graph | BlockMatrix,
        kinds: Sequence[str],
        results: dict[str, Any],
        section: dict[str, Any],
        until: float,
    ) -> None:
        limits = Limits(**results["limits"])
        done = {
            (row["problem"], row["features"], row["dtype"], row["contender"])
            for row in section["rows"]
        }
        found = [*self._ours(problem, data), *peers_of(self.machine, problem, data)]
        for contender in (one for one in found if one.kind in kinds):
            key = (problem.name, problem.features, problem.dtype, contender.name)
            if key in done:
                continue
            if time.time() > until:
                section["skipped"].append(" ".join(map(str, key)))
                continue
            section["next"] = _unfinished(problem, contender)
            write_results(self.path, results)
            with _watched(self.most_seconds):
                row = measured(self.machine, limits, problem, contender, self.plan.each)
            section["rows"].append(row)
            del section["next"]
            write_results(self.path, results)
            self.machine.check()

    def _ours(self, problem: Problem, data: Graph | BlockMatrix) -> list[Contender]:
        packed: dict[str, dict[str, Any]] = {}

        def arrays(kernel: Kernel) -> dict[str, Any]:
            key = json.dumps([kernel.variant, dict(kernel.layout)], sort_keys=True)
            if key not in packed:
                packed[key] = self._packed(kernel, problem, data)
            return {**problem.arrays, **packed[key], "f": problem.features}

        rows, width = data.rows, problem.features
        output = {
            "spmv": ("y", (rows,)),
            "segment_sum": ("y", (rows, width)),
            "sddmm": ("c", (problem.facts.get("entries"),)),
            "bsr_sddmm": ("c", tuple(problem.reference.shape)),
        }.get(problem.operator, ("c", (rows, width)))
        return our_contenders(self.kernels, self.machine, problem, arrays, output)

    def _packed(
        self, kernel: Kernel, problem: Problem, data: Graph | BlockMatrix
    ) -> dict[str, Any]:
        """Return the sparse operand as a kernel takes it."""
        if problem.operator == "bsr_sddmm":
            arrays = bsr_arrays(data, "c")
        elif isinstance(data, BlockMatrix):
            arrays = {"a": problem.arrays["values"], **bsr_arrays(data)}
        elif "t" in kernel.layout:
            places = np.arange(1, data.entries + 1, dtype=np.int32)
            arrays = sr_bcrs_arrays(data, places, kernel.layout["t"], kernel.layout["g"])
            arrays["a"] = self.machine.padded(problem.arrays["a"], arrays["a"])
        elif "widths" in kernel.layout:
            places = np.arange(1, data.entries + 1, dtype=np.int32)  # zero is left for padding
            layout = kernel.layout
            arrays = hyb_arrays(data, places, layout["widths"], layout["column_parts"])
            for name in {f"a_w{width}" for width in (0, *layout["widths"])} & arrays.keys():
                arrays[name] = self.machine.padded(problem.arrays["a"], arrays[name])
        elif kernel.variant == "coo":
            arrays = {"a": problem.arrays["a"].reshape(-1, 1, 1), **coo_arrays(data)}
        else:
            arrays = csr_arrays(data)
        return {
            name: self.machine.array(value) if isinstance(value, np.ndarray) else value
            for name, value in arrays.items()
        }

    def _cases(self, name: str) -> Iterator[tuple[str, Graph | BlockMatrix, Callable[[], Problem]]]:
        """Yield label, data and maker of each problem of a section."""
        machine, plan = self.machine, self.plan
        dtypes = sorted({kernel.dtype for kernel in self.kernels.choose(name)}) or ["float32"]
        if name in _BLOCK_PROBLEMS:
            for size, block, density in plan.blocks:
                data = block_matrix(size, block, density)
                for width in plan.block_features:
                    for dtype in dtypes:
                        make = partial(_BLOCK_PROBLEMS[name], machine, data, width, dtype)
                        yield f"{data.name} {width} {dtype}", data, make
            return
        if name == "srbcrs_spmm":
            for size, density in plan.scattered:
                data = scattered(size, density)
                for width in plan.block_features:
                    for dtype in dtypes:
                        make = partial(problems.srbcrs_spmm, machine, data, width, dtype)
                        yield f"{data.name} {width} {dtype}", data, make
            return
        for graph in self.graphs():
            if name == "spmv":
                for dtype in dtypes:
                    make = partial(problems.spmv, machine, graph, dtype)
                    yield f"{graph.name} {dtype}", graph, make
                continue
            for width in plan.features:
                for dtype in dtypes:
                    make = partial(_GRAPH_PROBLEMS[name], machine, graph, width, dtype)
                    yield f"{graph.name} {width} {dtype}", graph, make


@contextmanager
def _watched(seconds: float | None) -> Iterator[None]:
    """End the process if the block takes longer; a kernel that hangs can't be stopped otherwise."""
    timer = threading.Timer(seconds or 0.0, os._exit, [1])
    if seconds is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def read_results(path: Path) -> dict[str, Any]:
    """Return the results of a file; empty ones if there is none."""
    return json.loads(path.read_text()) if path.exists() else {"sections": {}}


def write_results(path: Path, results: dict[str, Any]) -> None:
    """Replace a file of results as a whole, so that a kill leaves the last one."""
    partial_file = path.with_suffix(".partial")
    partial_file.write_text(json.dumps(results, indent=1))
    os.replace(partial_file, path)


def _unfinished(problem: Problem, contender: Contender) -> dict[str, Any]:
    """Return the row of a contender that ended the process."""
    return {
        "operator": problem.operator,
        "problem": problem.name,
        "features": problem.features,
        "dtype": problem.dtype,
        "contender": contender.name,
        "kind": contender.kind,
        "refused": "ended the process",
    }

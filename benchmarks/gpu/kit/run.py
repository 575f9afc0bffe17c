"""The run: sections one after another, each within its share of the time, results written as they come.

A section goes over problems; for each it measures our default kernels, then the peers, then our kernels with
other tile sizes, and writes the results so far. What there is no time for is noted.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import problems
from .contenders import OURS, PEER, Contender, Problem, measured, our_contenders
from .graphs import BlockMatrix, Graph, block_matrix
from .layouts import bsr_arrays, csr_arrays, hyb_arrays
from .library import Kernel, Kernels
from .machine import Limits, Machine
from .peers import available, peers_of

__all__ = ["SECTIONS", "Plan", "Run"]

#: Share of the whole time for each section.
SECTIONS = {"spmm": 0.42, "sddmm": 0.2, "bsr_spmm": 0.22, "spmv": 0.08, "segment_sum": 0.08}
_RANK = {OURS: 0, PEER: 1}


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


@dataclass
class Run:
    """One run on one machine.

    Parameters
    ----------
    machine : Machine
        Where.
    kernels : Kernels
        Ours.
    graphs : callable
        Yields the graphs, small ones first; called once a section.
    plan : Plan
        How much.
    path : pathlib.Path
        The JSON file of the results.
    """

    machine: Machine
    kernels: Kernels
    graphs: Callable[[], Iterator[Graph]]
    plan: Plan
    path: Path
    results: dict[str, Any] = field(default_factory=dict)

    def all(self, sections: Sequence[str] = tuple(SECTIONS)) -> dict[str, Any]:
        """Measure the machine, then the sections; return the results."""
        self._begin = time.monotonic()
        limits = self._measure_machine()
        for name in sections:
            self._section(name, limits)
        self.results["seconds"] = time.monotonic() - self._begin
        self._write()
        return self.results

    def _measure_machine(self) -> Limits:
        limits = self.machine.limits(self.plan.product)
        self.results |= {
            "machine": self.machine.describe(),
            "libraries": available(),
            "limits": asdict(limits),
            "sections": {},
        }
        self._write()
        return limits

    def _section(self, name: str, limits: Limits) -> None:
        section: dict[str, Any] = {"rows": [], "skipped": []}
        self.results["sections"][name] = section
        begin = time.monotonic()
        left = self._begin + self.plan.seconds - begin
        shares = [share for own, share in SECTIONS.items() if self._is_pending(own)]
        until = begin + left * SECTIONS[name] / sum(shares)
        try:
            for problem, data in self._problems(name, section, until):
                self._measure_all(problem, data, limits, section, until)
                self._write()
        except Exception as error:  # the sections that follow shall run all the same
            section["failed"] = f"{type(error).__name__}: {error}"
        section["seconds"] = time.monotonic() - begin
        self._write()

    def _is_pending(self, name: str) -> bool:
        return "seconds" not in self.results["sections"].get(name, {})

    def _problems(
        self, name: str, section: dict[str, Any], until: float
    ) -> Iterator[tuple[Problem, Graph | BlockMatrix]]:
        """Yield the problems of a section while there is time."""
        for label, data, make in _cases(name, self):
            if time.monotonic() > until:
                section["skipped"].append(label)
                continue
            with self.machine.released():
                try:
                    problem = make()
                except Exception as error:  # too large for this machine, say
                    section["skipped"].append(f"{label}: {error}")
                    continue
                yield problem, data
                del problem

    def _measure_all(
        self,
        problem: Problem,
        data: Graph | BlockMatrix,
        limits: Limits,
        section: dict[str, Any],
        until: float,
    ) -> None:
        found = [*self._ours(problem, data), *peers_of(self.machine, problem, data)]
        for contender in sorted(found, key=lambda one: _RANK.get(one.kind, 2)):
            if time.monotonic() > until:
                section["skipped"].append(f"{_label(problem)}: {contender.name}")
                continue
            row = measured(self.machine, limits, problem, contender, self.plan.each)
            section["rows"].append(row)

    def _ours(self, problem: Problem, data: Graph | BlockMatrix) -> list[Contender]:
        packed: dict[str, dict[str, Any]] = {}

        def arrays(kernel: Kernel) -> dict[str, Any]:
            key = json.dumps([kernel.variant, dict(kernel.layout)], sort_keys=True)
            if key not in packed:
                packed[key] = self._packed(kernel, problem, data)
            sizes = {"f": problem.features}
            return {**problem.arrays, **packed[key], **sizes}

        rows, width = data.rows, problem.features
        output = {
            "spmv": ("y", (rows,)),
            "segment_sum": ("y", (rows, width)),
            "sddmm": ("c", (problem.facts.get("entries"),)),
        }.get(problem.operator, ("c", (rows, width)))
        return our_contenders(self.kernels, self.machine, problem, arrays, output)

    def _packed(
        self, kernel: Kernel, problem: Problem, data: Graph | BlockMatrix
    ) -> dict[str, Any]:
        """Return the sparse operand as a kernel takes it."""
        if isinstance(data, BlockMatrix):
            arrays = bsr_arrays(data, problem.arrays["values"])
        elif "widths" in kernel.layout:
            places = np.arange(1, data.entries + 1, dtype=np.int32)  # zero is left for padding
            arrays = hyb_arrays(data, places, kernel.layout["widths"])
            for width in (0, *kernel.layout["widths"]):
                name = f"a_w{width}"
                arrays[name] = self.machine.padded(problem.arrays["a"], arrays[name])
        else:
            arrays = csr_arrays(data)
        return {
            name: self.machine.array(value) if isinstance(value, np.ndarray) else value
            for name, value in arrays.items()
        }

    def _write(self) -> None:
        """Replace the file of results as a whole, so that a kill leaves the last one."""
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.results, indent=1))
        os.replace(partial, self.path)


Case = tuple[str, "Graph | BlockMatrix", Callable[[], Problem]]


def _cases(name: str, run: Run) -> Iterator[Case]:
    """Yield label, data and maker of each problem of a section."""
    machine, plan = run.machine, run.plan
    dtypes = sorted({kernel.dtype for kernel in run.kernels.choose(name)}) or ["float32"]
    if name == "bsr_spmm":
        for size, block, density in plan.blocks:
            data = block_matrix(size, block, density)
            for dtype in dtypes:
                for features in plan.block_features:
                    make = lambda data=data, features=features, dtype=dtype: problems.bsr_spmm(
                        machine, data, features, dtype
                    )
                    yield f"{data.name}, {features}, {dtype}", data, make
        return
    make_of = {
        "spmm": problems.spmm,
        "sddmm": problems.sddmm,
        "segment_sum": problems.segment_sum,
    }
    for graph in run.graphs():
        if name == "spmv":
            yield graph.name, graph, lambda graph=graph: problems.spmv(machine, graph, "float32")
            continue
        for features in plan.features:
            for dtype in dtypes:
                make = lambda graph=graph, features=features, dtype=dtype: make_of[name](
                    machine, graph, features, dtype
                )
                yield f"{graph.name}, {features}, {dtype}", graph, make


def _label(problem: Problem) -> str:
    return f"{problem.name}, {problem.features}, {problem.dtype}"

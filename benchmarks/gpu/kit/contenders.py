"""What is measured: problems, contenders, and the rows of results that they give.

A *problem* is an operator on given data, with its float64 reference. A *contender* is one way to compute
it: one of our kernels, or a peer. A contender that fails, or is wrong, gives a row that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .library import Kernel, Kernels
from .machine import Limits, Machine

__all__ = ["OURS", "TOLERANCES", "Contender", "Problem", "measured", "our_contenders"]

OURS, TILE, PEER = "ours", "tile", "peer"

#: Largest norm of the error over that of the result, by dtype.
TOLERANCES = {"float32": 1e-5, "tf32": 2e-3, "float16": 2e-3, "bfloat16": 1.6e-2}


@dataclass
class Problem:
    """An operator on given data.

    Parameters
    ----------
    operator, name : str
        Such as ``"spmm"`` and the name of a graph.
    features : int or None
        Width of dense operands.
    dtype : str
        Of values.
    arrays : dict
        Operands on the machine.
    reference : array
        The result in float64.
    moved : float
        Bytes that must be moved at least: every operand read once, the result written once.
    operations : float
        Floating-point operations on stored entries.
    facts : dict
        What describes the data: rows, entries, density.
    """

    operator: str
    name: str
    features: int | None
    dtype: str
    arrays: Mapping[str, Any]
    reference: Any
    moved: float
    operations: float
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """One way to compute a problem.

    Parameters
    ----------
    name, kind : str
        What tables call it, and whether it is ours with default tile sizes, with others, or a peer.
    prepare : callable
        Does what need not be done again for each call; returns the call, which returns the result.
    """

    name: str
    kind: str
    prepare: Callable[[], Callable[[], Any]]


def our_contenders(
    kernels: Kernels,
    machine: Machine,
    problem: Problem,
    arrays: Callable[[Kernel], Mapping[str, Any]],
    output: tuple[str, tuple[int, ...]],
) -> list[Contender]:
    """Return our kernels for a problem, defaults first.

    Parameters
    ----------
    kernels, machine, problem
        Where from, where, and for what.
    arrays : callable
        Gives a kernel's operands.
    output : tuple
        Name and shape of the result.
    """
    wanted = {"features": problem.features, "dtype": problem.dtype}

    def prepare(kernel: Kernel) -> Callable[[], Any]:
        name, shape = output
        result = machine.unset(shape, _stored(problem.dtype))
        call = kernels.bind(kernel, {**arrays(kernel), name: result})

        def run() -> Any:
            call()
            return result

        return run

    return [
        Contender(
            kernel.label,
            OURS if kernel.is_default else TILE,
            lambda kernel=kernel: prepare(kernel),
        )
        for kernel in kernels.choose(problem.operator, **wanted)
        if kernel.layout.get("block") == problem.facts.get("block")
    ]


def measured(
    machine: Machine, limits: Limits, problem: Problem, contender: Contender, seconds: float
) -> dict[str, Any]:
    """Check and time a contender."""
    row = {
        "operator": problem.operator,
        "problem": problem.name,
        "features": problem.features,
        "dtype": problem.dtype,
        "contender": contender.name,
        "kind": contender.kind,
        "moved_bytes": problem.moved,
        "operations": problem.operations,
        "bound_seconds": limits.seconds(problem.moved, problem.operations, problem.dtype),
        **problem.facts,
    }
    try:
        call = contender.prepare()
        row["error"] = machine.distance(call(), problem.reference)
        if not row["error"] <= TOLERANCES[problem.dtype]:
            return {**row, "refused": f"wrong: relative error {row['error']:.1e}"}
        times = machine.time(call, seconds)
    except Exception as error:  # a peer that cannot do it must not end the run
        return {**row, "refused": f"{type(error).__name__}: {str(error)[:200]}"}
    return {**row, "cold_seconds": times.cold, "warm_seconds": times.warm}


def _stored(dtype: str) -> str:
    return "float32" if dtype == "tf32" else dtype

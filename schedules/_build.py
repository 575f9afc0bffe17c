"""From an operator's program to a compiled kernel with its default schedule."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tvm.s_tir import Schedule

from ..ir import SparseFunc
from ..runtime import Executable, compile, lower, resolve_target

__all__ = ["build_default", "schedule_default", "specialized"]


def schedule_default(program: SparseFunc, cpu: ModuleType, target: Any = "llvm") -> Schedule:
    """Lower a program and apply an operator's default CPU schedule.

    Parameters
    ----------
    program : SparseFunc
        The operator's program, specialised or not.
    cpu : module
        Holds ``schedule(sch, target=, name=)``.
    target : str, dict or tvm.target.Target
        The CPU.

    Returns
    -------
    tvm.s_tir.Schedule
        The scheduled program; go on with TVM's primitives, or compile it.
    """
    resolved = resolve_target(target)
    schedule = Schedule(lower(program))
    cpu.schedule(schedule, target=resolved, name=program.name)
    return schedule


def build_default(program: SparseFunc, cpu: ModuleType, target: Any = "llvm") -> Executable:
    """Compile a program with an operator's default CPU schedule."""
    resolved = resolve_target(target)
    if resolved.kind.name != "llvm":
        raise ValueError(f"target: expected a CPU (llvm), found {resolved.kind.name}")
    return compile(schedule_default(program, cpu, resolved), resolved)


def specialized(program: SparseFunc, features: int | None) -> SparseFunc:
    """Bind the feature width, if one is given."""
    if features is None:
        return program
    if isinstance(features, bool) or not isinstance(features, int) or features < 0:
        raise ValueError(f"features: expected a non-negative integer, found {features!r}")
    return program.specialize({"f": features})

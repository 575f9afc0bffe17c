"""The operator library: program, reference, default schedules and tuning space of each operator."""

from types import ModuleType
from typing import Any

from ..ir import SparseFunc
from ..runtime import Executable, compile
from . import sddmm, segment_reduce, spmm, spmv
from ._build import build_default

__all__ = ["compile_default", "find", "sddmm", "segment_reduce", "spmm", "spmv"]


def find(name: str) -> ModuleType | None:
    """Return the operator whose program has this name, ``None`` where there is none."""
    if name.startswith("segment_"):
        return segment_reduce
    return {"sddmm": sddmm, "spmm": spmm, "spmv": spmv}.get(name)


def compile_default(program: SparseFunc, target: Any = "llvm") -> Executable:
    """Compile an operator's program with its default schedule, any other program unscheduled."""
    from . import cpu  # noqa: PLC0415 (schedules load with the first build)

    operator = find(program.name)
    if operator is None:
        return compile(program, target)
    return build_default(program, getattr(cpu, operator.__name__.rsplit(".", 1)[-1]), target)

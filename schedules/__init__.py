"""The operator library: program, reference, default schedules and tuning space of each operator."""

from types import ModuleType
from typing import Any

from tvm import tirx

from ..ir import SparseFunc, SparseIteration
from ..runtime import Executable, compile
from . import sddmm, segment_reduce, spmm, spmv
from ._build import build_default

__all__ = ["compile_default", "find", "sddmm", "segment_reduce", "spmm", "spmv"]


#: Kinds of the iterators of each operator's main iteration, which bears the program's name.
_KINDS = {
    spmm: "SRS",
    spmv: "SR",
    sddmm: "SSR",
    segment_reduce: "SRS",
}


def find(program: SparseFunc) -> ModuleType | None:
    """Return the operator that a program is, ``None`` where it is none of them.

    The name alone does not decide: a program of one's own may be called ``spmm`` too.
    """
    name = program.name
    operator = {"sddmm": sddmm, "spmm": spmm, "spmv": spmv}.get(name)
    if name in {f"segment_{operation}" for operation in segment_reduce.OPERATIONS}:
        operator = segment_reduce
    if operator is None:
        return None
    body = program.body.seq if isinstance(program.body, tirx.SeqStmt) else [program.body]
    for stmt in body:
        if isinstance(stmt, SparseIteration) and stmt.name == name:
            row, entry = stmt.axes[:2]
            is_rows = row.kind == "dense_fixed" and entry.is_variable and entry.parent_axis == row
            return operator if stmt.kinds == _KINDS[operator] and is_rows else None
    return None


def compile_default(program: SparseFunc, target: Any = "llvm") -> Executable:
    """Compile an operator's program with its default schedule, any other program unscheduled."""
    operator = find(program)
    if operator is None:
        return compile(program, target)
    return build_default(operator.__name__, program, target)

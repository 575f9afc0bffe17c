"""The outer level: programs that a choice of formats or other stage-I decisions leads to."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm

from .. import schedules
from ..formats import COO, CSR, Composition, Format, RowList
from ..schedule import SparseSchedule
from ..schedule.trace import Trace
from ..schedules._build import decompose, schedules_for
from .base import Base, PackedOperands, pack_operands
from .loops import Problem

__all__ = [
    "Point",
    "candidate_formats",
    "check_formats",
    "check_operands",
    "decision",
    "format_points",
]

#: Characters of a trace that a record holds.
_LONGEST_TEXT = 4096


@dataclass
class Point:
    """One outer point.

    Attributes
    ----------
    name : str
        Of the format, or its decisions.
    describe : str
        Text that tells it from others, in this process and later ones.
    make : callable
        Decomposes the program and packs the operands: returns trace, problem and packed operands.
    """

    name: str
    describe: str
    make: Callable[[], tuple[Trace, Problem, PackedOperands]]


def candidate_formats(base: Base, operands: Sequence[str]) -> dict[str, Any]:
    """Return formats worth trying for the operands of an operator."""
    operator = schedules.find(base.program)
    entries = base.entries(operands[0])
    if operator is schedules.spmm:
        result = base.results[0]
        return schedules.spmm.candidate_formats(entries, result.shape[1], str(result.dtype))
    if operator is not None:
        return {"csr": CSR(), "rows_rcm": RowList("rcm"), "coo": COO()}
    raise ValueError(
        f"formats: {base.program.name!r} is none of the operators of tvm_sparse.schedules, so none are "
        "known to suit it; give a dict of formats by name"
    )


def format_points(
    base: Base, formats: Mapping[str, Any], operands: Sequence[str], target: Any
) -> list[Point]:
    """Return a point for each format."""
    return [
        Point(
            name,
            f"{name}: {_text(fmt)} of {', '.join(operands)}",
            _maker(base, fmt, operands, name, target),
        )
        for name, fmt in formats.items()
    ]


def _maker(base: Base, fmt: Any, operands: Sequence[str], name: str, target: Any) -> Callable:
    def make() -> tuple[Trace, Problem, PackedOperands]:
        begin = time.perf_counter()
        chosen = fmt if isinstance(fmt, Format | Composition) else Composition(fmt)
        if hasattr(chosen, "fitted"):
            chosen = chosen.fitted(base.entries(operands[0]))
        packed = PackedOperands(pack_operands(base, operands, chosen), time.perf_counter() - begin)
        schedule, first, space = _decomposed(base, chosen, operands, target)
        program = next(iter(schedule.mod.functions.values()))
        problem = packed.problem(base, program, space, first, decision(name, schedule.trace))
        return schedule.trace, problem, packed

    return make


def _decomposed(base: Base, fmt: Any, operands: Sequence[str], target: Any) -> tuple:
    """Return the decomposed program, its default loop schedule, and the space of loop schedules."""
    program = base.program
    operand = operands[0] if len(operands) == 1 else list(operands)
    operator = schedules.find(program)
    module = {schedules.spmm: "parts", schedules.sddmm: "sddmm_parts", schedules.spmv: "spmv_parts"}
    if operator not in module:
        schedule = SparseSchedule(program)
        schedule.decompose_format(program.name, operand, fmt)
        return schedule, _rows_in_parallel, None
    schedule, parts = decompose(program, operand, fmt, strips=operator is schedules.spmv)
    schedule_parts = schedules_for(module[operator], target).schedule
    settings = {
        "parts": parts,
        "target": target,
        "name": program.name,
        "groups": getattr(fmt, "disjoint_rows", None),
    }

    def first(lowered: tvm.s_tir.Schedule) -> tvm.s_tir.Schedule:
        schedule_parts(lowered, **settings)
        return lowered

    def space(lowered: tvm.s_tir.Schedule) -> list[tvm.s_tir.Schedule]:
        spaces = schedules_for("parts_space", target)
        if operator is not schedules.spmm:
            return spaces.grains(lowered, schedule_parts=schedule_parts, **settings)
        return spaces.space(lowered, bits=8 * base.results[0].dtype.itemsize, **settings)

    return schedule, first, space


def _rows_in_parallel(lowered: tvm.s_tir.Schedule) -> tvm.s_tir.Schedule:
    """Run the outermost loops in parallel where that is legal, for want of a schedule of the parts."""
    for block in schedules_for("parts").block_names(lowered):
        loops = lowered.get_loops(lowered.get_sblock(block)) if block.endswith("_0") else []
        if loops:
            with contextlib.suppress(tvm.s_tir.ScheduleError):
                lowered.parallel(loops[0])
    return lowered


def check_formats(formats: Any, base: Base, operands: Sequence[str]) -> dict[str, Any]:
    """Return formats by name; ``True`` and ``"auto"`` stand for :func:`candidate_formats`."""
    if formats is True or formats == "auto":
        return candidate_formats(base, operands)
    if not isinstance(formats, Mapping):
        raise TypeError(
            f'formats: expected formats by name, True or "auto", found {type(formats).__name__}'
        )
    if not formats:
        raise ValueError("formats: expected one or more, found none")
    for name, fmt in formats.items():
        if not isinstance(name, str):
            raise TypeError(f"formats: expected names that are text, found {name!r}")
        if not isinstance(fmt, Format | Composition | Mapping):
            raise TypeError(
                f"formats: expected a Format, a Composition or a dict of parts for {name!r}, found {fmt!r}"
            )
    return dict(formats)


def check_operands(operand: str | Sequence[str] | None, base: Base) -> list[str]:
    """Return the buffers to hold in formats: by default all that are sparse, over the same axes."""
    if operand is None:
        found = base.sparse_buffers()
        if not found:
            raise ValueError(f"operand: expected a sparse buffer, {base.program.name} has none")
    else:
        found = [operand] if isinstance(operand, str) else list(operand)
    axes = {arg.get("buffer"): arg.get("axes") for arg in base.metadata["args"]}
    for name in found:
        base.parameter(name)
        if axes[name] != axes[found[0]]:
            raise ValueError(
                f"operand: expected buffers over the same axes, found {found[0]} over "
                f"{', '.join(axes[found[0]])} and {name} over {', '.join(axes[name])}; name one"
            )
    return found


def decision(name: str, trace: Trace) -> str:
    """Return what a record says about a point: its trace, or a digest of one that lists every row."""
    text = str(trace)
    if len(text) > _LONGEST_TEXT:
        text = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return f"{name}\n{text}"


def _text(fmt: Any) -> str:
    """Return the call that makes a format, as a trace prints it."""
    trace = Trace()
    trace.append(
        "decompose_format", {"formats": dict(fmt) if isinstance(fmt, Mapping) else fmt}, None
    )
    return str(trace).splitlines()[-1].strip()

"""From an operator's program to a compiled kernel with its default schedule."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from numbers import Integral
from types import ModuleType
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from ..ir import SparseFunc
from ..runtime import Executable, compile, lower, resolve_target
from ..schedule import SparseSchedule
from ..schedule.iterations import find_iteration
from ..schedule.trace import IterationHandle
from ._options import check_options

__all__ = [
    "build_decomposed",
    "build_default",
    "decompose",
    "scheduled",
    "scheduled_parts",
    "schedules_for",
    "variants",
]

#: How messages call the kinds of targets.
_TARGETS = {"llvm": "a CPU", "cuda": "CUDA"}


def build_default(
    operator: str,
    program: SparseFunc,
    target: Any = "llvm",
    features: int | None = None,
    deterministic: bool = False,
    **options: Any,
) -> Executable:
    """Compile a program with an operator's default schedule.

    Parameters
    ----------
    operator : str
        ``__name__`` of the operator's module.
    program : SparseFunc
        The operator's program, specialised or not.
    target : str, dict or tvm.target.Target
        A CPU or a CUDA device.
    features : int, optional
        Feature width to compile for; left as it is by default.
    deterministic : bool
        Whether results shall be the same bits in every run, which those of default schedules are.
    **options
        For the operator's schedule, such as ``tile``.

    Returns
    -------
    Executable
        The kernel.

    Raises
    ------
    ValueError
        If the target is of another kind or the feature width no size.
    """
    _check_flag("deterministic", deterministic)
    resolved = resolve_target(target)
    return compile(scheduled(operator, program, resolved, features, **options), resolved)


def scheduled(
    operator: str,
    program: SparseFunc,
    target: Any = "llvm",
    features: int | None = None,
    **options: Any,
) -> Schedule:
    """Lower a program and apply an operator's default schedule; parameters as in :func:`build_default`."""
    program = _specialized(program, features)
    resolved = resolve_target(target)
    schedules = schedules_for(operator, resolved)
    check_options(schedules.schedule, options, _TARGETS[resolved.kind.name])
    schedule = Schedule(getattr(schedules, "lowered", lower)(program))
    schedules.schedule(schedule, target=resolved, name=program.name, **options)
    return schedule


def build_decomposed(
    schedules: str,
    program: SparseFunc,
    operand: str | Sequence[str],
    formats: Any,
    target: Any = "llvm",
    features: int | None = None,
    strips: bool = False,
    deterministic: bool = False,
    **options: Any,
) -> Executable:
    """Compile a program with an operand in formats.

    Parameters
    ----------
    schedules : str
        Name of the module that schedules the parts.
    program : SparseFunc
        The operator's program; its main iteration has its name.
    operand : str or sequence of str
        The sparse operand, or several that are stored over the same axes.
    formats : Format, Composition, dict or sequence
        As :meth:`SparseSchedule.decompose_format` takes them.
    target, features
        As in :func:`build_default`.
    strips : bool
        Whether the rows of a format alone under which nothing is stored (diagonals) are gone over strip
        by strip.
    deterministic : bool
        Whether results shall be the same bits in every run, also where a row is summed in several places.
    **options
        For the schedule, such as ``tile``.
    """
    resolved = resolve_target(target)
    schedule = scheduled_parts(
        schedules,
        program,
        operand,
        formats,
        resolved,
        features,
        strips,
        deterministic=deterministic,
        **options,
    )
    return compile(schedule, resolved)


def scheduled_parts(
    schedules: str,
    program: SparseFunc,
    operand: str | Sequence[str],
    formats: Any,
    target: Any = "llvm",
    features: int | None = None,
    strips: bool = False,
    deterministic: bool = False,
    **options: Any,
) -> Schedule:
    """Hold operands in formats and schedule the parts; parameters as in :func:`build_decomposed`."""
    _check_flag("deterministic", deterministic)
    resolved = resolve_target(target)
    module = schedules_for(schedules, resolved)
    check_options(module.schedule, options, _TARGETS[resolved.kind.name])
    is_empty = features == 0 and resolved.kind.name == "cuda" and schedules == "sddmm_parts"
    # Dot products of nothing have no rows to be read from: a kernel for any width computes them.
    program = _specialized(program, None if is_empty else features)
    # A vector goes along strips of rows; threads have a row each.
    strips = strips and resolved.kind.name != "cuda"
    decomposed, parts = decompose(program, operand, formats, strips)
    schedule = decomposed.lower()
    if hasattr(module, "prepared"):
        schedule = module.prepared(schedule, deterministic=deterministic)
        options["deterministic"] = deterministic
    module.schedule(
        schedule,
        parts,
        target=resolved,
        name=program.name,
        groups=getattr(formats, "disjoint_rows", None),
        **options,
    )
    return schedule


def decompose(
    program: SparseFunc, operand: str | Sequence[str], formats: Any, strips: bool = False
) -> tuple[SparseSchedule, list[str]]:
    """Hold operands of a program in formats, and order the loops of the parts.

    Parameters
    ----------
    program : SparseFunc
        The operator's program; its main iteration has its name.
    operand : str or sequence of str
        The sparse operand, or several over the same axes.
    formats : Format, Composition, dict or sequence
        As :meth:`SparseSchedule.decompose_format` takes them.
    strips : bool
        Go over all rows inside of a lone part, where each loop is one of its own.

    Returns
    -------
    SparseSchedule
        The decomposed program.
    list of str
        Names of the parts, as the iterations go by after the program's name; without that of the
        initialisation.
    """
    decomposed = SparseSchedule(program)
    made = decomposed.decompose_format(program.name, operand, formats)
    for handle in made:
        _put_rows_inside(decomposed, handle, strips and len(made) == 1)
    parts = [handle.name.removeprefix(f"{program.name}_") for handle in made]
    return decomposed, [part for part in parts if part != "init"]


def _put_rows_inside(schedule: SparseSchedule, handle: IterationHandle, strips: bool) -> None:
    """Go over the rows of a block after its columns, so that a value of the dense operand serves all.

    With `strips`, over all rows where each loop is one of its own.
    """
    iteration = find_iteration(schedule.mod[handle.function], handle.name)
    loops = [(axis, kind, var.name) for axis, kind, var in iteration.iterators]
    reduced = [place for place, (_, kind, _) in enumerate(loops) if kind == "R"]
    if not reduced:
        return
    last = reduced[-1] + 1
    has_strips = strips and all(axis.kind == "dense_fixed" for axis, _, _ in loops)
    inside = [
        place
        for place, (axis, kind, _) in enumerate(loops[: last - 1])
        if kind == "S"
        and axis.kind == "dense_fixed"
        and (has_strips or (place > 0 and isinstance(axis.length, tirx.IntImm)))
    ]
    if inside:
        before = [place for place in range(last) if place not in inside]
        order = [*before, *inside, *range(last, len(loops))]
        schedule.sparse_reorder(handle, [loops[place][2] for place in order])


def schedules_for(operator: str, target: Any = "llvm") -> ModuleType:
    """Return the schedules of an operator for the kind of a target.

    Parameters
    ----------
    operator : str
        ``__name__`` of the operator's module, or the last part of it.
    target : str, dict or tvm.target.Target
        A CPU or a CUDA device.

    Raises
    ------
    ValueError
        If there are no schedules for such a target.
    """
    folders = {"llvm": "cpu", "cuda": "cuda"}
    kind = resolve_target(target).kind.name
    if kind not in folders:
        raise ValueError(f"target: expected a CPU (llvm) or cuda, found {kind}")
    name = f".{folders[kind]}.{operator.rpartition('.')[2]}"
    if find_spec(name, __package__) is None:
        raise ValueError(
            f"target: expected a CPU (llvm) for this operator over formats, found {kind}"
        )
    return import_module(name, __package__)


def variants(
    operator: str, schedule: Schedule, target: Any = None, name: str | None = None
) -> list[Schedule]:
    """Return the schedules that tuning chooses from, for the kind of a target (a CPU by default)."""
    resolved = resolve_target(target or "llvm")
    return schedules_for(operator, resolved).space(schedule, target=resolved, name=name)


def _check_flag(name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name}: expected True or False, found {value!r}")


def _specialized(program: SparseFunc, features: int | None) -> SparseFunc:
    """Bind the feature width, if one is given."""
    if features is None:
        return program
    if isinstance(features, bool) or not isinstance(features, Integral) or features < 0:
        raise ValueError(f"features: expected a non-negative integer, found {features!r}")
    if "f" not in program.arg_names:
        raise ValueError(f"features: expected none for {program.name}, which has no feature width")
    return program.specialize({"f": int(features)})

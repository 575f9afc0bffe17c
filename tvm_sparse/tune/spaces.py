"""Spaces over both levels: functions of a :class:`SparseSchedule` that sample, decompose and lower.

Each set of stage-I decisions is one outer point. The function runs once for each up to its ``lower()``,
which gives the program; to schedule loops, it runs again, and ``lower()`` then returns the schedule that
MetaSchedule records.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import tvm

from ..errors import SparseProgramError
from ..ir import SparseFunc
from ..schedule import SparseSchedule
from ..schedule.arguments import operand_names
from ..schedule.trace import Sample, Trace
from .base import Base, PackedOperands, pack_operands
from .loops import Problem
from .points import Point, decision
from .result import TuningError

__all__ = ["SparseSpace", "space_points"]

#: Uses both levels: samples, decomposes and reorders, and goes on with what ``lower()`` returns.
SparseSpace = Callable[[SparseSchedule], tvm.s_tir.Schedule | list[tvm.s_tir.Schedule]]

#: Sets of decisions that are tried at random where a space has more than may be measured.
_ATTEMPTS = 20


class _Lowered(BaseException):
    """Ends the first half of a space; no ``except Exception`` of a user's catches it."""


class _DecidedSchedule(SparseSchedule):
    """Takes given decisions in the order of samples, and notes what it was asked and given.

    Parameters
    ----------
    program : SparseFunc
        The program.
    decisions : sequence of int
        For the first samples; later ones take the first candidate, or one by `generator`.
    lowered : tvm.s_tir.Schedule, optional
        What ``lower`` returns; without it the space ends there.
    generator : random.Random, optional
        Draws decisions that are not given.
    """

    def __init__(
        self,
        program: SparseFunc,
        decisions: Sequence[int] = (),
        lowered: tvm.s_tir.Schedule | None = None,
        generator: random.Random | None = None,
    ) -> None:
        super().__init__(program)
        self.given, self.lowered, self.generator = decisions, lowered, generator
        self.decisions: list[int] = []
        self.choices: list[list[int]] = []
        self.decomposed: list[tuple[list[str], Any]] = []

    def sample_categorical(
        self,
        candidates: Sequence[int],
        probs: Sequence[float] | None = None,
        decision: int | None = None,
    ) -> Sample:
        """Take the given decision."""
        if decision is None:
            weights = [1.0] * len(candidates) if probs is None else list(probs)
            possible = [number for number, weight in enumerate(weights) if weight > 0] or [0]
            place = len(self.decisions)
            if place < len(self.given):
                decision = self.given[place]
            else:
                decision = self.generator.choice(possible) if self.generator else possible[0]
            self.decisions.append(decision)
            self.choices.append(possible)
        return super().sample_categorical(candidates, probs, decision)

    def decompose_format(self, iteration: Any, operand: Any, formats: Any) -> list:
        """Note the formats, by which the operands are packed."""
        made = super().decompose_format(iteration, operand, formats)
        self.decomposed.append((operand_names(operand), formats))
        return made

    def lower(self) -> tvm.s_tir.Schedule:
        """Return the given schedule, or end the space."""
        if self.lowered is None:
            raise _Lowered
        return self.lowered


def space_points(
    space: SparseSpace, base: Base, most: int, seed: int
) -> tuple[list[Point], list[str]]:
    """Return a point for each set of decisions of a space, and what was said about illegal ones.

    Parameters
    ----------
    space : callable
        The space.
    base : Base
        The call.
    most : int
        Most points; of a larger space, as many are drawn.
    seed : int
        Of the draws.

    Raises
    ------
    TuningError
        If the function fails, does not lower the schedule that it is given, or no set of decisions is
        legal.
    """
    found, errors = _explore(space, base.program, most, seed)
    if not found:
        raise TuningError(
            f"sparse_space: no decisions of {_name(space)} are legal; the first: {errors[0]}"
        )
    return [_point(space, base, schedule) for schedule in found], errors


def _explore(
    space: SparseSpace, program: SparseFunc, most: int, seed: int
) -> tuple[list[_DecidedSchedule], list[str]]:
    """Walk the tree of decisions; draw from it where it has more than `most` legal leaves."""
    found: list[_DecidedSchedule] = []
    errors: list[str] = []
    waiting: list[tuple[int, ...]] = [()]
    while waiting and len(found) <= most and len(errors) <= _ATTEMPTS * most:
        prefix = waiting.pop()
        schedule, error = _first_half(space, program, prefix)
        if error is None:
            found.append(schedule)
        else:
            errors.append(error)
        taken = tuple(schedule.decisions)
        for place in range(len(taken) - 1, len(prefix) - 1, -1):
            others = [number for number in schedule.choices[place] if number != taken[place]]
            waiting += [(*taken[:place], number) for number in reversed(others)]
    if not waiting and len(found) <= most:
        return found, errors
    generator, drawn = random.Random(seed), {}
    for _ in range(_ATTEMPTS * most):
        schedule, error = _first_half(space, program, (), generator)
        if error is None:
            drawn[tuple(schedule.decisions)] = schedule
        if len(drawn) == most:
            break
    return list(drawn.values()), errors


def _first_half(
    space: SparseSpace,
    program: SparseFunc,
    decisions: Sequence[int],
    generator: random.Random | None = None,
) -> tuple[_DecidedSchedule, str | None]:
    """Return the schedule that a space makes before it lowers, and an error if that is illegal."""
    schedule = _DecidedSchedule(program, decisions, generator=generator)
    try:
        _run_first_half(space, schedule)
    except SparseProgramError as error:
        return schedule, f"decisions {schedule.decisions}: {error}"
    return schedule, None


def _run_first_half(space: SparseSpace, schedule: _DecidedSchedule) -> None:
    try:
        made = space(schedule)
    except _Lowered:
        return
    except SparseProgramError:
        raise
    except Exception as error:
        raise TuningError(
            f"sparse_space: {_name(space)} failed with decisions {schedule.decisions}: "
            f"{type(error).__name__}: {error}"
        ) from error
    raise TuningError(
        f"sparse_space: expected {_name(space)} to return what lower() of its SparseSchedule gave, found "
        f"{made!r} and no call of lower()"
    )


def _point(space: SparseSpace, base: Base, schedule: _DecidedSchedule) -> Point:
    samples = [e.result for e in schedule.trace.entries if isinstance(e.result, Sample)]
    name = ", ".join(f"{sample.label}={int(sample)}" for sample in samples) or "as given"

    def loops(lowered: tvm.s_tir.Schedule) -> Any:
        return _second_half(space, base.program, schedule.decisions, lowered)

    def make() -> tuple[Trace, Problem, PackedOperands]:
        begin = time.perf_counter()
        tensors: dict[str, Any] = {}
        for operands, formats in schedule.decomposed:
            tensors |= pack_operands(base, operands, formats)
        packed = PackedOperands(tensors, time.perf_counter() - begin)
        program = next(iter(schedule.mod.functions.values()))
        problem = packed.problem(base, program, loops, None, decision(name, schedule.trace))
        return schedule.trace, problem, packed

    return Point(name, str(schedule.trace), make)


def _second_half(
    space: SparseSpace, program: SparseFunc, decisions: Sequence[int], lowered: tvm.s_tir.Schedule
) -> Any:
    """Schedule the loops of a lowered program."""
    schedule = _DecidedSchedule(program, decisions, lowered)
    try:
        made = space(schedule)
    except Exception as error:
        raise TuningError(
            f"sparse_space: {_name(space)} failed on the lowered program with decisions "
            f"{list(decisions)}: {type(error).__name__}: {error}"
        ) from error
    if len(schedule.decisions) > len(decisions):
        raise TuningError(
            f"sparse_space: expected {_name(space)} to sample on the SparseSchedule before lower(), and on "
            "what lower() returned after it, found a sample of the SparseSchedule after it"
        )
    found = made if isinstance(made, list | tuple) else [made]
    if not found or not all(isinstance(one, tvm.s_tir.Schedule) for one in found):
        raise TuningError(
            f"sparse_space: expected {_name(space)} to return what lower() of its SparseSchedule gave, "
            f"or several schedules, found {made!r}"
        )
    return made


def _name(space: SparseSpace) -> str:
    return getattr(space, "__qualname__", repr(space))

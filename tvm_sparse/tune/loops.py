"""The inner level: MetaSchedule over the loop schedules of one program on the arrays of one call."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.ir import IRModule
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from ..ir import SparseFunc
from ..runtime import lower
from ..runtime.arrays import host_view
from .fingerprint import fingerprint
from .mutators import MutateCategorical
from .postprocessors import RewriteReductionInit
from .result import TuningError
from .runner import MeasureOptions, SavedArguments, make_builder, make_runner
from .tally import LOGGER, Tally, TallyCallback

__all__ = ["LoopSearch", "Problem", "Session", "Space", "as_array", "measure_first", "scalars_of"]

#: Applies sampling primitives to a schedule, or returns the variants to choose from.
Space = Callable[[tvm.s_tir.Schedule], list[tvm.s_tir.Schedule] | tvm.s_tir.Schedule | None]

FINGERPRINT_ATTR = "tvm_sparse.fingerprint"
DECISION_ATTR = "tvm_sparse.decision"
#: Seconds that MetaSchedule writes for a candidate that failed are longer than this.
_LONGEST = 1e9


@dataclass
class Problem:
    """A program, the arrays of one call, and what may vary.

    Attributes
    ----------
    program : SparseFunc
        The program, its sizes symbolic.
    metadata : dict
        What its arguments are.
    arguments : list
        NumPy arrays and numbers, one for each; outputs hold the expected results.
    space : callable or None
        The variants of a stage-III schedule, see :data:`Space`; None if nothing varies.
    first : callable, optional
        Makes of such a schedule the one that is measured first.
    decision : str
        How the program came about, where it is one of several.
    slots : dict of int to numpy.ndarray
        For outputs that are packed, by position, the slots that hold entries.
    """

    program: SparseFunc
    metadata: dict
    arguments: list[Any]
    space: Space | None
    first: Space | None = None
    decision: str = ""
    slots: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def outputs(self) -> list[int]:
        """Positions of the results among the arguments."""
        args = self.metadata["args"]
        return [place for place, arg in enumerate(args) if arg.get("role") == "output"]

    @property
    def scalars(self) -> dict[str, int | float]:
        """The sizes and other numbers of the call, by name."""
        return scalars_of(self.metadata, self.arguments)

    @property
    def fingerprint(self) -> str:
        """That of the index arrays."""
        args = zip(self.metadata["args"], self.arguments)
        return fingerprint([value for arg, value in args if arg.get("index_of") is not None])


@dataclass
class Session:
    """What all searches of one call of :func:`tune` share."""

    target: Target
    folder: Path
    options: MeasureOptions
    seed: int
    tally: Tally

    def __post_init__(self) -> None:
        self.database = ms.database.JSONDatabase(work_dir=str(self.folder))
        self.saved = SavedArguments(self.folder / "arguments.npz")
        self._held: Problem | None = None

    @functools.cached_property
    def builder(self) -> ms.builder.LocalBuilder:
        """Builds candidates in worker processes."""
        return make_builder(self.options)

    @functools.cached_property
    def runner(self) -> ms.runner.LocalRunner:
        """Measures candidates in a worker process, on the arguments that were held last."""
        return make_runner(self.saved, self.options)

    @functools.cached_property
    def tuning_target(self) -> Target:
        """The target with the number of cores, as MetaSchedule asks for it."""
        attrs = {"kind": self.target.kind.name, **dict(self.target.attrs)}
        return Target({**attrs, "num-cores": os.cpu_count() or 1})

    def hold(self, problem: Problem) -> None:
        """Let candidates be measured on the arguments of a problem."""
        if self._held is not problem:
            self.saved.save(problem.arguments, problem.outputs, problem.slots)
            self._held = problem


class LoopSearch:
    """The candidates of one problem.

    Parameters
    ----------
    session : Session
        Where they are kept and measured.
    problem : Problem
        The problem.
    """

    def __init__(self, session: Session, problem: Problem) -> None:
        self.session, self.problem = session, problem
        self.module = _bind_sizes(problem)
        self.workload = session.database.commit_workload(self.module)
        cores = os.cpu_count() or 1
        self._cost_model = functools.cache(
            lambda: ms.cost_model.XGBModel(num_warmup_samples=16, num_tuning_cores=cores)
        )

    @property
    def measured(self) -> int:
        """Candidates in the database, those of earlier runs included."""
        return len(self.session.database.get_top_k(self.workload, 1 << 20))

    @property
    def record(self) -> Any:
        """The record of the fastest candidate, None if none ran."""
        for record in self.session.database.get_top_k(self.workload, 1):
            if record.run_secs and float(record.run_secs[0]) < _LONGEST:
                return record
        return None

    @property
    def seconds(self) -> float:
        """Time of the fastest candidate, infinite if none ran."""
        record = self.record
        return float(record.run_secs[0]) if record else float("inf")

    def run(self, trials: int) -> None:
        """Measure so many more candidates, or as many as the space has."""
        if self.problem.space is None:
            return
        session, cores = self.session, os.cpu_count() or 1
        session.hold(self.problem)
        context = ms.TuneContext(
            mod=self.module,
            target=session.tuning_target,
            space_generator=ms.space_generator.ScheduleFn(
                _checked(self.problem.space),
                sch_rules=[],
                postprocs=[RewriteReductionInit()],
                mutator_probs={ms.mutator.MutateTileSize(): 0.5, MutateCategorical(): 0.5},
            ),
            search_strategy=ms.search_strategy.EvolutionarySearch(
                population_size=64,
                init_measured_ratio=0.2,
                init_min_unmeasured=8,
                max_fail_count=5,
                genetic_num_iters=2,
                genetic_max_fail_count=5,
            ),
            task_name="main",
            rand_state=session.seed + 1 + self.measured,
            num_threads=cores,
            logger=logging.getLogger(LOGGER),
        ).clone()
        ms.tune.tune_tasks(
            tasks=[context],
            task_weights=[1.0],
            work_dir=str(session.folder),
            max_trials_global=trials,
            num_trials_per_iter=min(8, trials),
            builder=session.builder,
            runner=session.runner,
            database=session.database,
            cost_model=self._cost_model(),
            measure_callbacks=[
                ms.measure_callback.AddToDatabase(),
                TallyCallback(session.tally),
                ms.measure_callback.UpdateCostModel(),
                ms.measure_callback.RemoveBuildArtifact(),
            ],
        )

    def schedule(self) -> tvm.s_tir.Schedule:
        """Apply the fastest trace to the program with symbolic sizes, or, failing that, these sizes."""
        trace, problem = self.record.trace, self.problem
        try:
            return _apply_trace(trace, problem.program)
        except (tvm.s_tir.ScheduleError, tvm.error.InternalError, ValueError, TypeError):
            return _apply_trace(trace, problem.program.specialize(problem.scalars))


def measure_first(searches: Sequence[LoopSearch]) -> list[str | None]:
    """Build the first candidates of several problems at once, then measure one after another.

    Returns
    -------
    list of str or None
        An error for each that failed.
    """
    if not searches:
        return []
    session = searches[0].session
    schedules, errors = [], []
    for search in searches:
        schedule = tvm.s_tir.Schedule(search.module)
        try:
            made = _checked(search.problem.first or search.problem.space)(schedule)
            error = None
        except (TuningError, tvm.s_tir.ScheduleError) as found:
            made, error = None, str(found)
        made = made[0] if isinstance(made, list | tuple) else made
        schedules.append(made if made is not None else schedule)
        if not schedules[-1].trace.insts:  # a database keeps no record of an empty trace
            with contextlib.suppress(tvm.s_tir.ScheduleError):
                schedules[-1].get_sblock("root")
        errors.append(error)
    sound = [place for place, error in enumerate(errors) if error is None]
    inputs = [ms.builder.BuilderInput(schedules[k].mod, session.tuning_target) for k in sound]
    for place, built in zip(sound, session.builder.build(inputs) if inputs else []):
        search, schedule = searches[place], schedules[place]
        times, error = None, built.error_msg
        if error is None:
            times, error = _run(search, schedule, str(built.artifact_path))
        session.tally.add([(times, str(error))])
        if times is None:
            errors[place] = str(error)
            continue
        session.database.commit_tuning_record(
            ms.database.TuningRecord(
                schedule.trace, search.workload, times, session.tuning_target, _info(schedule)
            )
        )
    return errors


def _run(
    search: LoopSearch, schedule: tvm.s_tir.Schedule, artifact: str
) -> tuple[list[float] | None, str | None]:
    """Measure a library, and remove it."""
    search.session.hold(search.problem)
    task = ms.runner.RunnerInput(artifact, "cpu", _info(schedule))
    (future,) = search.session.runner.run([task])
    result = future.result()
    ms.utils.remove_build_dir(artifact)
    if not result.run_secs:
        return None, str(result.error_msg)
    return [float(seconds) for seconds in result.run_secs], None


def _info(schedule: tvm.s_tir.Schedule) -> list[ms.arg_info.ArgInfo]:
    return ms.arg_info.ArgInfo.from_prim_func(schedule.mod["main"])


def scalars_of(metadata: Mapping[str, Any], arguments: Sequence[Any]) -> dict[str, int | float]:
    """Return the numbers among the arguments of a call, by name."""
    return {
        arg["name"]: int(value) if "int" in arg["dtype"] else float(value)
        for arg, value in zip(metadata["args"], arguments)
        if arg["kind"] == "scalar"
    }


def as_array(value: Any) -> Any:
    """Return a NumPy view of a ready argument; scalars stay as they are."""
    return host_view("argument", value) if hasattr(value, "__dlpack__") else value


def _checked(space: Space) -> Space:
    """Let a space that fails, or returns something else, say so by its name."""
    name = getattr(space, "__qualname__", repr(space))

    def run(schedule: tvm.s_tir.Schedule) -> Any:
        try:
            made = space(schedule)
        except TuningError:
            raise
        except Exception as error:
            raise TuningError(f"space: {name} failed on the lowered program: {error}") from error
        candidates = made if isinstance(made, list | tuple) else [made]
        if made is not None and (
            not candidates or not all(isinstance(found, tvm.s_tir.Schedule) for found in candidates)
        ):
            raise TuningError(
                f"space: expected {name} to return a schedule, several, or None for the one that it "
                f"was given, found {made!r}"
            )
        return made

    return run


def _bind_sizes(problem: Problem) -> IRModule:
    """Lower the program for exactly these inputs; its fingerprint tells two patterns apart."""
    lowered = lower(problem.program.specialize(problem.scalars))
    (func,) = lowered.functions.values()
    func = func.with_attr(FINGERPRINT_ATTR, problem.fingerprint)
    if problem.decision:
        func = func.with_attr(DECISION_ATTR, problem.decision)
    return IRModule({"main": func.with_attr("global_symbol", "main")})


def _apply_trace(trace: Any, program: SparseFunc) -> tvm.s_tir.Schedule:
    (func,) = lower(program).functions.values()
    schedule = tvm.s_tir.Schedule(IRModule({"main": func}))  # records are about functions "main"
    trace.apply_to_schedule(schedule, remove_postproc=True)
    return schedule

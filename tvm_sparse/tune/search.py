"""Tune a program on real inputs: MetaSchedule over a stage-III space.

Comes in: a stage-I program, a space (a function that applies sampling primitives to a stock schedule) and
the arrays of a call. Goes out: a compiled kernel, the schedule it came from, and a report. Everything
measured is kept in ``work_dir``, so that a later run with the same program and sparsity goes on there.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.ir import IRModule
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from ..ir import SparseFunc
from ..runtime import Executable, compile, get_num_threads, lower, resolve_target, set_num_threads
from .fingerprint import fingerprint
from .mutators import MutateCategorical
from .postprocessors import RewriteReductionInit
from .runner import MeasureOptions, SavedArguments, make_builder, make_runner
from .timing import interleaved_medians, same_result

__all__ = ["Space", "TuningError", "TuningResult", "tune"]

#: Applies sampling primitives to a schedule, or returns the variants to choose from.
Space = Callable[[tvm.s_tir.Schedule], list[tvm.s_tir.Schedule] | None]

FINGERPRINT_ATTR = "tvm_sparse.fingerprint"
DEFAULT_OPTIONS = MeasureOptions()


class TuningError(RuntimeError):
    """No candidate could be built and measured; carries the first underlying error."""


@dataclass
class TuningResult:
    """What tuning found.

    Attributes
    ----------
    executable : Executable
        The fastest kernel: the tuned one, or the default where tuning found nothing faster.
    schedule : tvm.s_tir.Schedule, optional
        The schedule of the tuned kernel, ``None`` where the default was kept.
    seconds, default_seconds : float
        Median time of a call of either kernel on the inputs, measured interleaved.
    trials, failures : int
        Candidates measured, those of earlier runs in the folder included, and failures of this run.
    work_dir : pathlib.Path
        Holds database and log.
    """

    executable: Executable
    schedule: tvm.s_tir.Schedule | None
    seconds: float
    default_seconds: float
    trials: int
    failures: int
    work_dir: Path
    errors: list[str] = field(default_factory=list)


def tune(
    program: SparseFunc,
    inputs: Mapping[str, Any],
    target: Any = "llvm",
    max_trials: int = 64,
    work_dir: str | os.PathLike | None = None,
    *,
    space: Space | None = None,
    default: Executable | None = None,
    options: MeasureOptions = DEFAULT_OPTIONS,
    seed: int = 0,
    on_progress: Callable[[int, int, float | None], None] | None = None,
) -> TuningResult:
    """Search a schedule space of a program on the arrays that it will run on.

    Parameters
    ----------
    program : SparseFunc
        The program.
    inputs : dict
        The arguments of a call, by parameter name, as :class:`Executable` takes them; a SciPy matrix
        stands for its values and index arrays.
    target : str, dict or tvm.target.Target
        As for :func:`tvm_sparse.compile`; only CPUs.
    max_trials : int
        Candidates to measure, those found in `work_dir` included.
    work_dir : path-like, optional
        Folder for database and log; a new temporary one by default.
    space : callable, optional
        ``space(schedule)`` applies primitives, sampling ones among them, to the stage-III schedule,
        or returns a list of schedules. Its function is called ``"main"``, whatever the program's
        name: ``schedule.get_sblock("attention_0")`` finds a block. By default, for the operators of
        ``tvm_sparse.schedules``, theirs.
    default : Executable, optional
        The kernel to beat; by default the operator's, or the unscheduled program.
    options : MeasureOptions
        How candidates are timed.
    seed : int
        Seed of the search.
    on_progress : callable, optional
        Called with ``(measured, max_trials, best seconds or None)`` after every batch.

    Returns
    -------
    TuningResult
        Never slower than the default on these inputs, and checked against it.

    Raises
    ------
    TuningError
        If every candidate fails; carries the first underlying error and the folder of the log.
    ValueError
        If there is no space for the program, or an argument does not fit it.
    """
    if not isinstance(program, SparseFunc):
        raise TypeError(f"program: expected a SparseFunc, found {type(program).__name__}")
    if not isinstance(inputs, Mapping):
        raise TypeError(
            f"inputs: expected arguments by parameter name, found {type(inputs).__name__}"
        )
    if space is not None and not callable(space):
        raise TypeError(f"space: expected a function of a schedule, found {space!r}")
    if not isinstance(max_trials, int):
        raise TypeError(f"max_trials: expected an integer, found {max_trials!r}")
    if max_trials < 1:
        raise ValueError(f"max_trials: expected at least 1, found {max_trials}")
    chosen_space, default = _resolve(program, space, default, target)
    folder = (
        Path(work_dir) if work_dir is not None else Path(tempfile.mkdtemp(prefix="tvm_sparse_"))
    )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"work_dir: expected a folder, found a file at {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    threads = options.num_threads or get_num_threads()
    options = MeasureOptions(**{**options.__dict__, "num_threads": threads})

    # 1. The arguments, with the default kernel's results among them.
    function = default[program.name]
    ready = function.arguments(**inputs)
    function(*ready)
    arguments = [_as_array(a) for a in ready]
    outputs = [k for k, arg in enumerate(function.metadata["args"]) if arg.get("role") == "output"]
    saved = SavedArguments(folder / "arguments.npz")
    saved.save(arguments, outputs)

    # 2. The program with these sizes, which MetaSchedule's records are about.
    module = _bind_sizes(program, function.metadata, arguments)
    database = ms.database.JSONDatabase(work_dir=str(folder))
    workload = database.commit_workload(module)

    # 3. Search.
    progress = _Tally(max_trials, len(database.get_top_k(workload, 1 << 20)), on_progress)
    remaining = max_trials - progress.measured
    if remaining > 0:
        with _quiet(folder):
            _search(
                module,
                chosen_space,
                resolve_target(target),
                remaining,
                folder,
                database,
                progress,
                saved,
                options,
                seed,
            )
    record = _best_record(database, workload)
    if record is None and not progress.errors:  # a space that changes nothing
        return TuningResult(
            default,
            None,
            *_timed(default, program.name, arguments, options),
            progress.measured,
            0,
            folder,
        )
    if record is None:
        first = progress.errors[0]
        raise TuningError(
            f"all {progress.measured} candidates of {program.name} failed; the first error was:\n"
            f"{first}\nlog: {folder / 'logs'}"
        )

    # 4. Compile the best one for every matrix again, check and time it against the default.
    schedule = _replay(record, program, function.metadata, arguments)
    tuned = compile(schedule, target)
    seconds, default_seconds = _compare(tuned, default, program.name, arguments, outputs, options)
    keep = seconds <= default_seconds
    return TuningResult(
        executable=tuned if keep else default,
        schedule=schedule if keep else None,
        seconds=min(seconds, default_seconds),
        default_seconds=default_seconds,
        trials=progress.measured,
        failures=progress.failures,
        work_dir=folder,
        errors=progress.errors,
    )


def _resolve(program, space, default, target) -> tuple[Space, Executable]:
    from .. import schedules  # noqa: PLC0415 (the operator library sits beside)

    operator = schedules.find(program)
    if space is None:
        if operator is None:
            raise ValueError(
                f"space: {program.name!r} is none of the operators of tvm_sparse.schedules, so it has "
                "no default space; give a function that schedules it, as in the README"
            )
        space = functools.partial(operator.space, name=program.name)
    if default is None:
        default = schedules.compile_default(program, target)
    return space, default


def _checked(space: Space) -> Space:
    """Let a space that fails, or returns something else, say so by its name."""
    name = getattr(space, "__qualname__", repr(space))

    def run(schedule: tvm.s_tir.Schedule) -> Any:
        try:
            made = space(schedule)
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


def _bind_sizes(program: SparseFunc, metadata: dict, arguments: list) -> IRModule:
    """Lower the program for exactly these inputs; its fingerprint tells two patterns apart."""
    lowered = lower(program.specialize(_scalars(metadata, arguments)))
    (func,) = lowered.functions.values()
    structure = [
        value for arg, value in zip(metadata["args"], arguments) if arg.get("index_of") is not None
    ]
    func = func.with_attr(FINGERPRINT_ATTR, fingerprint(structure))
    return IRModule({"main": func.with_attr("global_symbol", "main")})


def _search(module, space, target, trials, folder, database, progress, saved, options, seed):
    cores = os.cpu_count() or 1
    attrs = {"kind": target.kind.name, **dict(target.attrs), "num-cores": cores}
    context = ms.TuneContext(
        mod=module,
        target=tvm.target.Target(attrs),
        space_generator=ms.space_generator.ScheduleFn(
            _checked(space),
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
        rand_state=seed + 1,
        num_threads=cores,
        logger=logging.getLogger(_LOGGER),
    ).clone()
    ms.tune.tune_tasks(
        tasks=[context],
        task_weights=[1.0],
        work_dir=str(folder),
        max_trials_global=trials,
        num_trials_per_iter=min(8, trials),
        builder=make_builder(options),
        runner=make_runner(saved, options),
        database=database,
        cost_model=ms.cost_model.XGBModel(num_warmup_samples=16, num_tuning_cores=cores),
        measure_callbacks=[
            ms.measure_callback.AddToDatabase(),
            _TallyCallback(progress),
            ms.measure_callback.UpdateCostModel(),
            ms.measure_callback.RemoveBuildArtifact(),
        ],
    )


def _best_record(database, workload):
    for record in database.get_top_k(workload, 1):
        if record.run_secs and float(record.run_secs[0]) < 1e9:
            return record
    return None


def _replay(record, program: SparseFunc, metadata: dict, arguments: list) -> tvm.s_tir.Schedule:
    """Apply the best trace to the program with symbolic sizes, or, failing that, with these sizes."""
    try:
        return _apply_trace(record.trace, program)
    except (tvm.s_tir.ScheduleError, tvm.error.InternalError, ValueError, TypeError):
        return _apply_trace(record.trace, program.specialize(_scalars(metadata, arguments)))


def _apply_trace(trace, program: SparseFunc) -> tvm.s_tir.Schedule:
    (func,) = lower(program).functions.values()
    schedule = tvm.s_tir.Schedule(IRModule({"main": func}))  # records are about functions "main"
    trace.apply_to_schedule(schedule, remove_postproc=True)
    return schedule


def _scalars(metadata: dict, arguments: list) -> dict[str, int | float]:
    return {
        arg["name"]: int(value) if "int" in arg["dtype"] else float(value)
        for arg, value in zip(metadata["args"], arguments)
        if arg["kind"] == "scalar"
    }


def _timed(default, name, arguments, options) -> tuple[float, float]:
    """Time the default kernel; it is its own competitor."""
    with _threads(options.num_threads):
        (seconds,) = interleaved_medians([functools.partial(default[name], *arguments)])
    return seconds, seconds


def _compare(tuned, default, name, arguments, outputs, options) -> tuple[float, float]:
    """Check the tuned kernel against the default and time both, interleaved."""
    metadata = default[name].metadata["args"]
    calls, results = [], []
    for kernel in (tuned[name], default[name]):
        taken = {arg["name"] for arg in kernel.metadata["args"]}
        named = {
            arg["name"]: value for arg, value in zip(metadata, arguments) if arg["name"] in taken
        }
        poisoned = {
            metadata[k]["name"]: np.full_like(arguments[k], _nan(arguments[k].dtype))
            for k in outputs
        }
        ready = kernel.arguments(**{**named, **poisoned})
        calls.append(functools.partial(kernel, *ready))
        results.append(list(poisoned.values()))
    with _threads(options.num_threads):
        for call in calls:
            call()
        for found, expected in zip(*results):
            if not same_result(found, expected, options.rtol):
                raise TuningError("the tuned kernel's result differs from the default kernel's")
        seconds, default_seconds = interleaved_medians(calls)
    return seconds, default_seconds


def _nan(dtype: np.dtype):
    return np.nan if dtype.kind == "f" or str(dtype) == "bfloat16" else 77


def _as_array(value):
    """Return a NumPy view of a ready argument; scalars stay as they are."""
    return np.from_dlpack(value) if hasattr(value, "__dlpack__") else value


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = get_num_threads()
    set_num_threads(count or before)
    try:
        yield
    finally:
        set_num_threads(before)


_LOGGER = "tvm.s_tir.meta_schedule"


@contextlib.contextmanager
def _quiet(folder: Path) -> Iterator[None]:
    """Send MetaSchedule's log to a file instead of the terminal."""
    logger = logging.getLogger(_LOGGER)
    (folder / "logs").mkdir(exist_ok=True)
    handler = logging.FileHandler(folder / "logs" / "tuning.log")
    handler.setFormatter(logging.Formatter("%(asctime)s [%(levelname)s] %(message)s"))
    state = (logger.handlers[:], logger.propagate, logger.level)
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = state[0], state[1]
        logger.setLevel(state[2])
        handler.close()


class _Tally:
    """Counts candidates, keeps the errors, and reports."""

    def __init__(self, total: int, measured: int, report) -> None:
        self.total, self.measured, self.failures = total, measured, 0
        self.errors: list[str] = []
        self.best: float | None = None
        self.report = report

    def add(self, builds, runs) -> None:
        for build, run in zip(builds, runs):
            self.measured += 1
            if run.run_secs:
                seconds = min(float(s) for s in run.run_secs)
                self.best = seconds if self.best is None else min(self.best, seconds)
            else:
                self.failures += 1
                self.errors.append(str(build.error_msg or run.error_msg))
        if self.report is not None:
            self.report(self.measured, self.total, self.best)


@derived_object
class _TallyCallback(ms.measure_callback.PyMeasureCallback):
    """Forwards to a tally, which TVM's copies of this callback share."""

    def __init__(self, tally: _Tally) -> None:
        super().__init__()
        self.tally = tally

    def apply(self, task_scheduler, task_id, candidates, builds, runs) -> None:
        self.tally.add(builds, runs)

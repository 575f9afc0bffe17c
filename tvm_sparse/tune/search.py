"""Tune a program on real inputs: MetaSchedule over loop schedules, halving over formats.

Comes in: a stage-I program, what may vary, and the arrays of a call. Goes out: a compiled kernel, the
schedule it came from, and a report. Everything measured is kept in ``work_dir``, so that a later run with
the same program and sparsity goes on there.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import schedules
from ..ir import SparseFunc
from ..runtime import Executable, compile, get_num_threads, resolve_target, set_num_threads
from .base import Base
from .loops import LoopSearch, Problem, Session, Space
from .outer import Contest, Entrant
from .points import check_formats, check_operands, format_points
from .result import TuningError, TuningResult
from .runner import MeasureOptions
from .spaces import SparseSpace, space_points
from .tally import Tally, log_to_file
from .timing import interleaved_medians, same_result

__all__ = ["tune"]

DEFAULT_OPTIONS = MeasureOptions()
#: A format whose default kernel is so many times slower than the best one gets no more trials.
_HOPELESS = 2.0
#: Most points of a space over both levels.
_MOST_POINTS = 64


def tune(
    program: SparseFunc,
    inputs: Mapping[str, Any],
    target: Any = "llvm",
    max_trials: int = 64,
    work_dir: str | os.PathLike | None = None,
    *,
    space: Space | None = None,
    formats: Mapping[str, Any] | bool | str | None = None,
    operand: str | Sequence[str] | None = None,
    sparse_space: SparseSpace | None = None,
    default: Executable | None = None,
    options: MeasureOptions = DEFAULT_OPTIONS,
    seed: int = 0,
    on_progress: Callable[[int, int, float | None], None] | None = None,
) -> TuningResult:
    """Search formats and loop schedules of a program on the arrays that it will run on.

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
        Candidates to measure, those found in `work_dir` included. Each format is measured once
        at least, with the default schedule of its parts.
    work_dir : path-like, optional
        Folder for database and log; a new temporary one by default.
    space : callable, optional
        What may vary of the loops: ``space(schedule)`` applies primitives, sampling ones among them,
        to the stage-III schedule, or returns a list of schedules. Its function is called ``"main"``,
        whatever the program's name: ``schedule.get_sblock("attention_0")`` finds a block. By
        default, for the operators of ``tvm_sparse.schedules``, theirs.
    formats : dict of str to Format, Composition or dict of parts; True or "auto"; optional
        Formats to choose from, beside the one that the program declares: operands are packed
        into each, and loops of its parts are searched. True or ``"auto"`` tries those that suit the
        matrix, see ``schedules.spmm.candidate_formats``.
    operand : str or sequence of str, optional
        With `formats`, the buffers to hold in them; by default all that are stored over the sparse axes.
    sparse_space : callable, optional
        Instead of `space` and `formats`, what may vary of both levels:
        ``sparse_space(sch: SparseSchedule) -> tvm.s_tir.Schedule`` samples with
        ``sch.sample_categorical``, applies stage-I primitives, calls ``sch.lower()``, goes on with the
        schedule that it gives, as `space` does, and returns it. Each set of stage-I decisions is treated
        as a format is; it must depend on nothing but what was sampled.
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
        Never slower than the default on these inputs, and checked against it. Times are those of kernels;
        that of packing is reported beside.

    Raises
    ------
    TuningError
        If every candidate fails; carries the first underlying error and the folder of the log.
    ValueError
        If there is no space for the program, or an argument does not fit it.

    Notes
    -----
    Trials are shared among formats by successive halving: all get some, the better half as many again,
    and so on; formats whose default is more than twice as slow as the best get no more than that. The
    folder holds MetaSchedule's database, in which a workload carries program, sizes, format
    decision and a fingerprint of the sparsity, and ``formats.json`` with the trace of each format.

    Examples
    --------
    Formats of one's own choice, and a space over both levels::

        best = tune(program, {"a": matrix, "b": dense}, formats={"csr": CSR(), "hyb": Hyb()})
        best.executable(b=dense, **best.operands)

        def space(sch: SparseSchedule) -> tvm.s_tir.Schedule:
            size = sch.sample_categorical([4, 8])
            sch.decompose_format("spmm", "A", BSR(size, size))
            schedule = sch.lower()
            schedule.parallel(schedule.get_loops(schedule.get_sblock("spmm_bsr_0"))[0])
            return schedule

        best = tune(program, {"a": matrix, "b": dense}, sparse_space=space)
    """
    _check(program, inputs, space, sparse_space, formats, operand, max_trials)
    if resolve_target(target).kind.name != "llvm":
        raise ValueError(
            f"target: expected a CPU (llvm), found {target!r}; for CUDA, build with other tile= and share= "
            "and time the kernels on the GPU"
        )
    is_outer = formats not in (None, False) or sparse_space is not None
    loop_space = None if is_outer else _default_space(program) if space is None else space
    default = _default_kernel(program, target) if default is None else default
    folder = (
        Path(work_dir) if work_dir is not None else Path(tempfile.mkdtemp(prefix="tvm_sparse_"))
    )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"work_dir: expected a folder, found a file at {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    threads = options.num_threads or get_num_threads()
    options = MeasureOptions(**{**options.__dict__, "num_threads": threads})

    base = Base.call(program, inputs, default)
    session = Session(resolve_target(target), folder, options, seed, Tally(max_trials, on_progress))
    if not is_outer:
        return _tune_loops(session, base, loop_space)
    if sparse_space is not None:
        points, illegal = space_points(sparse_space, base, min(_MOST_POINTS, max_trials), seed)
        session.tally.errors += illegal
        margin = float("inf")  # first candidates are drawn, not chosen
    else:
        operands = check_operands(operand, base)
        points = format_points(base, check_formats(formats, base, operands), operands, target)
        margin = _HOPELESS
    contest = Contest(session, base, points)
    with log_to_file(folder):
        finalists = contest.run(max_trials, margin)
    if not finalists:
        raise _all_failed(session, program)
    result = _finish(session, base, _compiled(session, base, finalists))
    result.formats = {entrant.point.name: entrant.report for entrant in contest.entrants}
    return result


def _check(program, inputs, space, sparse_space, formats, operand, max_trials) -> None:
    """Refuse arguments of a wrong kind, and those that exclude each other."""
    if not isinstance(program, SparseFunc):
        raise TypeError(f"program: expected a SparseFunc, found {type(program).__name__}")
    if not isinstance(inputs, Mapping):
        raise TypeError(
            f"inputs: expected arguments by parameter name, found {type(inputs).__name__}"
        )
    for name, found, of in (
        ("space", space, "schedule"),
        ("sparse_space", sparse_space, "SparseSchedule"),
    ):
        if found is not None and not callable(found):
            raise TypeError(f"{name}: expected a function of a {of}, found {found!r}")
    if not isinstance(max_trials, int):
        raise TypeError(f"max_trials: expected an integer, found {max_trials!r}")
    if max_trials < 1:
        raise ValueError(f"max_trials: expected at least 1, found {max_trials}")
    given = {"space": space, "sparse_space": sparse_space, "formats": formats or None}
    both = [name for name, found in given.items() if found is not None]
    if len(both) > 1:
        raise ValueError(
            f"{both[1]}: expected none beside {both[0]}; a sparse_space chooses formats and "
            "schedules their loops, and formats come with spaces of their own"
        )
    if operand is not None and not formats:
        raise ValueError("operand: expected none without formats")


def _default_space(program: SparseFunc) -> Space:
    operator = schedules.find(program)
    if operator is None:
        raise ValueError(
            f"space: {program.name!r} is none of the operators of tvm_sparse.schedules, so it has "
            "no default space; give a function that schedules it, as in the README"
        )
    return functools.partial(operator.space, name=program.name)


def _default_kernel(program: SparseFunc, target: Any) -> Executable:
    return schedules.compile_default(program, target)


def _tune_loops(session: Session, base: Base, space: Space) -> TuningResult:
    """Search the loop schedules of the program as it is."""
    problem = Problem(base.program, base.metadata, base.arguments, space)
    search = LoopSearch(session, problem)
    session.tally.measured = search.measured
    remaining = session.tally.total - session.tally.measured
    if remaining > 0:
        with log_to_file(session.folder):
            search.run(remaining)
    if search.record is None:
        if session.tally.errors:
            raise _all_failed(session, base.program)
        return _finish(session, base, [])
    return _finish(session, base, [Finalist(base, search)])


def _all_failed(session: Session, program: SparseFunc) -> TuningError:
    tally = session.tally
    first = tally.errors[0] if tally.errors else "none"
    return TuningError(
        f"all {max(tally.measured, tally.failures)} candidates of {program.name} failed; the first error "
        f"was:\n{first}\nlog: {session.folder / 'logs'}"
    )


@dataclass
class Finalist:
    """The best of one search, compiled for every matrix again, and a call of it that gave the right result.

    Raises
    ------
    TuningError
        If the result is wrong.
    """

    base: Base
    search: LoopSearch
    entrant: Entrant | None = None

    def __post_init__(self) -> None:
        self.schedule = self.search.schedule()
        self.executable = compile(self.schedule, self.search.session.target)
        problem, kernel = self.search.problem, self.executable[self.base.program.name]
        args = problem.metadata["args"]
        taken = {arg["name"] for arg in kernel.metadata["args"]}
        results = {args[k]["name"]: _poisoned(problem.arguments[k]) for k in problem.outputs}
        given = {arg["name"]: value for arg, value in zip(args, problem.arguments)} | results
        ready = kernel.arguments(**{name: value for name, value in given.items() if name in taken})
        kernel(*ready)
        rtol = self.search.session.options.rtol
        for place, found in zip(problem.outputs, results.values()):
            if not same_result(found, problem.arguments[place], rtol, problem.slots.get(place)):
                raise TuningError("the tuned kernel's result differs from the default kernel's")
        self.call = functools.partial(kernel, *ready)


def _compiled(session: Session, base: Base, entrants: Sequence[Entrant]) -> list[Finalist]:
    """Compile the best of several points, except where that fails."""
    found = []
    for entrant in entrants:
        try:
            found.append(Finalist(base, entrant.search, entrant))
        except Exception as error:  # of a user's own format or space
            entrant.fail(session, f"{type(error).__name__}: {error}")
    return found


def _finish(session: Session, base: Base, finalists: Sequence[Finalist]) -> TuningResult:
    """Time the best candidates and the default in turns, and return the fastest."""
    calls = [*(finalist.call for finalist in finalists), _default_call(base)]
    with _threads(session.options.num_threads):
        *taken, default_seconds = interleaved_medians(calls)
    seconds = min(taken, default=float("inf"))
    if seconds > default_seconds:
        return _kept_default(session, base, default_seconds)
    chosen = finalists[taken.index(seconds)]
    result = _kept_default(session, base, default_seconds)
    result.executable, result.schedule = chosen.executable, chosen.schedule
    result.seconds = seconds
    entrant = chosen.entrant
    if entrant is not None:
        result.format, result.trace = entrant.point.name, entrant.trace
        result.pack_seconds = entrant.packed.seconds
        if entrant.packed.tensors:
            result.operands = dict(entrant.packed.tensors)
    return result


def _kept_default(session: Session, base: Base, seconds: float) -> TuningResult:
    """Return the default kernel as the result, which took so long."""
    structure = {
        name
        for arg in base.metadata["args"]
        for name in (arg["name"], arg.get("buffer"))
        if arg.get("index_of") is not None or arg.get("buffer") in base.sparse_buffers()
    }
    return TuningResult(
        executable=base.default,
        schedule=None,
        seconds=seconds,
        default_seconds=seconds,
        trials=session.tally.measured,
        failures=session.tally.failures,
        work_dir=session.folder,
        errors=session.tally.errors,
        operands={name: value for name, value in base.inputs.items() if name in structure},
    )


def _default_call(base: Base) -> Callable[[], None]:
    """Return a call of the default kernel, which leaves the expected results alone."""
    arguments = [
        _poisoned(value) if arg.get("role") == "output" else value
        for arg, value in zip(base.metadata["args"], base.arguments)
    ]
    function = base.default[base.program.name]
    return functools.partial(function, *function.arguments(*arguments))


def _poisoned(array: np.ndarray) -> np.ndarray:
    return np.full_like(array, _nan(array.dtype))


def _nan(dtype: np.dtype):
    return np.nan if dtype.kind == "f" or str(dtype) == "bfloat16" else 77


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = get_num_threads()
    set_num_threads(count or before)
    try:
        yield
    finally:
        set_num_threads(before)

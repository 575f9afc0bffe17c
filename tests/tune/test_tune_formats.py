"""Tuning over formats: all packed from the real matrix, trials shared, failures survived, runs resumed."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import tvm
from tvm import tirx

from tvm_sparse import SparseSchedule, schedules
from tvm_sparse.formats import BSR, COO, CSR, ELL, Hyb, RowList
from tvm_sparse.runtime import resolve_target
from tvm_sparse.schedule.trace import Trace
from tvm_sparse.tune import MeasureOptions, TuningError, halve, tune
from tvm_sparse.tune.base import Base
from tvm_sparse.tune.loops import Session
from tvm_sparse.tune.outer import Contest
from tvm_sparse.tune.points import candidate_formats, format_points
from tvm_sparse.tune.spaces import space_points
from tvm_sparse.tune.tally import Tally

MATRIX = sp.random(200, 150, 0.03, "csr", dtype=np.float32, random_state=0)
DENSE = np.random.default_rng(0).random((150, 8), dtype=np.float32)
INPUTS = {"a": MATRIX, "b": DENSE}
QUICK = MeasureOptions(repeat=1, min_repeat_ms=1)


class Unpackable(CSR):
    """Cannot store anything."""

    def store(self, entries, index_dtype):
        raise MemoryError("no room")


class Wrong(CSR):
    """Stores other values."""

    def store(self, entries, index_dtype):
        return super().store(entries.with_values(entries.values * 2), index_dtype)


FORMATS = {
    "csr": CSR(),
    "rcm": RowList("rcm"),
    "hyb": Hyb(),
    "slow": ELL(20_000),
    "unpackable": Unpackable(),
    "wrong": Wrong(),
}
TRIALS = 8


def _never_slower(result, matrix=MATRIX) -> None:
    assert result.seconds <= result.default_seconds
    found = result.executable(b=DENSE, **result.operands)
    np.testing.assert_allclose(found, matrix @ DENSE, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("formats")
    seen = []
    result = tune(
        schedules.spmm.program(),
        INPUTS,
        max_trials=TRIALS,
        work_dir=folder,
        formats=FORMATS,
        options=QUICK,
        on_progress=lambda *report: seen.append(report),
    )
    return result, folder, seen


def test_the_best_format_is_right_and_never_slower(tuned):
    result, _, seen = tuned
    _never_slower(result)
    assert list(result.formats) == list(FORMATS)
    assert seen[-1][0] == result.trials <= TRIALS
    if result.format is not None:
        assert result.operands["a"].shape == MATRIX.shape and result.pack_seconds > 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unpackable", "MemoryError: no room"),
        ("wrong", "result differs from the untuned kernel's"),
    ],
)
def test_a_format_that_fails_is_reported_and_survived(tuned, name, message):
    result, _, _ = tuned
    report = result.formats[name]
    assert message in report.error and report.seconds == float("inf")
    assert any(error.startswith(f"{name}: ") for error in result.errors)
    assert all(result.formats[sound].error is None for sound in ("csr", "rcm", "hyb", "slow"))


def test_poor_formats_stop_early(tuned):
    result, _, _ = tuned
    best = min(report.seconds for report in result.formats.values())
    assert result.formats["slow"].seconds > 2 * best
    assert result.formats["slow"].trials == 1
    assert max(report.trials for report in result.formats.values()) > 1


def test_records_hold_the_trace_of_each_format(tuned):
    _, folder, _ = tuned
    points = json.loads((folder / "formats.json").read_text())["points"].values()
    by_name = {point["name"]: point for point in points}
    assert {"csr", "rcm", "hyb", "slow"} <= set(by_name)
    assert len({by_name[name]["fingerprint"] for name in ("csr", "rcm", "hyb")}) == 3
    schedule = SparseSchedule(schedules.spmm.program())
    Trace.from_json(json.dumps(by_name["rcm"]["trace"])).apply(schedule)
    assert "a_row_indices" in schedule.mod["spmm"].arg_names


def test_a_later_run_repeats_nothing(tuned):
    result, folder, _ = tuned
    sound = {name: FORMATS[name] for name in ("csr", "rcm", "hyb", "slow")}
    again = tune(
        schedules.spmm.program(),
        INPUTS,
        max_trials=sum(result.formats[name].trials for name in sound),
        work_dir=folder,
        formats=sound,
        options=QUICK,
        on_progress=lambda *_: pytest.fail("measured again"),
    )
    assert {name: again.formats[name].trials for name in sound} == {
        name: result.formats[name].trials for name in sound
    }
    _never_slower(again)


def test_another_pattern_of_the_same_shape_has_records_of_its_own(tuned):
    _, folder, _ = tuned
    program = schedules.spmm.program()
    known = []
    for matrix in (MATRIX, MATRIX[:, ::-1].tocsr()):
        base = Base.call(program, {"a": matrix, "b": DENSE}, schedules.compile_default(program))
        session = Session(resolve_target("llvm"), folder, QUICK, 0, Tally(1))
        points = format_points(base, {"csr": CSR()}, ["A"], "llvm")
        (entrant,) = Contest(session, base, points).entrants
        journal = entrant.trials
        assert entrant.prepare(session)
        known.append((journal > 0, entrant.search.measured > 0))
    assert known == [(True, True), (False, False)]


def _abort(schedule: tvm.s_tir.Schedule) -> tvm.s_tir.Schedule:
    """Return a kernel that ends its process."""
    abort = tirx.Evaluate(tirx.call_extern("int32", "abort"))
    return tvm.s_tir.Schedule(tvm.IRModule({"main": schedule.mod["main"].with_body(abort)}))


def _blocks_or_rows(sch: SparseSchedule) -> tvm.s_tir.Schedule:
    size = sch.sample_categorical([1, 2, 4, 8])
    if size == 4:
        sch.sparse_fuse("spmm", ["i", "k"])  # illegal: features are not stored under rows
    name = "spmm"
    if size > 1:
        (*_, part) = sch.decompose_format("spmm", "A", BSR(size, size))
        name = part.name
    schedule = sch.lower()
    if size == 8:
        return _abort(schedule)
    schedule.parallel(schedule.get_loops(schedule.get_sblock(f"{name}_0"))[0])
    return schedule


def test_a_space_over_both_levels_is_searched_and_survives_a_crash(tmp_path):
    arguments = {"max_trials": 3, "work_dir": tmp_path, "options": QUICK}
    arguments["sparse_space"] = _blocks_or_rows
    program = schedules.spmm.program()
    result = tune(program, INPUTS, **arguments)
    assert list(result.formats) == ["v0=1", "v0=2", "v0=8"]
    assert "LocalRunner" in result.formats["v0=8"].error
    sound = [result.formats["v0=1"], result.formats["v0=2"]]
    assert all(report.trials == 1 and report.error is None for report in sound), result.errors
    assert "decisions [2]" in result.errors[0]
    _never_slower(result)
    if result.format is not None:
        assert "sample_categorical" in str(result.trace)


def test_formats_of_sddmm_hold_matrix_and_result(tmp_path):
    x = np.random.default_rng(1).random((200, 8), dtype=np.float32)
    result = tune(
        schedules.sddmm.program(scaled=True),
        {"a": MATRIX, "x": x, "y": DENSE},
        max_trials=2,
        work_dir=tmp_path,
        formats={"coo": COO(), "bsr": BSR(2, 2)},
        options=QUICK,
    )
    assert [report.error for report in result.formats.values()] == [None, None]
    expected = MATRIX.multiply(x @ DENSE.T).tocsr()
    found = result.executable(x=x, y=DENSE, **result.operands)
    if result.format is not None:
        found = result.operands["c"].unpack().data
    np.testing.assert_allclose(found, expected.data, rtol=1e-4)


# What follows measures nothing.


@pytest.fixture(scope="module")
def base():
    program = schedules.spmm.program()
    return Base.call(program, INPUTS, schedules.compile_default(program))


def test_candidates_suit_the_operator(base):
    assert list(candidate_formats(base, ["A"]))[:2] == ["csr", "rows_rcm"]


def test_all_decisions_of_a_space_are_points(base):
    def space(sch):
        first = sch.sample_categorical([0, 1])
        if first:
            sch.annotate("spmm", "note", int(sch.sample_categorical([5, 6, 7], [0.5, 0, 0.5])))
        return sch.lower()

    points, errors = space_points(space, base, 64, 0)
    assert [point.name for point in points] == ["v0=0", "v0=1, v1=5", "v0=1, v1=7"]
    assert not errors


def test_large_spaces_are_drawn_from(base):
    def space(sch):
        for _ in range(8):
            sch.annotate("spmm", "note", int(sch.sample_categorical(range(9))))
        return sch.lower()

    points, _ = space_points(space, base, 10, 0)
    assert len({point.name for point in points}) == 10


def _fails(sch):
    raise KeyError("no such format")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (_fails, "sparse_space: _fails failed with decisions .*KeyError: 'no such format'"),
        (lambda sch: sch, "to return what lower.. of its SparseSchedule gave, found <.*no call of"),
        (lambda sch: sch.sparse_reorder("spmm", ["j", "i", "k"]), "no decisions of .* are legal"),
    ],
)
def test_a_wrong_space_is_named(base, space, message):
    with pytest.raises(TuningError, match=message):
        space_points(space, base, 64, 0)


def _lowers_and_fails(sch):
    sch.lower()
    raise KeyError("no such block")


def _lowers_and_returns_none(sch):
    sch.lower()


def _samples_late(sch):
    schedule = sch.lower()
    sch.sample_categorical([1, 2])
    return schedule


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (_lowers_and_fails, "_lowers_and_fails failed on the lowered program .*'no such block'"),
        (_lowers_and_returns_none, "found None"),
        (_samples_late, r"before lower\(\)"),
    ],
)
def test_a_wrong_loop_half_of_a_space_is_named(base, space, message):
    (point,), _ = space_points(space, base, 64, 0)
    _, problem, _ = point.make()
    with pytest.raises(TuningError, match=message):
        problem.space(tvm.s_tir.Schedule(tvm.IRModule()))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"formats": {"csr": CSR()}, "space": print},
            ValueError,
            "formats: expected none beside sp",
        ),
        (
            {"formats": [CSR()]},
            TypeError,
            'formats: expected formats by name, True or "auto", found',
        ),
        ({"formats": {}}, ValueError, "formats: expected one or more, found none"),
        ({"formats": {"csr": 3}}, TypeError, "formats: expected a Format, .* for 'csr', found 3"),
        ({"operand": "A"}, ValueError, "operand: expected none without formats"),
        (
            {"formats": True, "operand": "B"},
            ValueError,
            "operand: expected one of A, the sparse",
        ),
        ({"sparse_space": 3}, TypeError, "sparse_space: expected a function of a SparseSchedule"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, error, message, tmp_path):
    with pytest.raises(error, match=message):
        tune(schedules.spmm.program(), INPUTS, work_dir=tmp_path, **arguments)


def test_halving_gives_poor_contestants_no_more():
    times = [1.0, 1.2, 1.9, 2.5, float("inf")]
    field = [SimpleNamespace(seconds=seconds, trials=1) for seconds in times]

    def give(contestant, number):
        contestant.trials += number

    assert halve(field, 35, give, margin=2.0) is field[0]
    trials = [one.trials for one in field]
    assert trials[3:] == [1, 1] and trials[0] > trials[1] > trials[2] > 1
    assert sum(trials) <= 35
    halve(field, 35, lambda *_: pytest.fail("given again"), margin=2.0)


def test_halving_finds_what_becomes_fast_late():
    field = [SimpleNamespace(seconds=1.0, trials=1), SimpleNamespace(seconds=1.5, trials=1)]

    def give(contestant, number):
        contestant.trials += number
        if contestant is field[1]:
            contestant.seconds = 0.5

    assert halve(field, 12, give) is field[1]
    assert field[1].trials > field[0].trials

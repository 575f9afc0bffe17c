"""Formats in a trace: as JSON they are named by module and class, and nothing else is called."""

import json

import pytest

from tvm_sparse import SparseSchedule, schedules
from tvm_sparse.formats import BSR, CSR, Composition, Hyb
from tvm_sparse.schedule import Trace


def schedule_over(formats) -> SparseSchedule:
    schedule = SparseSchedule(schedules.spmm.program())
    schedule.decompose_format("spmm", "A", formats)
    return schedule


@pytest.mark.parametrize(
    "formats",
    [
        CSR(),
        [BSR(2, 3, min_fill=0.5), CSR(keeps_duplicates=True)],
        Composition({"blocks": BSR(2, 3, min_fill=0.5), "rest": CSR()}),
        Hyb(2, [1, 4]),
    ],
    ids=repr,
)
def test_replay_of_a_read_trace_gives_the_same_program(formats):
    schedule = schedule_over(formats)
    again = SparseSchedule(schedules.spmm.program())
    Trace.from_json(schedule.trace.as_json()).apply(again)
    assert again.mod["spmm"].script() == schedule.mod["spmm"].script()
    assert str(again.trace) == str(schedule.trace)


class Forgetful(BSR):
    def __init__(self, size: int) -> None:
        super().__init__(size, size)


def test_a_format_that_cannot_be_saved_is_shown():
    trace = schedule_over(Forgetful(2)).trace
    assert "formats=<Forgetful bsr2x2>" in str(trace)
    with pytest.raises(TypeError, match=r"Forgetful needs an attribute for each .*none for size"):
        trace.as_json()


@pytest.mark.parametrize(
    "path, message",
    [
        ("os:getcwd", "expected a Format or a Composition, found 'os:getcwd'"),
        ("builtins:dict", "expected a Format or a Composition, found 'builtins:dict'"),
        ("tvm_sparse.formats:None_", "expected a format, found none at"),
        ("no_such_module:CSR", "expected a format, found none at"),
    ],
)
def test_only_formats_are_called(path, message):
    document = json.loads(schedule_over(CSR()).trace.as_json())
    document["calls"][0]["arguments"]["formats"] = {"format": path, "arguments": {}}
    with pytest.raises(ValueError, match=message):
        Trace.from_json(json.dumps(document))

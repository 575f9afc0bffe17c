"""Policy ``merge``: a coordinate list of bounded capacity that drains into sorted runs.

A full list is sorted, compressed and added as a run. Runs are merged when the earlier of two is less than
twice as long (log-structured merging), so each entry is merged a logarithmic number of times and all runs
together hold fewer than twice the distinct entries. The memory follows the distinct entries of a row, not
the produced ones; where even these do not fit, the count says so and the caller takes windows of places.
"""

from __future__ import annotations

from tvm import tirx

from .costs import Work
from .policy import OVERFLOW, Policy, Scratch, register_policy
from .sort import HISTOGRAM, each_distinct, sort_keys
from .statements import Local, int64, loop, sequence, when

__all__ = ["MergedRuns"]

#: Runs grow by a factor, so there are never more of them than bits of a number of entries.
_MOST_RUNS = 128


class MergedRuns(Policy):
    """Bounded coordinate list and log-structured runs; see the module."""

    name = "merge"
    scratch = (
        Scratch("places", "int64", "room // 8 * 2 + 2"),
        Scratch("values", "value", "room // 8 * 2 + 2", symbolic=False),
        Scratch("run_places", "int64", "room // 8 * 3 + 1"),
        Scratch("run_values", "value", "room // 8 * 3 + 1", symbolic=False),
        Scratch("spare_places", "int64", "room // 8 * 3 + 1"),
        Scratch("spare_values", "value", "room // 8 * 3 + 1", symbolic=False),
        Scratch("begins", "int64", str(_MOST_RUNS + 1)),
        HISTOGRAM,
    )
    registers = ("held", "runs", "end", "failed")
    combines_late = True
    is_bounded = True

    def insert(self, memory, place, value, combine):
        del combine
        held = memory["held"]
        stores = [memory["places"].store(held.value, place)]
        if value is not None:
            stores.append(memory["values"].store(held.value, value))
        return sequence(stores, held.set(held.value + 1))

    def after_insert(self, memory, row):
        return when(memory["held"].value >= _capacity(memory), _flush(memory, row))

    def count(self, memory, row):
        number = tirx.Select(memory["failed"].value != 0, int64(OVERFLOW), memory["end"].value)
        return [_flush(memory, row, is_last=True)], number

    def drain(self, memory, row, emit):
        def give(index):
            return emit(memory["run_places"][index], memory["run_values"][index])

        return sequence(
            _flush(memory, row, is_last=True),
            loop("index", int64(0), memory["end"].value, give),
        )

    def cost(self, work: Work) -> float:
        rounds = 2 + work.merges()
        return work.total(
            2 * (work.costs.sort_insert + work.costs.sort_drain * rounds) * work.produced
            + work.sort_cost(work.produced, 0)
            + work.sort_cost(work.produced, work.value_bytes)
        )


def _arrays(memory: dict, kind: str) -> list:
    """Return places and, unless only the structure counts, values of the list, runs or spare memory."""
    prefix = {"list": "", "runs": "run_", "spare": "spare_"}[kind]
    return [memory[prefix + name] for name in ("places", "values") if prefix + name in memory]


def _capacity(memory: dict):
    """Return how many entries the list holds: a sort needs twice the memory."""
    return tirx.truncdiv(memory["places"].size, int64(2)) - 1


def _flush(memory: dict, row, is_last: bool = False) -> tirx.Stmt:
    """Sort and compress the list, add it to the runs, and merge those that are due."""
    held, runs, end = memory["held"], memory["runs"], memory["end"]
    front = Local("front", "int64")
    own, kept = _arrays(memory, "list"), _arrays(memory, "runs")

    def keep(at):
        copied = [to.store(end.value, given[at]) for given, to in zip(own, kept)]
        return sequence(copied, end.set(end.value + 1))

    def join(at):
        if len(own) == 1 or row.combine is None:
            return tirx.Evaluate(tirx.const(0, "int32"))
        return own[1].store(at + 1, row.combine(own[1][at], own[1][at + 1]))

    added = sequence(
        memory["begins"].store(runs.value, end.value),
        runs.set(runs.value + 1),
        front.declare(0),
        sort_keys(own[0], own[1:], memory["histogram"], held.value, row.length, front),
        each_distinct(own[0], front.value, held.value, keep, join),
        memory["begins"].store(runs.value, end.value),
    )
    is_full = end.value + held.value > memory["run_places"].size
    added = when(is_full, memory["failed"].set(1), added)
    return sequence(when(held.value > 0, added), held.set(0), _merge_runs(memory, row, is_last))


def _merge_runs(memory: dict, row, is_last: bool) -> tirx.Stmt:
    """Merge the last two runs while the earlier is less than twice the last, or no list would fit."""
    runs, begins, end = memory["runs"], memory["begins"], memory["end"]
    first = begins[tirx.Max(runs.value - 2, int64(0))]
    second = begins[tirx.Max(runs.value - 1, int64(0))]
    is_close = second - first < 2 * (end.value - second)
    has_no_room = end.value + _capacity(memory) > memory["run_places"].size
    is_due = tirx.const(True, "bool") if is_last else tirx.Or(is_close, has_no_room)
    condition = tirx.And(runs.value > 1, is_due)
    return tirx.While(condition, _Merge(memory, row).statement(first, second))


class _Merge:
    """A merge of the last two runs in place: the earlier one is set aside first."""

    def __init__(self, memory: dict, row) -> None:
        self.memory, self.combine = memory, row.combine
        self.runs, self.aside = _arrays(memory, "runs"), _arrays(memory, "spare")
        self.left, self.right = Local("left", "int64"), Local("right", "int64")
        self.to, self.size = Local("merged", "int64"), Local("left_size", "int64")

    def statement(self, first, second) -> tirx.Stmt:
        """Return the merge of the runs that begin at two elements."""
        begin, end, runs = tirx.Var("run_begin", "int64"), self.memory["end"], self.memory["runs"]

        def copy(index):
            return sequence(
                [b.store(index, a[begin + index]) for a, b in zip(self.runs, self.aside)]
            )

        return sequence(
            tirx.Bind(begin, first),
            self.size.declare(second - begin),
            loop("index", int64(0), self.size.value, copy),
            self.left.declare(0),
            self.right.declare(begin + self.size.value),
            self.to.declare(begin),
            self._step(),
            end.set(self.to.value),
            runs.set(runs.value - 1),
            self.memory["begins"].store(runs.value, end.value),
        )

    def _step(self) -> tirx.Stmt:
        """Return the loop that takes the smaller of two places, or both where they are the same."""
        left, right, end = self.left.value, self.right.value, self.memory["end"].value
        has_left, has_right = left < self.size.value, right < end
        mine, other = tirx.Var("place_left", "int64"), tirx.Var("place_right", "int64")
        is_same = tirx.And(tirx.And(has_left, has_right), mine == other)
        takes_left = tirx.And(has_left, tirx.Or(tirx.Not(has_right), mine <= other))
        last = tirx.Max(self.size.value - 1, int64(0))
        body = sequence(
            tirx.Bind(mine, self.aside[0][tirx.Min(left, last)]),
            tirx.Bind(other, self.runs[0][tirx.Min(right, end - 1)]),
            when(is_same, self._both(), when(takes_left, self._from_left(), self._from_right())),
            self.to.set(self.to.value + 1),
        )
        return tirx.While(tirx.Or(has_left, has_right), body)

    def _from_left(self) -> tirx.Stmt:
        at, to = self.left.value, self.to.value
        copied = [own.store(to, aside[at]) for own, aside in zip(self.runs, self.aside)]
        return sequence(copied, self.left.set(at + 1))

    def _from_right(self) -> tirx.Stmt:
        at, to = self.right.value, self.to.value
        return sequence([own.store(to, own[at]) for own in self.runs], self.right.set(at + 1))

    def _both(self) -> tirx.Stmt:
        """Combine what came earlier with what came later."""
        left, right, to = self.left.value, self.right.value, self.to.value
        stores = [self.runs[0].store(to, self.runs[0][right])]
        for own, aside in zip(self.runs[1:], self.aside[1:]):
            later = own[right]
            stores.append(
                own.store(to, self.combine(aside[left], later) if self.combine else later)
            )
        return sequence(stores, self.left.set(left + 1), self.right.set(right + 1))


register_policy(MergedRuns())

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
    return tirx.While(condition, _merge_last(memory, row, first, second))


def _merge_last(memory: dict, row, first, second) -> tirx.Stmt:
    """Merge the last two runs in place: the earlier one is set aside."""
    kept, spare = _arrays(memory, "runs"), _arrays(memory, "spare")
    left, right, to = (Local(name, "int64") for name in ("left", "right", "merged"))
    size, end, runs = Local("left_size", "int64"), memory["end"], memory["runs"]
    begin = tirx.Var("run_begin", "int64")
    mine = spare[0][tirx.Min(left.value, tirx.Max(size.value - 1, int64(0)))]
    other = kept[0][tirx.Min(right.value, end.value - 1)]
    has_left, has_right = left.value < size.value, right.value < end.value
    place_left, place_right = tirx.Var("place_left", "int64"), tirx.Var("place_right", "int64")
    takes_left = tirx.And(has_left, tirx.Or(tirx.Not(has_right), place_left <= place_right))
    is_same = tirx.And(tirx.And(has_left, has_right), place_left == place_right)

    def copy(index):
        return sequence([b.store(index, a[begin + index]) for a, b in zip(kept, spare)])

    both = [kept[0].store(to.value, place_left)]
    if len(kept) > 1:
        later = kept[1][right.value]
        value = later if row.combine is None else row.combine(spare[1][left.value], later)
        both.append(kept[1].store(to.value, value))
    both += [left.set(left.value + 1), right.set(right.value + 1)]
    from_left = [b.store(to.value, a[left.value]) for a, b in zip(spare, kept)]
    from_right = [b.store(to.value, b[right.value]) for b in kept]
    step = sequence(
        tirx.Bind(place_left, mine),
        tirx.Bind(place_right, other),
        when(
            is_same,
            sequence(both),
            when(
                takes_left,
                sequence(from_left, left.set(left.value + 1)),
                sequence(from_right, right.set(right.value + 1)),
            ),
        ),
        to.set(to.value + 1),
    )
    return sequence(
        tirx.Bind(begin, first),
        size.declare(second - begin),
        loop("index", int64(0), size.value, copy),
        left.declare(0),
        right.declare(begin + size.value),
        to.declare(begin),
        tirx.While(tirx.Or(has_left, has_right), step),
        end.set(to.value),
        runs.set(runs.value - 1),
        memory["begins"].store(runs.value, end.value),
    )


register_policy(MergedRuns())

"""Policy ``sort``: the list of all entries as they come, sorted and compressed at the end.

Insertion appends without a test; a stable sort brings equal places together in the order they came, where
they are combined, so the same operands give the same bits. It needs memory for every produced entry, but
none for places.
"""

from __future__ import annotations

from tvm import tirx

from .costs import Work
from .policy import Policy, Scratch, register_policy
from .sort import HISTOGRAM, each_distinct, sort_keys
from .statements import Local, sequence

__all__ = ["CoordinateList"]


class CoordinateList(Policy):
    """Expand, sort, compress; see the module."""

    name = "sort"
    scratch = (
        Scratch("places", "int64", "2 * most + 2"),
        Scratch("values", "value", "2 * most + 2", symbolic=False),
        HISTOGRAM,
    )
    registers = ("held",)
    combines_late = True

    def insert(self, memory, place, value, combine):
        del combine
        held = memory["held"]
        stores = [memory["places"].store(held.value, place)]
        if value is not None:
            stores.append(memory["values"].store(held.value, value))
        return sequence(stores, held.set(held.value + 1))

    def count(self, memory, row):
        front, distinct = Local("front", "int64"), Local("distinct", "int64")
        places, held = memory["places"], memory["held"].value
        statements = [
            *front.declare(0),
            *sort_keys(places, [], memory["histogram"], held, row.length, front),
            *distinct.declare(0),
            *each_distinct(places, front.value, held, lambda _: distinct.set(distinct.value + 1)),
        ]
        return statements, distinct.value

    def drain(self, memory, row, emit):
        front = Local("front", "int64")
        places, values, held = memory["places"], memory["values"], memory["held"].value

        def join(at):
            if row.combine is None:
                return tirx.Evaluate(tirx.const(0, "int32"))
            return values.store(at + 1, row.combine(values[at], values[at + 1]))

        return sequence(
            front.declare(0),
            sort_keys(places, [values], memory["histogram"], held, row.length, front),
            each_distinct(places, front.value, held, lambda at: emit(places[at], values[at]), join),
        )

    def cost(self, work: Work) -> float:
        return work.total(
            work.costs.sort_insert * work.produced
            + work.costs.sort_drain * work.produced
            + work.sort_cost(work.produced, work.value_bytes)
        )


register_policy(CoordinateList())

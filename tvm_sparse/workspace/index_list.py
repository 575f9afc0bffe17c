"""Policy ``list``: a value and a flag for every coordinate of a row, and the list of those in use.

A drain sorts the list. It costs nothing for places that are not in use, so it suits long, thin rows as
long as a row of values fits the caches.
"""

from __future__ import annotations

from tvm import tirx

from .costs import Work
from .policy import Policy, Scratch, register_policy
from .sort import HISTOGRAM, sort_keys
from .statements import Local, int64, loop, sequence, when

__all__ = ["IndexList"]


def _flag(value: int):
    return tirx.const(value, "int8")


class IndexList(Policy):
    """Dense row with flags and a list; see the module."""

    name = "list"
    scratch = (
        Scratch("values", "value", "length", fill=None, symbolic=False),
        Scratch("flags", "int8", "length"),
        Scratch("places", "int64", "2 * min(most, length) + 2"),
        HISTOGRAM,
    )
    registers = ("held",)

    def insert(self, memory, place, value, combine):
        flags, held = memory["flags"], memory["held"]
        first = sequence(
            flags.store(place, _flag(1)),
            memory["places"].store(held.value, place),
            held.set(held.value + 1),
        )
        known = [] if value is None else [self.insert_known(memory, place, value, combine)]
        return sequence(when(flags[place] == _flag(0), first), *known)

    def insert_known(self, memory, place, value, combine):
        own = memory["values"]
        return own.store(place, value if combine is None else combine(own[place], value))

    def take(self, memory, place, neutral):
        own = memory["values"]
        return own[place], own.store(place, neutral)

    def count(self, memory, row):
        def clear(index):
            return memory["flags"].store(memory["places"][index], _flag(0))

        held = memory["held"].value
        return [loop("index", int64(0), held, clear)], held

    def drain(self, memory, row, emit):
        places, held, front = memory["places"], memory["held"].value, Local("front", "int64")

        def give(index):
            place = tirx.Var("place", "int64")
            value, clear = self.take(memory, place, row.neutral)
            return sequence(
                tirx.Bind(place, places[front.value + index]),
                emit(place, value),
                clear,
                memory["flags"].store(place, _flag(0)),
            )

        order = sort_keys(places, [], memory["histogram"], held, row.length, front)
        return sequence(
            front.declare(0),
            when(row.is_ordered, sequence(order)),
            loop("index", int64(0), held, give),
        )

    def cost(self, work: Work) -> float:
        distinct = work.distinct()
        touch = work.access(work.length * (work.value_bytes + 1))
        return work.total(
            (work.costs.list_insert + touch) * work.produced
            + (work.costs.list_drain + touch) * distinct
            + work.costs.surprise * work.surprises()
            + work.sort_cost(distinct, 0)
        )


register_policy(IndexList())

"""Policy ``hash``: a table of the places in use, by multiplicative hashing and linear probing.

The table has at least twice as many slots as a row may have entries, so it is at most half full; a list
of used slots lets a drain look at no others. Each row uses as much of the table as it needs.
"""

from __future__ import annotations

from tvm import tirx

from .costs import Work
from .policy import Policy, Scratch, register_policy
from .sort import HISTOGRAM, sort_keys
from .statements import Local, bit_length, int64, loop, sequence, when

__all__ = ["HashTable"]

#: 2**32 less 2**32 over the golden ratio (Knuth, TAOCP 6.4): with 32 bits the product fits into int64.
_FACTOR = 0x61C88647
_FOLD = 0x5BD1E995
_LOW = (1 << 32) - 1
_EMPTY = -1


class HashTable(Policy):
    """Linear-probing hash table; see the module."""

    name = "hash"
    scratch = (
        Scratch("keys", "int64", "2 * pow2(min(most, length))", fill=_EMPTY),
        Scratch("values", "value", "2 * pow2(min(most, length))", symbolic=False),
        Scratch("slots", "int64", "2 * min(most, length) + 2"),
        Scratch("places", "int64", "2 * min(most, length) + 2", symbolic=False),
        Scratch("histogram", "int64", HISTOGRAM.size, symbolic=False),
    )
    registers = ("held", "mask", "shift")

    def begin(self, memory, row):
        bits = Local("table_bits", "int64")
        entries = tirx.Max(tirx.Min(row.expected, row.length), int64(1))
        return [
            *bits.declare(bit_length(entries - 1) + 1),
            memory["held"].set(0),
            memory["mask"].set((int64(1) << bits.value) - 1),
            memory["shift"].set(tirx.Max(int64(32) - bits.value, int64(0))),
        ]

    def insert(self, memory, place, value, combine):
        keys, held, mask = memory["keys"], memory["held"], memory["mask"]
        slot, key = Local("slot_tried", "int64"), Local("key_found", "int64")
        probe = sequence(
            slot.set((slot.value + 1) & mask.value),
            key.set(keys[slot.value]),
        )
        new = sequence(
            keys.store(slot.value, place),
            memory["slots"].store(held.value, slot.value),
            held.set(held.value + 1),
        )
        if value is None:
            old = None
        else:
            own = memory["values"]
            new = sequence(new, own.store(slot.value, value))
            old = own.store(slot.value, combine(own[slot.value], value) if combine else value)
        taken = tirx.And(key.value != place, key.value != int64(_EMPTY))
        return sequence(
            slot.declare(self._hash(memory, place)),
            key.declare(keys[slot.value]),
            tirx.While(taken, probe),
            when(key.value == int64(_EMPTY), new, old),
        )

    def _hash(self, memory, place):
        folded = (place & int64(_LOW)) ^ (((place >> 32) * int64(_FOLD)) & int64(_LOW))
        return ((folded * int64(_FACTOR)) >> memory["shift"].value) & memory["mask"].value

    def count(self, memory, row):
        def clear(index):
            return memory["keys"].store(memory["slots"][index], int64(_EMPTY))

        held = memory["held"].value
        return [loop("index", int64(0), held, clear)], held

    def drain(self, memory, row, emit):
        places, slots, keys = memory["places"], memory["slots"], memory["keys"]
        held, front = memory["held"].value, Local("front", "int64")

        def gather(index):
            slot = tirx.Var("slot", "int64")
            return sequence(
                tirx.Bind(slot, slots[index]),
                places.store(index, keys[slot]),
                keys.store(slot, int64(_EMPTY)),
            )

        def give(index):
            at = front.value + index
            return emit(places[at], memory["values"][slots[at]])

        order = sort_keys(places, [slots], memory["histogram"], held, row.length, front)
        return sequence(
            front.declare(0),
            loop("index", int64(0), held, gather),
            when(row.is_ordered, sequence(order)),
            loop("index", int64(0), held, give),
        )

    def cost(self, work: Work) -> float:
        distinct = work.distinct()
        touch = work.access(2 * work.entries() * (8 + work.value_bytes))
        return work.total(
            (work.costs.hash_insert + touch) * work.produced
            + (work.costs.hash_drain + touch) * distinct
            + work.costs.surprise * work.surprises()
            + work.sort_cost(distinct, 8)
        )


register_policy(HashTable())

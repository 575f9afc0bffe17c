"""Policy ``dense``: a value for every coordinate of a row, and bitmaps of three levels of those in use.

Insertion has no branch: it combines the value and sets a bit in each bitmap. A drain looks at the topmost
bitmap, of one bit for 64 * 64 places, follows the bits that are set, and so finds coordinates in order
without a sort and without looking at the rest.
"""

from __future__ import annotations

from tvm import tirx

from .costs import Work
from .policy import Policy, Scratch, register_policy
from .statements import Local, count_bits, int64, loop, sequence, trailing_zeros

__all__ = ["DenseBitmap"]

_WORD_BITS = 6
#: Bitmaps, lowest first: each has a bit for every word of the one before.
_LEVELS = ("bits", "words", "groups")


class DenseBitmap(Policy):
    """Dense row with bitmaps; see the module."""

    name = "dense"
    scratch = (
        Scratch("values", "value", "length", fill=None, symbolic=False),
        *(
            Scratch(name, "int64", f"length // {64 ** (level + 1)} + 1")
            for level, name in enumerate(_LEVELS)
        ),
    )

    def insert(self, memory, place, value, combine):
        """Without a branch: whether a word is new is hard to predict."""
        statements = []
        if value is not None:
            statements.append(self.insert_known(memory, place, value, combine))
        for level, name in enumerate(_LEVELS):
            shift = level * _WORD_BITS
            bit = int64(1) << ((place >> shift) & int64(63))
            index = place >> (shift + _WORD_BITS)
            statements.append(memory[name].store(index, memory[name][index] | bit))
        return sequence(statements)

    def insert_known(self, memory, place, value, combine):
        own = memory["values"]
        return own.store(place, value if combine is None else combine(own[place], value))

    def take(self, memory, place, neutral):
        own = memory["values"]
        return own[place], own.store(place, neutral)

    def count(self, memory, row):
        total = Local("held", "int64")

        def word(index, bits):
            del index
            return sequence(total.set(total.value + count_bits(bits)))

        return [*total.declare(0), self._each_word(memory, row.length, word)], total.value

    def drain(self, memory, row, emit):
        def word(index, bits):
            def visit(place):
                value, clear = self.take(memory, place, row.neutral)
                return sequence(emit(place, value), clear)

            return _each_bit(index, bits, visit, 0)

        return self._each_word(memory, row.length, word)

    def _each_word(self, memory, length, body) -> tirx.Stmt:
        """Visit the words of the lowest bitmap that are not zero, in order, and clear all bitmaps."""

        def look(level):
            own = memory[_LEVELS[level]]

            def visit(index):
                bits = tirx.Var(f"bits{level}", "int64")
                inner = (
                    body(index, bits)
                    if level == 0
                    else _each_bit(index, bits, look(level - 1), level)
                )
                return sequence(tirx.Bind(bits, own[index]), own.store(index, int64(0)), inner)

            return visit

        top = len(_LEVELS) - 1
        return loop("group", int64(0), length // 64 ** (top + 1) + 1, look(top))

    def cost(self, work: Work) -> float:
        touch = work.access(work.length * (work.value_bytes + 1 / 8))
        groups = work.length // 64 ** len(_LEVELS) + 1
        return work.total(
            2 * (work.costs.dense_insert + touch) * work.produced
            + (work.costs.dense_drain + touch) * work.distinct()
            + 2 * work.costs.dense_row * groups
            + 2 * (work.costs.dense_word + touch) * work.filled(work.length // 64 + 1)
        )


def _each_bit(index, bits, visit, level) -> tirx.Stmt:
    """Visit the numbers of the bits of a word that are set, lowest first."""
    left = Local(f"left{level}", "int64")
    number = tirx.Var(f"number{level}", "int64")
    step = sequence(
        tirx.Bind(number, index * 64 + trailing_zeros(left.value)),
        left.set(left.value & (left.value - 1)),
        visit(number),
    )
    return sequence(left.declare(bits), tirx.While(left.value != 0, step))


register_policy(DenseBitmap())

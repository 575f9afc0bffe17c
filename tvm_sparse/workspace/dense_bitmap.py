"""Policy ``dense``: a value for every coordinate of a row, and bitmaps of two levels of those in use.

Insertion has no branch: it combines the value and sets a bit in each bitmap. A drain looks at the upper
bitmap, of one bit for 64 words of the lower one, and so finds coordinates in order without a sort.
"""

from __future__ import annotations

from tvm import tirx

from .costs import Work
from .policy import Policy, Scratch, register_policy
from .statements import Local, count_bits, int64, loop, sequence, trailing_zeros

__all__ = ["DenseBitmap"]

_WORD_BITS = 6


class DenseBitmap(Policy):
    """Dense row with bitmaps; see the module."""

    name = "dense"
    scratch = (
        Scratch("values", "value", "length", fill=None, symbolic=False),
        Scratch("bits", "int64", "length // 64 + 1"),
        Scratch("words", "int64", "length // 4096 + 1"),
    )

    def insert(self, memory, place, value, combine):
        statements = []
        if value is not None:
            statements.append(self.insert_known(memory, place, value, combine))
        for name, shift in (("bits", _WORD_BITS), ("words", 2 * _WORD_BITS)):
            bit = int64(1) << ((place >> (shift - _WORD_BITS)) & int64(63))
            word = memory[name][place >> shift]
            statements.append(memory[name].store(place >> shift, word | bit))
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
            return sequence(total.set(total.value + count_bits(bits)))

        return [*total.declare(0), self._each_word(memory, row.length, word)], total.value

    def drain(self, memory, row, emit):
        def word(index, bits):
            left = Local("bits_left", "int64")
            place = tirx.Var("place", "int64")
            value, clear = self.take(memory, place, row.neutral)
            step = sequence(
                tirx.Bind(place, index * 64 + trailing_zeros(left.value)),
                left.set(left.value & (left.value - 1)),
                emit(place, value),
                clear,
            )
            return sequence(left.declare(bits), tirx.While(left.value != 0, step))

        return self._each_word(memory, row.length, word)

    def _each_word(self, memory, length, body):
        """Visit the words of the lower bitmap that are not zero, in order, and clear both."""

        def group(number):
            left = Local("words_left", "int64")
            index, bits = tirx.Var("word", "int64"), tirx.Var("bits", "int64")
            words, lower = memory["words"], memory["bits"]
            step = sequence(
                tirx.Bind(index, number * 64 + trailing_zeros(left.value)),
                left.set(left.value & (left.value - 1)),
                tirx.Bind(bits, lower[index]),
                lower.store(index, int64(0)),
                body(index, bits),
            )
            return sequence(
                left.declare(words[number]),
                words.store(number, int64(0)),
                tirx.While(left.value != 0, step),
            )

        return loop("group", int64(0), length // 4096 + 1, group)

    def cost(self, work: Work) -> float:
        touch = work.access(work.length * (work.value_bytes + 1 / 8))
        groups = work.length // 4096 + 1
        return work.total(
            2 * (work.costs.dense_insert + touch) * work.produced
            + (work.costs.dense_drain + touch) * work.distinct()
            + 2 * work.costs.dense_row * groups
        )


register_policy(DenseBitmap())

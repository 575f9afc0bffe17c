"""Generated sorts of the places of a row, with what belongs to them.

Keys and payloads lie in scratch memory of twice the number of elements: a radix sort moves them from one
half to the other for each digit. Short rows are sorted by insertion, rows in order are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.ir import Expr

from .policy import Memory, Scratch
from .statements import Local, bit_length, int64, loop, sequence, when

__all__ = ["HISTOGRAM", "each_distinct", "sort_keys"]

#: Rows of at most this many entries are sorted by insertion.
_INSERTION_MOST = 24
#: Digits of short and of long rows: emptying the histogram must not cost more than it saves.
_SHORT_DIGIT, _LONG_DIGIT, _LONG_LEAST = 6, 11, 2048

#: Memory that a sort needs beside its keys.
HISTOGRAM = Scratch("histogram", "int64", str((1 << _LONG_DIGIT) + 1))


def sort_keys(
    keys: Memory,
    payloads: Sequence[Memory],
    histogram: Memory,
    count: Expr,
    length: Expr,
    front: Local,
) -> list[tirx.Stmt]:
    """Sort the first elements, equal ones in the order they have.

    Parameters
    ----------
    keys : Memory
        int64 keys below ``length``, twice as much memory as may have to be sorted.
    payloads : sequence of Memory
        Arrays of the same size that move with the keys.
    histogram : Memory
        The memory of :data:`HISTOGRAM`.
    count : Expr
        How many elements.
    length : Expr
        Above all keys: its bits decide on the number of passes.
    front : Local
        Holds, afterwards, where the sorted elements begin.
    """
    number, disorder = Local("number", "int64"), Local("disorder", "bool")

    def compare(index: Expr) -> tirx.Stmt:
        return disorder.set(tirx.Or(disorder.value, keys[index - 1] > keys[index]))

    radix = _RadixSort(keys, payloads, histogram, number.value, front)
    by_digits = radix.statement(length)
    by_insertion = loop("next", int64(1), number.value, lambda i: _sink(keys, payloads, i))
    is_short = number.value <= _INSERTION_MOST
    return [
        *number.declare(count),
        front.set(0),
        *disorder.declare(tirx.const(False, "bool")),
        loop("index", int64(1), number.value, compare),
        when(disorder.value, when(is_short, by_insertion, by_digits)),
    ]


def _sink(keys: Memory, payloads: Sequence[Memory], index: Expr) -> tirx.Stmt:
    """Insert an element into those before it, which are sorted."""
    place = Local("sink", "int64")
    key = tirx.Var("key", "int64")
    held = [tirx.Var(f"carried{n}", str(own.buffer.ty.dtype)) for n, own in enumerate(payloads)]
    before = place.value - 1
    above = keys[tirx.Max(before, int64(0))] > key
    shift = sequence(
        keys.store(place.value, keys[before]),
        *(own.store(place.value, own[before]) for own in payloads),
        place.set(before),
    )
    return sequence(
        tirx.Bind(key, keys[index]),
        *(tirx.Bind(var, own[index]) for var, own in zip(held, payloads)),
        place.declare(index),
        tirx.While(tirx.And(place.value > 0, above), shift),
        keys.store(place.value, key),
        *(own.store(place.value, var) for var, own in zip(held, payloads)),
    )


class _RadixSort:
    """A sort by digits, lowest first; a digit that all keys share is left out."""

    def __init__(
        self,
        keys: Memory,
        payloads: Sequence[Memory],
        histogram: Memory,
        count: Expr,
        front: Local,
    ) -> None:
        self.keys, self.arrays, self.histogram = keys, [keys, *payloads], histogram
        self.count, self.front = count, front
        self.back, self.width = Local("back", "int64"), Local("width", "int64")

    def statement(self, length: Expr) -> tirx.Stmt:
        """Return the passes that keys below ``length`` take, by digits of equal width."""
        bits, passes = Local("bits", "int64"), Local("passes", "int64")
        is_short = self.count < _LONG_LEAST
        widest = tirx.Select(is_short, int64(_SHORT_DIGIT), int64(_LONG_DIGIT))
        number = tirx.truncdiv(bits.value + widest - 1, widest)
        return sequence(
            bits.declare(bit_length(length - 1)),
            passes.declare(tirx.Max(number, int64(1))),
            self.width.declare(tirx.truncdiv(bits.value + passes.value - 1, passes.value)),
            self.back.declare(self.count),
            loop("digit", int64(0), passes.value, self._pass),
        )

    def _pass(self, index: Expr) -> tirx.Stmt:
        shift = tirx.Var("shift", "int64")
        values = int64(1) << self.width.value
        clear = loop("value", int64(0), values, lambda v: self.histogram.store(v, int64(0)))
        tally = loop("element", int64(0), self.count, lambda e: self._tally(e, shift))
        is_shared = self.histogram[self._digit(int64(0), shift)] == self.count
        return sequence(
            tirx.Bind(shift, index * self.width.value),
            clear,
            tally,
            when(tirx.Not(is_shared), self._scatter(shift, values)),
        )

    def _digit(self, element: Expr, shift: Expr) -> Expr:
        mask = (int64(1) << self.width.value) - 1
        return (self.keys[self.front.value + element] >> shift) & mask

    def _tally(self, element: Expr, shift: Expr) -> tirx.Stmt:
        found = self._digit(element, shift)
        return self.histogram.store(found, self.histogram[found] + 1)

    def _scatter(self, shift: Expr, values: Expr) -> tirx.Stmt:
        """Turn the histogram into begins, and move every element to its place in the other half."""
        total = Local("total", "int64")

        def begin(value: Expr) -> tirx.Stmt:
            own = tirx.Var("own", "int64")
            return sequence(
                tirx.Bind(own, self.histogram[value]),
                self.histogram.store(value, total.value),
                total.set(total.value + own),
            )

        return sequence(
            total.declare(0),
            loop("value", int64(0), values, begin),
            loop("element", int64(0), self.count, lambda e: self._move(e, shift)),
            self.back.set(self.front.value),
            self.front.set(tirx.Select(self.front.value == 0, self.count, int64(0))),
        )

    def _move(self, element: Expr, shift: Expr) -> tirx.Stmt:
        found, to = tirx.Var("found", "int64"), tirx.Var("to", "int64")
        at = self.front.value + element
        return sequence(
            tirx.Bind(found, self._digit(element, shift)),
            tirx.Bind(to, self.histogram[found]),
            self.histogram.store(found, to + 1),
            *(own.store(self.back.value + to, own[at]) for own in self.arrays),
        )


def each_distinct(
    keys: Memory, front: Expr, count: Expr, visit, combine_at=None
) -> list[tirx.Stmt]:
    """Visit every distinct one of sorted keys.

    Parameters
    ----------
    keys : Memory
        Sorted keys.
    front, count : Expr
        Where they begin, and how many they are.
    visit : callable
        From the position of the last of equal keys to a statement.
    combine_at : callable, optional
        From a position whose key equals the next one to a statement, which takes it to that.
    """

    def step(index: Expr) -> tirx.Stmt:
        at = front + index
        last = tirx.Or(index + 1 == count, keys[tirx.Min(at + 1, front + count - 1)] != keys[at])
        return when(last, visit(at), None if combine_at is None else combine_at(at))

    return [loop("sorted", int64(0), count, step)]

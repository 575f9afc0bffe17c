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

    by_digits = _radix_sort(keys, payloads, histogram, number.value, length, front)
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


def _radix_sort(
    keys: Memory,
    payloads: Sequence[Memory],
    histogram: Memory,
    count: Expr,
    length: Expr,
    front: Local,
) -> tirx.Stmt:
    """Sort by digits, lowest first; a digit that all keys share is left out."""
    bits, passes, width = (Local(name, "int64") for name in ("bits", "passes", "width"))
    back = Local("back", "int64")
    widest = tirx.Select(count < _LONG_LEAST, int64(_SHORT_DIGIT), int64(_LONG_DIGIT))
    number = tirx.Max(tirx.truncdiv(bits.value + widest - 1, widest), int64(1))

    def one_pass(index: Expr) -> tirx.Stmt:
        shift = tirx.Var("shift", "int64")
        mask = (int64(1) << width.value) - 1

        def digit(element: Expr) -> Expr:
            return (keys[element] >> shift) & mask

        def tally(element: Expr) -> tirx.Stmt:
            found = digit(front.value + element)
            return histogram.store(found, histogram[found] + 1)

        total = Local("total", "int64")

        def begin(value: Expr) -> tirx.Stmt:
            own = tirx.Var("own", "int64")
            return sequence(
                tirx.Bind(own, histogram[value]),
                histogram.store(value, total.value),
                total.set(total.value + own),
            )

        def move(element: Expr) -> tirx.Stmt:
            found, to = tirx.Var("found", "int64"), tirx.Var("to", "int64")
            at = front.value + element
            return sequence(
                tirx.Bind(found, digit(at)),
                tirx.Bind(to, histogram[found]),
                histogram.store(found, to + 1),
                *(own.store(back.value + to, own[at]) for own in (keys, *payloads)),
            )

        moved = sequence(
            total.declare(0),
            loop("value", int64(0), mask + 1, begin),
            loop("element", int64(0), count, move),
            back.set(front.value),
            front.set(tirx.Select(front.value == 0, count, int64(0))),
        )
        return sequence(
            tirx.Bind(shift, index * width.value),
            loop("value", int64(0), mask + 1, lambda v: histogram.store(v, int64(0))),
            loop("element", int64(0), count, tally),
            when(histogram[digit(front.value)] != count, moved),
        )

    return sequence(
        bits.declare(bit_length(length - 1)),
        passes.declare(number),
        width.declare(tirx.truncdiv(bits.value + passes.value - 1, passes.value)),
        back.declare(count),
        loop("digit", int64(0), passes.value, one_pass),
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

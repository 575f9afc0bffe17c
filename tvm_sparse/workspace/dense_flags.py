"""Policy ``dense``: a value for every place of a row, and flags of three levels for those in use.

Insertion combines the value and sets a byte in each level: no branch, and no step waits for one before,
as setting bits of a common word would. A flag stands for one place, 64 places and 4096 places. A drain
goes down from the upper level, 64 flags at a time, and so finds places in order without a sort.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr

from .costs import Work
from .policy import Memory, Policy, Scratch, register_policy
from .statements import (
    Local,
    count_bits,
    has_feature,
    int64,
    loop,
    sequence,
    trailing_zeros,
    when,
)

__all__ = ["DenseFlags"]

#: Flags that one is above.
_FAN = 64


class DenseFlags(Policy):
    """Dense row with flags; see the module."""

    name = "dense"
    scratch = (
        Scratch("values", "value", "length", fill=None, symbolic=False),
        Scratch("flags", "int8", "(length // 64 + 1) * 64"),
        Scratch("groups", "int8", "(length // 4096 + 1) * 64"),
        Scratch("supers", "int8", "(length // 262144 + 1) * 64"),
    )

    def insert(self, memory, place, value, combine):
        used = tirx.const(-1, "int8")
        statements = [
            memory["flags"].store(place, used),
            memory["groups"].store(place >> 6, used),
            memory["supers"].store(place >> 12, used),
        ]
        if value is not None:
            statements.insert(0, self.insert_known(memory, place, value, combine))
        return sequence(statements)

    def insert_known(self, memory, place, value, combine):
        own = memory["values"]
        return own.store(place, value if combine is None else combine(own[place], value))

    def take(self, memory, place, neutral):
        own = memory["values"]
        return own[place], own.store(place, neutral)

    def count(self, memory, row):
        total = Local("held", "int64")

        def group(base: Expr, used: Expr) -> tirx.Stmt:
            del base
            return total.set(total.value + count_bits(used))

        return [*total.declare(0), _each_group(memory, row.length, group)], total.value

    def drain(self, memory, row, emit):
        def place(place: Expr) -> tirx.Stmt:
            value, clear = self.take(memory, place, row.neutral)
            return sequence(emit(place, value), clear)

        def group(base: Expr, used: Expr) -> tirx.Stmt:
            return _each_bit("place", base, used, place)

        return _each_group(memory, row.length, group)

    def cost(self, work: Work) -> float:
        touch = work.access(work.length * (work.value_bytes + 1))
        groups = work.length // (64 * 4096) + 1
        return work.total(
            (work.costs.dense_insert + touch) * work.produced
            + (work.costs.dense_drain + touch) * work.distinct()
            + work.costs.dense_row * groups
            + (work.costs.dense_word + touch) * work.filled(work.length // 64 + 1)
        )


def _each_group(
    memory: dict[str, Memory], length: Expr, body: Callable[[Expr, Expr], tirx.Stmt]
) -> tirx.Stmt:
    """Visit the groups of 64 places that are in use, in order; clear all flags on the way."""

    def group(number: Expr) -> tirx.Stmt:
        base, used = tirx.Var("base", "int64"), tirx.Var("used", "int64")
        return sequence(
            tirx.Bind(base, number * _FAN),
            tirx.Bind(used, _taken(memory["flags"], base)),
            _clear(memory["flags"], base),
            body(base, used),
        )

    def super_group(number: Expr) -> tirx.Stmt:
        return _each_flag("group", memory["groups"], number * _FAN, group)

    def top(number: Expr) -> tirx.Stmt:
        return _each_flag("super", memory["supers"], number * _FAN, super_group)

    return loop("top", int64(0), length // (64 * 4096) + 1, top)


def _each_flag(
    name: str, flags: Memory, base: Expr, body: Callable[[Expr], tirx.Stmt]
) -> tirx.Stmt:
    """Visit those of 64 flags that are set, and clear them."""
    used = tirx.Var(f"{name}_used", "int64")
    visit = sequence(_clear(flags, base), _each_bit(name, base, used, body))
    return sequence(tirx.Bind(used, _taken(flags, base)), when(used != int64(0), visit))


def _each_bit(name: str, base: Expr, bits: Expr, body: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
    """Run a body for the number of each bit that is set, counted from a base."""
    left, number = Local(f"{name}_left", "int64"), tirx.Var(name, "int64")
    step = sequence(
        tirx.Bind(number, base + trailing_zeros(left.value)),
        left.set(left.value & (left.value - 1)),
        body(number),
    )
    return sequence(left.declare(bits), tirx.While(left.value != 0, step))


def _taken(flags: Memory, base: Expr) -> Expr:
    """Return a bit for each of 64 flags."""
    if has_feature("avx2"):
        halves = [_mask_of_32(flags.vector(base + 32 * half, 32)) for half in (0, 1)]
        return halves[0] | (halves[1] << int64(32))
    bits = _mask_of_8(flags.vector(base, 8))
    for word in range(1, 8):
        bits = bits | (_mask_of_8(flags.vector(base + 8 * word, 8)) << _uint64(8 * word))
    return tirx.reinterpret("int64", bits)


def _mask_of_32(flags: Expr) -> Expr:
    mask = tirx.call_llvm_pure_intrin("int32", "llvm.x86.avx2.pmovmskb", flags)
    return tirx.reinterpret("uint32", mask).astype("int64")


def _mask_of_8(flags: Expr) -> Expr:
    """Eight flags are bytes of a word, 0 or 1; a product moves them side by side into its upper byte."""
    ones = tirx.reinterpret("uint64", flags) & _uint64(0x0101010101010101)
    return (ones * _uint64(0x0102040810204080)) >> _uint64(56)


def _uint64(value: int) -> Expr:
    return tirx.const(value, "uint64")


def _clear(flags: Memory, base: Expr) -> tirx.Stmt:
    return flags.store_vector(base, tirx.Broadcast(tirx.const(0, "int8"), _FAN), _FAN)


register_policy(DenseFlags())

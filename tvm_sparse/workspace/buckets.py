"""Policy ``bucket``: entries go to buckets of neighbouring places, at offsets that are planned exactly.

A first pass over the places counts the entries of each bucket; the second writes place and value where
they belong, without a test. A drain takes the buckets in order and combines each in a dense window with a
bitmap, which fits the nearer caches whatever the length of the row (planned form of the bucket policy of
Zhang, Hsu and Kjolstad, PLDI 2024). For workspaces of two dimensions or more.
"""

from __future__ import annotations

from tvm import tirx

from .costs import Work
from .policy import Policy, Scratch, register_policy
from .statements import (
    Local,
    bit_length,
    count_bits,
    int64,
    loop,
    sequence,
    trailing_zeros,
    when,
)

__all__ = ["PlannedBuckets"]

#: Bits of the number of buckets at most, and of the places of a bucket at least.
_BUCKET_BITS, _WINDOW_BITS = 14, 14


def _window_size(words: int) -> str:
    """Size of the window: at least 2**14 places, and so many that there are at most 2**14 buckets."""
    places = f"max({1 << _WINDOW_BITS}, pow2(length) // {1 << _BUCKET_BITS})"
    return f"{places} // {words}"


class PlannedBuckets(Policy):
    """Planned buckets with a dense window; see the module."""

    name = "bucket"
    scratch = (
        Scratch("offsets", "int64", str((1 << _BUCKET_BITS) + 2)),
        Scratch("within", "int32", "most + 1"),
        Scratch("values", "value", "most + 1", symbolic=False),
        Scratch("window", "value", _window_size(1), fill=None, symbolic=False),
        Scratch("bits", "int64", _window_size(64)),
    )
    registers = ("shift", "buckets")

    def begin(self, memory, row):
        shift, buckets = memory["shift"], memory["buckets"]
        bits = bit_length(row.length - 1)
        clear = loop(
            "bucket", int64(0), buckets.value + 2, lambda b: memory["offsets"].store(b, int64(0))
        )
        return [
            shift.set(tirx.Max(bits - _BUCKET_BITS, int64(_WINDOW_BITS))),
            buckets.set(((row.length - 1) >> shift.value) + 1),
            clear,
        ]

    def plan(self, memory, place):
        """Count the bucket, two places on: offsets of the fill are one place on."""
        offsets, bucket = memory["offsets"], (place >> memory["shift"].value) + 2
        return offsets.store(bucket, offsets[bucket] + 1)

    def planned(self, memory, row):
        offsets = memory["offsets"]

        def add(bucket):
            return offsets.store(bucket, offsets[bucket] + offsets[bucket - 1])

        return [loop("bucket", int64(2), memory["buckets"].value + 2, add)]

    def insert(self, memory, place, value, combine):
        del combine
        offsets, shift = memory["offsets"], memory["shift"].value
        at, bucket = tirx.Var("at", "int64"), tirx.Var("bucket", "int64")
        within = place & ((int64(1) << shift) - 1)
        stores = [memory["within"].store(at, within.astype("int32"))]
        if value is not None:
            stores.append(memory["values"].store(at, value))
        return sequence(
            tirx.Bind(bucket, (place >> shift) + 1),
            tirx.Bind(at, offsets[bucket]),
            offsets.store(bucket, at + 1),
            stores,
        )

    combines_late = True

    def count(self, memory, row):
        total = Local("held", "int64")

        def word(base, index, bits):
            del base, index
            return total.set(total.value + count_bits(bits))

        return [*total.declare(0), self._each_bucket(memory, row, word)], total.value

    def drain(self, memory, row, emit):
        window = memory["window"]

        def word(base, index, bits):
            left, local = Local("bits_left", "int64"), tirx.Var("local", "int64")
            step = sequence(
                tirx.Bind(local, index * 64 + trailing_zeros(left.value)),
                left.set(left.value & (left.value - 1)),
                emit(base + local, window[local]),
                window.store(local, row.neutral),
            )
            return sequence(left.declare(bits), tirx.While(left.value != 0, step))

        return self._each_bucket(memory, row, word)

    def _each_bucket(self, memory, row, word) -> tirx.Stmt:
        """Put each bucket into the window, and visit its words that are not zero."""
        offsets, bits, shift = memory["offsets"], memory["bits"], memory["shift"].value

        def put(element):
            local = tirx.Var("local", "int64")
            mark = bits[local >> 6] | (int64(1) << (local & int64(63)))
            parts = [
                tirx.Bind(local, memory["within"][element].astype("int64")),
                bits.store(local >> 6, mark),
            ]
            if "window" in memory:
                own, value = memory["window"], memory["values"][element]
                combined = row.combine(own[local], value) if row.combine else value
                parts.append(own.store(local, combined))
            return sequence(parts)

        def look(bucket):
            def visit(index):
                found = tirx.Var("found", "int64")
                taken = sequence(bits.store(index, int64(0)), word(bucket << shift, index, found))
                return sequence(tirx.Bind(found, bits[index]), when(found != 0, taken))

            return loop("word", int64(0), (int64(1) << shift) >> 6, visit)

        def one(bucket):
            begin, end = offsets[bucket], offsets[bucket + 1]
            full = sequence(loop("element", begin, end, put), look(bucket))
            return when(end > begin, full)

        return loop("bucket", int64(0), memory["buckets"].value, one)

    def cost(self, work: Work) -> float:
        bits = max(1, (work.length - 1).bit_length())
        window = 1 << max(_WINDOW_BITS, bits - _BUCKET_BITS)
        buckets = (work.length >> (window.bit_length() - 1)) + 1
        touch = work.access(window * (work.value_bytes + 1 / 8))
        return work.total(
            (work.costs.bucket_insert + touch) * work.produced
            + work.costs.bucket_drain * work.distinct()
            + work.costs.dense_row * (buckets * 4 + work.filled(buckets) * window / 64)
        )


register_policy(PlannedBuckets())

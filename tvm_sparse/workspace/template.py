"""The functions that assemble a sparse result: work, count and fill, each parallel over rows.

``work`` says how many entries the loops of each row produce, repeated ones included, so that rows can be
shared between tasks. ``count`` inserts them into a workspace without values and says how many each row
has. ``fill`` does so with values and writes the row to its place. ``append`` needs no count: each task
writes its rows one after another to memory of its own. ``refill`` computes new values where the structure
is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Var

from ..ir.buffer import declare_buffer
from .policy import Memory, Policy
from .producer import Producer
from .statements import Local, loop, sequence, substitute

__all__ = [
    "Argument",
    "Generated",
    "count_function",
    "fill_function",
    "refill_function",
    "work_function",
]


@dataclass(frozen=True)
class Argument:
    """A parameter that the assembly adds to the operands."""

    var: Var
    shape: tuple[str, ...]
    role: str


@dataclass(frozen=True)
class Generated:
    """A function: its own parameters after the operands, and its body."""

    arguments: list[Argument]
    body: tirx.Stmt


def work_function(producer: Producer) -> Generated:
    """Count what the loops of each row produce, without running the innermost ones."""
    lengths = producer.lengths
    work = declare_buffer([_product(lengths)], "int64", "work")

    def row(number: Expr) -> tirx.Stmt:
        total = Local("produced", "int64")
        parts = [
            substitute(
                _counted(own.body, producer.marker, total), _levels(own.levels, number, lengths)
            )
            for own in producer.rows
        ]
        store = tirx.BufferStore(work, total.value, [number])
        return sequence(total.declare(0), parts, store)

    body = loop("row", _int64(0), _product(lengths), row, tirx.ForKind.PARALLEL)
    return Generated([Argument(work, ("rows",), "output")], body)


def count_function(producer: Producer, policy: Policy) -> Generated:
    """Count the distinct entries of each row."""
    span = _product(producer.spans)
    counts = declare_buffer([_product(producer.lengths)], "int64", "counts")

    def finish(memory, number):
        statements, held = policy.count(memory, span)
        return sequence(statements, tirx.BufferStore(counts, held, [number]))

    tasks = _Tasks(producer, policy, symbolic=True)
    return Generated([Argument(counts, ("rows",), "output"), *tasks.arguments], tasks.run(finish))


def fill_function(producer: Producer, policy: Policy, dtype: str, index_dtype: str) -> Generated:
    """Compute the entries of each row and write them to its place.

    ``index_dtype`` is that of a place in a row.
    """
    span = _product(producer.spans)
    stored = Var("result_nnz", "int64")
    indptr = declare_buffer([_product(producer.lengths) + 1], "int64", "result_indptr")
    indices = declare_buffer([stored], index_dtype, "result_indices")
    values = declare_buffer([stored], dtype, "result_values")

    def finish(memory, number):
        slot = Local("slot", "int64")

        def emit(place, value):
            return sequence(
                tirx.BufferStore(indices, place.astype(index_dtype), [slot.value]),
                tirx.BufferStore(values, value, [slot.value]),
                slot.set(slot.value + 1),
            )

        begin = tirx.BufferLoad(indptr, [number])
        return sequence(slot.declare(begin), policy.drain(memory, span, producer.neutral, emit))

    tasks = _Tasks(producer, policy, symbolic=False, dtype=dtype)
    own = [
        Argument(indptr, ("rows + 1",), "input"),
        Argument(indices, ("result_nnz",), "output"),
        Argument(values, ("result_nnz",), "output"),
        Argument(stored, (), "scalar"),
    ]
    return Generated([*own, *tasks.arguments], tasks.run(finish))


def append_function(
    producer: Producer, policy: Policy, dtype: str, index_dtype: str
) -> Generated:
    """Compute the entries of each row, and write those of a task one after another.

    Task ``t`` writes from ``task_begins[t]`` on; ``counts`` are the entries of each row.
    """
    span = _product(producer.spans)
    room = Var("result_room", "int64")
    counts = declare_buffer([_product(producer.lengths)], "int64", "counts")
    indices = declare_buffer([room], index_dtype, "result_indices")
    values = declare_buffer([room], dtype, "result_values")
    tasks = _Tasks(producer, policy, symbolic=False, dtype=dtype)
    begins = declare_buffer([tasks.count], "int64", "task_begins")
    slot = Local("slot", "int64")

    def emit(place, value):
        return sequence(
            tirx.BufferStore(indices, place.astype(index_dtype), [slot.value]),
            tirx.BufferStore(values, value, [slot.value]),
            slot.set(slot.value + 1),
        )

    def finish(memory, number):
        begin = Local("row_begin", "int64")
        return sequence(
            begin.declare(slot.value),
            policy.drain(memory, span, producer.neutral, emit),
            tirx.BufferStore(counts, slot.value - begin.value, [number]),
        )

    own = [
        Argument(counts, ("rows",), "output"),
        Argument(indices, ("result_room",), "output"),
        Argument(values, ("result_room",), "output"),
        Argument(room, (), "scalar"),
        Argument(begins, ("tasks",), "input"),
    ]
    body = tasks.run(finish, lambda task: slot.declare(tirx.BufferLoad(begins, [task])))
    return Generated([*own, *tasks.arguments], body)


def refill_function(
    producer: Producer, policy: Policy, dtype: str, index_dtype: str
) -> Generated | None:
    """Compute the values of each row at known places; None where the policy cannot do better."""
    stored = Var("result_nnz", "int64")
    indptr = declare_buffer([_product(producer.lengths) + 1], "int64", "result_indptr")
    indices = declare_buffer([stored], index_dtype, "result_indices")
    values = declare_buffer([stored], dtype, "result_values")
    probe = tirx.const(0, "int64")
    tasks = _Tasks(producer, policy, symbolic=False, dtype=dtype, known=True)
    memory = tasks.memory(probe)
    if policy.insert_known(memory, probe, tirx.const(0, dtype), None) is None:
        return None

    def finish(memory, number):
        def gather(slot: Var) -> tirx.Stmt:
            place = tirx.BufferLoad(indices, [slot]).astype("int64")
            value, clear = policy.take(memory, place, producer.neutral)
            return sequence(tirx.BufferStore(values, value, [slot]), clear)

        begin, end = (tirx.BufferLoad(indptr, [number + k]) for k in (0, 1))
        return loop("slot", begin, end, gather)

    own = [
        Argument(indptr, ("rows + 1",), "input"),
        Argument(indices, ("result_nnz",), "input"),
        Argument(values, ("result_nnz",), "output"),
        Argument(stored, (), "scalar"),
    ]
    return Generated([*own, *tasks.arguments], tasks.run(finish))


class _Tasks:
    """The parallel loop over tasks: rows of their own, and a workspace of their own."""

    def __init__(
        self,
        producer: Producer,
        policy: Policy,
        symbolic: bool,
        dtype: str = "int8",
        known: bool = False,
    ) -> None:
        self.producer, self.policy, self.symbolic, self.known = producer, policy, symbolic, known
        self.count = Var("tasks", "int64")
        self.rows = declare_buffer([self.count + 1], "int64", "task_rows")
        self.scratch: dict[str, tuple[Var, Var]] = {}
        self.arguments = [
            Argument(self.count, (), "scalar"),
            Argument(self.rows, ("tasks + 1",), "input"),
        ]
        for own in policy.scratch:
            if symbolic and not own.symbolic:
                continue
            kind = dtype if own.dtype == "value" else own.dtype
            size = Var(f"{own.name}_size", "int64")
            buffer = declare_buffer([self.count * size], kind, f"workspace_{own.name}")
            self.scratch[own.name] = buffer, size
            self.arguments += [
                Argument(size, (), "scalar"),
                Argument(buffer, (f"tasks * {own.name}_size",), "inout"),
            ]

    def memory(self, task: Expr) -> dict[str, Memory]:
        """The scratch memory of a task."""
        return {
            name: Memory(buffer, task * size, size) for name, (buffer, size) in self.scratch.items()
        }

    def run(
        self,
        finish: Callable[[dict, Expr], tirx.Stmt],
        start: Callable[[Expr], list[tirx.Stmt]] = lambda _task: [],
    ) -> tirx.Stmt:
        """Return the loop over tasks; ``start`` precedes a task, ``finish`` ends a row."""

        def task(number: Var) -> tirx.Stmt:
            memory = self.memory(number)
            begin, end = (tirx.BufferLoad(self.rows, [number + k]) for k in (0, 1))
            rows = loop("row", begin, end, lambda row: self._row(row, memory, finish))
            return sequence(start(number), rows)

        return loop("task", _int64(0), self.count, task, tirx.ForKind.PARALLEL)

    def _row(self, number: Var, memory: dict, finish) -> tirx.Stmt:
        parts = []
        for own in self.producer.rows:
            inserted = tvm_ffi.structural_mutate(
                own.body, [(tirx.BufferStore, self._inserter(memory, own.combine))]
            )
            levels = _levels(own.levels, number, self.producer.lengths)
            parts.append(substitute(inserted, levels))
        return sequence(self.policy.begin(memory), parts, finish(memory, number))

    def _inserter(self, memory: dict, combine) -> Callable:
        """Return what replaces a store to the marker by an insertion."""

        def store(node: tirx.BufferStore, mutator) -> tirx.Stmt:
            if not node.buffer.same_as(self.producer.marker):
                return mutator.default_mutate(node)
            place = tirx.Var("place", "int64")
            value = None if self.symbolic else node.value
            bind = tirx.Bind(place, self.producer.place(node.indices))
            insert = self.policy.insert_known if self.known else self.policy.insert
            return sequence(bind, insert(memory, place, value, combine))

        return store


def _levels(variables: list[Var], number: Expr, lengths: list[Expr]) -> dict[Var, Expr]:
    """Return the coordinates of a row's dense levels from its number."""
    values: dict[Var, Expr] = {}
    for var, length in reversed(list(zip(variables, lengths))):
        is_outermost = var.same_as(variables[0])
        own = number if is_outermost else tirx.truncmod(number, length.astype("int64"))
        values[var] = own.astype(str(var.ty.dtype))
        number = tirx.truncdiv(number, length.astype("int64"))
    return values


def _counted(body: tirx.Stmt, marker: Var, total: Local) -> tirx.Stmt:
    """Let a nest add up how often it stores to the marker; innermost loops add their extent."""

    def leaf(stmt: tirx.Stmt) -> bool:
        inner: list[tirx.Stmt] = []
        kinds = (tirx.For, tirx.While, tirx.IfThenElse)
        tvm_ffi.structural_walk(stmt, [(kind, inner.append) for kind in kinds])
        return not inner

    def add(extent: Expr) -> tirx.Stmt:
        return total.set(total.value + extent.astype("int64"))

    def visit(node: tirx.For, mutator) -> tirx.Stmt:
        return add(node.extent) if leaf(node.body) else mutator.default_mutate(node)

    def store(node: tirx.BufferStore, mutator) -> tirx.Stmt:
        return add(_int64(1)) if node.buffer.same_as(marker) else mutator.default_mutate(node)

    return tvm_ffi.structural_mutate(body, [(tirx.For, visit), (tirx.BufferStore, store)])


def _product(lengths: list[Expr]) -> Expr:
    total = _int64(1)
    for length in lengths:
        total = total * length.astype("int64")
    return total


def _int64(value: int) -> Expr:
    return tirx.const(value, "int64")

"""The loops of a phase: tasks, which take rows, the windows of a row, and the entries produced in one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Var

from ..ir.buffer import declare_buffer
from ..ir.renaming import fresh, replace_variables
from ..transform._merge_loops import RUN_MARK, without_step_marks
from .output import Output
from .policy import Memory, Policy, Row
from .producer import Producer, RowLoops
from .statements import Local, int64, loop, sequence, when

__all__ = ["Argument", "Generated", "Tasks", "levels_of", "product_of"]


#: What stands before or after a row, by its number.
Around = Callable[[Expr], list[tirx.Stmt]]
#: What ends a row or a window of it: from memory, row and first place; None where a row needs no end.
Finish = Callable[[dict, Row, Expr], tirx.Stmt | None]


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


def _nothing(_number: Expr) -> list[tirx.Stmt]:
    return []


class Tasks:
    """The parallel loop over tasks: rows of their own, and a workspace of their own.

    Parameters
    ----------
    symbolic : bool
        Whether only the structure counts.
    known : bool
        Whether the structure is known, so that values go to places that exist.
    windowed : bool
        Whether the places of a row are cut into parts, which tasks take like rows, and these into windows,
        which the workspace holds one after another: the loops of a row run once for each.

    Attributes
    ----------
    units : Expr
        How many rows or parts of rows there are.
    shape : str
        The same as an expression of argument metadata.
    output : Output or None
        Where entries with values go; None where there is no such place.
    """

    output: Output | None = None

    def __init__(
        self,
        producer: Producer,
        policy: Policy,
        symbolic: bool,
        dtype: str = "int8",
        known: bool = False,
        windowed: bool = False,
    ) -> None:
        self.producer, self.policy, self.symbolic, self.known = producer, policy, symbolic, known
        self.parts = Var("parts", "int64") if windowed else None
        self.windows = Var("windows", "int64") if windowed else None
        self.width = Var("width", "int64") if windowed else product_of(producer.spans)
        self.units = product_of(producer.lengths) * (self.parts if windowed else int64(1))
        self.shape = "rows * parts" if windowed else "rows"
        self.count = Var("tasks", "int64")
        self.rows = declare_buffer([self.count + 1], "int64", "task_rows")
        self.work = declare_buffer([product_of(producer.lengths)], "int64", "work")
        self.ordered = Var("ordered", "int64")
        self.scratch: dict[str, tuple[Var, Var]] = {}
        self.arguments = [
            Argument(self.count, (), "scalar"),
            Argument(self.rows, ("tasks + 1",), "input"),
            Argument(self.work, ("rows",), "input"),
            Argument(self.ordered, (), "scalar"),
        ]
        if windowed:
            sizes = self.parts, self.windows, self.width
            self.arguments += [Argument(var, (), "scalar") for var in sizes]
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

    def registers(self) -> dict[str, Local]:
        """The local variables of a row."""
        return {name: Local(name, "int64") for name in self.policy.registers}

    def run(
        self,
        finish: Finish,
        before: Around = _nothing,
        after: Around = _nothing,
        start: Around = _nothing,
    ) -> tirx.Stmt:
        """Return the loops over tasks and rows.

        ``start`` stands before a task, ``before`` and ``after`` around a row; ``finish`` ends a window
        of it.
        """

        def row(number: Var, memory: dict) -> tirx.Stmt:
            return sequence(before(number), self._row(number, memory, finish), after(number))

        def task(number: Var) -> tirx.Stmt:
            memory = self.memory(number)
            begin, end = Var("first_row", "int64"), Var("end_row", "int64")
            bounds = [tirx.Bind(v, self.rows[number + k]) for k, v in enumerate((begin, end))]
            rows = loop("row", begin, end, lambda row_number: row(row_number, memory))
            return sequence(start(number), bounds, rows)

        return loop("task", int64(0), self.count, task, tirx.ForKind.PARALLEL)

    def drain(self, memory: dict, row: Row, base: Expr) -> tirx.Stmt | None:
        """Give out what a row or window holds; nothing if its entries went out as they came."""
        if self.policy.streams:
            return None

        def emit(place: Expr, value: Expr) -> tirx.Stmt:
            return self.output.append(base + place, value)

        return self.policy.drain(memory, row, emit)

    def _row(self, number: Var, memory: dict, finish: Finish) -> tirx.Stmt:
        if self.windows is None:
            return self._window(number, memory, finish, int64(0))
        row, part = tirx.Var("whole_row", "int64"), tirx.Var("part", "int64")
        first = part * self.windows

        def window(index: Var) -> tirx.Stmt:
            return self._window(row, memory, finish, (first + index) * self.width)

        return sequence(
            tirx.Bind(row, tirx.truncdiv(number, self.parts)),
            tirx.Bind(part, tirx.truncmod(number, self.parts)),
            loop("window", int64(0), self.windows, window),
        )

    def _window(self, number: Var, memory: dict, finish: Finish, base: Expr) -> tirx.Stmt:
        """Insert the entries of a row from place ``base`` on, and end the row or window."""
        registers = self.registers()
        memory = {**memory, **registers}
        row = Row(
            length=self.width,
            expected=tirx.BufferLoad(self.work, [number]),
            neutral=None if self.symbolic else self.producer.neutral,
            is_ordered=self.ordered != 0,
            combine=self.producer.rows[0].combine,
        )
        declared = [stmt for own in registers.values() for stmt in own.declare(0)]
        parts = [*declared, *self.policy.begin(memory, row)]
        if self.policy.plan(memory, int64(0)) is not None and not self.known:
            parts += self._produced(
                number, base, lambda own, place, value: self.policy.plan(memory, place)
            )
            parts += self.policy.planned(memory, row)
        insert = self.policy.insert_known if self.known else self.policy.insert
        streamed = self.output if self.policy.streams else None

        def take(own: RowLoops, place: Expr, value: Expr) -> tirx.Stmt:
            if streamed is not None:
                return self.policy.stream(memory, place, value, own.combine, streamed)
            follows = self.policy.after_insert(memory, row)
            after = [] if follows is None or self.known else [follows]
            if self.symbolic:
                return sequence(insert(memory, place, None, own.combine), after)
            held = Var("value", str(value.ty.dtype))
            inserted = insert(memory, place, held, own.combine)
            return sequence(tirx.Bind(held, value), inserted, after)

        parts += self._produced(number, base, take)
        end = finish(memory, row, base)
        return sequence(parts, [] if end is None else end)

    def _produced(self, number: Var, base: Expr, visit: Callable) -> list[tirx.Stmt]:
        """Return the loops of a row, with ``visit(iteration, place, value)`` for each entry."""
        return [
            replace_variables(
                fresh(self._with_entries(own, base, visit)),
                levels_of(own.levels, number, self.producer.lengths),
            )
            for own in self.producer.rows
        ]

    def _with_entries(self, own: RowLoops, base: Expr, visit: Callable) -> tirx.Stmt:
        def store(node: tirx.BufferStore, mutator) -> tirx.Stmt:
            if not node.buffer.same_as(self.producer.marker):
                return mutator.default_mutate(node)
            place = Var("place", "int64")
            bind = tirx.Bind(place, self.producer.place(node.indices))
            if self.windows is None:
                return sequence(bind, visit(own, place, node.value))
            inside = Var("place_inside", "int64")
            taken = sequence(tirx.Bind(inside, place - base), visit(own, inside, node.value))
            is_inside = tirx.And(place >= base, place < base + self.width)
            return sequence(bind, when(is_inside, taken))

        def run(node: tirx.For, mutator) -> tirx.Stmt:
            if RUN_MARK not in node.annotations or not (self._appends and _is_straight(node.body)):
                return mutator.default_mutate(node)
            with self.output.run(node.loop_var):
                body = mutator.mutate(node.body)
            return self.output.after_run(node, body)

        loops = without_step_marks(own.body)
        return tvm_ffi.structural_mutate(loops, [(tirx.BufferStore, store), (tirx.For, run)])

    @property
    def _appends(self) -> bool:
        """Whether every entry is written as a new one."""
        return self.output is not None and self.policy.name == "append"


def _is_straight(stmt: tirx.Stmt) -> bool:
    """Whether a statement makes an entry each time, without tests and searches."""
    found: list[tirx.Stmt] = []
    kinds = (tirx.IfThenElse, tirx.While, tirx.For)
    tvm_ffi.structural_walk(stmt, [(kinds, found.append)])
    return not found


def levels_of(variables: list[Var], number: Expr, lengths: list[Expr]) -> dict[Var, Expr]:
    """Return the coordinates of a row's dense levels from its number."""
    values: dict[Var, Expr] = {}
    for var, length in reversed(list(zip(variables, lengths))):
        is_outermost = var.same_as(variables[0])
        own = number if is_outermost else tirx.truncmod(number, length.astype("int64"))
        values[var] = own.astype(str(var.ty.dtype))
        number = tirx.truncdiv(number, length.astype("int64"))
    return values


def product_of(lengths: list[Expr]) -> Expr:
    total = int64(1)
    for length in lengths:
        total = total * length.astype("int64")
    return total

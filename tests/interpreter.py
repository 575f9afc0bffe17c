"""An interpreter of stage I in plain Python: what a program means, by definition.

It follows design.md, section 4, word by word and shares nothing with the lowering: entries of an
axis are enumerated, absent coordinates are looked for one by one, numbers are float64 or integers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var

from tvm_sparse.ir import (
    AttachedAxis,
    Axis,
    DenseFixedAxis,
    FusedAxis,
    MergedAxis,
    SparseBuffer,
    SparseFunc,
    SparseIteration,
)

__all__ = ["interpret"]


def interpret(
    func: SparseFunc, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """Run a program.

    Parameters
    ----------
    func : SparseFunc
        The program.
    arrays : dict
        By parameter name, in the natural shape of their storage. An output that the program does
        not read first starts as the default value of its buffer, whatever is passed.
    scalars : dict
        Scalar parameters by name.

    Returns
    -------
    dict
        Every array as the program leaves it, float64 where it holds floats.
    """
    return _Interpreter(func, arrays, scalars).run()


@dataclass(frozen=True)
class _Entry:
    """One stored entry of an axis: what an iterator stands for."""

    axis: Axis
    coordinate: int
    position: int | None
    parent: int | None
    #: Entries of the axes that were merged, where they store the coordinate.
    members: tuple[_Entry, ...] = ()


class _Interpreter:
    def __init__(self, func: SparseFunc, arrays, scalars) -> None:
        self.func = func
        self.sparse = func.sparse_buffers
        self.scalars: dict[Var, int] = {}
        self.memory: dict[Var, np.ndarray] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        #: Iterators in scope.
        self.entries: dict[Var, _Entry] = {}
        self.locals: dict[Var, object] = {}
        for name, param in zip(func.arg_names, func.params):
            if tirx.is_buffer_var(param):
                self.memory[param] = _wide(arrays[name])
                self.shapes[name] = arrays[name].shape
            else:
                self.scalars[param] = int(scalars[name])
        for buffer in func.temporaries:
            size = self.number(buffer.slots)
            self.memory[buffer.buffer] = np.full(size, self.number(buffer.default))
        written, read_first = _first_uses(func.body)
        defaults = {buffer.buffer: buffer.default for buffer in func.buffers}
        for param in set(self.memory) & written - read_first:
            if param in set(func.params):
                default = defaults.get(param)
                self.memory[param][:] = 0 if default is None else self.number(default)

    def run(self) -> dict[str, np.ndarray]:
        self.statement(self.func.body)
        named = zip(self.func.arg_names, self.func.params)
        return {n: self.memory[p].reshape(self.shapes[n]) for n, p in named if p in self.memory}

    # --- structure -----------------------------------------------------------------------------

    def slots_of(self, axis: Axis, parent: int | None) -> range:
        """Stored positions of ``axis`` under the parent entry at position ``parent``."""
        if parent is _ABSENT:
            return range(0)
        if axis.kind == "dense_fixed":
            return range(self.number(axis.length))
        if axis.kind == "sparse_fixed":
            width = self.number(axis.nnz_cols)
            return range(parent * width, (parent + 1) * width)
        indptr = self.memory[axis.indptr]
        return range(int(indptr[parent]), int(indptr[parent + 1]))

    def entries_of(self, axis: Axis, parent: int | None) -> Iterator[_Entry]:
        """Entries of ``axis`` under one parent entry; padding is none."""
        slots = self.slots_of(axis, parent)
        for position in slots:
            if axis.is_sparse:
                coordinate = int(self.memory[axis.indices][position])
                if not 0 <= coordinate < self.number(axis.length):
                    continue
            else:
                coordinate = position - slots.start
            yield _Entry(axis, coordinate, position, parent)

    def parent_position(self, axis: Axis) -> int | None:
        """Position of the entry in scope that owns ``axis``; of an attached axis, a coordinate."""
        if axis.parent_axis is None:
            return None
        entries = [own for e in reversed(self.entries.values()) for own in (e, *e.members)]
        owners = [e for e in entries if e.axis == axis.parent_axis]
        owners += [e for e in entries if _stored(e.axis) == axis.parent_axis]
        if not owners:
            return _ABSENT
        owner = owners[0]
        return owner.coordinate if isinstance(axis, AttachedAxis) else owner.position

    def position_in(self, buffer: SparseBuffer, indices: list[Expr]) -> int | None:
        """Flat place of an access, ``None`` where nothing is stored there."""
        positions: dict[Axis, int] = {}
        places: list[int] = []
        for axis, index in zip(buffer.axes, indices):
            parent = positions[axis.parent_axis] if axis.parent_axis is not None else None
            entry = self.entries.get(index) if isinstance(index, Var) else None
            own = next((e for e in _all(entry) if _stored(e.axis) == axis), None)
            if own is not None and own.parent == parent:
                positions[axis] = own.position
                places.append(own.position)
                continue
            wanted = int(self.number(index))
            found = [e for e in self.entries_of(axis, parent) if e.coordinate == wanted]
            if not found:
                return None
            assert len(found) == 1, "a search must not meet duplicates"
            positions[axis] = found[0].position
            places.append(found[0].position)
        flat = 0
        for k in buffer.leaves:
            flat = flat * self.number(buffer.axes[k].slots) + places[k]
        return flat

    # --- statements ----------------------------------------------------------------------------

    def statement(self, stmt: tirx.Stmt) -> None:
        if isinstance(stmt, SparseIteration):
            self.iteration(stmt)
        elif isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                self.statement(part)
        elif isinstance(stmt, tirx.BufferStore):
            self.store(stmt)
        elif isinstance(stmt, tirx.IfThenElse):
            if self.number(stmt.condition):
                self.statement(stmt.then_case)
            elif stmt.else_case is not None:
                self.statement(stmt.else_case)
        elif isinstance(stmt, tirx.For):
            begin = int(self.number(stmt.min))
            for value in range(begin, begin + int(self.number(stmt.extent))):
                self.locals[stmt.loop_var] = value
                self.statement(stmt.body)
        elif isinstance(stmt, tirx.Bind):
            self.locals[stmt.var] = self.number(stmt.value)
        elif isinstance(stmt, tirx.AllocBuffer):
            shape = [int(self.number(size)) for size in stmt.buffer.ty.shape]
            self.memory[stmt.buffer] = np.zeros(math.prod(shape))
        elif isinstance(stmt, tirx.AttrStmt):
            self.statement(stmt.body)
        elif not isinstance(stmt, tirx.Evaluate):
            raise NotImplementedError(type(stmt))

    def store(self, stmt: tirx.BufferStore) -> None:
        value = self.number(stmt.value)
        if stmt.buffer in self.sparse:
            place = self.position_in(self.sparse[stmt.buffer], list(stmt.indices))
            if place is not None:
                self.memory[stmt.buffer][place] = value
            return
        array = self.memory[stmt.buffer]
        shape = [int(self.number(s)) for s in stmt.buffer.ty.shape]
        where = tuple(int(self.number(i)) for i in stmt.indices)
        array.reshape(shape)[where] = value

    def iteration(self, node: SparseIteration) -> None:
        outer = dict(self.entries)
        if node.init is not None:
            spatial = [(axis, var) for axis, kind, var in node.iterators if kind == "S"]
            reduced: set[Axis] = set()
            for axis, kind, _ in node.iterators:
                if kind == "R":
                    reduced |= {*_parts(axis)}
                elif self._is_below(axis, reduced):
                    reduced |= {*_parts(axis)[1:]}
            self.each(
                [(self._init_axis(axis, reduced), [var]) for axis, var in spatial],
                lambda: self.statement(node.init),
            )
            self.entries = dict(outer)
        variables = list(node.iter_vars)
        groups = []
        for axis in node.axes:
            count = len(axis.members) if isinstance(axis, FusedAxis) else 1
            groups.append((axis, [variables.pop(0) for _ in range(count)]))
        self.each(groups, lambda: self.statement(node.body))
        self.entries = outer

    def _init_axis(self, axis: Axis, reduced: set[Axis]) -> Axis:
        """The entries of a spatial axis; all coordinates where they depend on a reduction."""
        if not self._is_below(axis, reduced):
            return axis
        return DenseFixedAxis(name=axis.name, length=axis.length, dtype=axis.dtype)

    def _is_below(self, axis: Axis, reduced: set[Axis]) -> bool:
        """Whether an axis, or one that it merges, hangs on one of these."""
        parents = [own.parent_axis for own in _parts(axis) if own.parent_axis is not None]
        return any(parent in reduced or self._is_below(parent, reduced) for parent in parents)

    def each(self, groups: list, action: Callable[[], None]) -> None:
        """Run ``action`` for every combination of entries, the first group outermost."""
        if not groups:
            action()
            return
        (axis, variables), rest = groups[0], groups[1:]
        members = list(axis.members) if isinstance(axis, FusedAxis) else [axis]
        if len(members) > 1:
            rest = [*((m, [v]) for m, v in zip(members[1:], variables[1:])), *rest]
            axis, variables = members[0], variables[:1]
        for visited in self.visits(axis):
            self.entries.pop(variables[0], None)
            self.entries[variables[0]] = visited
            self.each(rest, action)
        self.entries.pop(variables[0], None)

    def visits(self, axis: Axis) -> Iterator[_Entry]:
        """What a loop over ``axis`` visits."""
        if isinstance(axis, MergedAxis):
            yield from self.merged_visits(axis)
            return
        for entry in self.entries_of(_stored(axis), self.parent_position(axis)):
            yield _Entry(axis, entry.coordinate, entry.position, entry.parent)

    def merged_visits(self, axis: MergedAxis) -> Iterator[_Entry]:
        """The coordinates of a union or intersection, with the members that store each."""
        walked = [{e.coordinate: e for e in self.visits(member)} for member in axis.members]
        combine = set.union if axis.kind == "union" else set.intersection
        for coordinate in sorted(combine(*map(set, walked))):
            members = tuple(own[coordinate] for own in walked if coordinate in own)
            yield _Entry(axis, coordinate, None, None, members)

    # --- expressions ---------------------------------------------------------------------------

    def number(self, expr):
        """Evaluate an expression over coordinates."""
        if isinstance(expr, Var):
            if expr in self.entries:
                return self.entries[expr].coordinate
            return self.locals[expr] if expr in self.locals else self.scalars[expr]
        if isinstance(expr, TensorLoad):
            return self.load(expr)
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):
            return expr.value
        if isinstance(expr, tirx.Cast):
            value = self.number(expr.value)
            return float(value) if "float" in str(expr.ty.dtype) else int(value)
        for kind, function in _BINARY.items():
            if isinstance(expr, kind):
                return function(self.number(expr.a), self.number(expr.b))
        if isinstance(expr, tirx.And):
            return bool(self.number(expr.a)) and bool(self.number(expr.b))
        if isinstance(expr, tirx.Or):
            return bool(self.number(expr.a)) or bool(self.number(expr.b))
        if isinstance(expr, tirx.Not):
            return not self.number(expr.a)
        if isinstance(expr, tirx.Select):
            chosen = self.number(expr.condition)
            return self.number(expr.true_value if chosen else expr.false_value)
        name = str(expr.op.name).split(".")[-1]
        if name == "if_then_else":
            return self.number(expr.args[1] if self.number(expr.args[0]) else expr.args[2])
        return _FUNCTIONS[name](*(self.number(arg) for arg in expr.args))

    def load(self, expr: TensorLoad):
        if expr.source in self.sparse:
            buffer = self.sparse[expr.source]
            place = self.position_in(buffer, list(expr.indices))
            if place is None:
                return self.number(buffer.default)
            return self.memory[expr.source][place].item()
        shape = [int(self.number(s)) for s in expr.source.ty.shape]
        where = tuple(int(self.number(i)) for i in expr.indices)
        return self.memory[expr.source].reshape(shape)[where].item()


#: Stands for the position of an entry that is not stored.
_ABSENT = -1


def _all(entry: _Entry | None) -> tuple[_Entry, ...]:
    """An entry and those that were merged into it."""
    return () if entry is None else (entry, *entry.members)


def _parts(axis: Axis) -> tuple[Axis, ...]:
    """An axis and those that it merges."""
    return (axis, *(axis.members if isinstance(axis, MergedAxis) else ()))


def _stored(axis: Axis) -> Axis:
    return axis.base if isinstance(axis, AttachedAxis) else axis


def _wide(array: np.ndarray) -> np.ndarray:
    kind = array.dtype.kind
    return array.astype("float64" if kind == "f" else "int64").ravel()


def _first_uses(stmt: tirx.Stmt) -> tuple[set[Var], set[Var]]:
    """Buffers that are written, and those that are read before anything is written to them."""
    written: set[Var] = set()
    read_first: set[Var] = set()

    def read(expr) -> None:
        if isinstance(expr, TensorLoad):
            if expr.source not in written:
                read_first.add(expr.source)
            for index in expr.indices:
                read(index)
            return
        for name in ("a", "b", "value", "condition", "true_value", "false_value"):
            if isinstance(getattr(expr, name, None), Expr):
                read(getattr(expr, name))
        for arg in getattr(expr, "args", []):
            read(arg)

    def visit(node) -> None:
        if isinstance(node, SparseIteration):
            if node.init is not None:
                visit(node.init)
            visit(node.body)
        elif isinstance(node, tirx.SeqStmt):
            for part in node.seq:
                visit(part)
        elif isinstance(node, tirx.BufferStore):
            read(node.value)
            for index in node.indices:
                read(index)
            written.add(node.buffer)
        elif isinstance(node, tirx.IfThenElse):
            read(node.condition)
            visit(node.then_case)
            if node.else_case is not None:
                visit(node.else_case)
        elif isinstance(node, tirx.For):
            visit(node.body)
        elif isinstance(node, tirx.Bind):
            read(node.value)

    visit(stmt)
    return written, read_first


_BINARY = {
    tirx.Add: operator.add,
    tirx.Sub: operator.sub,
    tirx.Mul: operator.mul,
    tirx.Div: operator.truediv,
    tirx.FloorDiv: operator.floordiv,
    tirx.FloorMod: operator.mod,
    tirx.Min: min,
    tirx.Max: max,
    tirx.EQ: operator.eq,
    tirx.NE: operator.ne,
    tirx.LT: operator.lt,
    tirx.LE: operator.le,
    tirx.GT: operator.gt,
    tirx.GE: operator.ge,
}

_FUNCTIONS = {"exp": math.exp, "sqrt": math.sqrt, "fabs": abs, "tanh": math.tanh}

"""From coordinates to positions: where the entry at given coordinates of a buffer is stored.

Comes in: an access ``A[x, y]`` over coordinates and the iterators in scope. Goes out: the local
position along every axis, a condition under which the entry exists, and, where a search is needed,
the statements of that search placed at the outermost loop where its inputs are known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Var

from ..errors import SparseProgramError
from ..ir import Axis, SparseBuffer, stored_axis
from ..ir.contents import loads_global, variables_of

__all__ = ["Access", "Iterator", "Prologue", "resolve_access", "row_extent"]


@dataclass
class Iterator:
    """One iterator of an iteration under lowering."""

    axis: Axis
    kind: str
    var: Var
    #: Entry within the parent entry; a block variable or derived from one.
    local: Expr
    #: Stored position, counted from the root.
    position: Expr
    coordinate: Expr
    #: Position of the parent entry, ``None`` for a root.
    parent_position: Expr | None
    #: Of a merged axis: its members there.
    members: tuple[Iterator, ...] = ()
    #: Of a member: whether it stores the coordinate; ``None`` where it does.
    present: Expr | None = None
    #: Of a member: whether values may be loaded where it stores none.
    is_loadable: bool = False

    @property
    def stored_axis(self) -> Axis:
        """The axis whose entries are visited (the base of an attached axis)."""
        return stored_axis(self.axis)

    @property
    def walked(self) -> tuple[Iterator, ...]:
        """Itself and its members: what owns axes below and stands for entries of buffers."""
        return (self, *self.members)


@dataclass
class Prologue:
    """Statements that run after a loop is entered and before the next one."""

    variables: list[Var]
    statements: list[tirx.Stmt] = field(default_factory=list)
    buffers: list[Var] = field(default_factory=list)


@dataclass
class Access:
    """Where an entry is stored, and when it is stored at all (``valid`` None: always).

    ``safe`` also excludes padding slots, in which the body does not run but searches do. ``chosen`` is a
    further condition, under which the value counts; it may be loaded where it does not.
    """

    locals: list[Expr]
    valid: Expr | None
    safe: Expr | None
    chosen: Expr | None = None

    @property
    def stored(self) -> Expr | None:
        """Whether there is an entry to store to."""
        return self.valid if self.chosen is None else conjunction(self.valid, self.chosen)


@dataclass
class _Search:
    axis: Axis
    parent_position: Expr | None
    coordinate: Expr
    valid: Expr | None
    result: Var


class SearchPlacer:
    """Emits searches into the prologues of the loops, each once.

    ``prologues`` is ordered from the outermost loop inwards; the first holds no variable. A search
    whose inputs the program itself changes is emitted right before the statement that needs it:
    ``changing`` tells variables and buffers of that kind.
    """

    def __init__(self, changing: Callable[[Var], bool]) -> None:
        self.prologues: list[Prologue] = [Prologue([])]
        self._changing = changing
        self._searches: list[tuple[_Search, Prologue]] = []
        self._count = 0

    def push(self, prologue: Prologue) -> None:
        """Enter a loop."""
        self.prologues.append(prologue)

    def pop(self) -> Prologue:
        """Leave the innermost loop; its searches are no longer visible."""
        gone = self.prologues.pop()
        self._searches = [(s, p) for s, p in self._searches if p is not gone]
        return gone

    def home_of(self, *expressions: Expr | None) -> Prologue:
        """Return the outermost prologue where all inputs of the expressions are known."""
        used: set[Var] = set()
        for expression in expressions:
            if expression is not None:
                used |= variables_of(expression)
        known = {v for p in self.prologues for v in (*p.variables, *p.buffers)}
        if any(self._changing(v) for v in used - known):
            return self.prologues[-1]
        for prologue in reversed(self.prologues):
            if used & {*prologue.variables, *prologue.buffers}:
                return prologue
        return self.prologues[0]

    def scratch(self, home: Prologue, name: str, dtype: str) -> Var:
        """Declare a one-element local buffer that lives in ``home``."""
        self._count += 1
        buffer = tirx.decl_buffer((1,), dtype, f"{name}_{self._count}", scope="local")
        home.buffers.append(buffer)
        return buffer

    def find(self, axis: Axis, parent: Expr | None, coordinate: Expr, valid: Expr | None) -> Expr:
        """Return the local position of ``coordinate`` under a parent entry, or -1."""
        for known, _ in self._searches:
            if (
                known.axis == axis
                and _same(known.parent_position, parent)
                and _same(known.coordinate, coordinate)
                and _same(known.valid, valid)
            ):
                return known.result[0]
        home = self.home_of(parent, coordinate, valid)
        result = self.scratch(home, f"{axis.name}_found", axis.dtype)
        begin, extent = row_extent(axis, parent)
        emit = _binary_search if axis.sorted else _linear_search
        body = emit(self, home, axis, begin, extent, coordinate, result)
        absent = tirx.BufferStore(result, tirx.const(-1, axis.dtype), [0])
        home.statements.append(absent)
        home.statements.append(body if valid is None else tirx.IfThenElse(valid, body, None))
        self._searches.append((_Search(axis, parent, coordinate, valid, result), home))
        return result[0]

    def find_parent(self, indptr: Var, count: Expr, position: Expr, name: str, dtype: str) -> Expr:
        """Return the parent entry that owns a stored position: the last with indptr <= position."""
        home = self.home_of(position, count)
        low = self.scratch(home, f"{name}_low", dtype)
        high = self.scratch(home, f"{name}_high", dtype)
        middle = _middle(low, high)
        home.statements += [
            tirx.BufferStore(low, tirx.const(0, dtype), [0]),
            tirx.BufferStore(high, count.astype(dtype), [0]),
            tirx.While(
                low[0] + 1 < high[0],
                tirx.IfThenElse(
                    tirx.LE(*widened(indptr[middle], position)),
                    tirx.BufferStore(low, middle, [0]),
                    tirx.BufferStore(high, middle, [0]),
                ),
            ),
        ]
        return low[0]


def row_extent(axis: Axis, parent: Expr | None) -> tuple[Expr, Expr]:
    """Return first stored position and number of slots of ``axis`` under a parent entry."""
    if axis.kind == "dense_fixed":
        return tirx.const(0, axis.dtype), axis.length
    if axis.kind == "sparse_fixed":
        return multiply(parent, axis.nnz_cols), axis.nnz_cols
    begin = axis.indptr[parent]
    return begin, axis.indptr[parent + 1] - begin


def resolve_access(
    buffer: SparseBuffer,
    indices: list[Expr],
    iterators: dict[Var, Iterator],
    lower: Callable[[Expr], Expr],
    placer: SearchPlacer,
    known_bounds: Callable[[Expr, Expr], tuple[bool, bool]],
    storing: bool,
) -> Access:
    """Translate coordinates of a sparse buffer into local positions.

    Parameters
    ----------
    buffer : SparseBuffer
        The buffer accessed.
    indices : list of tvm.ir.Expr
        Stage-I index expressions, one per axis.
    iterators : dict
        Iterators in scope by coordinate variable.
    lower : callable
        Lowers a stage-I expression in index context.
    placer : SearchPlacer
        Receives the searches.
    known_bounds : callable
        ``known_bounds(index, length)``: whether ``0 <= index`` and ``index < length`` are known.
    storing : bool
        Whether the access is a store.
    """
    positions: dict[Axis, Expr] = {}
    found: list[Expr] = []
    valid: Expr | None = None
    safe: Expr | None = None
    chosen: Expr | None = None
    for axis, index in zip(buffer.axes, indices):
        parent = positions.get(axis.parent_axis) if axis.parent_axis is not None else None
        own = _entry_of(axis, index, parent, iterators)
        if own is not None:
            found.append(own.local)
            positions[axis] = own.position
            if own.present is not None and own.is_loadable:
                chosen = conjunction(chosen, own.present)
            elif own.present is not None:
                valid, safe = conjunction(valid, own.present), conjunction(safe, own.present)
            continue
        wanted = lower(index)
        if axis.kind == "dense_fixed":
            found.append(wanted)
            positions[axis] = wanted
            known = known_bounds(index, axis.length)
            if not all(known):
                valid = conjunction(valid, _within(wanted, axis.length, *known))
                safe = conjunction(safe, _within(wanted, axis.length))
            elif padded_iterators(index, iterators):
                safe = conjunction(safe, _within(wanted, axis.length))
            continue
        begin, extent = row_extent(axis, parent)
        if not axis.is_sparse:
            valid = conjunction(valid, _within(wanted, extent))
            safe = conjunction(safe, _within(wanted, extent))
            found.append(wanted)
            positions[axis] = begin + wanted.astype(str(begin.ty.dtype))
            continue
        if not axis.unique:
            raise SparseProgramError(
                f"buffer {buffer.name}: axis {axis.name} is declared unique=False; it can be "
                f"iterated, but not {'stored to' if storing else 'read'} at a searched coordinate"
            )
        offset = placer.find(axis, parent, wanted, safe)
        valid = conjunction(valid, offset >= 0)
        safe = conjunction(safe, offset >= 0)
        found.append(offset)
        positions[axis] = begin + offset
    return Access(found, valid, safe, chosen)


def _entry_of(
    axis: Axis, index: Expr, parent: Expr | None, iterators: dict[Var, Iterator]
) -> Iterator | None:
    """The iterator in scope that stands for the very entry of an axis, None if none does."""
    iterator = iterators.get(index) if isinstance(index, Var) else None
    for own in iterator.walked if iterator is not None else ():
        if own.stored_axis == axis and _same(own.parent_position, parent):
            return own
    return None


def padded_iterators(index: Expr, iterators: dict[Var, Iterator]) -> list[Iterator]:
    """Return the iterators in an expression that may stand in a padding slot."""
    used = [iterators[v] for v in variables_of(index) if v in iterators]
    return [it for it in used if has_padding(it.stored_axis)]


def has_padding(axis: Axis) -> bool:
    """Whether slots of an axis may be padding; a list of distinct coordinates has none."""
    return axis.kind == "sparse_fixed" and not axis.distinct


def _within(index: Expr, extent: Expr, above: bool = False, below: bool = False) -> Expr:
    """Whether an index is in range, without the bounds that are known to hold."""
    lower, upper = index >= 0, tirx.LT(*widened(index, extent))
    return upper if above else lower if below else tirx.And(lower, upper)


def conjunction(left: Expr | None, right: Expr) -> Expr:
    """Return ``left and right``; ``right`` is evaluated only where ``left`` holds.

    Compiled ``And`` evaluates both sides, which a load at an absent coordinate would not survive.
    """
    if left is None:
        return right
    if loads_global(right):
        return tirx.if_then_else(left, right, tirx.const(False, "bool"))
    return tirx.And(left, right)


def _same(left: Expr | None, right: Expr | None) -> bool:
    if left is None or right is None:
        return left is right
    return tvm_ffi.structural_equal(left, right)


def multiply(left: Expr, right: Expr) -> Expr:
    """Multiply a position by a size in 64 bits unless both are constants."""
    if isinstance(left, tirx.IntImm) and isinstance(right, tirx.IntImm):
        return left * right
    return left.astype("int64") * right.astype("int64")


def widened(left: Expr, right: Expr) -> tuple[Expr, Expr]:
    """Bring two integers to the wider of their types."""
    types = {str(left.ty.dtype), str(right.ty.dtype)}
    if types != {"int32", "int64"}:
        return left, right
    return left.astype("int64"), right.astype("int64")


def _binary_search(placer, home, axis, begin, extent, coordinate, result) -> tirx.Stmt:
    """Lower bound in the sorted row, then a check that the coordinate is really there."""
    low = placer.scratch(home, f"{axis.name}_low", axis.dtype)
    high = placer.scratch(home, f"{axis.name}_high", axis.dtype)
    middle = _middle(low, high)
    return tirx.SeqStmt(
        [
            tirx.BufferStore(low, tirx.const(0, axis.dtype), [0]),
            tirx.BufferStore(high, extent.astype(axis.dtype), [0]),
            tirx.While(
                low[0] < high[0],
                tirx.IfThenElse(
                    tirx.LT(*widened(axis.indices[begin + middle], coordinate)),
                    tirx.BufferStore(low, middle + 1, [0]),
                    tirx.BufferStore(high, middle, [0]),
                ),
            ),
            tirx.IfThenElse(
                low[0] < extent.astype(axis.dtype),
                tirx.IfThenElse(
                    _holds(axis, begin + low[0], coordinate),
                    tirx.BufferStore(result, low[0], [0]),
                    None,
                ),
                None,
            ),
        ]
    )


def _linear_search(placer, home, axis, begin, extent, coordinate, result) -> tirx.Stmt:
    """First slot of the row that holds the coordinate."""
    at = placer.scratch(home, f"{axis.name}_at", axis.dtype)
    step = tirx.SeqStmt(
        [
            tirx.IfThenElse(
                _holds(axis, begin + at[0], coordinate),
                tirx.BufferStore(result, at[0], [0]),
                None,
            ),
            tirx.BufferStore(at, at[0] + 1, [0]),
        ]
    )
    return tirx.SeqStmt(
        [
            tirx.BufferStore(at, tirx.const(0, axis.dtype), [0]),
            tirx.While(tirx.And(at[0] < extent.astype(axis.dtype), result[0] < 0), step),
        ]
    )


def _middle(low: Var, high: Var) -> Expr:
    return low[0] + ((high[0] - low[0]) >> 1)


def _holds(axis: Axis, slot: Expr, coordinate: Expr) -> Expr:
    """Whether a slot holds a coordinate; padding, which lies outside the axis, never does."""
    found = tirx.EQ(*widened(axis.indices[slot], coordinate))
    return tirx.And(found, _within(coordinate, axis.length))


def analyzer_with(ranges: dict[Var, Expr]) -> tvm.sym.Analyzer:
    """Return an analyzer that knows ``0 <= variable < length`` for every variable given."""
    analyzer = tvm.sym.Analyzer()
    for var, length in ranges.items():
        analyzer.bind(var, tvm.ir.Range.from_min_extent(tirx.const(0, str(var.ty.dtype)), length))
    return analyzer

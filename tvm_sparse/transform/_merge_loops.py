"""Loops over several sorted axes side by side: unions and intersections.

Comes in: the axes, walked from their first entry on, and what lowers the body at one coordinate. Goes
out: plain loops. A *walk* holds how far its axis has come; the entry there is the next of its row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Var

from ..ir import Axis
from .keep_rolled import ROLLED

__all__ = [
    "RUN_MARK",
    "STEPS_MARK",
    "Step",
    "Walk",
    "intersection_loops",
    "union_loops",
    "without_step_marks",
]

#: Key of the statement around merged loops that says how many steps they make at most.
STEPS_MARK = "tvm_sparse.merge_steps"

#: Annotation of a short loop of constant extent over entries that follow one another in every axis.
RUN_MARK = "tvm_sparse.run"

#: An axis with so many times the entries of the shortest one is not walked entry by entry.
_LONGER = 16
#: So many entries are compared at once where two axes may store the same coordinates.
_LANES = 8


@dataclass(frozen=True)
class Walk:
    """An axis under one parent entry, and how far it was walked.

    Attributes
    ----------
    axis : Axis
        What is stored.
    begin : Expr
        Position of the first entry.
    extent : Expr
        Number of entries.
    next, end : Var
        Scratch: positions of the next entry, and behind the last one.
    """

    axis: Axis
    begin: Expr
    extent: Expr
    next: Var
    end: Var

    @property
    def dtype(self) -> str:
        """Type of positions."""
        return str(self.next.ty.dtype)

    @property
    def is_left(self) -> Expr:
        """Whether there is a next entry."""
        return self.next[0] < self.end[0]

    def coordinate(self, position: Expr) -> Expr:
        """Return the coordinate of an entry, in the type of the axis."""
        if self.axis.is_sparse:
            return self.axis.indices[position]
        return position - self.begin.astype(self.dtype)

    def start(self) -> list[tirx.Stmt]:
        """Return what goes to the first entry, and finds where padding begins."""
        begin = self.begin.astype(self.dtype)
        found = [_set(self.next, begin), _set(self.end, begin + self.extent.astype(self.dtype))]
        if self.axis.kind == "sparse_fixed" and not self.axis.distinct:
            last = self.coordinate(self.end[0] - 1)
            beyond = last.astype("int64") >= self.axis.length.astype("int64")
            is_padding = tirx.if_then_else(self.end[0] > begin, beyond, False)
            found.append(tirx.While(is_padding, _set(self.end, self.end[0] - 1)))
        return found

    def go_on(self, condition: Expr) -> tirx.Stmt:
        """Return what goes to the next entry under a condition, without a branch."""
        return _set(self.next, self.next[0] + condition.astype(self.dtype))


@dataclass(frozen=True)
class Step:
    """One coordinate of merged loops.

    Attributes
    ----------
    coordinate : Var
        The coordinate.
    positions : sequence of Expr
        For each axis the position of its entry there.
    present : sequence of Expr or None
        For each axis whether it stores the coordinate; None where it does.
    is_loadable : bool
        Whether values at `positions` may be loaded where the coordinate is not stored.
    """

    coordinate: Var
    positions: Sequence[Expr]
    present: Sequence[Expr | None]
    is_loadable: bool = False


#: What lowers the body at one coordinate.
Content = Callable[[Step], tirx.Stmt]


def union_loops(
    walks: Sequence[Walk],
    dtype: str,
    content: Content,
    scratch: Callable[[str, str], Var],
    leaf: bool,
) -> tirx.Stmt:
    """Visit every coordinate that a walk has.

    Parameters
    ----------
    walks : sequence of Walk
        The axes.
    dtype : str
        Type of the coordinate.
    content : callable
        Lowers the body; if `leaf`, it may be called for several places.
    scratch : callable
        Declares a local variable by name and type.
    leaf : bool
        Whether the body is short.
    """
    steps = functools.reduce(lambda a, b: a + b, (w.extent.astype("int64") for w in walks))
    can_look_ahead = leaf and all(walk.axis.is_sparse for walk in walks)
    heads = [scratch(f"{walk.axis.name}_head", dtype) for walk in walks]
    if not can_look_ahead:
        loops = _union(walks, dtype, content, scratch)
    elif len(walks) == 2:
        loops = _two_way_union(walks, heads, dtype, content, scratch)
    else:
        ahead = _LookingAhead(walks, heads, dtype, content)
        steps_ahead = tirx.While(ahead.is_in_reach, tirx.SeqStmt(ahead.step()))
        loops = [*ahead.begin(), steps_ahead, *_union(walks, dtype, content, scratch)]
    return _bounded(steps if leaf else None, [*_starts(walks), *loops])


def _union(walks: Sequence[Walk], dtype: str, content: Content, scratch) -> list[tirx.Stmt]:
    """One loop; an axis at its end stands at a coordinate beyond all."""
    wide = "int64" if any(str(w.axis.length.ty.dtype) == "int64" for w in walks) else dtype
    beyond = tirx.max_value(wide)
    heads = [scratch(f"{walk.axis.name}_{'wide_' * (wide != dtype)}head", wide) for walk in walks]

    def look() -> list[tirx.Stmt]:
        coordinates = [walk.coordinate(walk.next[0]).astype(wide) for walk in walks]
        pairs = zip(heads, walks, coordinates)
        return [_set(h, tirx.if_then_else(w.is_left, c, beyond)) for h, w, c in pairs]

    def at_one(step: Step) -> tirx.Stmt:
        if wide == dtype:
            return content(step)
        own = Var("own_coordinate", dtype)
        bind = tirx.Bind(own, step.coordinate.astype(dtype))
        return tirx.SeqStmt([bind, content(replace(step, coordinate=own))])

    least = functools.reduce(tirx.Min, (head[0] for head in heads))
    step = _union_step(walks, [head[0] for head in heads], wide, at_one, is_loadable=False)
    return [*look(), tirx.While(least < beyond, tirx.SeqStmt([*step, *look()]))]


def _two_way_union(
    walks: Sequence[Walk], heads: Sequence[Var], dtype: str, content: Content, scratch
) -> list[tirx.Stmt]:
    """Two axes without branches, then what is left of one.

    Where the next few coordinates of both are the same, they are taken together.
    """
    ahead = _LookingAhead(walks, heads, dtype, content)
    agree, goes_on = scratch("agree", "int32"), scratch("goes_on", "int32")
    differ = heads[0][0] != heads[1][0]
    looks = [walk.coordinate(walk.next[0]).astype(dtype) for walk in walks]
    step = [*ahead.step(), _set(goes_on, tirx.And(ahead.is_in_reach, differ).astype("int32"))]
    steps = tirx.SeqStmt([_set(goes_on, 1), tirx.While(goes_on[0] != 0, tirx.SeqStmt(step))])
    several = tirx.SeqStmt([*_run(walks, (0, 1), dtype, content), *ahead.look_again()])
    one_or_several = tirx.SeqStmt(
        [*_compare(walks, heads, agree), tirx.IfThenElse(agree[0] != 0, several, steps)]
    )
    last = tirx.SeqStmt(_union_step(walks, looks, dtype, content, is_loadable=True))
    rests = [stmt for number in range(2) for stmt in _rest(walks, number, dtype, content)]
    return [
        *ahead.begin(),
        tirx.While(ahead.is_in_reach, one_or_several),
        tirx.While(tirx.And(*(walk.is_left for walk in walks)), last),
        *rests,
    ]


class _LookingAhead:
    """Steps without branches, none of which waits for memory.

    The coordinate after the next is loaded before it is known whether it will be needed. So what lies
    behind a row is loaded too, but nothing behind the last one: its end is out of reach.
    """

    def __init__(
        self, walks: Sequence[Walk], heads: Sequence[Var], dtype: str, content: Content
    ) -> None:
        self._walks, self._heads, self._dtype, self._content = walks, heads, dtype, content
        self._reach = [Var(f"{walk.axis.name}_reach", walk.dtype) for walk in walks]

    @property
    def is_in_reach(self) -> Expr:
        """Whether a step may be made."""
        ends = zip(self._walks, self._reach)
        return functools.reduce(tirx.And, (walk.next[0] < end for walk, end in ends))

    def begin(self) -> list[tirx.Stmt]:
        """Return what precedes the first step."""
        reached = [
            walk.end[0] - (walk.end[0] >= walk.axis.slots.astype(walk.dtype)).astype(walk.dtype)
            for walk in self._walks
        ]
        return [*self.look_again(), *map(tirx.Bind, self._reach, reached)]

    def look_again(self) -> list[tirx.Stmt]:
        """Return what loads the next coordinates, where there are some."""
        found = []
        for head, walk in zip(self._heads, self._walks):
            coordinate = walk.coordinate(walk.next[0]).astype(self._dtype)
            none = tirx.const(0, self._dtype)
            found.append(_set(head, tirx.if_then_else(walk.is_left, coordinate, none)))
        return found

    def step(self) -> list[tirx.Stmt]:
        """Return what a step does."""
        dtype = self._dtype
        following = [Var(f"{walk.axis.name}_following", dtype) for walk in self._walks]
        looks = [walk.coordinate(walk.next[0] + 1).astype(dtype) for walk in self._walks]

        def go_on(present: Sequence[Expr]) -> list[tirx.Stmt]:
            chosen = zip(self._heads, present, following)
            return [_set(head, tirx.Select(has, new, head[0])) for head, has, new in chosen]

        heads = [head[0] for head in self._heads]
        step = _union_step(self._walks, heads, dtype, self._content, True, go_on)
        return [*map(tirx.Bind, following, looks), *step]


def _union_step(
    walks: Sequence[Walk],
    looks: Sequence[Expr],
    dtype: str,
    content: Content,
    is_loadable: bool,
    go_on: Callable[[Sequence[Expr]], list[tirx.Stmt]] = lambda present: [],
) -> list[tirx.Stmt]:
    """Take the smallest of the next coordinates; `go_on` follows with what else precedes the next step."""
    heads = [Var(f"{walk.axis.name}_now", dtype) for walk in walks]
    coordinate = Var("coordinate", dtype)
    present = [Var(f"has_{walk.axis.name}", "bool") for walk in walks]
    positions = [Var(f"{walk.axis.name}_at", walk.dtype) for walk in walks]
    if len(walks) == 2:  # no need to wait for the smaller one
        has = [heads[0] <= heads[1], heads[1] <= heads[0]]
    else:
        has = [head.equal(coordinate) for head in heads]
    return [
        *map(tirx.Bind, heads, looks),
        tirx.Bind(coordinate, functools.reduce(tirx.Min, heads)),
        *map(tirx.Bind, present, has),
        *(tirx.Bind(own, walk.next[0]) for own, walk in zip(positions, walks)),
        content(Step(coordinate, positions, present, is_loadable)),
        *(walk.go_on(own) for walk, own in zip(walks, present)),
        *go_on(present),
    ]


def _compare(walks: Sequence[Walk], heads: Sequence[Var], agree: Var) -> list[tirx.Stmt]:
    """Find out whether the next few coordinates are the same; the first ones mostly tell."""
    fit = tirx.And(*(walk.next[0] + _LANES <= walk.end[0] for walk in walks))
    differences = [tirx.bitwise_xor(*_pair(walks, lane)) for lane in range(1, _LANES)]
    last = differences.pop().equal(0)
    inner = functools.reduce(tirx.bitwise_or, differences).equal(0)
    found = _set(agree, inner.astype("int32"))
    for condition in (last, fit, heads[0][0].equal(heads[1][0])):
        found = tirx.IfThenElse(condition, found, None)
    return [_set(agree, 0), found]


def _pair(walks: Sequence[Walk], lane: int) -> list[Expr]:
    dtype = "int64" if "int64" in {walk.axis.dtype for walk in walks} else "int32"
    return [walk.coordinate(walk.next[0] + lane).astype(dtype) for walk in walks]


def _run(
    walks: Sequence[Walk], numbers: tuple[int, ...], dtype: str, content: Content
) -> list[tirx.Stmt]:
    """Take a few entries that the axes of some numbers have, and others do not."""
    lane = Var("lane", "int32")
    body = _entry(
        walks, numbers, lambda walk: walk.next[0] + lane.astype(walk.dtype), dtype, content
    )
    begin, extent = tirx.const(0, "int32"), tirx.const(_LANES, "int32")
    return [
        tirx.For(lane, begin, extent, _SERIAL, body, annotations={RUN_MARK: True}),
        *(_set(walks[k].next, walks[k].next[0] + _LANES) for k in numbers),
    ]


def _rest(walks: Sequence[Walk], number: int, dtype: str, content: Content) -> list[tirx.Stmt]:
    """What is left of one axis when the other is at its end: a few entries at once, then each."""
    walk = walks[number]
    at = Var(f"{walk.axis.name}_rest", walk.dtype)
    several = tirx.SeqStmt(_run(walks, (number,), dtype, content))
    body = _entry(walks, (number,), lambda own: at if own is walk else own.next[0], dtype, content)
    left = walk.end[0] - walk.next[0]
    return [
        tirx.While(left >= _LANES, several),
        tirx.For(at, walk.next[0], left, _SERIAL, body, annotations={ROLLED: True}),
    ]


def _entry(
    walks: Sequence[Walk],
    numbers: tuple[int, ...],
    position: Callable[[Walk], Expr],
    dtype: str,
    content: Content,
) -> tirx.Stmt:
    """Take an entry that the axes of some numbers have, and others do not."""
    coordinate = Var("coordinate", dtype)
    first = walks[numbers[0]]
    positions = [position(walk) for walk in walks]
    present = [None if k in numbers else tirx.const(False, "bool") for k in range(2)]
    return tirx.SeqStmt(
        [
            tirx.Bind(coordinate, first.coordinate(position(first)).astype(dtype)),
            content(Step(coordinate, positions, present)),
        ]
    )


def intersection_loops(
    walks: Sequence[Walk],
    dtype: str,
    content: Content,
    scratch: Callable[[str, str], Var],
    leaf: bool,
) -> tirx.Stmt:
    """Visit every coordinate that all walks have; see :func:`union_loops`.

    An axis that is much longer than the shortest is searched, from where it stands on.
    """
    shortest = functools.reduce(tirx.Min, (walk.extent.astype("int64") for walk in walks))
    heads = [Var(f"{walk.axis.name}_head", dtype) for walk in walks]
    largest, is_common = Var("coordinate", dtype), Var("is_common", "bool")
    least = functools.reduce(tirx.Min, heads)
    looks = [walk.coordinate(walk.next[0]).astype(dtype) for walk in walks]
    at_all = content(Step(largest, [walk.next[0] for walk in walks], [None] * len(walks)))
    body = tirx.SeqStmt(
        [
            *map(tirx.Bind, heads, looks),
            tirx.Bind(largest, functools.reduce(tirx.Max, heads)),
            tirx.Bind(is_common, least.equal(largest)),
            tirx.IfThenElse(is_common, at_all, None),
            *(
                _advance(walk, head, largest, is_common, shortest, scratch)
                for walk, head in zip(walks, heads)
            ),
        ]
    )
    is_left = functools.reduce(tirx.And, (walk.is_left for walk in walks))
    steps = shortest if leaf else None
    return _bounded(steps, [*_starts(walks), tirx.While(is_left, body)])


def _advance(
    walk: Walk, head: Var, largest: Var, is_common: Var, shortest: Expr, scratch
) -> tirx.Stmt:
    """Go beyond a common coordinate; else to the first one that may be."""
    if not walk.axis.is_sparse:
        following = largest.astype(walk.dtype) + is_common.astype(walk.dtype)
        return _set(walk.next, walk.begin.astype(walk.dtype) + following)
    by_one = walk.go_on(tirx.Or(is_common, head < largest))
    is_long = walk.extent.astype("int64") > shortest * _LONGER
    searched = tirx.IfThenElse(
        is_common,
        _set(walk.next, walk.next[0] + 1),
        tirx.IfThenElse(head < largest, _gallop(walk, largest, scratch), None),
    )
    return tirx.IfThenElse(is_long, searched, by_one)


def _gallop(walk: Walk, wanted: Var, scratch: Callable[[str, str], Var]) -> tirx.Stmt:
    """Go to the first entry of at least a coordinate: in steps that double, then by halves."""
    step, high = (scratch(f"{walk.axis.name}_{what}", walk.dtype) for what in ("step", "high"))
    low = walk.next

    def is_less(position: Expr) -> Expr:
        return walk.coordinate(position).astype(str(wanted.ty.dtype)) < wanted

    middle = low[0] + ((high[0] - low[0]) >> 1)
    inside = low[0] + step[0] < walk.end[0]
    return tirx.SeqStmt(
        [
            _set(step, 1),
            tirx.While(
                tirx.if_then_else(inside, is_less(low[0] + step[0]), False),
                tirx.SeqStmt([_set(low, low[0] + step[0]), _set(step, step[0] << 1)]),
            ),
            _set(high, tirx.Min(low[0] + step[0], walk.end[0])),
            tirx.While(
                low[0] + 1 < high[0],
                tirx.IfThenElse(is_less(middle), _set(low, middle), _set(high, middle)),
            ),
            _set(low, high[0]),
        ]
    )


_SERIAL = tirx.ForKind.SERIAL


def _starts(walks: Sequence[Walk]) -> list[tirx.Stmt]:
    return [stmt for walk in walks for stmt in walk.start()]


def without_step_marks(stmt: tirx.Stmt) -> tirx.Stmt:
    """Drop what says how often merged loops run; passes of TVM expect no loads there."""

    def attribute(node: tirx.AttrStmt, mutator) -> tirx.Stmt:
        marks = node.attr_key == STEPS_MARK
        return mutator.mutate(node.body) if marks else mutator.default_mutate(node)

    return tvm_ffi.structural_mutate(stmt, [(tirx.AttrStmt, attribute)])


def _bounded(steps: Expr | None, stmts: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """Say how often a short body runs at most, without its running."""
    loops = tirx.SeqStmt(list(stmts))
    if steps is None:
        return loops
    return tirx.AttrStmt(tvm.runtime.convert("merged loops"), STEPS_MARK, steps, loops)


def _set(variable: Var, value: Expr | int) -> tirx.Stmt:
    dtype = str(variable.ty.dtype)
    value = tirx.const(value, dtype) if isinstance(value, int) else value
    return tirx.BufferStore(variable, value, [tirx.const(0, "int32")])

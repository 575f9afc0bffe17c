"""Iterations that merge axes: plain loops inside the block of the axes before the merged one.

A union or intersection walks several axes at once, which no block of TensorIR iterates. The loops from
there inwards are therefore plain ones: a schedule moves the loops outside of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Var

from ..ir import Axis, FusedAxis, MergedAxis, SparseIteration, stored_axis
from ..ir.contents import variables_of
from ._access import Iterator, Prologue, row_extent
from ._axis_loops import AxisLoops
from ._merge_loops import Step, Walk, intersection_loops, union_loops
from ._scope import FunctionScope

__all__ = ["InnerLoops", "split_at_merged_axis"]

#: A loop: its axis, and kinds and variables of its iterators.
_Group = tuple[Axis, str, list[Var]]


def split_at_merged_axis(node: SparseIteration) -> SparseIteration | None:
    """Nest an iteration: outside the axes before the first merged one, inside the others and init.

    Init stands outside of all reductions, which begin the inner iteration if they come first. None if
    there is nothing outside.
    """
    groups = node.loops
    first = next(
        k
        for k, (axis, kinds, _) in enumerate(groups)
        if isinstance(axis, MergedAxis) or (node.init is not None and "R" in kinds)
    )
    inner = _iteration(node, groups[first:], node.body, node.init)
    return None if first == 0 else _iteration(node, groups[:first], inner, None)


class InnerLoops:
    """Lowers iterations to plain loops.

    Parameters
    ----------
    scope : FunctionScope
        Iterators and searches of the function.
    loops : AxisLoops
        Opens the loops over axes that are not merged.
    statement : callable
        Lowers what stands in the loops.
    """

    def __init__(
        self,
        scope: FunctionScope,
        loops: AxisLoops,
        statement: Callable[[tirx.Stmt], tirx.Stmt],
    ) -> None:
        self._scope, self._loops, self._statement = scope, loops, statement
        self.depth = 0

    @property
    def is_inside(self) -> bool:
        """Whether plain loops stand around what is lowered now."""
        return self.depth > 0

    def lower(self, node: SparseIteration) -> tirx.Stmt:
        """Lower an iteration whose reductions, if it has an init, stand inside of all other loops."""
        outer = dict(self._scope.iterators)
        self.depth += 1
        groups = node.loops

        def update(groups: Sequence[_Group]) -> tirx.Stmt:
            return self._nest(groups, lambda: self._statement(node.body), node.body)

        if node.init is None:
            lowered = update(groups)
        else:
            reduced = next(k for k, (_, kinds, _) in enumerate(groups) if "R" in kinds)

            def both() -> tirx.Stmt:
                init = self._statement(node.init)
                return tirx.SeqStmt([init, update(groups[reduced:])])

            lowered = self._nest(groups[:reduced], both, node)
        self.depth -= 1
        self._scope.iterators = outer
        return lowered

    def _nest(
        self, groups: Sequence[_Group], content: Callable[[], tirx.Stmt], source: tirx.Stmt
    ) -> tirx.Stmt:
        """Put loops around what is lowered when they are open; `source` is that in stage I."""
        if not groups:
            return content()
        (axis, kinds, variables), *rest = groups
        if isinstance(axis, MergedAxis):
            is_leaf = not rest and _is_short(source)
            return self._merged(
                axis, variables[0], lambda: self._nest(rest, content, source), is_leaf
            )
        loop = self._loops.open(axis, list(zip(_members(axis), kinds, variables)))
        body = self._nest(rest, content, source)
        for guard, _ in reversed(loop.guards):
            body = tirx.IfThenElse(guard, body, None)
        body = self._after_prologue(body)
        zero = tirx.const(0, str(loop.extent.ty.dtype))
        return tirx.For(loop.block_var, zero, loop.extent, tirx.ForKind.SERIAL, body)

    def _after_prologue(self, body: tirx.Stmt) -> tirx.Stmt:
        """Close the innermost loop: searches first; the loop around it declares what they use."""
        placer = self._scope.placer
        prologue = placer.pop()
        placer.prologues[-1].buffers.extend(prologue.buffers)
        return tirx.SeqStmt([*prologue.statements, body]) if prologue.statements else body

    def _merged(
        self, axis: MergedAxis, var: Var, content: Callable[[], tirx.Stmt], is_leaf: bool
    ) -> tirx.Stmt:
        placer = self._scope.placer
        home = placer.prologues[-1]
        parents = [self._loops.parent_position(member) for member in axis.members]
        walks = [self._walk(member, parent) for member, parent in zip(axis.members, parents)]

        def scratch(name: str, dtype: str) -> Var:
            return placer.scratch(home, name, dtype)

        def step(own: Step) -> tirx.Stmt:
            members = [
                Iterator(
                    axis=member,
                    kind="S",
                    var=var,
                    local=position - walk.begin.astype(walk.dtype),
                    position=position,
                    coordinate=own.coordinate,
                    parent_position=parent,
                    present=present,
                    is_loadable=own.is_loadable,
                )
                for member, walk, parent, position, present in zip(
                    axis.members, walks, parents, own.positions, own.present
                )
            ]
            self._scope.iterators[var] = Iterator(
                axis, "S", var, own.coordinate, own.coordinate, own.coordinate, None, tuple(members)
            )
            known = {v for m in members for e in (m.local, m.present) for v in _variables(e)}
            placer.push(Prologue([own.coordinate, *known]))
            return self._after_prologue(content())

        if axis.kind == "union":
            return union_loops(walks, axis.dtype, step, scratch, is_leaf)
        return intersection_loops(walks, axis.dtype, step, scratch, is_leaf)

    def _walk(self, member: Axis, parent: Expr | None) -> Walk:
        stored = stored_axis(member)
        begin, extent = row_extent(stored, parent)
        extent = self._loops.guarded_extent(member, extent)
        home = self._scope.placer.prologues[-1]
        following, end = (
            self._scope.placer.scratch(home, f"{stored.name}_{what}", "int64")
            for what in ("next", "end")
        )
        return Walk(stored, begin, extent, following, end)


def _members(axis: Axis) -> list[Axis]:
    return list(axis.members) if isinstance(axis, FusedAxis) else [axis]


def _iteration(
    node: SparseIteration, groups: Sequence[_Group], body: tirx.Stmt, init: tirx.Stmt | None
) -> SparseIteration:
    return SparseIteration(
        axes=[axis for axis, _, _ in groups],
        kinds="".join(kinds for _, kinds, _ in groups),
        iter_vars=[var for _, _, variables in groups for var in variables],
        body=body,
        init=init,
        name=node.name,
        annotations=node.annotations,
        span=node.span,
    )


def _is_short(stmt: tirx.Stmt) -> bool:
    """Whether a statement defines nothing, so that it may stand in several places."""
    kinds = (SparseIteration, tirx.For, tirx.While, tirx.Bind, tirx.AllocBuffer)
    found: list[tirx.Stmt] = []
    tvm_ffi.structural_walk(stmt, [(kind, found.append) for kind in kinds])
    return not found


def _variables(expr: Expr | None) -> set[Var]:
    return set() if expr is None else variables_of(expr)

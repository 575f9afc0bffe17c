"""Loop nests around one store: their loops and conditions, told apart by what the store needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Var
from tvm.tirx import For

from ..ir.contents import has_loads, variables_of

__all__ = [
    "StoreNest",
    "common_value",
    "find_nest",
    "same_element",
    "under_conditions",
    "with_body",
]


@dataclass(frozen=True)
class StoreNest:
    """One store in loops, outermost first, under conditions."""

    loops: tuple[For, ...]
    conditions: tuple[Expr, ...]
    store: tirx.BufferStore

    @property
    def tile_loops(self) -> tuple[For, ...]:
        """The loops that tell the stored elements apart."""
        used = set().union(*map(variables_of, self.store.indices))
        return tuple(loop for loop in self.loops if loop.loop_var in used)

    @property
    def loop_vars(self) -> set[Var]:
        return {loop.loop_var for loop in self.loops}

    @property
    def without_conditions(self) -> StoreNest:
        return StoreNest(self.loops, (), self.store)

    def of_tile(self) -> StoreNest:
        """Return the nest that visits each stored element once.

        Conditions on what is reduced, and on stored values, belong to the additions alone.
        """
        kept = self.tile_loops
        reduced = {loop.loop_var for loop in self.loops} - {loop.loop_var for loop in kept}
        conditions = [
            condition
            for condition in self.conditions
            if not variables_of(condition) & reduced and not has_loads(condition)
        ]
        return StoreNest(kept, tuple(conditions), self.store)

    def around(self, statement: tirx.Stmt) -> tirx.Stmt:
        """Put the loops around a statement, each condition as far out as it can be."""
        waiting = list(self.conditions)
        for loop in reversed(self.loops):
            inside = [c for c in waiting if loop.loop_var in variables_of(c)]
            waiting = [c for c in waiting if loop.loop_var not in variables_of(c)]
            statement = with_body(loop, under_conditions(inside, statement), loop.annotations)
        return under_conditions(waiting, statement)

    def around_store(self) -> tirx.Stmt:
        """Put the loops around the store itself."""
        return self.around(self.store)


def find_nest(stmt: tirx.Stmt) -> StoreNest | None:
    """Return a statement as a nest around one store, None where it is something else."""
    loops: list[For] = []
    conditions: list[Expr] = []
    while not isinstance(stmt, tirx.BufferStore):
        if isinstance(stmt, For):
            loops.append(stmt)
            stmt = stmt.body
        elif isinstance(stmt, tirx.IfThenElse) and stmt.else_case is None:
            conditions.append(stmt.condition)
            stmt = stmt.then_case
        else:
            return None
    return StoreNest(tuple(loops), tuple(conditions), stmt)


def common_value(stmt: tirx.Stmt, tile: StoreNest) -> Expr | None:
    """Return the constant that a statement gives all elements of a tile, None if it does not."""
    nest = find_nest(stmt)
    if nest is None or not isinstance(nest.store.value, tirx.FloatImm | tirx.IntImm):
        return None
    if not nest.store.buffer.same_as(tile.store.buffer) or len(nest.loops) != len(tile.loops):
        return None
    own = {mine.loop_var: theirs.loop_var for mine, theirs in zip(nest.loops, tile.loops)}

    def renamed(expr: Expr) -> Expr:
        return tvm_ffi.structural_map(expr, (tirx.Var, lambda var: own.get(var, var)))

    same = all(
        tvm_ffi.structural_equal(mine.extent, theirs.extent)
        for mine, theirs in zip(nest.loops, tile.loops)
    )
    same &= same_element([renamed(index) for index in nest.store.indices], tile.store.indices)
    same &= all(
        any(tvm_ffi.structural_equal(renamed(condition), other) for other in tile.conditions)
        for condition in nest.conditions
    )
    return nest.store.value if same else None


def same_element(left: Sequence[Expr], right: Sequence[Expr]) -> bool:
    return all(tvm_ffi.structural_equal(a, b) for a, b in zip(left, right))


def under_conditions(conditions: Sequence[Expr], statement: tirx.Stmt) -> tirx.Stmt:
    for condition in reversed(conditions):
        statement = tirx.IfThenElse(condition, statement, None)
    return statement


def with_body(loop: For, body: tirx.Stmt, annotations: dict) -> For:
    return For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=annotations)

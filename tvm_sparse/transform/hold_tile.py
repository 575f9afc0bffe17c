"""Hold the tile of a result that a loop adds to in registers, whatever rows the tile spans.

``cache_write`` copies one interval of a buffer, and in flat storage the interval around a tile of
several rows holds other tiles too. This pass works on loops, after blocks are gone: it takes the very
elements that the loop stores to, and copies those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad
from tvm.tirx import For

from ._access import variables_of
from ._tile_loops import reads_memory

__all__ = ["HOLD", "HoldTile"]

#: Annotation of loops whose stores go to registers.
HOLD = "tvm_sparse.hold"


def HoldTile() -> tvm.transform.Pass:
    """Build the pass that gives annotated reduction loops accumulators of their own.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs whose blocks are already lowered to loops.

    Notes
    -----
    Before, with loops of constant extent over the elements of the tile::

        for j in T.serial(n, annotations={"tvm_sparse.hold": True}):
            for i, k in T.grid(4, 16):
                if i < m:
                    C[i * f + k] = C[i * f + k] + A[j * 4 + i] * B[j * f + k]

    and after::

        for i in range(4):
            if i < m:
                for k in range(16):
                    held[i * 16 + k] = C[i * f + k]
        for j in range(n):
            for i in range(4):
                if i < m:
                    for k in range(16):
                        held[i * 16 + k] = held[i * 16 + k] + A[j * 4 + i] * B[j * f + k]
        for i in range(4):
            if i < m:
                for k in range(16):
                    C[i * f + k] = held[i * 16 + k]

    Where the statement before the loop gives all of these elements one value, ``held`` starts with that
    instead. Conditions move out of the loops that they do not depend on. A loop is left as it is where
    it is no nest around one store, where the tile loops do not have constant extents, or where it reads
    elements of the result other than the one it stores.

    Examples
    --------
    >>> from tvm_sparse.transform import HoldTile
    >>> HoldTile().info.name
    'tvm_sparse.HoldTile'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        held = []

        def rewrite(loop: For, mutator) -> tirx.Stmt:
            if HOLD not in loop.annotations:
                return mutator.default_mutate(loop)
            held.append(loop)
            return _hold(loop)[0]

        def rewrite_sequence(sequence: tirx.SeqStmt, mutator) -> tirx.Stmt:
            parts: list[tirx.Stmt] = []
            for part in sequence.seq:
                if not isinstance(part, For) or HOLD not in part.annotations:
                    parts.append(mutator.mutate(part))
                    continue
                held.append(part)
                statement, replaces_init = _hold(part, parts[-1] if parts else None)
                parts[len(parts) - replaces_init :] = [statement]
            return tirx.SeqStmt(parts) if len(parts) > 1 else parts[0]

        rules = [(For, rewrite), (tirx.SeqStmt, rewrite_sequence)]
        body = tvm_ffi.structural_mutate(func.body, rules)
        return func.with_body(body) if held else func

    hold = tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.HoldTile")
    return tvm.transform.Sequential([hold, tirx.transform.ConvertSSA()], name="tvm_sparse.HoldTile")


@dataclass(frozen=True)
class _Nest:
    """One store in loops, outermost first, under conditions."""

    loops: tuple[For, ...]
    conditions: tuple[Expr, ...]
    store: tirx.BufferStore

    @property
    def tile_loops(self) -> tuple[For, ...]:
        """The loops that tell the stored elements apart."""
        used = set().union(*map(variables_of, self.store.indices))
        return tuple(loop for loop in self.loops if loop.loop_var in used)

    def of_tile(self) -> _Nest:
        """Return the nest that visits each stored element once.

        Conditions on what is reduced, and on stored values, belong to the additions alone.
        """
        kept = self.tile_loops
        reduced = {loop.loop_var for loop in self.loops} - {loop.loop_var for loop in kept}
        conditions = [
            condition
            for condition in self.conditions
            if not variables_of(condition) & reduced and not reads_memory(condition)
        ]
        return _Nest(kept, tuple(conditions), self.store)

    def around(self, statement: tirx.Stmt) -> tirx.Stmt:
        """Put the loops around a statement, each condition as far out as it can be."""
        waiting = list(self.conditions)
        for loop in reversed(self.loops):
            inside = [c for c in waiting if loop.loop_var in variables_of(c)]
            waiting = [c for c in waiting if loop.loop_var not in variables_of(c)]
            statement = _with_body(loop, _under(inside, statement), loop.annotations)
        return _under(waiting, statement)


def _hold(loop: For, before: tirx.Stmt | None = None) -> tuple[tirx.Stmt, bool]:
    """Return what a loop becomes, and whether that replaces the statement before it too."""
    annotations = {key: value for key, value in loop.annotations.items() if key != HOLD}
    nest = _find_nest(loop.body)
    if nest is None or not _can_hold(nest, loop):
        return _with_body(loop, loop.body, annotations), False
    tile, result = nest.of_tile(), nest.store.buffer
    size, place = 1, tirx.const(0, "int64")
    for inner in tile.loops:
        size *= int(inner.extent)
        place = place * int(inner.extent) + inner.loop_var.astype("int64")
    held = tirx.decl_buffer((size,), str(result.ty.dtype), f"{result.name}_held")

    def load(node: TensorLoad, mutator) -> Expr:
        if node.source.same_as(result):
            return tirx.BufferLoad(held, [place])
        return mutator.default_mutate(node)

    value = tvm_ffi.structural_mutate(nest.store.value, [(TensorLoad, load)])
    element = list(nest.store.indices)
    start = None if before is None else _common_value(before, tile)
    first = tirx.BufferLoad(result, element) if start is None else start
    statement = tirx.SeqStmt(
        [
            tirx.AllocBuffer(held),
            tile.around(tirx.BufferStore(held, first, [place])),
            _with_body(loop, nest.around(tirx.BufferStore(held, value, [place])), annotations),
            tile.around(tirx.BufferStore(result, tirx.BufferLoad(held, [place]), element)),
        ]
    )
    return statement, start is not None


def _common_value(stmt: tirx.Stmt, tile: _Nest) -> Expr | None:
    """Return the constant that a statement gives all elements of a tile, None if it does not."""
    nest = _find_nest(stmt)
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
    same &= _same_element([renamed(index) for index in nest.store.indices], tile.store.indices)
    same &= all(
        any(tvm_ffi.structural_equal(renamed(condition), other) for other in tile.conditions)
        for condition in nest.conditions
    )
    return nest.store.value if same else None


def _find_nest(stmt: tirx.Stmt) -> _Nest | None:
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
    return _Nest(tuple(loops), tuple(conditions), stmt)


def _can_hold(nest: _Nest, loop: For) -> bool:
    store = nest.store
    inside = {inner.loop_var for inner in nest.loops}
    if loop.loop_var in set().union(*map(variables_of, store.indices)):
        return False
    for inner in nest.tile_loops:
        if not isinstance(inner.extent, tirx.IntImm) or not isinstance(inner.min, tirx.IntImm):
            return False
        if int(inner.min):
            return False
    if any(variables_of(inner.extent) & inside for inner in nest.loops):
        return False
    loads: list[TensorLoad] = []
    tvm_ffi.structural_walk(store.value, (TensorLoad, loads.append))
    return all(
        _same_element(load.indices, store.indices)
        for load in loads
        if load.source.same_as(store.buffer)
    )


def _same_element(left: Sequence[Expr], right: Sequence[Expr]) -> bool:
    return all(tvm_ffi.structural_equal(a, b) for a, b in zip(left, right))


def _under(conditions: Sequence[Expr], statement: tirx.Stmt) -> tirx.Stmt:
    for condition in reversed(conditions):
        statement = tirx.IfThenElse(condition, statement, None)
    return statement


def _with_body(loop: For, body: tirx.Stmt, annotations: dict) -> For:
    return For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=annotations)

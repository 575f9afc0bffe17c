"""Nests that sum the rows of a result, on stage III: how they are read, and finished row by row.

Comes in: one statement of a lowered program. Goes out: the nest taken apart, or one that keeps the sums
of a row in registers and does something with them at the end of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Range, TensorLoad, Var
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import For, IterVar

from ..ir.accumulation import is_accumulation
from ..ir.contents import loads_in, variables_of
from ..ir.renaming import replace_variables
from ._blocks import changed_block
from ._store_nests import find_nest

__all__ = ["RowNest", "loops_around", "read_row_nest"]


@dataclass(frozen=True)
class RowNest:
    """Loops over rows around a block, and in it the sums over the entries of a row, for each feature.

    Attributes
    ----------
    loops : tuple of For
        Over rows.
    realize : SBlockRealize
        The block of a row.
    entry_loops : tuple of For
        Over entries, and features inside of them.
    sums : SBlockRealize
        The block inside: it has an init, and adds one product to the result.
    store, init : BufferStore
        Its statements, without their conditions.
    """

    loops: tuple[For, ...]
    realize: SBlockRealize
    entry_loops: tuple[For, ...]
    sums: SBlockRealize
    store: tirx.BufferStore
    init: tirx.BufferStore

    @property
    def block(self) -> SBlock:
        """The block of a row."""
        return self.realize.block

    @property
    def result(self) -> Var:
        """What the sums are stored to."""
        return self.store.buffer

    @property
    def feature(self) -> IterVar:
        """The innermost iterator."""
        return self.sums.block.iter_vars[-1]

    @property
    def place(self) -> Expr:
        """Where in the result, given a row and a feature."""
        return self.store.indices[0]

    def finished(
        self, suffix: str, init: Expr, finish: Callable[[Expr, Expr], tirx.Stmt], result: Var
    ) -> For:
        """Return the nest with sums in registers, which are finished at the end of a row.

        Parameters
        ----------
        suffix : str
            What the name of the block that finishes has in place of the number of the row's block.
        init : Expr
            What sums begin with.
        finish : function of (place, sum)
            The statement that finishes a sum.
        result : Var
            The buffer that it stores to.
        """
        dtype = str(self.result.ty.dtype)
        size = self.feature.dom.extent.astype("int64")
        row = tirx.decl_buffer((size,), dtype, f"{self.result.name}_row", scope="local")
        here = self.feature.var.astype("int64")
        sums = self._in_row(row, here, init)
        last = self._finish(suffix, row, finish, result)
        inside = [loops_around(self.entry_loops, sums), last]
        block = changed_block(
            self.block,
            body=tirx.SeqStmt(inside),
            alloc_buffers=[*self.block.alloc_buffers, row],
            match_buffers=[],
            reads=[r for r in self.block.reads if not r.source.same_as(self.result)],
            writes=[tirx.BufferRegion(result, region.region) for region in self.block.writes],
        )
        made = SBlockRealize(self.realize.iter_values, self.realize.predicate, block)
        return loops_around(self.loops, made)

    def _in_row(self, row: Var, here: Expr, init: Expr) -> SBlockRealize:
        """The block that adds a product, to the sums of a row."""

        def load(node: TensorLoad, mutator) -> Expr:
            is_sum = node.source.same_as(self.result)
            return tirx.BufferLoad(row, [here]) if is_sum else mutator.default_mutate(node)

        def store(node: tirx.BufferStore, mutator) -> tirx.Stmt:
            return tirx.BufferStore(row, mutator.mutate(node.value), [here])

        block = self.sums.block
        body = tvm_ffi.structural_mutate(
            block.body, [(TensorLoad, load), (tirx.BufferStore, store)]
        )
        begun = tirx.BufferStore(row, init, [here])
        region = tirx.BufferRegion(row, [_point(here)])
        changed = changed_block(block, body=body, init=begun, writes=[region])
        return SBlockRealize(self.sums.iter_values, self.sums.predicate, changed)

    def _finish(
        self, suffix: str, row: Var, finish: Callable[[Expr, Expr], tirx.Stmt], result: Var
    ) -> For:
        """The loop over features that finishes a row."""
        old = self.feature
        loop_var = Var(old.var.name.removeprefix("v"), str(old.var.ty.dtype))
        var = Var(old.var.name, str(old.var.ty.dtype))
        place = replace_variables(self.place, {old.var: var})
        here = var.astype("int64")
        reads = [tirx.BufferRegion(row, [_point(here)])]
        reads += [
            tirx.BufferRegion(load.source, [_point(index) for index in load.indices])
            for load in loads_in(place)
        ]
        block = SBlock(
            [IterVar(old.dom, var, IterVar.DataPar)],
            reads,
            [tirx.BufferRegion(result, [_point(place)])],
            f"{self.block.name_hint.rpartition('_')[0]}_{suffix}",
            finish(place, tirx.BufferLoad(row, [here])),
        )
        zero = tirx.const(0, str(var.ty.dtype))
        realize = SBlockRealize([loop_var], True, block)
        return For(loop_var, zero, old.dom.extent, tirx.ForKind.SERIAL, realize)


def read_row_nest(stmt: tirx.Stmt) -> RowNest | None:
    """Take a statement apart, or return None where it is no such nest."""
    loops, realize = _nest(stmt)
    if realize is None or realize.block.init is not None:
        return None
    entry_loops, sums = _nest(realize.block.body)
    if sums is None or sums.block.init is None or not entry_loops:
        return None
    outer, inner = realize.block.iter_vars, sums.block.iter_vars
    kinds = [iv.iter_type == IterVar.CommReduce for iv in inner]
    if any(iv.iter_type != IterVar.DataPar for iv in outer) or kinds[-1] or not all(kinds[:-1]):
        return None
    body, init = find_nest(sums.block.body), find_nest(sums.block.init)
    if body is None or init is None or body.loops or init.loops or init.conditions:
        return None
    store = body.store
    if len(store.indices) != 1 or not is_accumulation(store):
        return None
    if not tvm_ffi.structural_equal(store.indices[0], init.store.indices[0]):
        return None
    if variables_of(store.indices[0]) & {iv.var for iv in inner[:-1]}:
        return None
    return RowNest(loops, realize, entry_loops, sums, store, init.store)


def loops_around(loops: Sequence[For], body: tirx.Stmt) -> tirx.Stmt:
    """Put loops around a statement."""
    for loop in reversed(loops):
        body = For(loop.loop_var, loop.min, loop.extent, loop.kind, body, None, loop.annotations)
    return body


def _nest(stmt: tirx.Stmt) -> tuple[tuple[For, ...], SBlockRealize | None]:
    loops: list[For] = []
    while isinstance(stmt, For):
        loops.append(stmt)
        stmt = stmt.body
    return tuple(loops), stmt if isinstance(stmt, SBlockRealize) else None


def _point(place: Expr) -> Range:
    return Range.from_min_extent(place, tirx.const(1, str(place.ty.dtype)))

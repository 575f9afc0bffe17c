"""Finish a row where it is computed: iterations that only read the row move into its block.

Half-precision results are summed in a float32 temporary and rounded by an iteration of their own, means
are divided by one. On a CPU the temporary is a cache away; on a GPU it would be written to and read from
memory by two kernels. Runs on stage III, before scheduling.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Range, TensorLoad, TensorRegion, Var
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm.tirx import For

from ..ir.contents import (
    buffers_loaded,
    buffers_stored,
    buffers_used,
    loads_from,
    loads_in,
    stores_in,
    stores_to,
    variables_of,
)
from ..ir.renaming import replace_variables
from ..ir.statements import in_sequence
from ._blocks import changed_block

__all__ = ["FuseFollowers"]


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.FuseFollowers")
class FuseFollowers:
    """Move elementwise iterations over a temporary into the rows that compute it.

    Before::

        for i in range(m):
            with T.sblock("spmm_0"):
                ... total[vi * f + vk] = total[vi * f + vk] + ...
        for i, k in T.grid(m, f):
            with T.sblock("spmm_cast_0"):
                C[vi * f + vk] = T.Cast("float16", total[vi * f + vk])

    and after::

        for i in range(m):
            with T.sblock("spmm_0"):
                total_row = T.sblock_alloc_buffer((f,), scope="local")
                ... total_row[vk] = total_row[vk] + ...
                for k in range(f):
                    with T.sblock("spmm_cast_0"):
                        C[vi * f + vk] = T.Cast("float16", total_row[vk])

    Temporaries that anything else reads or writes stay as they are.
    """

    def transform_module(self, module: tvm.ir.IRModule, _context) -> tvm.ir.IRModule:
        """Rewrite the functions of ``module``."""
        rewritten = tvm.ir.IRModule(attrs=module.attrs)
        for var, func in module.functions.items():
            rewritten[var] = _fuse(func) if isinstance(func, tirx.PrimFunc) else func
        return rewritten


@dataclass(frozen=True)
class _Nest:
    """Loops around one block, the outermost of them over rows."""

    loops: tuple[For, ...]
    realize: SBlockRealize

    @property
    def block(self) -> SBlock:
        return self.realize.block

    @property
    def row(self) -> Var:
        """The row, as the block calls it."""
        return self.block.iter_vars[0].var


def _fuse(func: tirx.PrimFunc) -> tirx.PrimFunc:
    root = func.body
    if not isinstance(root, SBlockRealize) or not isinstance(root.block.body, tirx.SeqStmt):
        return func
    statements, temporaries = list(root.block.body.seq), list(root.block.alloc_buffers)
    place = 0
    while place + 1 < len(statements):
        fused = _fuse_pair(statements, place, temporaries)
        if fused is None:
            place += 1
            continue
        statement, temporary = fused
        statements[place : place + 2] = [statement]
        temporaries.remove(temporary)
    if len(statements) == len(root.block.body.seq):
        return func
    block = changed_block(root.block, body=in_sequence(statements), alloc_buffers=temporaries)
    return func.with_body(SBlockRealize(root.iter_values, root.predicate, block))


def _fuse_pair(
    statements: Sequence[tirx.Stmt], place: int, temporaries: Sequence[Var]
) -> tuple[tirx.Stmt, Var] | None:
    """Fuse a row nest with the nest after it; None where that is no follower of it."""
    rows, follower = _nest(statements[place]), _nest(statements[place + 1])
    if rows is None or follower is None or len(rows.loops) != 1:
        return None
    if not tvm_ffi.structural_equal(rows.loops[0].extent, follower.loops[0].extent):
        return None
    others = [s for k, s in enumerate(statements) if k not in (place, place + 1)]
    for temporary in temporaries:
        if temporary not in buffers_stored(rows.block) & buffers_loaded(follower.block):
            continue
        if temporary in buffers_stored(follower.block) or _is_index(statements, temporary):
            continue
        if temporary in buffers_used(*others):
            continue
        fused = _join(rows, follower, temporary)
        if fused is not None:
            return fused, temporary
    return None


def _join(rows: _Nest, follower: _Nest, temporary: Var) -> tirx.Stmt | None:
    """Put the inner loops of a follower behind the statements of a row block."""
    if not all(isinstance(value, Var) for value in follower.realize.iter_values):
        return None
    inner = follower.block.iter_vars[1:]
    finish = replace_variables(follower.block, {follower.row: rows.row})
    start = _row_start(finish, temporary, inner)
    if start is None:
        return None
    size = functools.reduce(
        operator.mul, [loop.extent for loop in follower.loops[1:]], tirx.const(1, "int64")
    )
    local = tirx.decl_buffer(
        (size,), str(temporary.ty.dtype), f"{temporary.name}_row", scope="local"
    )
    finish = _in_row(finish, temporary, local, start)
    compute = _in_row(rows.block.body, temporary, local, start)
    if rows.row in _places(finish, local) | _places(compute, local):
        return None
    last = SBlockRealize(
        list(follower.realize.iter_values[1:]),
        follower.realize.predicate,
        changed_block(finish, iter_vars=inner),
    )
    for loop in reversed(follower.loops[1:]):
        last = _around(loop, last)
    parts = [*compute.seq] if isinstance(compute, tirx.SeqStmt) else [compute]
    row = changed_block(
        rows.block,
        body=tirx.SeqStmt([*parts, last]),
        alloc_buffers=[*rows.block.alloc_buffers, local],
        reads=_distinct([*rows.block.reads, *_over(finish.reads, inner, local)]),
        writes=[
            *(region for region in rows.block.writes if not region.source.same_as(temporary)),
            *_over(finish.writes, inner, local),
        ],
    )
    (loop,) = rows.loops
    return _around(loop, SBlockRealize(rows.realize.iter_values, rows.realize.predicate, row))


def _nest(stmt: tirx.Stmt) -> _Nest | None:
    loops: list[For] = []
    while isinstance(stmt, For):
        loops.append(stmt)
        stmt = stmt.body
    return _Nest(tuple(loops), stmt) if loops and isinstance(stmt, SBlockRealize) else None


def _around(loop: For, body: tirx.Stmt) -> For:
    return For(loop.loop_var, loop.min, loop.extent, loop.kind, body, None, loop.annotations)


def _over(
    regions: Sequence[TensorRegion], inner: Sequence[tirx.IterVar], local: Var
) -> list[TensorRegion]:
    """Widen regions to all values of inner iterators, without those of the row's own memory."""
    first = {iv.var: iv.dom.min for iv in inner}
    last = {iv.var: iv.dom.min + iv.dom.extent - 1 for iv in inner}
    analyzer = Analyzer()

    def widen(part: Range) -> Range:
        begin = analyzer.simplify(replace_variables(part.min, first))
        end = replace_variables(part.min, last) + part.extent
        return Range.from_min_extent(begin, analyzer.simplify(end - begin))

    return [
        tirx.BufferRegion(region.source, [widen(part) for part in region.region])
        for region in regions
        if not region.source.same_as(local)
    ]


def _distinct(regions: Sequence[TensorRegion]) -> list[TensorRegion]:
    found: list[TensorRegion] = []
    for region in regions:
        if not any(tvm_ffi.structural_equal(region, other) for other in found):
            found.append(region)
    return found


def _row_start(block: SBlock, temporary: Var, inner: Sequence[tirx.IterVar]) -> Expr | None:
    """Where a row begins in the temporary: the place read there, at the first of the inner iterators."""
    loads = loads_from(block.body, temporary)
    places = [load.indices[0] for load in loads if len(load.indices) == 1]
    if not places:
        return None
    first = {iv.var: iv.dom.min for iv in inner}
    return Analyzer().simplify(replace_variables(places[0], first))


def _in_row(node: Any, temporary: Var, local: Var, start: Expr) -> Any:
    """Address a temporary by places in its row."""
    analyzer = Analyzer()

    def load(node: TensorLoad, mutator) -> Expr:
        if not node.source.same_as(temporary):
            return mutator.default_mutate(node)
        return tirx.BufferLoad(local, [analyzer.simplify(node.indices[0] - start)])

    def store(node: tirx.BufferStore, mutator) -> tirx.Stmt:
        if not node.buffer.same_as(temporary):
            return mutator.default_mutate(node)
        place = analyzer.simplify(node.indices[0] - start)
        return tirx.BufferStore(local, mutator.mutate(node.value), [place])

    def region(node: TensorRegion, mutator) -> TensorRegion:
        if not node.source.same_as(temporary):
            return node
        (extent,) = node.region
        begin = analyzer.simplify(extent.min - start)
        return tirx.BufferRegion(local, [Range.from_min_extent(begin, extent.extent)])

    return tvm_ffi.structural_mutate(
        node, [(TensorLoad, load), (tirx.BufferStore, store), (TensorRegion, region)]
    )


def _places(body: tirx.Stmt | SBlock, buffer: Var) -> set[Var]:
    """Variables that tell where a buffer is read or written."""
    accesses = [*loads_from(body, buffer), *stores_to(body, buffer)]
    return {var for access in accesses for index in access.indices for var in variables_of(index)}


def _is_index(statements: Sequence[tirx.Stmt], buffer: Var) -> bool:
    """Whether the values of a buffer tell where others are read or written."""
    return any(
        buffer in variables_of(index)
        for statement in statements
        for access in (*loads_in(statement), *stores_in(statement))
        for index in access.indices
    )

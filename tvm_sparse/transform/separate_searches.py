"""Give the coordinates that fused loops search a block of their own, so that schedules place them.

A fused loop goes over entries, and searches the row of each. Where several threads work on one entry,
each would search; with the rows in an array, a schedule finds those of a thread block together and keeps
them in shared memory. Runs on stage III, before scheduling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad, TensorRegion, Var
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import For

from ..ir.contents import buffers_loaded, buffers_stored
from ..ir.statements import in_sequence
from ._blocks import changed_block

__all__ = ["SEARCH_SUFFIX", "SeparateSearches"]

#: What the name of a block of searches adds to that of its iteration.
SEARCH_SUFFIX = "_search"


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.SeparateSearches")
class SeparateSearches:
    """Move what outermost blocks compute before their loops into nests of their own.

    Before::

        for p in range(nnz):
            with T.sblock("sddmm_0"):
                low = T.sblock_alloc_buffer((1,), "int32", scope="local")
                ... search low[0], the row of entry vp ...
                for k in range(f):
                    ... X[low[0] * f + vk] ...

    and after::

        for p in range(nnz):
            with T.sblock("sddmm_0_search"):
                low = T.sblock_alloc_buffer((1,), "int32", scope="local")
                ... search low[0], the row of entry vp ...
                rows[vp] = low[0]
        for p in range(nnz):
            with T.sblock("sddmm_0"):
                for k in range(f):
                    ... X[rows[vp] * f + vk] ...

    A search whose result is not used goes.
    """

    def transform_module(self, module: tvm.ir.IRModule, _context) -> tvm.ir.IRModule:
        """Rewrite the functions of ``module``."""
        rewritten = tvm.ir.IRModule(attrs=module.attrs)
        for var, func in module.functions.items():
            rewritten[var] = _separate(func) if isinstance(func, tirx.PrimFunc) else func
        return rewritten


@dataclass(frozen=True)
class _Searches:
    """A block cut in two: what it computes for itself first, and the rest."""

    loop: For
    realize: SBlockRealize
    before: Sequence[tirx.Stmt]
    rest: Sequence[tirx.Stmt]

    @property
    def block(self) -> SBlock:
        return self.realize.block


def _separate(func: tirx.PrimFunc) -> tirx.PrimFunc:
    root = func.body
    if not isinstance(root, SBlockRealize):
        return func
    body = root.block.body
    statements: list[tirx.Stmt] = []
    temporaries = list(root.block.alloc_buffers)
    found = False
    for statement in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        searches = _searches(statement)
        found = found or searches is not None
        statements += [statement] if searches is None else _apart(searches, temporaries)
    if not found:
        return func
    block = changed_block(root.block, body=in_sequence(statements), alloc_buffers=temporaries)
    return func.with_body(SBlockRealize(root.iter_values, root.predicate, block))


def _searches(stmt: tirx.Stmt) -> _Searches | None:
    """Cut the block of a loop after the statements that only write the block's own memory."""
    if not isinstance(stmt, For) or not isinstance(stmt.body, SBlockRealize):
        return None
    block = stmt.body.block
    if not isinstance(block.body, tirx.SeqStmt) or block.init is not None:
        return None
    own = set(block.alloc_buffers)
    statements = list(block.body.seq)
    count = next((k for k, each in enumerate(statements) if not buffers_stored(each) <= own), 0)
    if count == 0:
        return None
    return _Searches(stmt, stmt.body, statements[:count], statements[count:])


def _apart(searches: _Searches, temporaries: list[Var]) -> list[tirx.Stmt]:
    """The nest of the searches whose results are used, if there are any, and that of the rest."""
    block, loop = searches.block, searches.loop
    used = [buffer for buffer in block.alloc_buffers if buffer in buffers_loaded(*searches.rest)]
    place = block.iter_vars[0].var
    results = {
        buffer: tirx.decl_buffer(
            (loop.extent,), str(buffer.ty.dtype), f"{buffer.name}_{block.name_hint}"
        )
        for buffer in used
    }
    temporaries += results.values()
    stores = [
        tirx.BufferStore(result, tirx.BufferLoad(buffer, [tirx.const(0, "int32")]), [place])
        for buffer, result in results.items()
    ]
    search = changed_block(
        block,
        name_hint=block.name_hint + SEARCH_SUFFIX,
        body=tirx.SeqStmt([*searches.before, *stores]),
        reads=[r for r in block.reads if r.source in buffers_loaded(*searches.before)],
        writes=[tirx.BufferRegion(result, [_point(place)]) for result in results.values()],
    )
    rest = _from_results(searches.rest, results, place)
    needed = buffers_loaded(*rest)
    reads = [region for region in block.reads if region.source in needed]
    reads += [tirx.BufferRegion(result, [_point(place)]) for result in results.values()]
    compute = changed_block(
        block,
        body=in_sequence(rest),
        alloc_buffers=[b for b in block.alloc_buffers if b in needed],
        reads=[_from_results(region, results, place) for region in reads],
    )
    nests = [search, compute] if used else [compute]
    return [_around(searches, each) for each in nests]


def _from_results(node, results: dict[Var, Var], place: Var):
    """Read results of searches from the arrays that hold them."""

    def load(found: TensorLoad, mutator) -> Expr:
        if found.source not in results:
            return mutator.default_mutate(found)
        return tirx.BufferLoad(results[found.source], [place])

    def region(found: TensorRegion, mutator) -> TensorRegion:
        if found.source not in results:
            return mutator.default_mutate(found)
        return tirx.BufferRegion(results[found.source], [_point(place)])

    if isinstance(node, list | tuple):
        return [_from_results(each, results, place) for each in node]
    return tvm_ffi.structural_mutate(node, [(TensorLoad, load), (TensorRegion, region)])


def _around(searches: _Searches, block: SBlock) -> For:
    loop = searches.loop
    variable = Var(loop.loop_var.name, str(loop.loop_var.ty.dtype))
    iterators = [
        tirx.IterVar(iv.dom, Var(iv.var.name, str(iv.var.ty.dtype)), iv.iter_type)
        for iv in block.iter_vars
    ]
    values = {old.var: new.var for old, new in zip(block.iter_vars, iterators)}
    renamed = tvm_ffi.structural_map(
        changed_block(block, iter_vars=iterators), (Var, lambda var: values.get(var, var))
    )
    return For(
        variable,
        loop.min,
        loop.extent,
        loop.kind,
        SBlockRealize([variable], searches.realize.predicate, renamed),
        None,
        loop.annotations,
    )


def _point(place: Var) -> tvm.ir.Range:
    return tvm.ir.Range.from_min_extent(place, tirx.const(1, str(place.ty.dtype)))

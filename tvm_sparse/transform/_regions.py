"""Read and write regions of the blocks that lowering makes.

TVM derives them from the accesses. Two kinds of regions become the whole buffer: one that depends on
what only exists inside the block (the result of a search, a local variable), and one whose extent is
loaded while its start is not, which TVM's bounds can't hold. What a block itself has stored before it
loads it, as plain loops that reduce do, is not read.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import Range, Var
from tvm.s_tir.stmt import SBlock, SBlockRealize

from ..ir.contents import buffers_loaded, has_loads, loads_global, loads_in, variables_of
from .accumulations import match_all

__all__ = ["complete_regions"]

_complete = tvm_ffi.get_global_func("script.Complete")


def complete_regions(
    func: tirx.PrimFunc, temporaries: list[Var], aliases: dict[Var, Var] | None = None
) -> tirx.PrimFunc:
    """Add the root block, allocate ``temporaries`` in it and derive the regions of every block.

    ``aliases`` are other names of whole buffers. The root block matches those of parameters, the
    blocks under it those of temporaries.
    """
    func = _complete(func, temporaries, True)
    func = func.with_body(_Relaxer(func, aliases or {}).visit(func.body))
    if not aliases:
        return func
    root = func.body.block
    params = {name: result for name, result in aliases.items() if result in set(func.params)}
    own = {name: result for name, result in aliases.items() if name not in params}

    def match(block: SBlock, _mutator) -> SBlock:
        """Match what a block uses of the temporaries that the root block allocates."""
        used = buffers_loaded(block)
        return _with_matches(block, {n: r for n, r in own.items() if n in used}, block.body)

    body = tvm_ffi.structural_mutate(root.body, [(SBlock, match)]) if own else root.body
    block = _with_matches(root, params, body)
    return func.with_body(SBlockRealize(func.body.iter_values, func.body.predicate, block))


def _with_matches(block: SBlock, aliases: dict[Var, Var], body: tirx.Stmt) -> SBlock:
    return SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        block.init,
        block.alloc_buffers,
        [*block.match_buffers, *(match_all(name, result) for name, result in aliases.items())],
        block.annotations,
        block.span,
    )


class _Relaxer:
    def __init__(self, func: tirx.PrimFunc, aliases: dict[Var, Var]) -> None:
        self._visible: set[Var] = {p for p in func.params if tirx.is_buffer_var(p)} | {*aliases}
        self._params = set(func.params)
        self._bound: set[Var] = set()
        tvm_ffi.structural_walk(
            func.body, [(tirx.Bind, lambda statement: self._bound.add(statement.var))]
        )

    def visit(self, stmt: tirx.Stmt) -> tirx.Stmt:
        return tvm_ffi.structural_mutate(stmt, [(SBlock, self._block)])

    def _block(self, block: SBlock, _mutator) -> SBlock:
        own = _stored_before_loads(block)
        reads = [
            self._relax(region)
            for region in block.reads
            if region.source in self._visible and region.source not in own
        ]
        writes = [self._relax(region) for region in block.writes if region.source in self._visible]
        outer = set(self._visible)
        self._visible |= set(block.alloc_buffers)
        body = self.visit(block.body)
        init = self.visit(block.init) if block.init is not None else None
        self._visible = outer
        return SBlock(
            block.iter_vars,
            reads,
            writes,
            block.name_hint,
            body,
            init,
            block.alloc_buffers,
            block.match_buffers,
            block.annotations,
            block.span,
        )

    def _relax(self, region):
        ranges = []
        for part, size in zip(region.region, region.source.ty.shape):
            zero = tirx.const(0, str(size.ty.dtype))
            keeps = self._is_visible(part) and not self._is_half_bounded(part)
            ranges.append(part if keeps else Range.from_min_extent(zero, size))
        return tirx.BufferRegion(region.source, ranges)

    def _is_visible(self, part: Range) -> bool:
        used = variables_of(part.min) | variables_of(part.extent)
        return not used & self._bound and all(
            v in self._visible for v in used if tirx.is_buffer_var(v)
        )

    def _is_half_bounded(self, part: Range) -> bool:
        """Whether the start has bounds, as one that is loaded from place to place has not."""
        return loads_global(part.extent) and not any(
            variables_of(index) - self._params
            for load in loads_in(part.min)
            for index in load.indices
        )


def _stored_before_loads(block: SBlock) -> set[Var]:
    """Buffers of which a block loads only what it has stored before, at the same indices."""
    stored: set[Var] = set()
    read: set[Var] = set()

    def visit(stmt: tirx.Stmt, known: list[tirx.BufferStore]) -> list[tirx.BufferStore]:
        """Visit a statement where some stores have been made for certain; return those after it."""
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                known = visit(part, known)
        elif isinstance(stmt, tirx.BufferStore):
            look(stmt, known)
            stored.add(stmt.buffer)
            return [*known, stmt]
        elif isinstance(stmt, tirx.For | tirx.While | tirx.AttrStmt):
            visit(stmt.body, known)
            for part in ("min", "extent", "condition", "value"):
                look(getattr(stmt, part, None), known)
        else:
            look(stmt, known)
        return known

    def look(node: object, known: list[tirx.BufferStore]) -> None:
        for load in [] if node is None else loads_in(node):
            is_own = any(
                load.source.same_as(store.buffer)
                and not any(map(has_loads, store.indices))
                and all(map(tvm_ffi.structural_equal, load.indices, store.indices))
                for store in known
            )
            if not is_own:
                read.add(load.source)

    if block.init is None:
        visit(block.body, [])
    return stored - read

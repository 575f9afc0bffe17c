"""Read and write regions of the blocks that lowering makes.

TVM derives them from the accesses. A region may only use what is visible outside of its block, so
one that depends on the result of a search made inside the block becomes the whole buffer.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import Range, Var
from tvm.s_tir.stmt import SBlock

from ._access import variables_of

__all__ = ["complete_regions"]

_complete = tvm_ffi.get_global_func("script.Complete")


def complete_regions(func: tirx.PrimFunc, temporaries: list[Var]) -> tirx.PrimFunc:
    """Add the root block, allocate ``temporaries`` in it and derive the regions of every block."""
    func = _complete(func, temporaries, True)
    if not _has_local_buffers(func.body):
        return func
    return func.with_body(_Relaxer(func.params).visit(func.body))


def _has_local_buffers(body: tirx.Stmt) -> bool:
    local = []

    def look(block: SBlock) -> None:
        local.extend(b for b in block.alloc_buffers if b.ty.storage_scope == "local")

    tvm_ffi.structural_walk(body, [(SBlock, look)])
    return bool(local)


class _Relaxer:
    def __init__(self, params: list[Var]) -> None:
        self._visible: set[Var] = {p for p in params if tirx.is_buffer_var(p)}

    def visit(self, stmt: tirx.Stmt) -> tirx.Stmt:
        return tvm_ffi.structural_mutate(stmt, [(SBlock, self._block)])

    def _block(self, block: SBlock, _mutator) -> SBlock:
        reads = [self._relax(region) for region in block.reads]
        writes = [self._relax(region) for region in block.writes]
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
        for extent, size in zip(region.region, region.source.ty.shape):
            used = variables_of(extent.min) | variables_of(extent.extent)
            hidden = [v for v in used if tirx.is_buffer_var(v) and v not in self._visible]
            zero = tirx.const(0, str(size.ty.dtype))
            ranges.append(Range.from_min_extent(zero, size) if hidden else extent)
        return tirx.BufferRegion(region.source, ranges)

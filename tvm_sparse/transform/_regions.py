"""Read and write regions of the blocks that lowering makes.

TVM derives them from the accesses. Two kinds of regions become the whole buffer: one that depends on
what only exists inside the block (the result of a search, a local variable), and one whose extent is
loaded while its start is not, which TVM's bounds can't hold.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Range, TensorLoad, Var
from tvm.s_tir.stmt import SBlock

from ._access import reads_memory, variables_of

__all__ = ["complete_regions"]

_complete = tvm_ffi.get_global_func("script.Complete")


def complete_regions(func: tirx.PrimFunc, temporaries: list[Var]) -> tirx.PrimFunc:
    """Add the root block, allocate ``temporaries`` in it and derive the regions of every block."""
    func = _complete(func, temporaries, True)
    return func.with_body(_Relaxer(func).visit(func.body))


class _Relaxer:
    def __init__(self, func: tirx.PrimFunc) -> None:
        self._visible: set[Var] = {p for p in func.params if tirx.is_buffer_var(p)}
        self._params = set(func.params)
        self._bound: set[Var] = set()
        tvm_ffi.structural_walk(
            func.body, [(tirx.Bind, lambda statement: self._bound.add(statement.var))]
        )

    def visit(self, stmt: tirx.Stmt) -> tirx.Stmt:
        return tvm_ffi.structural_mutate(stmt, [(SBlock, self._block)])

    def _block(self, block: SBlock, _mutator) -> SBlock:
        reads = [self._relax(region) for region in block.reads if region.source in self._visible]
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
        return reads_memory(part.extent) and not any(
            variables_of(index) - self._params
            for load in _loads(part.min)
            for index in load.indices
        )


def _loads(expr: Expr) -> list[TensorLoad]:
    loads: list[TensorLoad] = []
    tvm_ffi.structural_walk(expr, [(TensorLoad, loads.append)])
    return loads

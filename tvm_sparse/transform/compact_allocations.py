"""Compact the arrays of threads and blocks, but leave memory that CUDA kernels share as large as it is.

TVM computes which part of an array is accessed. For arrays between kernels, of symbolic sizes, that is the
whole of it, written with divisions by numbers of thread blocks and features: the host divides by zero where
there are none.
"""

from __future__ import annotations

import tvm
from tvm import s_tir, tirx
from tvm.ir import IRModule, Var

from ._targets import is_for_cuda

__all__ = ["CompactAllocations"]


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.CompactAllocations")
class CompactAllocations:
    """TVM's ``CompactBufferAllocation``, but for memory between CUDA kernels.

    Before::

        sums = T.sblock_alloc_buffer((m * f,))
        for block in T.thread_binding(ceildiv(m, 8) * ceildiv(f, 64), "blockIdx.x"):
            row = T.sblock_alloc_buffer((m * f,), scope="local")
            ...

    and after::

        sums = T.sblock_alloc_buffer((m * f,))
        for block in T.thread_binding(ceildiv(m, 8) * ceildiv(f, 64), "blockIdx.x"):
            row = T.sblock_alloc_buffer((8,), scope="local")
            ...
    """

    def transform_module(self, module: IRModule, _context) -> IRModule:
        """Rewrite the functions of ``module``."""
        kept: dict[Var, list[Var]] = {}
        hidden = IRModule(attrs=module.attrs)
        for var, func in module.functions.items():
            hidden[var] = func
            root = _root(func)
            if root is None:
                continue
            whole = [each for each in root.alloc_buffers if each.ty.storage_scope == "global"]
            others = [each for each in root.alloc_buffers if each not in whole]
            kept[var] = whole
            hidden[var] = func.with_body(_realized(root, others))
        compacted = s_tir.transform.CompactBufferAllocation()(hidden)
        for var, whole in kept.items():
            root = _root(compacted[var])
            compacted[var] = compacted[var].with_body(
                _realized(root, [*whole, *root.alloc_buffers])
            )
        return compacted


def _root(func: object) -> s_tir.SBlock | None:
    """The outermost block of a function for CUDA."""
    is_cuda = isinstance(func, tirx.PrimFunc) and is_for_cuda(func)
    return func.body.block if is_cuda and isinstance(func.body, s_tir.SBlockRealize) else None


def _realized(root: s_tir.SBlock, buffers: list[Var]) -> s_tir.SBlockRealize:
    """The outermost block with other buffers."""
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        root.body,
        root.init,
        buffers,
        root.match_buffers,
        root.annotations,
        root.span,
    )
    return s_tir.SBlockRealize([], tirx.const(True, "bool"), block)

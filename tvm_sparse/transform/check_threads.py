"""Refuse loops that are bound to an axis of threads inside of one that is bound to the same axis.

Both would be the same number at a time, and TVM compiles that: of a grid of values, a diagonal is computed.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import For, ForKind

from ..errors import SparseProgramError
from ._targets import is_for_cuda

__all__ = ["CheckThreads"]


def CheckThreads() -> tvm.transform.Pass:
    """Build the pass that checks how loops of scheduled blocks are bound to threads of a GPU.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs of scheduled blocks.

    Raises
    ------
    SparseProgramError
        If nested loops are bound to one axis, or a loop for CUDA is parallel.

    Notes
    -----
    Fine, as one comes after the other::

        for i in T.thread_binding(m, "blockIdx.x"):
            for j in T.thread_binding(32, "threadIdx.x"):
                first(i, j)
            for j in T.thread_binding(32, "threadIdx.x"):
                second(i, j)

    and refused::

        for i in T.thread_binding(m // 8, "blockIdx.x"):
            for j in T.thread_binding(8, "blockIdx.x"):
                first(i * 8 + j)

    Examples
    --------
    >>> from tvm_sparse.transform import CheckThreads
    >>> CheckThreads().info.name
    'tvm_sparse.CheckThreads'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        _check(func.body, is_for_cuda(func))
        return func

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.CheckThreads")


def _check(body: tirx.Stmt, is_cuda: bool) -> None:
    bound: dict[str, For] = {}

    def loop(node: For, visitor) -> None:
        if is_cuda and node.kind == ForKind.PARALLEL:
            raise SparseProgramError(
                f"loop {node.loop_var.name} is parallel, which is for CPUs: expected a loop that is bound "
                f'to threads of the GPU; use schedule.bind(loop, "blockIdx.x") instead of '
                "schedule.parallel(loop)"
            )
        tag = str(node.thread_binding.thread_tag) if node.kind == ForKind.THREAD_BINDING else ""
        if not tag.startswith(("blockIdx", "threadIdx")):
            visitor.default_visit(node)
            return
        if tag in bound:
            raise SparseProgramError(
                f"loop {node.loop_var.name} is bound to {tag}, and so is loop "
                f"{bound[tag].loop_var.name} around it: expected an axis of its own for each of nested "
                "loops; bind one of them to another axis, or fuse them and bind the fused loop"
            )
        bound[tag] = node
        visitor.default_visit(node)
        del bound[tag]

    tvm_ffi.structural_visit(body, (For, loop))

"""Fuse independent CUDA kernels horizontally: one launch, each part with thread blocks of its own.

Runs on scheduled blocks, whose loops over thread blocks are marked as those of :func:`FuseRowLoops` are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlockRealize
from tvm.tirx import For, ForKind, IterVar

from ..errors import SparseProgramError
from ._access import variables_of
from ._blocks import changed_block
from .balance import TOGETHER

__all__ = ["LEAST_BLOCKS", "FuseKernels"]

_BLOCKS = "blockIdx.x"
#: Attribute of a kernel: how many of its thread blocks must fit a multiprocessor.
LEAST_BLOCKS = "tirx.launch_bounds_min_blocks_per_sm"
#: Threads of a multiprocessor that get registers at least, some 80 each.
_LEAST_THREADS = 768


def FuseKernels() -> tvm.transform.Pass:
    """Build the pass that makes one kernel of neighbouring ones of a group.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs of scheduled blocks.

    Raises
    ------
    SparseProgramError
        If parts have other block axes than ``blockIdx.x``, or thread extents that are no constants.

    Notes
    -----
    Before::

        for r in T.thread_binding(m, "blockIdx.x", annotations={"tvm_sparse.together": "c0"}):
            for k in T.thread_binding(32, "threadIdx.x"):
                first(r, k)
        for r in T.thread_binding(n, "blockIdx.x", annotations={"tvm_sparse.together": "c0"}):
            for k in T.thread_binding(64, "threadIdx.x"):
                second(r, k)

    and after::

        for b in T.thread_binding(m + n, "blockIdx.x"):
            if b < m:
                for k in T.thread_binding(64, "threadIdx.x"):
                    if k < 32:
                        first(b, k)
            else:
                for k in T.thread_binding(64, "threadIdx.x"):
                    second(b - m, k)

    Kernels that stand in blocks, as those in one loop over ranges of columns do, come out of these. Every
    part gets the threads of the largest; those it has no use for idle. Extents may be symbolic.
    Buffers in shared memory stay those of their part, in the same launch.

    Examples
    --------
    >>> from tvm_sparse.transform import FuseKernels
    >>> FuseKernels().info.name
    'tvm_sparse.FuseKernels'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        fused = []

        def sequence(node: tirx.SeqStmt) -> tirx.Stmt:
            parts: list[tirx.Stmt] = []
            for name, group in groupby(map(_blocks_outside, node.seq), _group_of):
                members = list(group)
                if name is not None and len(members) > 1:
                    fused.append(name)
                    members = [_fuse(members)]
                parts += members
            return parts[0] if len(parts) == 1 else tirx.SeqStmt(parts)

        body = tvm_ffi.structural_map(func.body, (tirx.SeqStmt, sequence))
        return func.with_body(body) if fused else func

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.FuseKernels")


def _blocks_outside(stmt: tirx.Stmt) -> tirx.Stmt:
    """Put the thread blocks of a kernel outside of a block around it, in the loop over ranges, say."""
    if not isinstance(stmt, SBlockRealize) or _group_of(stmt.block.body) is None:
        return stmt
    block, loop = stmt.block, stmt.block.body
    if {iv.var for iv in block.iter_vars} & variables_of(loop.extent):
        return stmt
    inner = SBlockRealize(stmt.iter_values, stmt.predicate, changed_block(block, body=loop.body))
    return _bound_loop(loop.loop_var, loop.extent, inner, _BLOCKS, loop.annotations)


def _group_of(stmt: tirx.Stmt) -> str | None:
    if not isinstance(stmt, For) or _tag(stmt) != _BLOCKS:
        return None
    name = stmt.annotations.get(TOGETHER)
    return None if name is None else str(name)


def _tag(loop: For) -> str | None:
    if loop.kind != ForKind.THREAD_BINDING:
        return None
    return str(loop.thread_binding.thread_tag)


def _fuse(loops: Sequence[For]) -> tirx.Stmt:
    extents = {tag: max(sizes) for tag, sizes in _thread_extents(loops).items()}
    dtype = "int64" if any(str(lp.extent.ty.dtype) == "int64" for lp in loops) else "int32"
    ends = [tirx.const(0, dtype)]
    for loop in loops:
        ends.append(ends[-1] + loop.extent.astype(dtype))
    block = tirx.Var("fused_block", dtype)
    body: tirx.Stmt | None = None
    for loop, (begin, end) in reversed(list(zip(loops, pairwise(ends)))):
        index = (block - begin).astype(str(loop.loop_var.ty.dtype))
        part = _substitute(_with_threads(loop.body, extents), loop.loop_var, index)
        body = part if body is None else tirx.IfThenElse(block < end, part, body)
    # The assembler would spill registers of the largest part to fit as many blocks as of the smallest.
    least = max(1, _LEAST_THREADS // math.prod(extents.values()))
    body = tirx.AttrStmt(tirx.const(0, "int32"), LEAST_BLOCKS, tirx.const(least, "int32"), body)
    return _bound_loop(block, ends[-1], body, _BLOCKS)


def _thread_extents(loops: Sequence[For]) -> dict[str, list[int]]:
    """Extents of the thread axes of every part, by tag."""
    found: dict[str, list[int]] = {}

    def visit(loop: For) -> None:
        tag = _tag(loop)
        if tag is None:
            return
        if not tag.startswith("threadIdx"):
            raise SparseProgramError(
                f"loop {loop.loop_var.name} is bound to {tag}: expected kernels that are fused to have "
                f"one block axis, {_BLOCKS}"
            )
        if not isinstance(loop.extent, tirx.IntImm):
            raise SparseProgramError(
                f"loop {loop.loop_var.name}: expected a constant extent of {tag} in kernels that are "
                f"fused, found {loop.extent}"
            )
        found.setdefault(tag, []).append(int(loop.extent))

    for loop in loops:
        tvm_ffi.structural_walk(loop.body, (For, visit))
    return found


def _with_threads(body: tirx.Stmt, extents: dict[str, int]) -> tirx.Stmt:
    """Give a part the thread axes of all; threads that it did not have do nothing."""
    own: set[str] = set()

    def widen(loop: For) -> tirx.Stmt:
        tag = _tag(loop)
        if tag is None:
            return loop
        own.add(tag)
        if int(loop.extent) == extents[tag]:
            return loop
        guarded = tirx.IfThenElse(loop.loop_var < loop.extent, loop.body, None)
        size = tirx.const(extents[tag], str(loop.extent.ty.dtype))
        return _bound_loop(loop.loop_var, size, guarded, tag, loop.annotations)

    body = tvm_ffi.structural_map(body, (For, widen))
    for tag in extents.keys() - own:
        var = tirx.Var(tag.replace(".", "_"), "int32")
        only = tirx.IfThenElse(tirx.EQ(var, tirx.const(0, "int32")), body, None)
        body = _bound_loop(var, tirx.const(extents[tag], "int32"), only, tag)
    return body


def _bound_loop(var: tirx.Var, extent, body: tirx.Stmt, tag: str, annotations=None) -> For:
    zero = tirx.const(0, str(var.ty.dtype))
    size = extent.astype(str(var.ty.dtype))
    axis = IterVar(Range.from_min_extent(zero, size), f"{tag}", IterVar.ThreadIndex, tag)
    return For(var, zero, size, ForKind.THREAD_BINDING, body, axis, annotations or {})


def _substitute(body: tirx.Stmt, var: tirx.Var, value) -> tirx.Stmt:
    return tvm_ffi.structural_map(
        body, (tirx.Var, lambda found: value if found.same_as(var) else found)
    )

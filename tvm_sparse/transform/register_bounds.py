"""How many registers the assembler may give a thread of a kernel that computes places in 64 bits.

Left alone it aims at as many threads on a multiprocessor as fit, and keeps a few of the registers that
places of 64 bits take in memory for it.
"""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import tirx

from ..ir.contents import loads_in
from ._tile_loops import dtype_of
from .kernel_fusion import LEAST_BLOCKS

__all__ = ["BoundRegisters"]

#: Threads of a multiprocessor that get registers at least: 64 each, or 85 where they search too.
_LEAST_THREADS, _LEAST_SEARCHING_THREADS = 1024, 768


def BoundRegisters() -> tvm.transform.Pass:
    """Build the pass that says how many thread blocks of a kernel must fit a multiprocessor.

    Runs before ``SplitHostDevice``. Kernels that load no indices of 64 bits are left alone, and those
    that say so already.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs whose loops over threads are attributes.

    Notes
    -----
    Before::

        with T.launch_thread("threadIdx.x", 256):
            C[threadIdx.x] = B[indices[threadIdx.x]]

    and after, where ``indices`` holds integers of 64 bits::

        with T.launch_thread("threadIdx.x", 256):
            T.attr(0, "tirx.launch_bounds_min_blocks_per_sm", 4)
            C[threadIdx.x] = B[indices[threadIdx.x]]

    Examples
    --------
    >>> from tvm_sparse.transform import BoundRegisters
    >>> BoundRegisters().info.name
    'tvm_sparse.BoundRegisters'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        bound = []

        def attribute(node: tirx.AttrStmt, mutator) -> tirx.Stmt:
            if node.attr_key != "thread_extent":
                return mutator.default_mutate(node)
            if not _needs_bound(node):
                return node
            bound.append(node)
            threads = _LEAST_SEARCHING_THREADS if _searches(node) else _LEAST_THREADS
            return _with_bound(node, max(1, threads // _threads(node)))

        body = tvm_ffi.structural_mutate(func.body, [(tirx.AttrStmt, attribute)])
        return func.with_body(body) if bound else func

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.BoundRegisters")


def _needs_bound(kernel: tirx.AttrStmt) -> bool:
    """Whether a kernel loads integers of 64 bits, and has no bound yet."""
    bounds: list[tirx.AttrStmt] = []

    def attribute(node: tirx.AttrStmt) -> None:
        if node.attr_key == LEAST_BLOCKS:
            bounds.append(node)

    tvm_ffi.structural_walk(kernel, (tirx.AttrStmt, attribute))
    wide = any(
        dtype_of(load) == "int64" and load.source.ty.storage_scope == "global"
        for load in loads_in(kernel)
    )
    return wide and not bounds


def _searches(kernel: tirx.AttrStmt) -> bool:
    """Whether threads look for the row of an entry."""
    found: list[tirx.While] = []
    tvm_ffi.structural_walk(kernel, (tirx.While, found.append))
    return bool(found)


def _threads(kernel: tirx.AttrStmt) -> int:
    """Threads of a block of the kernel."""
    extents: dict[str, int] = {}

    def attribute(node: tirx.AttrStmt) -> None:
        if node.attr_key == "thread_extent" and isinstance(node.value, tirx.IntImm):
            tag = str(node.node.thread_tag)
            if tag.startswith("threadIdx"):
                extents[tag] = int(node.value)

    tvm_ffi.structural_walk(kernel, (tirx.AttrStmt, attribute))
    return math.prod(extents.values())


def _with_bound(kernel: tirx.AttrStmt, blocks: int) -> tirx.AttrStmt:
    """Put the bound inside of the outermost axis of threads."""
    zero, least = tirx.const(0, "int32"), tirx.const(blocks, "int32")
    body = tirx.AttrStmt(zero, LEAST_BLOCKS, least, kernel.body)
    return tirx.AttrStmt(kernel.node, kernel.attr_key, kernel.value, body)

"""Refuse memory in kernels that threads can't share or that CUDA has none of.

Each thread has its own "local" buffers. One that is allocated outside of loops over threads, and whose
places those loops are about, was meant to be shared: what a thread reads, another one wrote.
"""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var
from tvm.s_tir.stmt import SBlock
from tvm.tirx import For, ForKind

from ..errors import SparseProgramError
from ..ir.contents import variables_of
from ._targets import is_for_cuda

__all__ = ["CheckLocalSizes", "CheckLocals"]

#: Bytes of local memory that CUDA has for a thread.
_MOST_BYTES = 512 * 1024
_GLOBAL = ("", "global")
_SHARED = ("shared", "shared.dyn")


def CheckLocals() -> tvm.transform.Pass:
    """Build the pass that checks where buffers of kernels are allocated.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs for CUDA, of opaque blocks that allocate buffers where they are used.

    Raises
    ------
    SparseProgramError
        If threads would share a local buffer, or a kernel would allocate global memory.

    Notes
    -----
    Fine::

        for i in T.thread_binding(64, "threadIdx.x"):
            x = T.sblock_alloc_buffer((64,), scope="local")
            x[i] = ...
            C[i] = x[i]

    and refused::

        x = T.sblock_alloc_buffer((64,), scope="local")
        for i in T.thread_binding(64, "threadIdx.x"):
            x[i] = ...
        for j, k in T.grid(T.thread_binding(16, "threadIdx.x"), 4):
            C[j * 4 + k] = x[j * 4 + k]

    Examples
    --------
    >>> from tvm_sparse.transform import CheckLocals
    >>> CheckLocals().info.name
    'tvm_sparse.CheckLocals'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        if is_for_cuda(func):
            _check_places(func.body)
        return func

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.CheckLocals")


def CheckLocalSizes() -> tvm.transform.Pass:
    """Build the pass that checks that the local buffers of threads fit the memory that CUDA has for them.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs for CUDA, of buffers that are allocated as large as they are used.

    Raises
    ------
    SparseProgramError
        If a local buffer takes more than 512 KiB, or the size of one in a kernel is not constant.

    Examples
    --------
    >>> from tvm_sparse.transform import CheckLocalSizes
    >>> CheckLocalSizes().info.name
    'tvm_sparse.CheckLocalSizes'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        if is_for_cuda(func):
            tvm_ffi.structural_walk(func.body, (SBlock, _check_sizes))
        return func

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.CheckLocalSizes")


def _check_places(body: tirx.Stmt) -> None:
    threads: dict[Var, For] = {}
    inside: dict[Var, set[Var]] = {}

    def loop(node: For, visitor) -> None:
        is_thread = node.kind == ForKind.THREAD_BINDING and not _tag(node).startswith("vthread")
        if is_thread:
            threads[node.loop_var] = node
        visitor.default_visit(node)
        if is_thread:
            del threads[node.loop_var]

    def block(node: SBlock, visitor) -> None:
        for buffer in node.alloc_buffers:
            inside[buffer] = set(threads)
            if buffer.ty.storage_scope in _GLOBAL and threads:
                raise _global_memory(buffer)
        visitor.default_visit(node)

    def check(buffer: Var, indices: list[Expr]) -> None:
        if buffer.ty.storage_scope != "local" or buffer not in inside:
            return
        used = set().union(*map(variables_of, indices)) & (threads.keys() - inside[buffer])
        for var in used:
            raise _shared(buffer, threads[var])

    def load(node: TensorLoad, visitor) -> None:
        check(node.source, list(node.indices))
        visitor.default_visit(node)

    def store(node: tirx.BufferStore, visitor) -> None:
        check(node.buffer, list(node.indices))
        visitor.default_visit(node)

    handlers = [(For, loop), (SBlock, block), (TensorLoad, load), (tirx.BufferStore, store)]
    tvm_ffi.structural_visit(body, handlers)


def _tag(loop: For) -> str:
    return str(loop.thread_binding.thread_tag)


def _shared(buffer: Var, loop: For) -> SparseProgramError:
    return SparseProgramError(
        f"buffer {buffer.name!r} is local, of one thread, but it is allocated outside of loop "
        f"{loop.loop_var.name}, which is bound to {_tag(loop)} and chooses its places: expected a buffer "
        "whose reads and writes are all inside of that loop; move the block that copies or rounds it there "
        "with schedule.reverse_compute_at, or compute_at for one that is read, or use scope 'shared'"
    )


def _global_memory(buffer: Var) -> SparseProgramError:
    return SparseProgramError(
        f"buffer {buffer.name!r} is used inside of one kernel only, and kernels can't allocate global "
        "memory: expected scope 'local' (with all uses inside of the loops over threads) or 'shared'; set "
        "it with schedule.set_scope, or leave its blocks in loops of their own, that is in two kernels"
    )


def _check_sizes(block: SBlock) -> None:
    for buffer in block.alloc_buffers:
        scope = str(buffer.ty.storage_scope)
        if scope != "local" and scope not in _SHARED:
            continue
        extents = list(buffer.ty.shape)
        if not all(isinstance(extent, tirx.IntImm) for extent in extents):
            found = " x ".join(map(str, extents))
            raise SparseProgramError(
                f"buffer {buffer.name!r} is {scope}: expected a constant size, as memory in kernels has, "
                f"found {found}; compute and use it inside of more loops, or split them by constants"
            )
        size = math.prod(map(int, extents)) * tvm.DataType(str(buffer.ty.dtype)).itemsize
        if scope == "local" and size > _MOST_BYTES:
            raise SparseProgramError(
                f"buffer {buffer.name!r} is local, of one thread: expected at most {_MOST_BYTES} bytes, "
                f"found {size}; compute and use it inside of more loops, or split them"
            )

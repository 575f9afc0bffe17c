"""Refuse barriers that some threads of a block come by and others don't.

Reductions over more than 32 threads, or over threads that are not neighbours, wait at barriers, and so do
threads that use what others put into shared memory. Where only some of a block wait, what a kernel does is
undefined: it hangs, or reads what is not there yet.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, Var

from ..errors import SparseProgramError
from ..ir.contents import loads_in, variables_of

__all__ = ["CheckBarriers"]

_BARRIER = "tvm_storage_sync"
_WARP_SCOPE = "warp"


def CheckBarriers() -> tvm.transform.Pass:
    """Build the pass that checks that all threads of a block come by its barriers.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs whose loops over threads are attributes, after barriers were placed.

    Raises
    ------
    SparseProgramError
        If a barrier stands under a condition, or in a loop of a length, that differs among threads.

    Notes
    -----
    Fine::

        row = T.launch_thread("blockIdx.x", 4096)
        if row < m:
            T.tvm_storage_sync("shared")

    and refused::

        block = T.launch_thread("blockIdx.x", 1024)
        row = T.launch_thread("threadIdx.y", 4)
        if block * 4 + row < m:
            T.tvm_storage_sync("shared")

    Examples
    --------
    >>> from tvm_sparse.transform import CheckBarriers
    >>> CheckBarriers().info.name
    'tvm_sparse.CheckBarriers'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        if _waits(func.body):
            name = str((func.attrs or {}).get("global_symbol", "of no name"))
            _check(func.body, name, _Varying(func.body))
        return func

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.CheckBarriers")


def _waits(body: tirx.Stmt) -> bool:
    """Whether a statement has a barrier of all threads of a block."""
    found: list[Call] = []

    def note(call: Call) -> None:
        name = str(getattr(call.op, "name", "")).rpartition(".")[2]
        if name == _BARRIER and str(call.args[0].value) != _WARP_SCOPE:
            found.append(call)

    tvm_ffi.structural_walk(body, (Call, note))
    return bool(found)


def _check(body: tirx.Stmt, name: str, varying: _Varying) -> None:
    """Refuse barriers in statements that not all threads run, or not equally often."""

    def refuse(node: tirx.Stmt, deciding: Expr, what: str) -> None:
        if varying.has(deciding) and _waits(node):
            found = varying.written_out(deciding)
            raise SparseProgramError(
                f"function {name}: expected all threads of a block to come by each barrier, found one "
                f"{what} {found}, which differs from thread to thread; reduce over a power of two up to "
                "32 of threadIdx.x, which needs no barrier, give blocks of threads one row each, or put "
                "shared memory outside of loops that are split unevenly over threads"
            )

    walk = [
        (tirx.IfThenElse, lambda node: refuse(node, node.condition, "under the condition")),
        (tirx.For, lambda node: refuse(node, node.extent, "in a loop of the length")),
        (tirx.While, lambda node: refuse(node, node.condition, "in a loop on the condition")),
    ]
    tvm_ffi.structural_walk(body, walk)


class _Varying:
    """Variables and buffers whose values may differ from thread to thread of a block.

    Parameters
    ----------
    body : tirx.Stmt
        Of a function.
    """

    def __init__(self, body: tirx.Stmt) -> None:
        self.found: set[Var] = set()
        self.values: dict[Var, Expr] = {}
        known = -1
        while len(self.found) > known:  # loops store what later statements use
            known = len(self.found)
            self._visit(body, False)

    def has(self, value: Expr) -> bool:
        """Whether a value may differ: by its variables, or by a buffer that it is loaded from."""
        loaded = {load.source for load in loads_in(value)}
        return bool((variables_of(value) | loaded) & self.found)

    def written_out(self, value: Expr) -> Expr:
        """Write a value without the variables that the function binds."""
        return tvm_ffi.structural_map(
            value,
            (Var, lambda var: self.written_out(self.values[var]) if var in self.values else var),
        )

    def _visit(self, body: tirx.Stmt, is_partial: bool) -> None:
        """Note what a statement defines, which only some threads run if `is_partial`."""

        def attribute(node: tirx.AttrStmt, visitor) -> None:
            tag = str(getattr(node.node, "thread_tag", ""))
            if node.attr_key == "thread_extent" and tag.startswith("threadIdx"):
                self.found.add(node.node.var)
            visitor.default_visit(node)

        def bind(node: tirx.Bind, _visitor) -> None:
            self.values[node.var] = node.value
            if self.has(node.value):
                self.found.add(node.var)

        def store(node: tirx.BufferStore, _visitor) -> None:
            is_private = node.buffer.ty.storage_scope == "local"
            if is_private and (
                is_partial or self.has(node.value) or any(map(self.has, node.indices))
            ):
                self.found.add(node.buffer)

        def loop(node: tirx.For, _visitor) -> None:
            varies = self.has(node.extent) or self.has(node.min)
            if varies:
                self.found.add(node.loop_var)
            self._visit(node.body, is_partial or varies)

        def repeat(node: tirx.While, _visitor) -> None:
            self._visit(node.body, is_partial or self.has(node.condition))

        def branch(node: tirx.IfThenElse, _visitor) -> None:
            for part in (node.then_case, node.else_case):
                if part is not None:
                    self._visit(part, is_partial or self.has(node.condition))

        handlers = [
            (tirx.AttrStmt, attribute),
            (tirx.Bind, bind),
            (tirx.BufferStore, store),
            (tirx.For, loop),
            (tirx.While, repeat),
            (tirx.IfThenElse, branch),
        ]
        tvm_ffi.structural_visit(body, handlers)

"""Refuse copies of results that were computed in part only.

``cache_write`` gives a block a copy of the region that it writes, and copies all of it back. Where the
places that a block stores to are known at run time alone (rows of a list, entries in a dense result), TVM
takes the whole dimension for the region, and the copy would overwrite what the block does not store.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var
from tvm.s_tir.stmt import SBlock
from tvm.tirx import IterVar

from ..ir.contents import has_loads, variables_of

__all__ = ["RefusePartialCopies", "copies_of"]


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.RefusePartialCopies")
class RefusePartialCopies:
    """Check that a buffer of a block is computed as a whole before it is copied to another.

    Fine, since row by row::

        for r in range(rows):
            C_local = T.sblock_alloc_buffer((f,))
            for k in range(f):
                C_local[k] = ...
            for k in range(f):
                C[row_indices[r] * f + k] = C_local[k]

    and refused, since rows that are not listed were never computed::

        C_local = T.sblock_alloc_buffer((m * f,))
        for r, k in T.grid(rows, f):
            C_local[row_indices[r] * f + k] = ...
        for i in range(m * f):
            C[i] = C_local[i]

    Raises
    ------
    ValueError
        Names the block and the buffer.
    """

    def transform_module(self, module: tvm.IRModule, _context) -> tvm.IRModule:
        """Check the functions of ``module``, and return it."""
        for func in module.functions.values():
            if isinstance(func, tirx.PrimFunc):
                _check(func.body)
        return module


def copies_of(stmt: tirx.Stmt) -> list[tuple[Var, Var]]:
    """Return ``(from, to)`` of every block that does nothing but copy one buffer to another."""
    found: list[tuple[Var, Var]] = []

    def note(block: SBlock) -> None:
        store = block.body
        if isinstance(store, tirx.BufferStore) and isinstance(store.value, TensorLoad):
            found.append((store.value.source, store.buffer))

    tvm_ffi.structural_walk(stmt, [(SBlock, note)])
    return found


def _check(body: tirx.Stmt) -> None:
    blocks: list[tuple[SBlock, tuple[SBlock, ...]]] = []
    _collect(body, (), blocks)
    owners = {buffer: block for block, _ in blocks for buffer in block.alloc_buffers}
    for source, target in copies_of(body):
        if source not in owners:
            continue
        writers = [(block, around) for block, around in blocks if _stores(block, source)]
        skips = target in owners  # slots that hold no entry, which nothing reads
        if writers and not any(_stores_all(block, source, skips) for block, _ in writers):
            _refuse(
                writers[0][0], source, target, "which of it the block computes is known at run time"
            )
        for block, around in writers:
            inside = around[around.index(owners[source]) + 1 :] if owners[source] in around else ()
            if block.init is not None and any(map(_reduces, inside)):
                _refuse(
                    block, source, target, "it starts anew in each step of a reduction around it"
                )


def _refuse(block: SBlock, source: Var, target: Var, reason: str) -> None:
    raise ValueError(
        f"block {block.name_hint}: {source.name} is copied to {target.name} as a whole, but {reason}; move "
        "the copy inside of the loops around the block (reverse_compute_at), or leave out cache_write"
    )


def _collect(
    stmt: tirx.Stmt,
    around: tuple[SBlock, ...],
    found: list[tuple[SBlock, tuple[SBlock, ...]]],
) -> None:
    """List the blocks of a statement, each with those around it, outermost first."""

    def block(node: SBlock, _mutator) -> SBlock:
        found.append((node, around))
        _collect(node.body, (*around, node), found)
        return node

    tvm_ffi.structural_mutate(stmt, [(SBlock, block)])


def _reduces(block: SBlock) -> bool:
    return any(iter_var.iter_type == IterVar.CommReduce for iter_var in block.iter_vars)


def _stores_all(block: SBlock, buffer: Var, skips: bool) -> bool:
    """Whether a block gives all places that its loops span a value.

    With ``skips`` it may do so or not by a condition that is the same for all of its loops.
    """
    loops = {iter_var.var for iter_var in block.iter_vars}
    return all(
        all(skips and not variables_of(condition) & loops for condition in conditions)
        and not any(map(has_loads, store.indices))
        and buffer not in variables_of(store.value)
        for store, conditions in _stores(block, buffer)
    )


def _stores(block: SBlock, buffer: Var) -> list[tuple[tirx.BufferStore, tuple[Expr, ...]]]:
    """Stores of a block, not of those inside it, that give places their first value; and conditions."""
    found: list[tuple[tirx.BufferStore, tuple[Expr, ...]]] = []

    def visit(stmt: tirx.Stmt, conditions: tuple[Expr, ...]) -> None:
        def store(node: tirx.BufferStore, _mutator) -> tirx.Stmt:
            if node.buffer.same_as(buffer):
                found.append((node, conditions))
            return node

        def branch(node: tirx.IfThenElse, _mutator) -> tirx.Stmt:
            for case in (node.then_case, node.else_case):
                if case is not None:
                    visit(case, (*conditions, node.condition))
            return node

        handlers = [(tirx.BufferStore, store), (tirx.IfThenElse, branch), (SBlock, _leave)]
        tvm_ffi.structural_mutate(stmt, handlers)

    visit(block.body if block.init is None else block.init, ())
    return found


def _leave(node: SBlock, _mutator) -> SBlock:
    return node

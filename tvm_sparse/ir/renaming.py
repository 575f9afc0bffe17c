"""Other variables, buffers or expressions in place of some variables, throughout a statement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var

__all__ = ["definitions", "fresh", "renamed", "replace_variables"]


def definitions(stmt: tirx.Stmt) -> list[Var]:
    """Return the buffers and variables that a statement defines."""
    found: list[Var] = []
    tvm_ffi.structural_walk(
        stmt,
        [
            (tirx.AllocBuffer, lambda node: found.append(node.buffer)),
            (tirx.Bind, lambda node: found.append(node.var)),
            (tirx.For, lambda node: found.append(node.loop_var)),
        ],
    )
    return found


def renamed(stmt: tirx.Stmt, names: Mapping[Var, Var]) -> tirx.Stmt:
    """Put other variables in the place of some, where they are used and where they are defined."""

    def load(node: TensorLoad, mutator) -> Expr:
        indices = [mutator.mutate(index) for index in node.indices]
        return tirx.BufferLoad(names.get(node.source, node.source), indices)

    def store(node: tirx.BufferStore, mutator) -> tirx.Stmt:
        indices = [mutator.mutate(index) for index in node.indices]
        buffer = names.get(node.buffer, node.buffer)
        return tirx.BufferStore(buffer, mutator.mutate(node.value), indices, node.span)

    def allocate(node: tirx.AllocBuffer, _mutator) -> tirx.Stmt:
        return tirx.AllocBuffer(names.get(node.buffer, node.buffer), node.annotations, node.span)

    def bind(node: tirx.Bind, mutator) -> tirx.Stmt:
        return tirx.Bind(names.get(node.var, node.var), mutator.mutate(node.value), node.span)

    def loop(node: tirx.For, mutator) -> tirx.Stmt:
        begin, extent, body = (mutator.mutate(part) for part in (node.min, node.extent, node.body))
        return tirx.For(
            names.get(node.loop_var, node.loop_var),
            begin,
            extent,
            node.kind,
            body,
            node.thread_binding,
            node.annotations,
            node.step,
            node.span,
        )

    rules = [
        (TensorLoad, load),
        (tirx.BufferStore, store),
        (tirx.AllocBuffer, allocate),
        (tirx.Bind, bind),
        (tirx.For, loop),
        (Var, lambda var, _mutator: names.get(var, var)),
    ]
    return tvm_ffi.structural_mutate(stmt, rules) if names else stmt


def fresh(stmt: tirx.Stmt) -> tirx.Stmt:
    """Return a statement with definitions of its own, so that it may stand twice in a function."""
    return renamed(stmt, {var: Var(var.name, var.ty) for var in definitions(stmt)})


def replace_variables(node: Any, values: Mapping[Var, Expr]) -> Any:
    """Put expressions in the place of variables where they are used; buffers stay as they are."""
    return tvm_ffi.structural_map(node, (Var, lambda var: values.get(var, var)))

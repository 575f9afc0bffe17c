"""Which parameters decide the structure of a sparse result: a plan holds for their values alone.

Comes in: the loops that produce entries. Goes out: the names of what decides how often these loops run,
whether they produce an entry, and at which place. What is only part of a value is not among them.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Var

from .producer import Producer

__all__ = ["deciding_parameters"]


def deciding_parameters(producer: Producer) -> list[str]:
    """Return the names of the parameters that decide the structure, in their order."""
    reached = _reached(producer)
    arguments = zip(producer.params, producer.layout["args"], strict=True)
    return [arg["name"] for param, arg in arguments if param in reached]


def _reached(producer: Producer) -> set[Var]:
    """Return the variables and buffers that conditions, bounds and places come from."""
    pending: list[Expr] = [*producer.lengths, *producer.spans]
    sources: dict[Var, list[Expr]] = {}

    def store(node: tirx.BufferStore) -> None:
        if node.buffer.same_as(producer.marker):
            pending.extend(node.indices)
        else:
            sources.setdefault(node.buffer, []).extend([node.value, *node.indices])

    visits = [
        (tirx.BufferStore, store),
        (tirx.Bind, lambda node: sources.setdefault(node.var, []).append(node.value)),
        (tirx.For, lambda node: pending.extend([node.min, node.extent])),
        ((tirx.IfThenElse, tirx.While), lambda node: pending.append(node.condition)),
    ]
    for own in producer.rows:
        tvm_ffi.structural_walk(own.body, visits)
    reached: set[Var] = set()
    while pending:
        used: list[Var] = []
        tvm_ffi.structural_walk(pending.pop(), [(Var, used.append)])
        for var in used:
            if var not in reached:
                reached.add(var)
                pending.extend(sources.get(var, []))
    return reached

"""What statements and expressions hold: loads and stores, and the buffers and variables that they use.

In: any nodes of TensorIR or of stage I. Out: lists in the order of a walk through them, or sets of
variables. Regions that blocks declare are no loads or stores.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad, Var

__all__ = [
    "buffers_loaded",
    "buffers_stored",
    "buffers_used",
    "has_loads",
    "loads_from",
    "loads_global",
    "loads_in",
    "stores_in",
    "stores_to",
    "variables_of",
]


def loads_in(node: tvm_ffi.Object) -> list[TensorLoad]:
    """Return the loads in a node, those in indices of others included."""
    found: list[TensorLoad] = []
    tvm_ffi.structural_walk(node, (TensorLoad, found.append))
    return found


def stores_in(node: tvm_ffi.Object) -> list[tirx.BufferStore]:
    """Return the stores in a node."""
    found: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(node, (tirx.BufferStore, found.append))
    return found


def loads_from(node: tvm_ffi.Object, buffer: Var) -> list[TensorLoad]:
    """Return the loads from a buffer in a node."""
    return [load for load in loads_in(node) if load.source.same_as(buffer)]


def stores_to(node: tvm_ffi.Object, buffer: Var) -> list[tirx.BufferStore]:
    """Return the stores to a buffer in a node."""
    return [store for store in stores_in(node) if store.buffer.same_as(buffer)]


def buffers_loaded(*nodes: tvm_ffi.Object) -> set[Var]:
    """Return the buffers that nodes load from."""
    return {load.source for node in nodes for load in loads_in(node)}


def buffers_stored(*nodes: tvm_ffi.Object) -> set[Var]:
    """Return the buffers that nodes store to."""
    return {store.buffer for node in nodes for store in stores_in(node)}


def buffers_used(*nodes: tvm_ffi.Object) -> set[Var]:
    """Return the buffers that nodes load from or store to."""
    return buffers_loaded(*nodes) | buffers_stored(*nodes)


def has_loads(node: tvm_ffi.Object) -> bool:
    """Whether a node loads anything, be it from a register."""
    return bool(loads_in(node))


def loads_global(node: tvm_ffi.Object) -> bool:
    """Whether a node loads from an array; registers, in which searches leave results, do not count."""
    return any(load.source.ty.storage_scope == "global" for load in loads_in(node))


def variables_of(node: tvm_ffi.Object) -> set[Var]:
    """Return the variables in a node, and the buffers that it loads from."""
    used: set[Var] = set()
    tvm_ffi.structural_walk(
        node, [(Var, used.add), (TensorLoad, lambda load: used.add(load.source))]
    )
    return used

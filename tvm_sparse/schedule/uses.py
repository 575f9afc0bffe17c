"""Where a function uses a buffer."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad, Var

from ..ir import SparseBuffer, SparseFunc, SparseIteration

__all__ = ["count_uses", "is_used_outside", "param_index"]


def param_index(func: SparseFunc, buffer: SparseBuffer) -> int:
    return next(k for k, param in enumerate(func.params) if param.same_as(buffer.buffer))


def is_used_outside(func: SparseFunc, iteration: SparseIteration, buffer: Var) -> bool:
    return count_uses(func.body, buffer) > count_uses(iteration, buffer)


def count_uses(node: tvm_ffi.Object, buffer: Var) -> int:
    uses: list[int] = []

    def note(used: Var) -> None:
        if used.same_as(buffer):
            uses.append(1)

    tvm_ffi.structural_walk(
        node,
        [
            (TensorLoad, lambda load: note(load.source)),
            (tirx.BufferStore, lambda store: note(store.buffer)),
        ],
    )
    return len(uses)

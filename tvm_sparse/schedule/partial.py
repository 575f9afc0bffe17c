"""Compute the share of an iteration in a result on its own, and add it in one go."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import Var

from ..errors import SparseProgramError
from ..ir import SparseBuffer, SparseFunc, SparseIteration
from ..ir.buffer import ancestors, declare_buffer
from .accumulation import accumulation_of
from .iterations import find_iteration, replace_iteration, with_fields

__all__ = ["separate_partial_results"]


def separate_partial_results(func: SparseFunc, name: str) -> SparseFunc:
    """Give an accumulating iteration a temporary of its own, and add that to the result after it."""
    label = f"partial_results: iteration {name}"
    iteration = find_iteration(func, name)
    if iteration.init is not None:
        raise SparseProgramError(f"{label}: it has an init, its result is its own already")
    if not isinstance(iteration.body, tirx.BufferStore):
        raise SparseProgramError(f"{label}: expected one statement that accumulates")
    update = accumulation_of(iteration.body, label)
    spatial = [(axis, var) for axis, kind, var in iteration.iterators if kind == "S"]
    if len(iteration.axes) != len(iteration.iter_vars):
        raise SparseProgramError(f"{label}: call it before loops are fused")
    _check_spatial(iteration, [var for _, var in spatial], label)
    axes = [axis for axis, _ in spatial]
    for axis in axes:
        missing = [a for a in ancestors(axis) if a not in axes]
        if missing:
            raise SparseProgramError(
                f"{label}: axis {axis.name} is stored under {missing[0].name}, which is reduced over"
            )
    dtype = str(iteration.body.value.ty.dtype)
    partial = declare_buffer([axis.length for axis in axes], dtype, f"{name}_partial")
    temporary = SparseBuffer(buffer=partial, axes=axes, default=tirx.const(0, dtype))
    own = [var for _, var in spatial]
    load = tirx.BufferLoad(partial, own)
    before = tirx.BufferLoad(iteration.body.buffer, iteration.body.indices)
    outer, inner = _split_at_reduction(iteration)
    computed = with_fields(
        iteration,
        axes=[axis for axis, _, _ in inner],
        kinds="".join(kind for _, kind, _ in inner),
        iter_vars=[var for _, _, var in inner],
        init=tirx.BufferStore(partial, update.neutral(dtype), own),
        body=tirx.BufferStore(partial, update.combine(load, update.term), own),
        name=f"{name}_sum" if outer else name,
    )
    added = [(axis, kind, var) for axis, kind, var in inner if kind == "S"]
    fresh = {var: Var(var.name, str(var.ty.dtype)) for _, _, var in added}
    add: tirx.Stmt = tirx.BufferStore(
        iteration.body.buffer, update.combine(before, load), iteration.body.indices
    )
    if added:
        add = with_fields(
            iteration,
            axes=[axis for axis, _, _ in added],
            kinds="S" * len(added),
            iter_vars=list(fresh.values()),
            body=tvm_ffi.structural_map(add, [(Var, lambda var: fresh.get(var, var))]),
            init=None,
            name=f"{name}_add",
        )
    parts: list[tirx.Stmt] = [computed, add]
    if outer:
        parts = [
            with_fields(
                iteration,
                axes=[axis for axis, _, _ in outer],
                kinds="S" * len(outer),
                iter_vars=[var for _, _, var in outer],
                body=tirx.SeqStmt(parts),
                init=None,
            )
        ]
    changed = replace_iteration(func, iteration, parts)
    return changed.with_body(changed.body, [*func.temporaries, temporary])


def _split_at_reduction(iteration: SparseIteration) -> tuple[list, list]:
    """The spatial loops before the first reduction, and the others."""
    loops = iteration.iterators
    first = iteration.kinds.find("R")
    if first < 0:
        first = len(loops)
    return loops[:first], loops[first:]


def _check_spatial(iteration: SparseIteration, spatial: list[Var], label: str) -> None:
    """The result is indexed by spatial iterators alone."""
    reduced = {var for var in iteration.iter_vars if var not in spatial}
    used: set[Var] = set()
    for index in iteration.body.indices:
        tvm_ffi.structural_walk(index, [(Var, used.add)])
    wrong = [var.name for var in iteration.iter_vars if var in reduced and var in used]
    if wrong:
        raise SparseProgramError(
            f"{label}: the result is indexed by {', '.join(wrong)}, which the iteration reduces over"
        )

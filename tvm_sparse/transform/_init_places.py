"""Where the init of an iteration stands: in a block of its loops, or in an iteration of its own before.

In: iterations of stage I. Out: what their loops are like, as far as that decides it.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import Var

from ..ir import AttachedAxis, Axis, DenseFixedAxis, FusedAxis, SparseIteration, stored_axis
from ..ir.buffer import ancestors
from ..ir.contents import stores_in
from ._blocks import Loop
from .fill_outputs import START_MARK

__all__ = [
    "descends_from_reduction",
    "fuses_reductions",
    "init_axes",
    "inits_apart",
    "opens_block",
    "reduces_innermost",
    "separate_init",
    "start_of",
]


def separate_init(node: SparseIteration) -> tuple[tirx.Stmt, SparseIteration]:
    """Return what writes the init values, an iteration of its own if need be, and what then accumulates."""
    own = init_axes(node) or {}
    axes, variables = [], []
    for axis, kind, var in node.iterators:
        if kind == "S":
            axes.append(own.get(var, axis))
            variables.append(var)
    fresh = {v: Var(v.name, str(v.ty.dtype)) for v in variables}
    init_body = tvm_ffi.structural_map(node.init, [(Var, lambda v: fresh.get(v, v))])
    init = SparseIteration(
        axes=axes,
        kinds="S" * len(axes),
        iter_vars=[fresh[v] for v in variables],
        body=init_body,
        init=None,
        name=f"{node.name}_init",
        annotations={},
        span=node.span,
    )
    update = SparseIteration(
        axes=node.axes,
        kinds=node.kinds,
        iter_vars=node.iter_vars,
        body=node.body,
        init=None,
        name=node.name,
        annotations=node.annotations,
        span=node.span,
    )
    return (init if axes else init_body), update


def init_axes(node: SparseIteration) -> dict[Var, Axis] | None:
    """Return the axes that init ranges over where they differ from the loops of the update.

    An iterator under a reduction axis visits an output point many times; its init ranges over all
    coordinates. One that is fused with a reduction is looped over by itself. None where the loops
    of the update serve.
    """
    own: dict[Var, Axis] = {}
    for group in node.axes:
        mixed = isinstance(group, FusedAxis) and "R" in _kinds_of(node, group)
        members = group.members if isinstance(group, FusedAxis) else [group]
        for axis, kind, var in node.iterators:
            if axis not in members or kind == "R":
                continue
            if descends_from_reduction(node, axis):
                stored = stored_axis(axis)
                own[var] = DenseFixedAxis(
                    name=f"{axis.name}_all", length=stored.length, dtype=stored.dtype
                )
            elif mixed:
                own[var] = axis
    return own or None


def reduces_innermost(node: SparseIteration) -> bool:
    """Whether every point of the spatial loops is visited once, and all reductions stand inside."""
    is_nested = "RS" not in node.kinds and init_axes(node) is None
    return is_nested and not _fuses_both(node)


def inits_apart(node: SparseIteration) -> bool:
    """Whether init stores to another place at every point of the spatial loops."""
    spatial = {var: stored_axis(axis) for axis, kind, var in node.iterators if kind == "S"}
    is_unique = all(getattr(axis, "unique", True) for axis in spatial.values())
    return is_unique and all(set(spatial) <= _iterators_of(store) for store in stores_in(node.init))


def _iterators_of(store: tirx.BufferStore) -> set[Var]:
    """Variables that are indices of a store by themselves."""
    return {index for index in store.indices if isinstance(index, Var)}


def _fuses_both(node: SparseIteration) -> bool:
    """Whether an axis of the result is fused with a reduction."""
    fused = (axis for axis in node.axes if isinstance(axis, FusedAxis))
    return any(len(set(_kinds_of(node, axis))) > 1 for axis in fused)


def fuses_reductions(node: SparseIteration) -> bool:
    """Whether a reduction is fused with other axes."""
    return any(isinstance(axis, FusedAxis) and "R" in _kinds_of(node, axis) for axis in node.axes)


def _kinds_of(node: SparseIteration, group: FusedAxis) -> str:
    return "".join(kind for axis, kind, _ in node.iterators if axis in list(group.members))


def start_of(node: SparseIteration, loops: list[Loop]) -> Loop | None:
    """Return the loop whose first step initialises the result of an iteration, if later ones do not."""
    name = node.annotations.get(START_MARK)
    if name is None:
        return None
    return next(loop for loop in loops if any(it.var.name == name for it in loop.members))


def opens_block(axis: Axis) -> bool:
    """Whether the loop over an axis stands in a block inside that of its parent, each place once."""
    return axis.is_variable and getattr(axis, "unique", True) and not isinstance(axis, AttachedAxis)


def descends_from_reduction(node: SparseIteration, axis: Axis) -> bool:
    """Whether an axis is stored below one that is reduced."""
    first = axis.members[0] if isinstance(axis, FusedAxis) else axis
    return not node.reduced.isdisjoint(ancestors(first))

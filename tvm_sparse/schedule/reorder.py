"""Change the order of an iteration's loops, and fuse them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from ..errors import SparseProgramError
from ..ir import Axis, FusedAxis, MergedAxis, SparseFunc
from .dependences import check_accumulates, check_reads
from .iterations import (
    axis_title,
    find_iteration,
    position_of_iterator,
    replace_iteration,
    with_fields,
)

__all__ = ["fuse_axes", "reorder_axes", "take_apart"]


def reorder_axes(func: SparseFunc, iteration_name: str, order: Sequence[str]) -> SparseFunc:
    """Put the iterators of an iteration in another order; fused ones stay together.

    Entries are then visited in another order, on which no result may depend.
    """
    iteration = find_iteration(func, iteration_name)
    label = f"sparse_reorder: iteration {iteration_name}"
    names = [var.name for var in iteration.iter_vars]
    for name in order:
        position_of_iterator(iteration, name, label)
    if sorted(order) != sorted(names):
        found = ", ".join(order) or "none"
        raise SparseProgramError(
            f"{label}: expected every iterator once ({', '.join(names)}), found {found}"
        )
    if list(order) == names:
        return func
    groups = {
        variables[0].name: (axis, kinds, variables) for axis, kinds, variables in iteration.loops
    }
    ordered = []
    rest = list(order)
    while rest:
        if rest[0] not in groups:
            raise SparseProgramError(f"{label}: iterator {rest[0]} is fused with those before it")
        group = groups[rest[0]]
        members = [var.name for var in group[2]]
        if rest[: len(members)] != members:
            raise SparseProgramError(
                f"{label}: iterators {', '.join(members)} are fused, keep them together in this order"
            )
        ordered.append(group)
        del rest[: len(members)]
    _check_parents(ordered, label)
    check_reads(iteration, label)
    if _reductions(ordered) != _reductions(groups.values()):
        check_accumulates(iteration, label)
    changed = with_fields(
        iteration,
        axes=[axis for axis, _, _ in ordered],
        kinds="".join(kinds for _, kinds, _ in ordered),
        iter_vars=[var for _, _, variables in ordered for var in variables],
    )
    return replace_iteration(func, iteration, changed)


def fuse_axes(func: SparseFunc, iteration_name: str, names: Sequence[str]) -> SparseFunc:
    """Make one loop over the stored entries of the last of several nested axes."""
    iteration = find_iteration(func, iteration_name)
    label = f"sparse_fuse: iteration {iteration_name}"
    if len(names) < 2:
        raise SparseProgramError(f"{label}: expected two or more iterators, found {len(names)}")
    if len(set(names)) != len(names):
        raise SparseProgramError(f"{label}: expected different iterators, found {', '.join(names)}")
    places = [position_of_iterator(iteration, name, label) for name in names]
    groups = iteration.loops
    at = [k for k, (_, _, variables) in enumerate(groups) if variables[0].name in names]
    if len(at) != len(names) or any(isinstance(groups[k][0], FusedAxis) for k in at):
        raise SparseProgramError(f"{label}: some of {', '.join(names)} are fused already")
    if places != list(range(places[0], places[0] + len(places))):
        raise SparseProgramError(
            f"{label}: expected neighbours, outermost first, found {', '.join(names)} in "
            f"{', '.join(var.name for var in iteration.iter_vars)}; call sparse_reorder before"
        )
    chosen = [groups[k] for k in at]
    for (outer, _, outer_vars), (inner, _, inner_vars) in pairwise(chosen):
        if inner.kind == "attach" or inner.parent_axis != outer:
            raise SparseProgramError(
                f"{label}: axis {axis_title(inner, inner_vars)} is no child of axis "
                f"{axis_title(outer, outer_vars)}, so no loop over stored entries visits both"
            )
    members = [axis for axis, _, _ in chosen]
    fused = FusedAxis(
        name="_".join(axis.name for axis in members),
        length=members[-1].slots,
        dtype=members[-1].dtype,
        members=members,
    )
    axes = [axis for axis, _, _ in groups]
    axes[at[0] : at[-1] + 1] = [fused]
    return replace_iteration(func, iteration, with_fields(iteration, axes=axes))


def take_apart(func: SparseFunc, iteration_name: str, name: str) -> tuple[SparseFunc, str]:
    """Make loops of their own of the iterators that are fused with one of them.

    Returns
    -------
    SparseFunc
        The function; the same one where the iterator is not fused.
    str
        The innermost iterator of these, over stored entries.
    """
    iteration = find_iteration(func, iteration_name)
    axes: list[Axis] = []
    for axis, _, variables in iteration.loops:
        names = [var.name for var in variables]
        if name in names:
            name = names[-1]
            axes += _members(axis)
        else:
            axes.append(axis)
    if len(axes) == len(iteration.axes):
        return func, name
    return replace_iteration(func, iteration, with_fields(iteration, axes=axes)), name


def _reductions(groups: Iterable[tuple]) -> list[str]:
    """Names of the reduction iterators, outermost first."""
    return [
        var.name
        for _, kinds, variables in groups
        for kind, var in zip(kinds, variables)
        if kind == "R"
    ]


def _check_parents(groups: Sequence[tuple], label: str) -> None:
    titles: dict[Axis, str] = {}
    for axis, _, variables in groups:
        for member, var in zip(_members(axis), variables):
            title = axis_title(member, [var])
            titles |= dict.fromkeys(_walked(member), title)
    seen: list[Axis] = []
    for axis, _, _ in groups:
        for owner in axis.owners:
            if owner in titles and owner not in seen:
                raise SparseProgramError(
                    f"{label}: axis {titles[_members(axis)[0]]} is stored under axis "
                    f"{titles[owner]}, which must come before it"
                )
        seen += [walked for member in _members(axis) for walked in _walked(member)]


def _members(axis: Axis) -> list[Axis]:
    return list(axis.members) if isinstance(axis, FusedAxis) else [axis]


def _walked(axis: Axis) -> list[Axis]:
    """The axes whose entries an iterator stands for."""
    return [axis, *(axis.members if isinstance(axis, MergedAxis) else [])]

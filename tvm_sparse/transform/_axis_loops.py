"""Loops over the entries of an axis, or of a chain of fused axes, and the entries that own them.

Comes in: an axis of an iteration, and the scope with the iterators around it. Goes out: the loop, whose
iterators are known in the scope from then on.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr, Var

from ..errors import SparseProgramError
from ..ir import AttachedAxis, Axis, FusedAxis, stored_axis
from ._access import Iterator, Prologue, conjunction, has_padding, multiply, row_extent
from ._blocks import REDUCE, SPATIAL, Loop, inside_axis
from ._scope import FunctionScope, is_zero

__all__ = ["AxisLoops"]


class AxisLoops:
    """Enters the loops of iterations.

    Parameters
    ----------
    scope : FunctionScope
        Takes the iterators, and tells those around a loop.
    """

    def __init__(self, scope: FunctionScope) -> None:
        self._scope = scope

    def open(self, axis: Axis, own: list[tuple[Axis, str, Var]]) -> Loop:
        """Enter a loop: its iterators are known from here on."""
        return self._fused_loop(axis, own) if len(own) > 1 else self._plain_loop(*own[0])

    def _plain_loop(self, axis: Axis, kind: str, var: Var) -> Loop:
        stored = stored_axis(axis)
        parent = self.parent_position(axis)
        begin, extent = row_extent(stored, parent)
        extent = self.guarded_extent(axis, extent)
        dtype = self._loop_dtype(stored)
        block_var = Var(f"v{var.name}", dtype)
        if stored.kind == "dense_fixed":
            position = block_var
        elif stored.kind == "sparse_fixed" and self._scope.is_wide:
            position = begin + block_var.astype("int64")
        else:
            position = begin + block_var
        coordinate = stored.indices[position] if stored.is_sparse else block_var
        iterator = Iterator(axis, kind, var, block_var, position, coordinate, parent)
        self._scope.iterators[var] = iterator
        prologue = Prologue([block_var])
        self._scope.placer.push(prologue)
        loop = Loop(
            axis=axis,
            members=[iterator],
            loop_var=Var(var.name, dtype),
            block_var=block_var,
            extent=extent.astype(dtype),
            kind=SPATIAL if kind == "S" else REDUCE,
            prologue=prologue,
        )
        if has_padding(stored):
            loop.guards.append((inside_axis(coordinate, stored.length), kind == "S"))
        return loop

    def _fused_loop(self, group: FusedAxis, own: list[tuple[Axis, str, Var]]) -> Loop:
        """One loop over the slots of the last member; outer members are searched on ``indptr``."""
        axes = [axis for axis, _, _ in own]
        last = axes[-1]
        first_parent = self.parent_position(axes[0])
        dtype = last.dtype if last.is_variable else self._loop_dtype(last)
        begin, end = _slot_range(axes, first_parent)
        block_var = Var("v" + "_".join(v.name for _, _, v in own), dtype)
        prologue = Prologue([block_var])
        self._scope.placer.push(prologue)
        slot = block_var if is_zero(begin) else begin.astype(dtype) + block_var
        positions = [slot]
        for child, parent in zip(reversed(axes), reversed(axes[:-1])):
            positions.insert(0, self._owner(child, parent, positions[0]))
        iterators = []
        guards = []
        for k, (axis, kind, var) in enumerate(own):
            parent_position = positions[k - 1] if k else first_parent
            row_begin, _ = row_extent(axis, parent_position)
            position = positions[k]
            local = position if axis.kind == "dense_fixed" else _subtract(position, row_begin)
            coordinate = axis.indices[position] if axis.is_sparse else local
            iterator = Iterator(axis, kind, var, local, position, coordinate, parent_position)
            self._scope.iterators[var] = iterator
            iterators.append(iterator)
            if has_padding(axis):
                guards.append((inside_axis(coordinate, axis.length), kind == "S"))
        spatial = all(kind == "S" for _, kind, _ in own)
        return Loop(
            axis=group,
            members=iterators,
            loop_var=Var("_".join(v.name for _, _, v in own), dtype),
            block_var=block_var,
            extent=(end if is_zero(begin) else end - begin).astype(dtype),
            kind=SPATIAL if spatial else REDUCE,
            prologue=prologue,
            guards=guards,
        )

    def guarded_extent(self, axis: Axis, extent: Expr) -> Expr:
        """Number of entries of an axis where its owner may be no entry, which has none."""
        owner, condition = self._owner_of(axis), None
        if owner is None:
            return extent
        if isinstance(axis, AttachedAxis) and owner.stored_axis.kind == "sparse_fixed":
            condition = inside_axis(owner.coordinate, owner.stored_axis.length)
        if owner.present is not None:
            condition = conjunction(condition, owner.present)
        if condition is None:
            return extent
        return tirx.if_then_else(condition, extent, tirx.const(0, str(extent.ty.dtype)))

    def _owner(self, child: Axis, parent: Axis, position: Expr) -> Expr:
        if child.kind == "sparse_fixed":
            if is_zero(child.nnz_cols):
                return tirx.const(0, str(position.ty.dtype))  # never reached
            return position // child.nnz_cols.astype(str(position.ty.dtype))
        return self._scope.placer.find_parent(
            child.indptr, parent.slots, position, f"{parent.name}_of", child.dtype
        )

    def _owner_of(self, axis: Axis) -> Iterator | None:
        """The iterator in scope whose entry owns ``axis``, ``None`` for a root."""
        if axis.parent_axis is None:
            return None
        walked = [own for it in reversed(self._scope.iterators.values()) for own in it.walked]
        owners = [own for own in walked if own.axis == axis.parent_axis]
        owners += [own for own in walked if own.stored_axis == axis.parent_axis]
        owner = next(iter(owners), None)
        if owner is None:
            raise SparseProgramError(
                f"function {self._scope.func.name}: axis {axis.name} is iterated before its parent "
                f"{axis.parent_axis.name}"
            )
        return owner

    def parent_position(self, axis: Axis) -> Expr | None:
        """Position of the entry that owns ``axis`` here, from the iterators in scope."""
        owner = self._owner_of(axis)
        if owner is None:
            return None
        return owner.coordinate if isinstance(axis, AttachedAxis) else owner.position

    def _loop_dtype(self, axis: Axis) -> str:
        """Dense loops run in 64 bits where a flat offset may need it, so that offsets stay affine."""
        return "int64" if self._scope.is_wide and axis.kind == "dense_fixed" else axis.dtype


def _slot_range(axes: list[Axis], first_parent: Expr | None) -> tuple[Expr, Expr]:
    """First and last-plus-one slot of the last axis of a chain under one parent entry."""
    first = axes[0]
    if first.parent_axis is None:
        return tirx.const(0, "int32"), axes[-1].slots
    begin, extent = row_extent(first, first_parent)
    end = begin + extent
    for axis in axes[1:]:
        if axis.kind == "sparse_fixed":
            begin, end = multiply(begin, axis.nnz_cols), multiply(end, axis.nnz_cols)
        else:
            begin, end = axis.indptr[begin], axis.indptr[end]
    return begin, end


def _subtract(position: Expr, begin: Expr) -> Expr:
    if str(position.ty.dtype) != str(begin.ty.dtype):
        return position.astype("int64") - begin.astype("int64")
    return position - begin

"""Sparse iterations: the loop statement of stage I."""

from __future__ import annotations

from typing import Any, Optional

from tvm import tirx
from tvm.ir import Var
from tvm_ffi.dataclasses import field, py_class

from .axis import Axis, FusedAxis, MergedAxis
from .buffer import ancestors

__all__ = ["SparseIteration"]


@py_class("tvm_sparse.SparseIteration")
class SparseIteration(tirx.Stmt):
    """Run ``body`` for every combination of entries that ``axes`` store, in order.

    Attributes
    ----------
    axes : list of Axis
        The loops, outermost first; a :class:`FusedAxis` is one loop with several iterators.
    kinds : str
        One character per iterator: ``"S"`` spatial, ``"R"`` reduction.
    iter_vars : list of tvm.ir.Var
        The coordinate variables, one per iterator.
    body : tvm.tirx.Stmt
        Statements over coordinates; may hold further iterations.
    init : tvm.tirx.Stmt, optional
        Runs once for every point of the spatial iterators, before the reduction.
    name : str
        Name, carried to the blocks of the later stages.
    annotations : dict
        Annotations, carried to the blocks of the later stages.
    """

    axes: list[Axis]
    kinds: str
    iter_vars: list[Var] = field(structural_eq="def")
    body: tirx.Stmt
    init: Optional[tirx.Stmt]
    name: str
    annotations: dict[str, Any]

    @property
    def iterators(self) -> list[tuple[Axis, str, Var]]:
        """``(axis, kind, variable)`` of every iterator, fused groups spelled out."""
        members = []
        for axis in self.axes:
            members.extend(axis.members if isinstance(axis, FusedAxis) else [axis])
        return list(zip(members, self.kinds, self.iter_vars))

    @property
    def loops(self) -> list[tuple[Axis, str, list[Var]]]:
        """``(axis, kinds, variables)`` of every loop; a fused axis has several iterators."""
        found, place = [], 0
        for axis in self.axes:
            count = len(axis.members) if isinstance(axis, FusedAxis) else 1
            own = slice(place, place + count)
            found.append((axis, self.kinds[own], list(self.iter_vars[own])))
            place += count
        return found

    @property
    def reduced(self) -> set[Axis]:
        """The axes whose descendants are visited anew for each step of a reduction.

        Those that are marked as reductions, and the members of merged axes that are or stand below one.
        """
        found: set[Axis] = set()
        for axis, kind, _ in self.iterators:
            members = axis.members if isinstance(axis, MergedAxis) else []
            if kind == "R":
                found |= {axis, *members}
            elif not found.isdisjoint(ancestors(axis)):
                found |= {*members}
        return found

"""What is known where a statement of a function is lowered: buffers of both stages, iterators, searches."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Var

from ..ir import Axis, MergedAxis, SparseBuffer, SparseFunc, SparseIteration
from ..ir.contents import buffers_stored
from ._access import Iterator, SearchPlacer

__all__ = ["FunctionScope", "has_merged_axes", "is_zero"]


class FunctionScope:
    """The scope of a function under lowering.

    Parameters
    ----------
    func : SparseFunc
        The function.

    Attributes
    ----------
    stage1 : dict of Var to SparseBuffer
        Its sparse buffers.
    stage2 : dict of Var to Var
        The buffers over positions that take their place.
    iterators : dict of Var to Iterator
        Those of the loops that are open, outermost first.
    placer : SearchPlacer
        Takes the searches.
    empty : set of SparseBuffer
        Temporaries without room: nothing is ever stored there. TVM can't place them beside merged loops.
    is_wide : bool
        Whether a flat offset may need 64 bits.
    """

    def __init__(self, func: SparseFunc) -> None:
        self.func = func
        self.stage1 = func.sparse_buffers
        self.stage2 = {var: _position_buffer(buf) for var, buf in self.stage1.items()}
        self.iterators: dict[Var, Iterator] = {}
        self.placer = SearchPlacer(self.is_changing)
        written = buffers_stored(func.body)
        self._constant = {self.stage2.get(p, p) for p in func.params if p not in written}
        self.empty = {t for t in func.temporaries if any(map(_has_no_room, t.axes))}
        if not _merges(func.body):
            self.empty = set()
        self.is_wide = any(_may_pass_int32(b.slots) for b in self.stage1.values())

    def is_changing(self, var: Var) -> bool:
        """Whether a variable or buffer may have another value from statement to statement."""
        return var not in self._constant


def has_merged_axes(node: SparseIteration) -> bool:
    """Whether an iteration has a union or intersection."""
    return any(isinstance(axis, MergedAxis) for axis in node.axes)


def is_zero(expr: Expr) -> bool:
    """Whether a size is known to be 0."""
    return isinstance(expr, tirx.IntImm) and int(expr.value) == 0


def _merges(body: tirx.Stmt) -> bool:
    """Whether some iteration merges axes."""
    found: list[SparseIteration] = []
    tvm_ffi.structural_walk(body, [(SparseIteration, found.append)])
    return any(map(has_merged_axes, found))


def _has_no_room(axis: Axis) -> bool:
    return is_zero(axis.length) or is_zero(axis.slots)


def _may_pass_int32(size: Expr) -> bool:
    return not (isinstance(size, tirx.IntImm) and int(size.value) < 2**31)


def _position_buffer(buffer: SparseBuffer) -> Var:
    """The stage-II buffer: dimensions are entries within the parent entry."""
    if all(axis.kind != "sparse_fixed" for axis in buffer.axes):
        return buffer.buffer
    ty = buffer.buffer.ty
    return tirx.decl_buffer(
        [axis.extent_bound for axis in buffer.axes],
        str(ty.dtype),
        buffer.buffer.name,
        scope=ty.storage_scope,
        data_alignment=ty.data_alignment,
    )

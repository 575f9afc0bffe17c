"""Vectors whose lanes run under conditions of their own, as masked vector code.

TVM makes scalar code of a vectorised loop whose condition differs from lane to lane. Where each lane adds
to an accumulator of its own, all that a condition guards can run masked instead.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, TensorLoad
from tvm.tirx import For, ForKind

from ..ir.contents import has_loads
from ._tile_loops import at_value, dtype_of, stride_of, uses

__all__ = ["MaskLanes"]

_ELEMENTWISE = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE, tirx.And, tirx.Or)


class _NotMaskable(Exception):
    """A statement that has no masked vector form."""


def MaskLanes() -> tvm.transform.Pass:
    """Build the pass that masks vectorised loops whose condition differs from lane to lane.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs of loops, before TVM vectorises.

    Notes
    -----
    Before, with ``sums`` allocated by a loop around::

        for v in T.vectorized(4):
            if column[j + v] < n:
                sums[v] = sums[v] + A[j + v] * X[column[j + v]]

    and after::

        mask = column[j : j + 4] < n
        if all(mask):
            for v in T.vectorized(4):
                sums[v] = sums[v] + A[j + v] * X[column[j + v]]
        elif any(mask):
            index = T.Select(mask, column[j : j + 4], 0)
            sums[0:4] = T.Select(
                mask, sums[0:4] + T.masked_load(A, j, mask) * X[index], sums[0:4]
            )

    A loop is left alone where it stores to anything else, or is compiled by anything but LLVM.

    Examples
    --------
    >>> from tvm_sparse.transform import MaskLanes
    >>> MaskLanes().info.name
    'tvm_sparse.MaskLanes'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        target = (func.attrs or {}).get("target")
        if target is not None and target.kind.name != "llvm":
            return func
        own: list[tirx.Buffer] = []
        masked = []

        def inside(loop: For) -> None:
            allocated = (tirx.AllocBuffer, lambda stmt: own.append(stmt.buffer))
            tvm_ffi.structural_walk(loop.body, allocated)

        def rewrite(loop: For) -> tirx.Stmt:
            if loop.kind != ForKind.VECTORIZED or not isinstance(loop.body, tirx.IfThenElse):
                return loop
            try:
                statement = _MaskedLoop(loop, own).statement()
            except _NotMaskable:
                return loop
            masked.append(loop)
            return statement

        tvm_ffi.structural_walk(func.body, (For, inside))
        body = tvm_ffi.structural_map(func.body, (For, rewrite))
        return func.with_body(body) if masked else func

    mask = tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.MaskLanes")
    return tvm.transform.Sequential(
        [mask, tirx.transform.ConvertSSA()], name="tvm_sparse.MaskLanes"
    )


class _MaskedLoop:
    """One vectorised loop on its way to masked statements."""

    def __init__(self, loop: For, own: list[tirx.Buffer]) -> None:
        self.loop, self.own = loop, own
        self.var, self.lanes = loop.loop_var, int(loop.extent)
        if self.lanes < 2:
            raise _NotMaskable
        self.mask: Expr | None = None
        self.bindings: list[tirx.Stmt] = []
        self.gathers = False

    def statement(self) -> tirx.Stmt:
        """Return the loop as masked statements."""
        stmt: tirx.Stmt = self.loop.body
        differs = False
        while isinstance(stmt, tirx.IfThenElse) and stmt.else_case is None:
            differs |= uses(stmt.condition, self.var)
            self._add_to_mask(stmt.condition)
            stmt = stmt.then_case
        if not differs or not isinstance(stmt, tirx.BufferStore) or not self._is_own(stmt.buffer):
            raise _NotMaskable
        conditions = len(self.bindings)
        place = self._ramp(stmt.indices)
        kept = self._bind(tirx.BufferLoad(stmt.buffer, [place]))
        value = self._bind(self._vector(stmt.value))
        chosen = tirx.Select(self.mask, value, kept)
        store = tirx.BufferStore(stmt.buffer, chosen, [place])
        if not self.gathers:
            return tirx.SeqStmt([*self.bindings, store])
        masked = tirx.SeqStmt([*self.bindings[conditions:], store])
        # Padding comes in stretches: lanes are often all on, or all off.
        some = tirx.IfThenElse(_reduce("or", self.mask), masked, None)
        every: tirx.Stmt = For(self.var, self.loop.min, self.loop.extent, ForKind.VECTORIZED, stmt)
        either = tirx.IfThenElse(_reduce("and", self.mask), every, some)
        before = self.bindings[:conditions]
        return tirx.SeqStmt([*before, either]) if before else either

    def _add_to_mask(self, condition: Expr) -> None:
        if isinstance(condition, tirx.And):
            self._add_to_mask(condition.a)
            self._add_to_mask(condition.b)
            return
        lanes = self._vector(condition)
        self.mask = lanes if self.mask is None else tirx.And(self.mask, lanes)

    def _bind(self, expr: Expr) -> Expr:
        """Name a value: TVM makes a branch of each selection between expressions that load."""
        name = tirx.Var(f"lanes_{len(self.bindings)}", dtype_of(expr))
        self.bindings.append(tirx.Bind(name, expr))
        return name

    def _vector(self, expr: Expr) -> Expr:
        if not uses(expr, self.var):
            if has_loads(expr) and self.mask is not None:
                raise _NotMaskable  # some lane must be on
            return tirx.Broadcast(expr, self.lanes)
        if expr.same_as(self.var):
            zero = tirx.IntImm(dtype_of(self.var), 0)
            return tirx.Ramp(zero, tirx.IntImm(dtype_of(self.var), 1), self.lanes)
        if isinstance(expr, TensorLoad):
            return self._load(expr)
        if isinstance(expr, (*_ELEMENTWISE, *_COMPARISONS)):
            return type(expr)(self._vector(expr.a), self._vector(expr.b))
        if isinstance(expr, tirx.Cast):
            return tirx.Cast(f"{dtype_of(expr)}x{self.lanes}", self._vector(expr.value))
        if _is_call(expr, "reinterpret"):
            return tirx.reinterpret(f"{dtype_of(expr)}x{self.lanes}", self._vector(expr.args[0]))
        if _is_call(expr, "if_then_else"):
            return self._choice(*expr.args)
        raise _NotMaskable

    def _choice(self, condition: Expr, value: Expr, otherwise: Expr) -> Expr:
        before = self.mask
        self._add_to_mask(condition)
        lanes, mask = self._bind(self._vector(value)), self.mask
        self.mask = before
        if uses(otherwise, self.var) or has_loads(otherwise):
            raise _NotMaskable
        return tirx.Select(mask, lanes, tirx.Broadcast(otherwise, self.lanes))

    def _load(self, load: TensorLoad) -> Expr:
        dtype = str(load.source.dtype)
        if len(load.indices) != 1 or dtype.startswith(("bfloat", "float8")):
            raise _NotMaskable  # the passes that give these types their meaning pass masked code by
        if stride_of(load.indices[0], self.var) != 1:
            return self._gather(load)
        place = self._ramp(load.indices)
        if self.mask is None or self._is_own(load.source):
            return tirx.BufferLoad(load.source, [place])
        return tirx.op.masked_load(f"{dtype}x{self.lanes}", load.source, place, self.mask)

    def _gather(self, load: TensorLoad) -> Expr:
        """Load lane by lane; those that are off load element 0."""
        index = self._vector(load.indices[0])
        dtype = dtype_of(load.indices[0])
        if self.mask is not None:
            self.gathers = True
            index = tirx.Select(self.mask, index, tirx.Broadcast(tirx.const(0, dtype), self.lanes))
        # In memory, which the compiler does away with: TVM's analysis takes no vectors of indices.
        place = tirx.decl_buffer((self.lanes,), dtype, "lane_index")
        zero = tirx.const(0, "int32")
        every = tirx.Ramp(zero, tirx.const(1, "int32"), self.lanes)
        self.bindings += [tirx.AllocBuffer(place), tirx.BufferStore(place, index, [every])]
        numbers = [tirx.const(lane, "int32") for lane in range(self.lanes)]
        values = [
            tirx.BufferLoad(load.source, [tirx.BufferLoad(place, [number])]) for number in numbers
        ]
        return tirx.Shuffle(values, numbers)

    def _ramp(self, indices) -> Expr:
        if len(indices) != 1 or stride_of(indices[0], self.var) != 1:
            raise _NotMaskable
        first = at_value(indices[0], self.var, 0)
        return tirx.Ramp(first, tirx.const(1, dtype_of(first)), self.lanes)

    def _is_own(self, buffer: tirx.Buffer) -> bool:
        """Whether a buffer belongs to one loop, and is made of whole vectors."""
        shape = list(buffer.ty.shape)
        whole = all(isinstance(size, tirx.IntImm) and not int(size) % self.lanes for size in shape)
        return whole and any(buffer.same_as(other) for other in self.own)


def _reduce(operation: str, mask: Expr) -> Expr:
    return tirx.call_llvm_pure_intrin("bool", f"llvm.vector.reduce.{operation}", mask)


def _is_call(expr: Expr, name: str) -> bool:
    return isinstance(expr, Call) and getattr(expr.op, "name", "").endswith(f".{name}")

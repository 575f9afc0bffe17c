"""Expressions and stores of stage I: coordinates become local positions, absent entries conditions.

Comes in: a value, an index or a store over coordinates. Goes out: the same over positions, with the type
that it has to have there; searches that it needs go to the placer of the scope.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, TensorLoad, Var

from ..ir import SparseBuffer
from ..ir.contents import variables_of
from ._access import (
    Access,
    Iterator,
    analyzer_with,
    conjunction,
    padded_iterators,
    resolve_access,
    widened,
)
from ._blocks import inside_axis
from ._scope import FunctionScope

__all__ = ["ExpressionLowering"]

#: Integer operations whose operands may come to differ in width.
_BINARY = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max),
    *(tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE),
)
#: The index type that holds every value of another integer type (uint64: as far as one can).
_INDEX_DTYPES = {
    **dict.fromkeys(("bool", "int8", "uint8", "int16", "uint16"), "int32"),
    **dict.fromkeys(("uint32", "uint64"), "int64"),
}
_IF_THEN_ELSE = tvm.ir.Op.get("prim.if_then_else")


class ExpressionLowering:
    """Lowers expressions and stores of a function.

    Parameters
    ----------
    scope : FunctionScope
        Its buffers and searches, and the iterators that are known.
    """

    def __init__(self, scope: FunctionScope) -> None:
        self._scope = scope

    def store(self, stmt: tirx.BufferStore) -> tirx.Stmt:
        """Lower a store; where its entry may be absent, under the condition that it is there."""
        value = self.value(stmt.value)
        buffer = self._scope.stage1.get(stmt.buffer)
        if buffer in self._scope.empty:
            return tirx.Evaluate(0)
        if buffer is None:
            return tirx.BufferStore(stmt.buffer, value, [self.index(e) for e in stmt.indices])
        access = self._access(buffer, stmt.indices, storing=True)
        if access.stored is None:
            return tirx.BufferStore(self._scope.stage2[stmt.buffer], value, access.locals)
        value = _known_valid(value, access.stored)
        lowered = tirx.BufferStore(self._scope.stage2[stmt.buffer], value, access.locals)
        return tirx.IfThenElse(access.stored, lowered, None)

    def value(self, expr: Expr) -> Expr:
        """Lower an expression whose iterators stand for coordinates of their own dtype."""
        return self._expression(expr, _own_width)

    def index(self, expr: Expr) -> Expr:
        """Lower an expression in index context: loop variables stay as wide as they are."""
        lowered = self._expression(expr, _any_width)
        dtype = str(lowered.ty.dtype)
        return lowered if dtype in ("int32", "int64") else lowered.astype(_INDEX_DTYPES[dtype])

    def _expression(self, expr: Expr, coordinate) -> Expr:
        def load(node: TensorLoad, _mutator) -> Expr:
            buffer = self._scope.stage1.get(node.source)
            if buffer is None:
                plain = tirx.BufferLoad(node.source, [self.index(e) for e in node.indices])
                if coordinate is not _any_width:
                    return plain
                return self._outside_padding(node.indices, plain)
            if buffer in self._scope.empty:
                return buffer.default
            access = self._access(buffer, node.indices, storing=False)
            lowered = tirx.BufferLoad(self._scope.stage2[node.source], access.locals)
            if access.chosen is not None:
                lowered = self._chosen(access, lowered, buffer.default)
            # An index may become the input of a search, which runs in padding slots too.
            valid = access.safe if coordinate is _any_width else access.valid
            return lowered if valid is None else tirx.if_then_else(valid, lowered, buffer.default)

        def variable(node: Var, _mutator) -> Expr:
            return (
                coordinate(self._scope.iterators[node]) if node in self._scope.iterators else node
            )

        def binary(node: Expr, mutator) -> Expr:
            return type(node)(*widened(mutator.mutate(node.a), mutator.mutate(node.b)))

        if isinstance(expr, Var):
            return variable(expr, None)
        rules = [(TensorLoad, load), (Var, variable), (_BINARY, binary)]
        if coordinate is _own_width:
            return tvm_ffi.structural_mutate(expr, rules)
        fixed_width = ((Call, tirx.Select), lambda node, _m: self.value(node))
        return tvm_ffi.structural_mutate(expr, [*rules, fixed_width])

    def _chosen(self, access: Access, load: Expr, default: Expr) -> Expr:
        """What a load gives where its entry may be absent, without a branch where it can be made anyway."""
        dtype = str(load.ty.dtype)
        is_bindable = (
            dtype != "bfloat16"
        )  # TVM computes it as float32, but leaves variables as they are
        if access.valid is not None or self._scope.is_changing(load.source) or not is_bindable:
            return tirx.if_then_else(access.chosen, load, default)
        loaded = Var(f"{load.source.name}_value", dtype)
        self._scope.placer.prologues[-1].statements.append(tirx.Bind(loaded, load))
        return tirx.Select(access.chosen, loaded, default)

    def _outside_padding(self, indices: list[Expr], load: Expr) -> Expr:
        """A load that an index needs: in padding slots it is not made."""
        inside = None
        for index in indices:
            for it in padded_iterators(index, self._scope.iterators):
                inside = conjunction(inside, inside_axis(it.coordinate, it.stored_axis.length))
        if inside is None:
            return load
        return tirx.if_then_else(inside, load, tirx.const(0, str(load.ty.dtype)))

    def _access(self, buffer: SparseBuffer, indices: list[Expr], storing: bool):
        return resolve_access(
            buffer,
            list(indices),
            self._scope.iterators,
            self.index,
            self._scope.placer,
            self._known_bounds,
            storing,
        )

    def _known_bounds(self, index: Expr, length: Expr) -> tuple[bool, bool]:
        """Whether a stage-I index is known to be at least 0, and less than ``length``."""
        used = variables_of(index)
        if not used <= set(self._scope.iterators):
            return False, False
        if isinstance(index, Var):
            own = self._scope.iterators[index].stored_axis.length
            if tvm_ffi.structural_equal(own, length):
                return True, True
        analyzer = analyzer_with({v: self._scope.iterators[v].stored_axis.length for v in used})
        return analyzer.can_prove(index >= 0), analyzer.can_prove(index < length)


def _known_valid(value: Expr, condition: Expr) -> Expr:
    """Drop a condition that holds: what accumulates reads only where it stores."""

    def choose(node: Call, mutator) -> Expr:
        chosen = node.op.same_as(_IF_THEN_ELSE) and tvm_ffi.structural_equal(
            node.args[0], condition
        )
        return mutator.mutate(node.args[1]) if chosen else mutator.default_mutate(node)

    return tvm_ffi.structural_mutate(value, [(Call, choose)])


def _any_width(iterator: Iterator) -> Expr:
    """The coordinate in the type that it has in memory."""
    return iterator.coordinate


def _own_width(iterator: Iterator) -> Expr:
    """The coordinate in the type that stage I gives it."""
    return iterator.coordinate.astype(str(iterator.var.ty.dtype))

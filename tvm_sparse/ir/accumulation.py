"""Statements that accumulate: ``X[...] = op(X[...], term)`` with an associative ``op``."""

from __future__ import annotations

from dataclasses import dataclass

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad

from ..errors import SparseProgramError
from .contents import loads_from

__all__ = ["Accumulation", "accumulation_of", "is_accumulation"]

_OPERATORS = {
    tirx.Add: "+",
    tirx.Sub: "-",
    tirx.Mul: "*",
    tirx.Max: "max",
    tirx.Min: "min",
    tirx.Or: "or",
    tirx.And: "and",
}


@dataclass(frozen=True)
class Accumulation:
    """What a statement does to its result.

    Attributes
    ----------
    operator : type
        ``tirx.Add``, ``Mul``, ``Max``, ``Min``, ``Or`` or ``And``; a difference adds the negated term.
    term : Expr
        What is combined with the result.
    """

    operator: type
    term: Expr

    def combine(self, left: Expr, right: Expr) -> Expr:
        """Return ``op(left, right)``."""
        return self.operator(left, right)

    def neutral(self, dtype: str) -> Expr:
        """Return the value that leaves every other one as it is."""
        if dtype == "bool":
            return tirx.const(self.operator in (tirx.And, tirx.Mul, tirx.Min), dtype)
        if self.operator is tirx.Add:
            return tirx.const(0, dtype)
        if self.operator is tirx.Mul:
            return tirx.const(1, dtype)
        lowest, highest = tirx.min_value(dtype), tirx.max_value(dtype)
        if dtype.startswith(("float", "bfloat")):
            infinity = tirx.const(float("inf"), dtype)
            lowest, highest = tirx.const(float("-inf"), dtype), infinity
        return lowest if self.operator is tirx.Max else highest


def accumulation_of(store: tirx.BufferStore, label: str) -> Accumulation:
    """Read a statement as an accumulation.

    Raises
    ------
    SparseProgramError
        If it is none.
    """
    found = _read(store)
    if found is None:
        name = store.buffer.name
        raise SparseProgramError(
            f"{label}: expected {name}[...] = op({name}[...], term) with op one of "
            f"{', '.join(_OPERATORS.values())}, found {name}[...] = {store.value}"
        )
    return found


def is_accumulation(store: tirx.BufferStore) -> bool:
    """Whether a statement is one."""
    return _read(store) is not None


def _read(store: tirx.BufferStore) -> Accumulation | None:
    value = store.value
    if type(value) not in _OPERATORS:
        return None
    if _is_result(value.a, store) and not loads_from(value.b, store.buffer):
        if isinstance(value, tirx.Sub):
            return Accumulation(tirx.Add, tirx.const(0, str(value.ty.dtype)) - value.b)
        return Accumulation(type(value), value.b)
    if (
        _is_result(value.b, store)
        and not loads_from(value.a, store.buffer)
        and type(value) is not tirx.Sub
    ):
        return Accumulation(type(value), value.a)
    return None


def _is_result(expr: Expr, store: tirx.BufferStore) -> bool:
    return (
        isinstance(expr, TensorLoad)
        and expr.source.same_as(store.buffer)
        and all(map(tvm_ffi.structural_equal, expr.indices, store.indices))
    )

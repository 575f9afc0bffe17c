"""Where the init of a reduction has to run: every value of the spatial iterators, whatever is reduced.

A schedule may fuse spatial and reduction loops into one, ``f``. Where the reduced range is empty, ``f``
does not run even once, yet every spatial value needs its init. The spatial iterators take digits of
``f`` (``f // b % c``); each digit gets a loop of its own here, and the digits of the reduction none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Range, Var
from tvm.tirx import For, IterVar

from ..ir.contents import has_loads, variables_of

__all__ = ["InitDomain", "init_domain", "may_be_empty"]


@dataclass(frozen=True)
class InitDomain:
    """Spatial iterators of an init, in terms of loops that do not depend on the reduction."""

    values: list[Expr]
    predicate: Expr
    #: Loops that stay as they are, outermost first.
    kept: list[For]
    #: New serial loops inside those.
    added: list[tuple[Var, Range]]


def may_be_empty(loop: For) -> bool:
    """Whether a loop may have no iteration at all."""
    return not (isinstance(loop.extent, tirx.IntImm) and int(loop.extent.value) > 0)


def init_domain(
    name: str,
    spatial: Sequence[tuple[IterVar, Expr]],
    predicate: Expr,
    loops: Sequence[For],
) -> InitDomain:
    """Find the loops that an init needs of those around its block.

    Parameters
    ----------
    name : str
        Of the block, for messages.
    spatial : sequence of (IterVar, Expr)
        Spatial iterators and the values they are bound to.
    predicate : Expr
        Of the block.
    loops : sequence of For
        Loops that the init may leave out or replace, outermost first.

    Raises
    ------
    ValueError
        Where a loop is fused from spatial and reduction loops and cannot be taken apart again.
    """
    domain = _Domain(name, [iter_var for iter_var, _ in spatial], loops)
    values = [value for _, value in spatial]
    values, predicate = domain.split_digits(values, predicate)
    values = domain.widen(values)
    used = set().union(*map(variables_of, values)) if values else set()
    kept = [loop for loop in loops if loop.loop_var in used]
    dropped = {loop.loop_var for loop in loops} - {loop.loop_var for loop in kept}
    return InitDomain(values, domain.restrict(predicate, values, dropped), kept, domain.added)


class _Domain:
    def __init__(self, name: str, iter_vars: list[IterVar], loops: Sequence[For]) -> None:
        self.added: list[tuple[Var, Range]] = []
        self._name = name
        self._iter_vars = iter_vars
        self._loops = {loop.loop_var: loop for loop in loops}
        self._left: set[Var] = set()  # loops that could not be taken apart

    def split_digits(self, values: list[Expr], predicate: Expr) -> tuple[list[Expr], Expr]:
        """Give digits loops of their own wherever the digits of a number leave some out."""
        digits: list[_Digit] = []
        for value in values:
            _replace_digits(value, digits.append)
        loops: list[tuple[_Digit, Var]] = []
        for number in _numbers(digits):
            if not self._leaves_out(number):
                continue
            extents = [self._extent(digit) for digit in number]
            if any(extent is None for extent in extents):
                self._left |= variables_of(number[0].base) & self._loops.keys()
                continue
            for digit, extent in zip(number, extents):
                name = digit.base.name if isinstance(digit.base, Var) else "fused"
                var = Var(f"{name}_{len(self.added)}", str(digit.base.ty.dtype))
                self.added.append((var, Range.from_min_extent(tirx.const(0, var.ty.dtype), extent)))
                loops.append((digit, var))

        def own_loop(digit: _Digit) -> Var | None:
            return next((var for known, var in loops if known.is_same(digit)), None)

        return [_replace_digits(v, own_loop) for v in values], _replace_digits(predicate, own_loop)

    def _leaves_out(self, number: list[_Digit]) -> bool:
        """Whether a possibly empty range is lost: the other digits are those of a reduction."""
        inside = variables_of(number[0].base) & self._loops.keys()
        if not any(may_be_empty(self._loops[var]) for var in inside):
            return False
        rest = list(number)
        reached = _Product(1)
        while rest:
            following = next((digit for digit in rest if digit.lower.equals(reached)), None)
            if following is None:
                return True
            if following.extent is None:
                return False
            rest.remove(following)
            reached = reached * following.extent
        return not self._reaches_end(number[0].base, reached)

    def _reaches_end(self, base: Expr, reached: _Product) -> bool:
        loop = self._loops.get(base) if isinstance(base, Var) else None
        return loop is not None and _Product.of(loop.extent).equals(reached)

    def _extent(self, digit: _Digit) -> Expr | None:
        """How many values a digit takes, in terms that hold in front of the loops."""
        extent = digit.extent
        if extent is None and isinstance(digit.base, Var):
            extent = _Product.of(self._loops[digit.base].extent) / digit.lower
        if extent is None:
            return None
        size = extent.expression(str(digit.base.ty.dtype))
        return None if variables_of(size) & self._loops.keys() else size

    def widen(self, values: list[Expr]) -> list[Expr]:
        """Let iterators range over all of their axis where their loops could not be taken apart."""
        widened = []
        for iter_var, value in zip(self._iter_vars, values):
            if not variables_of(value) & self._left:
                widened.append(value)
                continue
            self._check_widens(iter_var, value)
            var = Var(f"{iter_var.var.name}_all", str(iter_var.var.ty.dtype))
            self.added.append((var, iter_var.dom))
            widened.append(var)
        return widened

    def _check_widens(self, iter_var: IterVar, value: Expr) -> None:
        """Refuse where the axis is a stored row, or where the loops visit only a tile of it."""
        known = self._loops.keys() | variables_of(iter_var.dom.extent)
        for var in variables_of(value) & self._loops.keys():
            extent = self._loops[var].extent
            known |= variables_of(extent)
            if has_loads(extent):
                self._refuse(var)
        if not variables_of(value) <= known:
            self._refuse(next(iter(variables_of(value) & self._left)))

    def _refuse(self, loop_var: Var) -> None:
        raise ValueError(
            f"block {self._name}: loop {loop_var.name} is fused from spatial and reduction loops and "
            "may be empty, so nothing would be initialised; call decompose_reduction before the "
            "loops are fused"
        )

    def restrict(self, predicate: Expr, values: list[Expr], dropped: set[Var]) -> Expr:
        """Drop the conditions on loops that are gone, and keep the iterators inside their axes."""
        kept = _without(predicate, dropped)
        if tvm_ffi.structural_equal(kept, predicate):
            return predicate
        extents = {var: dom.extent for var, dom in self.added}
        extents |= {var: loop.extent for var, loop in self._loops.items()}
        for iter_var, value in zip(self._iter_vars, values):
            whole = isinstance(value, Var) and value in extents
            if not whole or not _same(extents[value], iter_var.dom.extent):
                kept = tirx.And(kept, value < iter_var.dom.min + iter_var.dom.extent)
        return kept


@dataclass(frozen=True)
class _Product:
    """A product of expressions, which may be divided by another."""

    constant: int
    factors: tuple[Expr, ...] = ()

    @staticmethod
    def of(expr: Expr) -> _Product:
        if isinstance(expr, tirx.IntImm):
            return _Product(int(expr.value))
        if isinstance(expr, tirx.Mul):
            return _Product.of(expr.a) * _Product.of(expr.b)
        return _Product(1, (expr,))

    def __mul__(self, other: _Product) -> _Product:
        return _Product(self.constant * other.constant, self.factors + other.factors)

    def __truediv__(self, other: _Product) -> _Product | None:
        """Return the quotient, ``None`` where it cannot be told."""
        if other.constant == 0 or self.constant % other.constant:
            return None
        factors = list(self.factors)
        for factor in other.factors:
            at = next((k for k, own in enumerate(factors) if _same(own, factor)), None)
            if at is None:
                return None
            del factors[at]
        return _Product(self.constant // other.constant, tuple(factors))

    def equals(self, other: _Product) -> bool:
        return self / other == _Product(1)

    def expression(self, dtype: str) -> Expr:
        result = tirx.const(self.constant, dtype)
        for factor in self.factors:
            result = result * factor.astype(dtype)
        return result


@dataclass(frozen=True)
class _Digit:
    """``base // lower % extent``; without an extent, the leading digit."""

    base: Expr
    lower: _Product = _Product(1)
    extent: _Product | None = None

    def is_same(self, other: _Digit) -> bool:
        if not _same(self.base, other.base) or not self.lower.equals(other.lower):
            return False
        if self.extent is None or other.extent is None:
            return self.extent is other.extent
        return self.extent.equals(other.extent)


def _digit(expr: Expr) -> _Digit | None:
    """Read an expression as a digit, of itself where it is no division."""
    if not isinstance(expr, tirx.FloorDiv | tirx.FloorMod):
        return _Digit(expr)
    inner, divisor = _digit(expr.a), _Product.of(expr.b)
    if inner is None:
        return None
    rest = None if inner.extent is None else inner.extent / divisor
    if inner.extent is not None and rest is None:
        return None
    if isinstance(expr, tirx.FloorDiv):
        return _Digit(inner.base, inner.lower * divisor, rest)
    return _Digit(inner.base, inner.lower, divisor)


def _replace_digits(expr: Expr, loop_of: Callable[[_Digit], Var | None]) -> Expr:
    """Replace the digits that ``loop_of`` knows a loop for; a digit of a digit is one digit."""

    def division(node: Expr, mutator) -> Expr:
        digit = _digit(node)
        if digit is None:
            return type(node)(mutator.mutate(node.a), mutator.mutate(node.b))
        return node if (var := loop_of(digit)) is None else var

    return tvm_ffi.structural_mutate(expr, [((tirx.FloorDiv, tirx.FloorMod), division)])


def _numbers(digits: list[_Digit]) -> list[list[_Digit]]:
    """Group digits by the number they belong to, each digit once."""
    numbers: list[list[_Digit]] = []
    for digit in digits:
        number = next((n for n in numbers if _same(n[0].base, digit.base)), None)
        if number is None:
            numbers.append([digit])
        elif not any(known.is_same(digit) for known in number):
            number.append(digit)
    return numbers


def _same(left: Expr, right: Expr) -> bool:
    return tvm_ffi.structural_equal(left, right)


def _without(predicate: Expr, dropped: set[Var]) -> Expr:
    """Drop the terms of a conjunction that mention one of these loops."""
    if isinstance(predicate, tirx.And):
        return tirx.And(_without(predicate.a, dropped), _without(predicate.b, dropped))
    return tirx.const(True, "bool") if variables_of(predicate) & dropped else predicate

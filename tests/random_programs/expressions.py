"""Expressions of a random program: integer indices, loads, values and conditions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .buffers import Buffer, BufferWriter
from .structures import Axis

__all__ = ["ExpressionWriter", "Iterator", "walked"]


@dataclass(eq=False)
class Iterator:
    """An iterator over an axis, below the iterator of its parent axis or attached to another."""

    var: str
    axis: Axis
    kind: str
    attached_to: Iterator | None = None
    #: Iterator of the parent axis, ``None`` for a root.
    owner: Iterator | None = None
    #: Iterators that a union or intersection walks side by side; all have its variable.
    members: tuple[Iterator, ...] = ()

    @property
    def text(self) -> str:
        """The axis as an iteration writes it."""
        if self.members:
            return f"S.{self.axis.kind}({', '.join(member.text for member in self.members)})"
        if self.attached_to is not None:
            return f"S.attach({self.axis.name}, {self.attached_to.text})"
        return self.axis.name


def walked(scope: Iterable[Iterator]) -> list[Iterator]:
    """Return iterators and the members of those that are merged."""
    return [own for it in scope for own in (it, *it.members)]


@dataclass
class ExpressionWriter(BufferWriter):
    """Writes expressions of the iterators in scope."""

    #: Whether the result depends on the order of spatial iterators, which schedules may change.
    ordered: bool = False

    def index(self, scope: list[Iterator], depth: int) -> str:
        """Return a random integer expression."""
        names = [it.var for it in scope]
        choice = self.number(0, 9)
        if not names or choice == 0:
            return str(self.number(0, 3))
        name = self.pick(names)
        if choice <= 5:
            return name
        if choice == 7 and (load := self.from_table(scope, "int32")) is not None:
            return load
        if choice == 6 and depth > 0:
            tables = [b for b in self.inputs if b.dtype == "int32"]
            loads = [t for b in tables if (t := self.load(b, scope, 0)) is not None]
            if loads:
                return self.pick(loads)
        other = self.pick(names)
        return self.pick(
            [f"{name} + 1", f"{name} - 1", f"{name} // 2", f"{name} % 2", f"{name} + {other}"]
        )

    def from_table(self, scope: list[Iterator], dtype: str) -> str | None:
        """Return a load from a stock buffer, if an iterator runs over its length."""
        loads = [
            f"{name}[{it.var}]"
            for name, length, kind in self.tables
            for it in scope
            if kind == dtype and it.axis.length is length
        ]
        return self.pick(loads) if loads else None

    def load(self, buffer: Buffer, scope: list[Iterator], depth: int) -> str | None:
        """Return a load, ``None`` if it would have to search an axis with duplicates."""
        straight: dict[Axis, Iterator] = {}
        texts = []
        for axis in buffer.axes:
            own = [it for it in walked(scope) if it.axis is axis]
            owner = straight.get(axis.parent)
            direct = [it for it in own if not it.attached_to and it.owner is owner]
            if not axis.unique and not direct:
                return None
            iterator = None
            if direct and (not axis.unique or self.chance(70)):
                iterator = straight[axis] = direct[0]
            elif own and self.chance(50):
                iterator = own[0]
            texts.append(iterator.var if iterator else self.index(scope, depth))
        return f"{buffer.name}[{', '.join(texts)}]"

    def load_at(self, buffer: Buffer, name: str) -> str | None:
        """Return a load that searches at one coordinate, ``None`` if it may not."""
        if not all(axis.unique for axis in buffer.axes):
            return None
        return f"{buffer.name}[{', '.join([name] * len(buffer.axes))}]"

    def value(self, scope: list[Iterator], dtype: str, powers: bool) -> str:
        """Return a random value of a dtype, made of powers of two if `powers`."""
        if not powers:
            return self._combination(scope, dtype, powers)
        inputs, self.inputs = self.inputs, []
        temporaries, self.temporaries = self.temporaries, []
        self.make_input("float64", powers=True)
        text = self._combination(scope, dtype, powers)
        self.inputs, self.temporaries = inputs, temporaries
        return text

    def _combination(self, scope: list[Iterator], dtype: str, powers: bool) -> str:
        terms = []
        for _ in range(self.number(1, 2)):
            loads = [(b, self.load(b, scope, 1)) for b in [*self.inputs, *self.temporaries]]
            loads = [(b, t) for b, t in loads if t is not None]
            if loads and self.chance(85):
                buffer, text = self.pick(loads)
                self.ordered |= buffer in self.temporaries  # perhaps one that is being written
                terms.append(text if buffer.dtype == dtype else f"T.cast({text}, {dtype!r})")
            elif scope and self.chance(50) and not powers:
                terms.append(f"T.cast({self.pick(scope).var}, {dtype!r})")
            else:
                terms.append(f"T.{dtype}(2)")
        if not powers and self.chance(20):
            load = self.from_table(scope, "float64")
            terms += [f"T.cast({load}, {dtype!r})"] if load is not None else []
        joined = f" {'*' if powers else self.pick('+-*')} ".join(terms)
        if scope and self.chance(15):
            condition = self.condition(scope)
            joined = f"T.if_then_else({condition}, {joined}, T.{dtype}(1))"
        return joined

    def condition(self, scope: list[Iterator]) -> str:
        """Return a comparison of an iterator with a number."""
        left = self.pick(scope).var
        return f"{left} {self.pick(['<', '>=', '!='])} {self.number(0, 3)}"

"""Axes of a random program: their declarations, and index arrays that fit them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from .choices import Choices

__all__ = ["Axis", "Size", "StructureWriter", "has_siblings", "parents_first"]


@dataclass(eq=False)
class Size:
    """A length, a width or a number of entries: a parameter of the program, or a literal."""

    name: str
    value: int
    literal: bool

    @property
    def text(self) -> str:
        return str(self.value) if self.literal else self.name


@dataclass(eq=False)
class Axis:
    """An axis, with the number of its slots over all rows of its ancestors."""

    name: str
    kind: str
    length: Size
    dtype: str
    slots: int
    parent: Axis | None = None
    width: Size | None = None
    nnz: Size | None = None
    sorted: bool = True
    unique: bool = True

    @property
    def chain(self) -> list[Axis]:
        """Its ancestors, from the root on, and itself."""
        return [*(self.parent.chain if self.parent else []), self]

    @property
    def depth(self) -> int:
        return len(self.chain)

    @property
    def natural_shape(self) -> tuple[int, ...]:
        """Shape of an array with one element for each slot."""
        if self.kind == "sparse_fixed":
            return (*self.parent.natural_shape, self.width.value)
        return (self.slots,)


def has_siblings(axes: list[Axis]) -> bool:
    """Whether two axes have the same parent."""
    parents = [a.parent for a in axes if a.parent is not None]
    return len(parents) != len(set(parents))


def parents_first(axes: list[Axis]) -> bool:
    """Whether the parent of every axis stands before it."""
    return all(a.parent is None or a.parent in axes[:k] for k, a in enumerate(axes))


@dataclass
class StructureWriter(Choices):
    """Writes the declarations of axes; keeps the arguments and lines of the program."""

    sizes: list[Size] = field(default_factory=list)
    axes: list[Axis] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def size(self, name: str, value: int) -> Size:
        """Return a new size, a literal at times."""
        made = Size(name, value, literal=self.chance(25))
        self.sizes.append(made)
        return made

    def make_axes(self) -> None:
        """Declare three to eight axes: dense ones, and others below them, three levels in all."""
        lengths = [self.size(f"n{k}", self.number(0 if self.chance(5) else 1, 5)) for k in range(2)]
        if self.chance(40):
            lengths.append(self.size("n2", self.number(1, 6)))
        for length in lengths:
            self._add(Axis(self.fresh("D"), "dense_fixed", length, self._dtype(), length.value))
        for _ in range(self.number(1, 4)):
            parent = self.pick([a for a in self.axes if a.depth < 3])
            length = self.pick(lengths)
            kind = self.pick(
                ["sparse_variable", "sparse_variable", "sparse_fixed", "dense_variable"]
            )
            self._add_child(kind, parent, length)
        if self.chance(50):
            length = self.pick(lengths)
            self._add(Axis(self.fresh("D"), "dense_fixed", length, self._dtype(), length.value))

    def _dtype(self) -> str:
        return self.pick(["int32", "int32", "int64"])

    def _add(self, axis: Axis) -> None:
        self.axes.append(axis)
        if axis.kind == "dense_fixed":
            idtype = "" if axis.dtype == "int32" else f", {axis.dtype!r}"
            self.lines.append(f"{axis.name} = S.dense_fixed({axis.length.text}{idtype})")

    def _add_child(self, kind: str, parent: Axis, length: Size) -> None:
        name = {"sparse_variable": "C", "sparse_fixed": "E", "dense_variable": "R"}[kind]
        axis = Axis(self.fresh(name), kind, length, self._dtype(), 0, parent)
        if kind == "dense_variable":
            counts = self._counts(parent.slots, length.value)
        else:
            axis.sorted, axis.unique = self.chance(75), self.chance(80)
            most = length.value if axis.unique else min(length.value * 2, 6)
            counts = self._counts(parent.slots, most)
        rows = [] if kind == "dense_variable" else [self._row(axis, c) for c in counts]
        flags = "" if axis.sorted else ", sorted=False"
        flags += "" if axis.unique else ", unique=False"
        sizes = f"{parent.name}, ({length.text}, {{}})"
        if kind == "sparse_fixed":
            width = max([len(r) for r in rows], default=0) + self.number(0, 2)
            axis.width = self.size(f"w_{axis.name}", width)
            rows = [self._padded(axis, row) for row in rows]
            axis.slots = parent.slots * width
            self._index_array(axis, "indices", np.array(rows).reshape(axis.natural_shape))
            call = f"S.sparse_fixed({sizes.format(axis.width.text)}, {axis.name}_indices"
        else:
            indptr = np.concatenate([[0], np.cumsum(counts)])
            axis.slots = int(indptr[-1])
            axis.nnz = self.size(f"nnz_{axis.name}", axis.slots)
            self._index_array(axis, "indptr", indptr)
            call = f"S.{kind}({sizes.format(axis.nnz.text)}, {axis.name}_indptr"
            if kind == "sparse_variable":
                self._index_array(axis, "indices", np.concatenate([*rows, np.zeros(0)]))
                call = call.replace(f"{axis.name}_indptr", f"({axis.name}_indptr, ")
                call += f"{axis.name}_indices)"
        self.axes.append(axis)
        self.lines.append(f"{axis.name} = {call}, {axis.dtype!r}{flags})")

    def _counts(self, rows: int, most: int) -> list[int]:
        if self.chance(10):
            return [0] * rows
        return self.draw(st.lists(st.integers(0, most), min_size=rows, max_size=rows))

    def _row(self, axis: Axis, count: int) -> list[int]:
        length = axis.length.value
        if axis.unique:
            row = self.draw(st.permutations(range(length)))[:count]
        else:
            row = [self.number(0, length - 1) for _ in range(count if length else 0)]
            row += [0] * (count - len(row))
        return sorted(row) if axis.sorted else list(row)

    def _padded(self, axis: Axis, row: list[int]) -> list[int]:
        padding = axis.width.value - len(row)
        if axis.sorted:
            return [*row, *[axis.length.value] * padding]
        for _ in range(padding):
            at = self.number(0, len(row))
            row = [*row[:at], self.pick([-1, axis.length.value]), *row[at:]]
        return row

    def _index_array(self, axis: Axis, what: str, values: np.ndarray) -> None:
        name = f"{axis.name}_{what}"
        self.arrays[name] = values.astype(axis.dtype)

"""Statements of a random program: sparse iterations, nested or not, and the stores in them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from .buffers import Buffer
from .expressions import ExpressionWriter, Iterator, walked
from .structures import Axis, has_siblings, parents_first

__all__ = ["StatementWriter"]


@dataclass
class StatementWriter(ExpressionWriter):
    """Writes iterations, declaring the buffers that they store to."""

    #: Names of outputs that hold values before the call, which reductions add to.
    preset: set[str] = field(default_factory=set)

    def iteration(self, outer: list[Iterator], nested: bool, indent: str = "") -> list[str]:
        """Write one iteration."""
        made = self.iterators(outer, 2 if nested or outer else 4)
        if nested:
            for iterator in made:
                iterator.kind = "S"
        if not made:
            return []
        kinds = "".join(it.kind for it in made)
        names = ", ".join(it.var for it in made)
        head = f"{indent}with S.sp_iter([{self.axis_list(made)}], {kinds!r}, "
        text = [f'{head}"{self.fresh("it")}") as [{names}]:']
        scope = [*outer, *made]
        deeper = indent + "    "
        if nested:
            for _ in range(self.number(1, 2)):
                text += self.iteration(scope, nested=False, indent=deeper)
            return text if len(text) > 1 else []
        spatial = [it for it in scope if it.kind == "S"]
        inits: list[str] = []
        stores: list[str] = []
        for _ in range(2 if self.chance(15) else 1):
            self._store(scope, spatial, "R" in kinds, deeper, inits, stores)
        if inits:
            text.append(f"{deeper}with T.init():")
            text += [f"    {line}" for line in inits]
        return [*text, *stores]

    def iterators(self, outer: list[Iterator], most: int) -> list[Iterator]:
        """Return iterators in a legal order."""
        made: list[Iterator] = []
        scope = list(outer)
        points = 1
        for _ in range(self.number(1, most)):
            ready = self._ready(scope)
            if not ready:
                break
            iterator = self._merged(ready) if self.chance(25) else None
            if iterator is None:
                deeper = [it for it in ready if it.axis.parent is not None]
                iterator = self.pick(deeper if deeper and self.chance(70) else ready)
            points *= max(1, iterator.axis.length.value)
            if points > 400:
                break
            name = self.fresh(iterator.axis.name[0].lower())
            kind = "S" if self.chance(55) else "R"
            for own in walked([iterator]):
                own.var, own.kind = name, kind
            made.append(iterator)
            scope.append(iterator)
        return made

    def _ready(self, scope: list[Iterator]) -> list[Iterator]:
        """Return what may be iterated inside of a scope; none has a name yet."""
        around = walked(scope)
        taken = {it.axis for it in around}
        ready = []
        for axis in self.axes:
            if axis in taken:
                continue
            owners = [it for it in around if it.axis is axis.parent and not it.attached_to]
            if axis.parent is None or owners:
                ready.append(Iterator("", axis, "", None, owners[0] if owners else None))
            if axis.parent is not None and axis.parent.kind == "dense_fixed":
                for it in around:
                    same = it.axis.length is axis.parent.length
                    if same and it.axis is not axis.parent and not it.attached_to:
                        ready.append(Iterator("", axis, "", it, None))
        return ready

    def _merged(self, ready: list[Iterator]) -> Iterator | None:
        """Return a union or intersection of axes of one length, None if there are none to merge."""
        first = self.pick(ready)
        members: list[Iterator] = []
        for it in [first, *self.draw(st.permutations(ready))]:
            fits = it.axis.sorted and it.axis.unique and it.axis.length is first.axis.length
            if fits and it.axis not in {own.axis for own in members}:
                members.append(it)
        members = members[: self.number(2, 4)]
        if len(members) < 2:
            return None
        wide = any(it.axis.dtype == "int64" for it in members)
        dtype, kind = "int64" if wide else "int32", self.pick(["union", "union", "intersect"])
        axis = Axis(self.fresh("M"), kind, first.axis.length, dtype, 0)
        return Iterator("", axis, "", members=tuple(members))

    def axis_list(self, made: list[Iterator]) -> str:
        """Write the axes of an iteration, some of them fused."""
        parts = []
        k = 0
        while k < len(made):
            end = k + 1
            while (
                end < len(made)
                and made[end].owner is made[end - 1]
                and made[end - 1].attached_to is None
            ):
                end += 1
            if end - k > 1 and self.chance(40):
                end = self.number(k + 2, end)
                parts.append(f"S.fuse({', '.join(it.axis.name for it in made[k:end])})")
                k = end
                continue
            parts.append(made[k].text)
            k += 1
        return ", ".join(parts)

    def _store(
        self,
        scope: list[Iterator],
        spatial: list[Iterator],
        reduces: bool,
        indent: str,
        inits: list[str],
        stores: list[str],
    ) -> None:
        """Write a store to `stores`, and what initialises its target to `inits`."""
        operation = self.pick(["sum", "sum", "sum", "max", "min", "prod"])
        dtype = self.pick(["float64", "float64", "float32", "int32", "float16"])
        powers = operation == "prod" and reduces
        if powers:
            dtype = "float64"
        value = self.value(scope, dtype, powers)
        if scope and not powers and self.chance(15):
            local, kind = self.fresh("v"), self.pick(["T.int32", "T.let"])
            stores.append(f"{indent}{local}: {kind} = T.cast({self.index(scope, 1)}, 'int32')")
            searched = [t for b in self.inputs if (t := self.load_at(b, local)) is not None]
            if searched:
                value = f"{value} + T.cast({self.pick(searched)}, {dtype!r})"
        buffer, indices = self.place_of(spatial, dtype)
        place = f"{buffer.name}[{', '.join(indices)}]"
        if not reduces:
            store = f"{place} = {value}"
            exact = all(i in {it.var for it in spatial} for i in indices)
            self.ordered |= not exact or not all(it.axis.unique for it in spatial)
        else:
            identity = {"sum": 0, "prod": 1, "max": -50, "min": 50}[operation]
            if self.chance(15):
                identity = 4
            store = {
                "sum": f"{place} = {place} + {value}",
                "prod": f"{place} = {place} * ({value})",
                "max": f"{place} = T.max({place}, {value})",
                "min": f"{place} = T.min({place}, {value})",
            }[operation]
            if buffer.name.startswith("T") or dtype == "float16" or not self.chance(10):
                inits.append(f"{indent}{place} = T.{dtype}({identity})")
            else:
                name = buffer.name.lower()
                self.preset.add(name)
                rng = np.random.default_rng(self.number(0, 1000))
                self.arrays[name] = rng.integers(-3, 4, buffer.shape).astype(dtype)
        if scope and self.chance(10):
            stores.append(f"{indent}if {self.condition(scope)}:")
            indent += "    "
        if reduces and operation != "prod" and self.chance(10):
            stores.append(f"{indent}for {self.fresh('t')} in range({self.number(0, 3)}):")
            indent += "    "
        stores.append(f"{indent}{store}")

    def place_of(self, spatial: list[Iterator], dtype: str) -> tuple[Buffer, list[str]]:
        """Return a buffer to store to and the indices of the store; every iterator is used."""
        mode = self.pick(["direct", "direct", "mirror", "search"])
        spatial = [self.pick(it.members) if it.members else it for it in spatial]
        axes = [it.axis for it in spatial]
        own = {it.axis: it for it in spatial}
        direct = all(
            it.attached_to is None and (it.axis.parent is None or it.axis.parent in own)
            for it in spatial
        )
        if mode == "direct" and axes and direct and not has_siblings(axes):
            ordered = sorted(axes, key=lambda a: a.depth) if self.chance(30) else axes
            if parents_first(ordered):
                return self.make_target(ordered, dtype), [own[a].var for a in ordered]
        if mode == "search":
            axes = self.storage_axes(searchable=True)
            return self.make_target(axes, dtype), self._spread(spatial, len(axes))
        mirrors = {a.length: a for a in self.axes if a.kind == "dense_fixed"}
        if not spatial:
            return self.make_target([self.axes[0]], dtype), ["0"]
        return (
            self.make_target([mirrors[it.axis.length] for it in spatial], dtype),
            [it.var for it in spatial],
        )

    def _spread(self, spatial: list[Iterator], count: int) -> list[str]:
        """Return so many indices in which every iterator occurs once."""
        slots: list[list[str]] = [[] for _ in range(count)]
        for iterator in spatial:
            slots[self.number(0, count - 1)].append(iterator.var)
        indices = []
        for names in slots:
            text = " + ".join(names) if names else str(self.number(0, 2))
            if names and self.chance(30):
                text = self.pick([f"({text}) // 2", f"({text}) % 3", f"{text} - 1", f"{text} + 1"])
            indices.append(text)
        return indices

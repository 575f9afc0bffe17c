"""Random stage-I programs, with random structures to run them on.

A program is drawn as text, so that a failing one can be read and kept as a test. Values are small
integers (or powers of two where they are multiplied up), so that results are exact in every float
type and are compared without tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

__all__ = ["Program", "programs"]


@dataclass
class Program:
    """A program's text, and arguments to call it with."""

    text: str
    arrays: dict[str, np.ndarray]
    scalars: dict[str, int]
    outputs: list[str]
    #: Choices for a random schedule; none if it is empty.
    schedule: list[int] = field(default_factory=list)
    #: Scalar parameters to specialise.
    bound: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        lines = [self.text, f"scalars = {self.scalars}", f"outputs = {self.outputs}"]
        lines += [f"schedule = {self.schedule}", f"bound = {self.bound}"]
        for name, array in self.arrays.items():
            lines.append(f"{name} = np.array({array.tolist()}, {str(array.dtype)!r})")
        return "\n".join(lines)


@dataclass(eq=False)
class _Size:
    name: str
    value: int
    literal: bool

    @property
    def text(self) -> str:
        return str(self.value) if self.literal else self.name


@dataclass(eq=False)
class _Axis:
    name: str
    kind: str
    length: _Size
    dtype: str
    slots: int
    parent: _Axis | None = None
    width: _Size | None = None
    nnz: _Size | None = None
    sorted: bool = True
    unique: bool = True

    @property
    def chain(self) -> list[_Axis]:
        return [*(self.parent.chain if self.parent else []), self]

    @property
    def depth(self) -> int:
        return len(self.chain)

    @property
    def natural_shape(self) -> tuple[int, ...]:
        if self.kind == "sparse_fixed":
            return (*self.parent.natural_shape, self.width.value)
        return (self.slots,)


@dataclass(eq=False)
class _Iterator:
    var: str
    axis: _Axis
    kind: str
    attached_to: _Iterator | None = None
    #: Iterator of the parent axis, ``None`` for a root.
    owner: _Iterator | None = None


@dataclass(eq=False)
class _Buffer:
    name: str
    axes: list[_Axis]
    dtype: str
    default: int

    @property
    def shape(self) -> tuple[int, ...]:
        inner = {p for axis in self.axes for p in axis.chain[:-1]}
        leaves = [axis for axis in self.axes if axis not in inner]
        return tuple(size for axis in leaves for size in axis.natural_shape)


@dataclass
class _Writer:
    draw: object
    sizes: list[_Size] = field(default_factory=list)
    axes: list[_Axis] = field(default_factory=list)
    inputs: list[_Buffer] = field(default_factory=list)
    outputs: list[_Buffer] = field(default_factory=list)
    temporaries: list[_Buffer] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    index_arrays: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    preset: set[str] = field(default_factory=set)
    tables: list[tuple[str, _Size, str]] = field(default_factory=list)
    #: Whether the result depends on the order of spatial iterators, which schedules may change.
    ordered: bool = False
    count: int = 0

    # --- choices -------------------------------------------------------------------------------

    def chance(self, percent: int) -> bool:
        return self.draw(st.integers(0, 99)) < percent

    def pick(self, options):
        return self.draw(st.sampled_from(list(options)))

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    # --- structure -----------------------------------------------------------------------------

    def size(self, name: str, value: int) -> _Size:
        made = _Size(name, value, literal=self.chance(25))
        self.sizes.append(made)
        return made

    def make_axes(self) -> None:
        lengths = [self.size(f"n{k}", self.number(0 if self.chance(5) else 1, 5)) for k in range(2)]
        if self.chance(40):
            lengths.append(self.size("n2", self.number(1, 6)))
        for length in lengths:
            self._add(_Axis(self.fresh("D"), "dense_fixed", length, self._dtype(), length.value))
        for _ in range(self.number(1, 4)):
            parent = self.pick([a for a in self.axes if a.depth < 3])
            length = self.pick(lengths)
            kind = self.pick(
                ["sparse_variable", "sparse_variable", "sparse_fixed", "dense_variable"]
            )
            self._add_child(kind, parent, length)
        if self.chance(50):
            length = self.pick(lengths)
            self._add(_Axis(self.fresh("D"), "dense_fixed", length, self._dtype(), length.value))

    def _dtype(self) -> str:
        return self.pick(["int32", "int32", "int64"])

    def _add(self, axis: _Axis) -> None:
        self.axes.append(axis)
        if axis.kind == "dense_fixed":
            idtype = "" if axis.dtype == "int32" else f", {axis.dtype!r}"
            self.lines.append(f"{axis.name} = S.dense_fixed({axis.length.text}{idtype})")

    def _add_child(self, kind: str, parent: _Axis, length: _Size) -> None:
        name = {"sparse_variable": "C", "sparse_fixed": "E", "dense_variable": "R"}[kind]
        axis = _Axis(self.fresh(name), kind, length, self._dtype(), 0, parent)
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

    def _row(self, axis: _Axis, count: int) -> list[int]:
        length = axis.length.value
        if axis.unique:
            row = self.draw(st.permutations(range(length)))[:count]
        else:
            row = [self.number(0, length - 1) for _ in range(count if length else 0)]
            row += [0] * (count - len(row))
        return sorted(row) if axis.sorted else list(row)

    def _padded(self, axis: _Axis, row: list[int]) -> list[int]:
        padding = axis.width.value - len(row)
        if axis.sorted:
            return [*row, *[axis.length.value] * padding]
        for _ in range(padding):
            at = self.number(0, len(row))
            row = [*row[:at], self.pick([-1, axis.length.value]), *row[at:]]
        return row

    def _index_array(self, axis: _Axis, what: str, values: np.ndarray) -> None:
        name = f"{axis.name}_{what}"
        self.arrays[name] = values.astype(axis.dtype)
        self.index_arrays.append(name)

    # --- buffers -------------------------------------------------------------------------------

    def storage_axes(self, searchable: bool = False) -> list[_Axis]:
        """Return legal axes of a buffer: parents before children, no siblings."""
        chosen: list[_Axis] = []
        for _ in range(self.number(1, 2)):
            usable = [a for a in self.axes if not searchable or all(p.unique for p in a.chain)]
            chain = self.pick(usable).chain
            merged = [*chosen, *(a for a in chain if a not in chosen)]
            if len(merged) > 4 or _has_siblings(merged) or self._slots(merged) > 300:
                continue
            chosen = self._interleave(chosen, [a for a in chain if a not in chosen])
        return chosen or [self.axes[0]]

    def _slots(self, axes: list[_Axis]) -> int:
        return int(np.prod(_Buffer("", axes, "", 0).shape, dtype="int64"))

    def _interleave(self, left: list[_Axis], right: list[_Axis]) -> list[_Axis]:
        merged: list[_Axis] = []
        left, right = list(left), list(right)
        while left or right:
            # An axis of the right chain may hang on one of the left: keep parents first.
            ready = right and (right[0].parent is None or right[0].parent not in left)
            take_left = left and (not ready or self.chance(75))
            merged.append((left if take_left else right).pop(0))
        return merged

    def make_input(self, dtype: str | None = None, powers: bool = False) -> _Buffer:
        dtype = dtype or self.pick(["float64", "float64", "float32", "int32"])
        buffer = _Buffer(self.fresh("X"), self.storage_axes(), dtype, self._default())
        options = [-2, -1, 1, 2, 0.5] if powers else [-3, -2, -1, 0, 1, 2, 3]
        options = [v for v in options if dtype.startswith("float") or v == int(v)]
        size = int(np.prod(buffer.shape, dtype="int64"))
        rng = np.random.default_rng(self.number(0, 1000))
        values = rng.choice(options, size).astype(dtype).reshape(buffer.shape)
        self.arrays[buffer.name.lower()] = values
        self.inputs.append(buffer)
        self._declare(buffer)
        return buffer

    def make_table(self) -> None:
        """Declare a stock buffer; it is indexed by coordinates of its own length."""
        length = self.pick([a.length for a in self.axes])
        name, dtype = self.fresh("P"), self.pick(["float64", "int32"])
        self.lines.append(f"{name} = S.match_buffer({name.lower()}, ({length.text},), {dtype!r})")
        rng = np.random.default_rng(self.number(0, 1000))
        self.arrays[name.lower()] = rng.integers(-1, 5, length.value).astype(dtype)
        self.tables.append((name, length, dtype))

    def from_table(self, scope: list[_Iterator], dtype: str) -> str | None:
        """Return a load from a stock buffer, if an iterator runs over its length."""
        loads = [
            f"{name}[{it.var}]"
            for name, length, kind in self.tables
            for it in scope
            if kind == dtype and it.axis.length is length
        ]
        return self.pick(loads) if loads else None

    def _default(self) -> int:
        return self.pick([0, 0, 0, 1, -2])

    def _declare(self, buffer: _Buffer, temporary: bool = False) -> None:
        axes = "".join(f"{a.name}, " for a in buffer.axes)
        default = f", default={buffer.default}" if buffer.default else ""
        if temporary:
            call = f"S.alloc_sparse_buffer(({axes}), {buffer.dtype!r}{default})"
        else:
            call = (
                f"S.match_sparse_buffer({buffer.name.lower()}, ({axes}), {buffer.dtype!r}{default})"
            )
        self.lines.append(f"{buffer.name} = {call}")

    def make_target(self, spatial: list[_Iterator], dtype: str) -> tuple[_Buffer, list[str]]:
        """Return a buffer to store to and the indices of the store; every iterator is used."""
        mode = self.pick(["direct", "direct", "mirror", "search"])
        axes = [it.axis for it in spatial]
        own = {it.axis: it for it in spatial}
        direct = all(
            it.attached_to is None and (it.axis.parent is None or it.axis.parent in own)
            for it in spatial
        )
        if mode == "direct" and axes and direct and not _has_siblings(axes):
            ordered = sorted(axes, key=lambda a: a.depth) if self.chance(30) else axes
            if _parents_first(ordered):
                return self._new_target(ordered, dtype), [own[a].var for a in ordered]
        if mode == "search":
            axes = self.storage_axes(searchable=True)
            return self._new_target(axes, dtype), self._spread(spatial, len(axes))
        mirrors = {a.length: a for a in self.axes if a.kind == "dense_fixed"}
        if not spatial:
            return self._new_target([self.axes[0]], dtype), ["0"]
        return (
            self._new_target([mirrors[it.axis.length] for it in spatial], dtype),
            [it.var for it in spatial],
        )

    def _new_target(self, axes: list[_Axis], dtype: str) -> _Buffer:
        temporary = self.chance(10)
        buffer = _Buffer(self.fresh("T" if temporary else "Y"), axes, dtype, self._default())
        self._declare(buffer, temporary)
        if temporary:
            self.temporaries.append(buffer)
        else:
            self.outputs.append(buffer)
            self.arrays[buffer.name.lower()] = np.zeros(buffer.shape, dtype)
        return buffer

    def _spread(self, spatial: list[_Iterator], count: int) -> list[str]:
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

    # --- expressions ---------------------------------------------------------------------------

    def index(self, scope: list[_Iterator], depth: int) -> str:
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

    def load(self, buffer: _Buffer, scope: list[_Iterator], depth: int) -> str | None:
        """Return a load, ``None`` if it would have to search an axis with duplicates."""
        straight: dict[_Axis, _Iterator] = {}
        texts = []
        for axis in buffer.axes:
            own = [it for it in scope if it.axis is axis]
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

    def load_at(self, buffer: _Buffer, name: str) -> str | None:
        """Return a load that searches at one coordinate, ``None`` if it may not."""
        if not all(axis.unique for axis in buffer.axes):
            return None
        return f"{buffer.name}[{', '.join([name] * len(buffer.axes))}]"

    def value(self, scope: list[_Iterator], dtype: str, powers: bool) -> str:
        """Return a random value of type ``dtype``."""
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

    def condition(self, scope: list[_Iterator]) -> str:
        left = self.pick(scope).var
        return f"{left} {self.pick(['<', '>=', '!='])} {self.number(0, 3)}"

    # --- iterations ----------------------------------------------------------------------------

    def iterators(self, outer: list[_Iterator], most: int) -> list[_Iterator]:
        """Return iterators in a legal order."""
        made: list[_Iterator] = []
        scope = list(outer)
        points = 1
        for _ in range(self.number(1, most)):
            taken = {it.axis for it in scope}
            ready = []
            for axis in self.axes:
                if axis not in taken:
                    owners = [it for it in scope if it.axis is axis.parent and not it.attached_to]
                    if axis.parent is None or owners:
                        ready.append((axis, owners[0] if owners else None, None))
                    if axis.parent is not None and axis.parent.kind == "dense_fixed":
                        for it in scope:
                            same = it.axis.length is axis.parent.length
                            if same and it.axis is not axis.parent and not it.attached_to:
                                ready.append((axis, None, it))
            if not ready:
                break
            deeper = [r for r in ready if r[0].parent is not None]
            axis, owner, attached = self.pick(deeper if deeper and self.chance(70) else ready)
            points *= max(1, axis.length.value)
            if points > 400:
                break
            kind = "S" if self.chance(55) else "R"
            iterator = _Iterator(self.fresh(axis.name[0].lower()), axis, kind, attached, owner)
            made.append(iterator)
            scope.append(iterator)
        return made

    def axis_list(self, made: list[_Iterator]) -> str:
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
            iterator = made[k]
            if iterator.attached_to is not None:
                parts.append(f"S.attach({iterator.axis.name}, {iterator.attached_to.axis.name})")
            else:
                parts.append(iterator.axis.name)
            k += 1
        return ", ".join(parts)

    def iteration(self, outer: list[_Iterator], nested: bool, indent: str = "") -> list[str]:
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
        inits, stores = [], []
        for _ in range(2 if self.chance(15) else 1):
            self._store(scope, spatial, "R" in kinds, deeper, inits, stores)
        if inits:
            text.append(f"{deeper}with T.init():")
            text += [f"    {line}" for line in inits]
        return [*text, *stores]

    def _store(self, scope, spatial, reduces: bool, indent: str, inits, stores) -> None:
        operation = self.pick(["sum", "sum", "sum", "max", "min", "prod"])
        dtype = self.pick(["float64", "float64", "float32", "int32", "float16"])
        powers = operation == "prod" and reduces
        if powers:
            dtype = "float64"
        value = self.value_of(scope, dtype, powers)
        if scope and not powers and self.chance(15):
            local, kind = self.fresh("v"), self.pick(["T.int32", "T.let"])
            stores.append(f"{indent}{local}: {kind} = T.cast({self.index(scope, 1)}, 'int32')")
            searched = [t for b in self.inputs if (t := self.load_at(b, local)) is not None]
            if searched:
                value = f"{value} + T.cast({self.pick(searched)}, {dtype!r})"
        buffer, indices = self.make_target(spatial, dtype)
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

    def value_of(self, scope, dtype: str, powers: bool) -> str:
        if powers:
            kept, self.inputs = self.inputs, []
            temporaries, self.temporaries = self.temporaries, []
            self.make_input("float64", powers=True)
            text = self.value(scope, dtype, powers=True)
            self.inputs = [*kept]
            self.temporaries = temporaries
            return text
        return self.value(scope, dtype, powers=False)

    # --- the whole -----------------------------------------------------------------------------

    def program(self) -> Program:
        self.make_axes()
        for _ in range(self.number(1, 3)):
            self.make_input()
        if self.chance(30):
            self.make_table()
        body: list[str] = []
        for _ in range(2 if self.chance(25) else 1):
            body += self.iteration([], nested=self.chance(20))
        if not self.outputs:
            buffer = self._copy_out()
            body += buffer
        scalars = {s.name: s.value for s in self.sizes if not s.literal}
        params = [f"{name}: T.handle" for name in self.arrays]
        size_dtype = self.pick(["int32", "int64"])
        params += [f"{name}: T.{size_dtype}" for name in scalars]
        lines = [f"    {line}" for line in [*self.lines, *body]]
        text = "\n".join(["@S.prim_func", f"def program({', '.join(params)}):", *lines])
        outputs = [b.name.lower() for b in self.outputs if b.name.lower() not in self.preset]
        schedule = self.draw(st.lists(st.integers(0, 999), min_size=3, max_size=12))
        if self.chance(50) or self.ordered:
            schedule = []
        bound = [name for name in scalars if self.chance(50)] if self.chance(25) else []
        return Program(text, self.arrays, scalars, outputs, schedule, bound)

    def _copy_out(self) -> list[str]:
        """Write an iteration that stores something, for programs that only fill temporaries."""
        axis = self.axes[0]
        buffer = _Buffer(self.fresh("Y"), [axis], "float64", 0)
        self._declare(buffer)
        self.outputs.append(buffer)
        self.arrays[buffer.name.lower()] = np.zeros(buffer.shape, "float64")
        iterator = _Iterator(self.fresh("d"), axis, "S")
        value = self.value([iterator], "float64", powers=False)
        return [
            f'with S.sp_iter([{axis.name}], "S", "copy") as [{iterator.var}]:',
            f"    {buffer.name}[{iterator.var}] = {value}",
        ]


def _has_siblings(axes: list[_Axis]) -> bool:
    parents = [a.parent for a in axes if a.parent is not None]
    return len(parents) != len(set(parents))


def _parents_first(axes: list[_Axis]) -> bool:
    return all(a.parent is None or a.parent in axes[:k] for k, a in enumerate(axes))


@st.composite
def programs(draw) -> Program:
    """Draw a program with its arguments."""
    return _Writer(draw).program()

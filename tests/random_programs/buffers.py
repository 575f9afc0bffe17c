"""Buffers of a random program: the axes they are stored by, their values and declarations."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .structures import Axis, Size, StructureWriter, has_siblings

__all__ = ["Buffer", "BufferWriter"]


@dataclass(eq=False)
class Buffer:
    """A sparse buffer; coordinates without a slot read `default`."""

    name: str
    axes: list[Axis]
    dtype: str
    default: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array of its values: one part for each chain of its axes."""
        inner = {p for axis in self.axes for p in axis.chain[:-1]}
        leaves = [axis for axis in self.axes if axis not in inner]
        return tuple(size for axis in leaves for size in axis.natural_shape)


@dataclass
class BufferWriter(StructureWriter):
    """Writes the declarations of buffers over the axes of the program."""

    inputs: list[Buffer] = field(default_factory=list)
    outputs: list[Buffer] = field(default_factory=list)
    temporaries: list[Buffer] = field(default_factory=list)
    tables: list[tuple[str, Size, str]] = field(default_factory=list)

    def make_input(self, dtype: str | None = None, powers: bool = False) -> Buffer:
        """Declare an input, of powers of two if `powers`."""
        dtype = dtype or self.pick(["float64", "float64", "float32", "int32"])
        buffer = Buffer(self.fresh("X"), self.storage_axes(), dtype, self._default())
        options = [-2, -1, 1, 2, 0.5] if powers else [-3, -2, -1, 0, 1, 2, 3]
        options = [v for v in options if dtype.startswith("float") or v == int(v)]
        size = int(np.prod(buffer.shape, dtype="int64"))
        rng = np.random.default_rng(self.number(0, 1000))
        values = rng.choice(options, size).astype(dtype).reshape(buffer.shape)
        self.arrays[buffer.name.lower()] = values
        self.inputs.append(buffer)
        self.declare(buffer)
        return buffer

    def make_table(self) -> None:
        """Declare a stock buffer; it is indexed by coordinates of its own length."""
        length = self.pick([a.length for a in self.axes])
        name, dtype = self.fresh("P"), self.pick(["float64", "int32"])
        self.lines.append(f"{name} = S.match_buffer({name.lower()}, ({length.text},), {dtype!r})")
        rng = np.random.default_rng(self.number(0, 1000))
        self.arrays[name.lower()] = rng.integers(-1, 5, length.value).astype(dtype)
        self.tables.append((name, length, dtype))

    def make_target(self, axes: list[Axis], dtype: str) -> Buffer:
        """Declare a buffer to store to, an output or a temporary."""
        temporary = self.chance(10)
        buffer = Buffer(self.fresh("T" if temporary else "Y"), axes, dtype, self._default())
        self.declare(buffer, temporary)
        if temporary:
            self.temporaries.append(buffer)
        else:
            self.outputs.append(buffer)
            self.arrays[buffer.name.lower()] = np.zeros(buffer.shape, dtype)
        return buffer

    def declare(self, buffer: Buffer, temporary: bool = False) -> None:
        """Write the declaration of a buffer."""
        axes = "".join(f"{a.name}, " for a in buffer.axes)
        default = f", default={buffer.default}" if buffer.default else ""
        if temporary:
            call = f"S.alloc_sparse_buffer(({axes}), {buffer.dtype!r}{default})"
        else:
            call = (
                f"S.match_sparse_buffer({buffer.name.lower()}, ({axes}), {buffer.dtype!r}{default})"
            )
        self.lines.append(f"{buffer.name} = {call}")

    def storage_axes(self, searchable: bool = False) -> list[Axis]:
        """Return legal axes of a buffer: parents before children, no siblings."""
        chosen: list[Axis] = []
        for _ in range(self.number(1, 2)):
            usable = [a for a in self.axes if not searchable or all(p.unique for p in a.chain)]
            chain = self.pick(usable).chain
            merged = [*chosen, *(a for a in chain if a not in chosen)]
            if len(merged) > 4 or has_siblings(merged) or self._slots(merged) > 300:
                continue
            chosen = self._interleave(chosen, [a for a in chain if a not in chosen])
        return chosen or [self.axes[0]]

    def _slots(self, axes: list[Axis]) -> int:
        return int(np.prod(Buffer("", axes, "", 0).shape, dtype="int64"))

    def _interleave(self, left: list[Axis], right: list[Axis]) -> list[Axis]:
        merged: list[Axis] = []
        left, right = list(left), list(right)
        while left or right:
            # An axis of the right chain may hang on one of the left: keep parents first.
            ready = right and (right[0].parent is None or right[0].parent not in left)
            take_left = left and (not ready or self.chance(75))
            merged.append((left if take_left else right).pop(0))
        return merged

    def _default(self) -> int:
        return self.pick([0, 0, 0, 1, -2])

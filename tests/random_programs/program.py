"""A random program as a whole: its text, and the arguments to call it with."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from .buffers import Buffer
from .expressions import Iterator
from .statements import StatementWriter

__all__ = ["Program", "programs"]


@st.composite
def programs(draw) -> Program:
    """Draw a program with its arguments."""
    return _ProgramWriter(draw).program()


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


class _ProgramWriter(StatementWriter):
    """Writes whole programs."""

    def program(self) -> Program:
        """Write declarations and body, then choose what is specialised and scheduled."""
        self.make_axes()
        for _ in range(self.number(1, 3)):
            self.make_input()
        if self.chance(30):
            self.make_table()
        body: list[str] = []
        for _ in range(2 if self.chance(25) else 1):
            body += self.iteration([], nested=self.chance(20))
        if not self.outputs:
            body += self._copy_out()
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
        buffer = Buffer(self.fresh("Y"), [axis], "float64", 0)
        self.declare(buffer)
        self.outputs.append(buffer)
        self.arrays[buffer.name.lower()] = np.zeros(buffer.shape, "float64")
        iterator = Iterator(self.fresh("d"), axis, "S")
        value = self.value([iterator], "float64", powers=False)
        return [
            f'with S.sp_iter([{axis.name}], "S", "copy") as [{iterator.var}]:',
            f"    {buffer.name}[{iterator.var}] = {value}",
        ]

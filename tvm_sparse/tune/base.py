"""The call that tuning is about: the default kernel's, with its result, and the sparse operands in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..formats import Composition, Entries, Packed, PackedComposition
from ..formats.entries import RowEntries
from ..ir import SparseFunc
from ..runtime import Executable, KernelFunction, describe_functions, lower
from ..runtime.dimensions import dimension
from .loops import Problem, Space, as_array, scalars_of

__all__ = ["Base", "PackedOperands", "pack_operands"]


@dataclass
class Base:
    """A program and a finished call of its default kernel.

    Attributes
    ----------
    program : SparseFunc
        The program, operands in the formats that it declares.
    inputs : dict
        The arguments as the user gave them.
    default : Executable
        The kernel to beat.
    arguments : list
        The complete arguments, NumPy arrays and numbers, results in the outputs.
    """

    program: SparseFunc
    inputs: Mapping[str, Any]
    default: Executable
    arguments: list[Any]

    @staticmethod
    def call(program: SparseFunc, inputs: Mapping[str, Any], default: Executable) -> Base:
        """Run the default kernel once."""
        function = default[program.name]
        ready = function.arguments(**inputs)
        function(*ready)
        return Base(program, inputs, default, [as_array(value) for value in ready])

    @property
    def metadata(self) -> dict:
        """What the arguments are."""
        return self.default[self.program.name].metadata

    @property
    def by_name(self) -> dict[str, Any]:
        """The arguments by parameter."""
        return dict(zip((arg["name"] for arg in self.metadata["args"]), self.arguments))

    @property
    def results(self) -> list[np.ndarray]:
        """The outputs, as the default kernel computed them."""
        args = zip(self.metadata["args"], self.arguments)
        return [value for arg, value in args if arg.get("role") == "output"]

    def sparse_buffers(self) -> list[str]:
        """Return the names of the buffers over stored entries."""
        kinds = {axis["name"]: axis["kind"] for axis in self.metadata["axes"]}
        return [
            arg["buffer"]
            for arg in self.metadata["args"]
            if any(kinds[axis].startswith("sparse") for axis in arg.get("axes", []))
        ]

    def parameter(self, buffer: str) -> str:
        """Return the name of the parameter of a buffer."""
        for arg in self.metadata["args"]:
            if arg.get("buffer") == buffer and buffer in self.sparse_buffers():
                return arg["name"]
        raise ValueError(
            f"operand: expected one of {', '.join(self.sparse_buffers()) or 'none'}, the sparse buffers "
            f"of {self.program.name}, found {buffer!r}"
        )

    def entries(self, buffer: str) -> Entries:
        """Return what a buffer over the rows and stored columns of a matrix holds."""
        name = self.parameter(buffer)
        arg = next(arg for arg in self.metadata["args"] if arg["name"] == name)
        by_name = {axis["name"]: axis for axis in self.metadata["axes"]}
        axes = [by_name[axis] for axis in arg["axes"]]
        if [axis["kind"] for axis in axes] != ["dense_fixed", "sparse_variable"]:
            raise ValueError(
                f"operand: expected a matrix stored by rows (CSR), whose entries another format can hold, "
                f"found {buffer} over {', '.join(axis['kind'] for axis in axes)}"
            )
        values, sizes = self.by_name, scalars_of(self.metadata, self.arguments)
        shape = tuple(dimension(axis["length"]).evaluate(sizes) for axis in axes)
        return RowEntries(
            values[axes[1]["indptr"]], values[axes[1]["indices"]], values[name], shape
        )

    def index_dtype(self, buffer: str) -> str:
        """Return the dtype of the indices of a sparse buffer."""
        arg = next(arg for arg in self.metadata["args"] if arg.get("buffer") == buffer)
        return next(a["dtype"] for a in self.metadata["axes"] if a["name"] == arg["axes"][-1])


@dataclass
class PackedOperands:
    """Operands of a call in formats.

    Attributes
    ----------
    tensors : dict of str to Packed or PackedComposition
        By parameter.
    seconds : float
        What packing took.
    """

    tensors: dict[str, Packed | PackedComposition]
    seconds: float

    def arguments(self, base: Base, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return all keyword arguments of a call of a program over these formats."""
        names = {arg["name"] for arg in metadata["args"] if arg.get("role") != "output"}
        kept = {name: value for name, value in base.by_name.items() if name in names}
        return {**{n: v for n, v in kept.items() if n not in self.tensors}, **self.tensors}

    def problem(
        self,
        base: Base,
        program: SparseFunc,
        space: Space | None,
        first: Space | None,
        decision: str,
    ) -> Problem:
        """Return a decomposed program as a problem: results expected are those of the default kernel."""
        (metadata,) = describe_functions(lower(program)).values()
        function = KernelFunction(program.name, _refuse, metadata)
        arguments = [as_array(v) for v in function.arguments(**self.arguments(base, metadata))]
        held = self._slots()
        slots = {}
        for place, arg in enumerate(metadata["args"]):
            if arg.get("role") != "output":
                continue
            if arg["name"] in held:
                slots[place] = held[arg["name"]]  # packed with the expected results already
            else:
                arguments[place] = base.by_name[arg["name"]]
        return Problem(program, metadata, arguments, space, first, decision, slots)

    def _slots(self) -> dict[str, np.ndarray]:
        """Return the slots of entries, by the parameter of the values."""
        found = {}
        for key, packed in self.tensors.items():
            if hasattr(packed, "parts"):
                for name, part in packed.parts.items():
                    found[f"{key}_{name}"] = part.storage.slots
            else:
                found[key] = packed.storage.slots
        return found


def pack_operands(
    base: Base, operands: Sequence[str], formats: Any
) -> dict[str, Packed | PackedComposition]:
    """Pack the matrices of a call into a format.

    Parameters
    ----------
    base : Base
        The call.
    operands : sequence of str
        Buffers, over the same axes.
    formats : Format, Composition, dict or sequence
        As :meth:`SparseSchedule.decompose_format` takes them.
    """
    single = hasattr(formats, "pack")
    description = formats if single else Composition(formats)
    return {
        base.parameter(name): description.pack(base.entries(name), base.index_dtype(name))
        for name in operands
    }


def _refuse(*_args: Any) -> None:
    raise RuntimeError("the program is not compiled")

"""The parts of a decomposed operand: axes, arrays and values of each format, as parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import SparseProgramError
from ..formats import Format, Layout
from ..ir import Axis, SparseBuffer, SparseFunc, SparseIteration
from ..ir.buffer import declare_buffer
from .uses import is_used_outside, param_index

__all__ = ["Part", "declare_parts"]


@dataclass(frozen=True)
class Part:
    """One format of the operands, on the sizes of the program."""

    name: str
    format: Format
    layout: Layout
    buffers: list[SparseBuffer]  # one for each operand
    arg_names: list[str]

    @property
    def axes(self) -> list[Axis]:
        return [stored.axis for stored in self.layout.axes]

    @property
    def parameters(self) -> list[str]:
        return [*self.arg_names, *(var.name for var in self.layout.params.values())]


def declare_parts(
    func: SparseFunc,
    iteration: SparseIteration,
    operands: Sequence[SparseBuffer],
    formats: Mapping[str, Format],
    label: str,
) -> list[Part]:
    """Declare the parts, whose parameters must not have names of others."""
    prefix = func.arg_names[param_index(func, operands[0])]
    parts = [_part(func, operands, prefix, name, fmt, label) for name, fmt in formats.items()]
    replaced = {
        func.arg_names[param_index(func, operand)]
        for operand in operands
        if not is_used_outside(func, iteration, operand.buffer)
    }
    taken = {*func.arg_names} - replaced
    for part in parts:
        if part.name == "init":
            raise SparseProgramError(
                f"{label}: part 'init' would be named as the initialisation of the result; give it "
                "another name"
            )
        clash = sorted(taken & {*part.parameters})
        if clash:
            hint = "give it another name" if part.name else "pass a dict with a name for the format"
            raise SparseProgramError(
                f"{label}: part {part.name!r} needs parameters that exist already "
                f"({', '.join(clash)}); {hint}"
            )
        taken |= {*part.parameters}
    return parts


def _part(
    func: SparseFunc,
    operands: Sequence[SparseBuffer],
    prefix: str,
    name: str,
    fmt: Format,
    label: str,
) -> Part:
    axes = operands[0].axes
    if fmt.rank != len(axes):
        raise SparseProgramError(
            f"{label}: operand {operands[0].name} has {len(axes)} dimensions, and format {fmt.name} "
            f"stores {fmt.rank}"
        )
    index_dtype = str(axes[-1].dtype)
    shape = [axis.length for axis in axes]
    suffix = f"_{name}" if name else ""
    layout = fmt.layout(f"{prefix}{suffix}", shape, index_dtype)
    old = [func.arg_names[param_index(func, operand)] for operand in operands]
    lengths = [stored.axis.length for stored in layout.axes]
    buffers = [
        SparseBuffer(
            buffer=declare_buffer(lengths, operand.dtype, f"{operand.name}{suffix}"),
            axes=[stored.axis for stored in layout.axes],
            default=operand.default,
        )
        for operand in operands
    ]
    return Part(name, fmt, layout, buffers, [f"{arg}{suffix}" for arg in old])

"""Fragments of tensor cores: loads from shared memory, products and sums, in TVM's own PTX operations.

An instruction multiplies 16 x depth values, here the *wide* operand, by depth x 8, the *narrow* one. Lane
``4 g + t`` of a warp holds values of row ``g`` and ``g + 8`` of the wide operand, of column ``g`` of the
narrow one, and sums in these rows and the columns ``2 t`` and ``2 t + 1``. In half precision, and where
depth runs along rows of shared memory, ``ldmatrix`` brings values to their lanes, several 8 x 8 matrices
at once. Values of float32 are rounded to tf32 (10 bits of mantissa); sums are kept in float32.

The functions emit statements into the TensorIR builder that is open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.ir import Expr, Range, TensorLoad, Var
from tvm.script import tirx as operations
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

__all__ = ["StagedOperand", "load_narrow", "load_wide", "multiply_add"]

#: Names of dtypes in instructions.
_KINDS = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32"}


@dataclass(frozen=True)
class StagedOperand:
    """A part of an operand in shared memory, by lines and depth.

    A line is a row of the first operand of a product, or a column of the second.

    Attributes
    ----------
    buffer, step : Var
        The part, as a matrix, and the distance of its rows.
    along_depth : bool
        Whether depth runs along its rows; otherwise, lines do.
    line, depth : Expr or int
        Where places are counted from.
    """

    buffer: Var
    step: Var
    along_depth: bool
    line: Expr | int = 0
    depth: Expr | int = 0

    @staticmethod
    def of(
        name: str, first: TensorLoad, lines: int, depth: int, along_depth: bool
    ) -> StagedOperand:
        """Match a part of a buffer, in the block that is open.

        Accesses through pointers, which TVM cannot look into, then say which buffer they are to.

        Parameters
        ----------
        name : str
            A name for it.
        first : TensorLoad
            Its first value.
        lines, depth : int
            Its size.
        along_depth : bool
            Whether depth runs along rows of the buffer.
        """
        source, (*outer, row, column) = first.source, first.indices
        sizes = (lines, depth) if along_depth else (depth, lines)
        ranges = [Range.from_min_extent(index, 1) for index in outer]
        ranges += [Range.from_min_extent(*each) for each in zip((row, column), sizes)]
        step, one = tirx.Var(f"{name}_step", "int32"), tirx.Var(f"{name}_one", "int32")
        matched = T.match_buffer(
            tirx.BufferRegion(source, ranges),
            sizes,
            str(source.ty.dtype),
            strides=[step, one],
            scope=source.ty.storage_scope,
            offset_factor=1,
        )
        return StagedOperand(IRBuilder.name(name, matched), step, along_depth)

    @property
    def dtype(self) -> str:
        """Of the values."""
        return str(self.buffer.ty.dtype)

    def moved(self, line: Expr | int, depth: Expr | int) -> StagedOperand:
        """Return it with places counted from another."""
        return replace(self, line=self.line + line, depth=self.depth + depth)

    def address(self, line: Expr, depth: Expr) -> Expr:
        """Return the address of a value.

        TVM takes it for no access, as it takes asynchronous copies: who stages operands waits for them, and
        another wait would be put in between.
        """
        row, column = self._place(line, depth)
        return self.buffer.access_ptr(0, ptr_type=self.dtype, offset=row * self.step + column)

    def _place(self, line: Expr, depth: Expr) -> list[Expr]:
        place = [self.line + line, self.depth + depth]
        return place if self.along_depth else place[::-1]


def load_wide(registers: Sequence[Expr], operand: StagedOperand, lane: Expr) -> None:
    """Load 16 lines of the wide operand.

    Parameters
    ----------
    registers : sequence of four Expr
        Where to.
    operand : StagedOperand
        Where from.
    lane : Expr
        The lane.
    """
    _load(registers, operand, lane, lambda number: (number % 2, number // 2))


def load_narrow(registers: Sequence[Expr], operand: StagedOperand, lane: Expr) -> None:
    """Load 8 lines of the narrow operand, or 16: two registers for each 8.

    Parameters
    ----------
    registers : sequence of two or four Expr
        Where to.
    operand, lane
        As those of :func:`load_wide`.
    """
    _load(registers, operand, lane, lambda number: (number // 2, number % 2))


def multiply_add(
    sums: Sequence[Expr], wide: Sequence[Expr], narrow: Sequence[Expr], dtype: str
) -> None:
    """Add the product of 16 lines and 8 to four sums.

    Parameters
    ----------
    sums : sequence of four Expr
        Sums, in float32.
    wide, narrow : sequence of four and of two Expr
        The operands, loaded.
    dtype : str
        Of the operands.
    """
    depth, kind = 8 if dtype == "float32" else 16, _KINDS[dtype]
    multiply = operations.ptx[f"mma.sync.aligned.m16n8k{depth}.row.col.f32.{kind}.{kind}.f32"]
    T.evaluate(multiply(*sums, *wide, *narrow, *sums))


def _load(
    registers: Sequence[Expr],
    operand: StagedOperand,
    lane: Expr,
    matrix_of: Callable[[Any], tuple[Any, Any]],
) -> None:
    """Load a matrix of 8 lines, 16 bytes deep, to each register.

    `matrix_of` says which one of the operand, along lines and depth. There is no transposing load of 32-bit
    values, so that lanes take theirs one by one.
    """
    is_half = operand.dtype != "float32"
    deep = 8 if is_half else 4
    if operand.along_depth or is_half:
        # Lanes give the addresses of rows: eight those of the first matrix, eight of the second, ...
        inner = tirx.truncmod(lane, 8)
        line, depth = matrix_of(tirx.truncmod(tirx.truncdiv(lane, 8), len(registers)))
        line, depth = line * 8, depth * deep
        if operand.along_depth:
            line = line + inner
        else:
            depth = depth + inner
        kind = "" if operand.along_depth else ".trans"
        load = f"ldmatrix.sync.aligned.m8n8.x{len(registers)}{kind}.shared.b16"
        T.evaluate(operations.ptx[load](*registers, operand.address(line, depth)))
    else:
        for number, register in enumerate(registers):
            line, depth = matrix_of(number)
            line, depth = line * 8 + tirx.truncdiv(lane, 4), depth * 4 + tirx.truncmod(lane, 4)
            T.evaluate(operations.ptx["ld.shared.b32"](register, operand.address(line, depth)))
    if not is_half:
        _round(registers)


def _round(registers: Sequence[Expr]) -> None:
    for register in registers:
        value = operations.reinterpret("float32", register)
        T.evaluate(operations.ptx["cvt.rna.tf32.f32"](register, value))

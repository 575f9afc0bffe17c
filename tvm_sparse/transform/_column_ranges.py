"""Iterations over ranges of columns, each with a list of rows of its own, taken apart on stage III."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var
from tvm.s_tir import SBlockRealize
from tvm.tirx import For, IterVar

from ..errors import SparseProgramError
from ..ir.contents import loads_in, variables_of
from ._row_nests import RowNest, read_row_nest

__all__ = ["ColumnRanges", "check_rows", "read_ranges"]


@dataclass(frozen=True)
class ColumnRanges:
    """A loop over ranges of columns, and in it one over the rows of a range.

    Attributes
    ----------
    loop : For
        Over ranges.
    realize : SBlockRealize
        The block in it.
    rows : RowNest
        The rows of a range.
    pointers : Var
        Where the rows of each range begin.
    """

    loop: For
    realize: SBlockRealize
    rows: RowNest
    pointers: Var

    @property
    def number(self) -> Var:
        """The number of a range, as blocks call it."""
        return self.realize.block.iter_vars[0].var

    @property
    def row(self) -> Var:
        """The number of a row in its range, as blocks call it."""
        return self.rows.block.iter_vars[0].var

    def pointer(self, offset: int) -> Expr:
        """Where the rows of the range begin, or those of the next one."""
        place = self.number + tirx.const(offset, str(self.number.ty.dtype))
        return tirx.BufferLoad(self.pointers, [place])

    def is_begin(self, load: TensorLoad) -> bool:
        """Whether a load tells where the rows of the range begin."""
        return load.source.same_as(self.pointers) and load.indices[0].same_as(self.number)


def read_ranges(stmt: tirx.Stmt) -> ColumnRanges | None:
    """Take a statement apart, or return None where it is something else."""
    if not isinstance(stmt, For) or not isinstance(stmt.body, SBlockRealize):
        return None
    realize, block = stmt.body, stmt.body.block
    if block.init is not None or [iv.iter_type for iv in block.iter_vars] != [IterVar.CommReduce]:
        return None
    rows = read_row_nest(block.body)
    if rows is None or len(rows.loops) != 1:
        return None
    number = block.iter_vars[0].var
    found = [load for load in loads_in(rows.loops[0].extent) if number in variables_of(load)]
    pointers = {load.source for load in found}
    return ColumnRanges(stmt, realize, rows, found[0].source) if len(pointers) == 1 else None


def check_rows(ranges: ColumnRanges, realize: SBlockRealize, *, is_merged: bool) -> None:
    """Refuse a block that uses a row of a range in another way than as the number among all rows.

    Parameters
    ----------
    ranges : ColumnRanges
        The ranges.
    realize : SBlockRealize
        The block of a row.
    is_merged : bool
        Whether it is to know no ranges any more, so that it must not use their numbers either.

    Raises
    ------
    SparseProgramError
        If it does.
    """
    unknown = {ranges.row, ranges.number} if is_merged else {ranges.row}
    for expr in _computed(realize):
        loads = loads_in(expr)
        places = [index for load in loads if not ranges.is_begin(load) for index in load.indices]
        if any(_tells_range(ranges, place, unknown) for place in places):
            raise _unusual(realize, expr)
        if variables_of(_without_loads(expr)) & unknown:
            raise _unusual(realize, expr)


def _tells_range(ranges: ColumnRanges, place: Expr, unknown: set[Var]) -> bool:
    """Whether a place depends on more than the number of the row among all."""
    begin, number = Var("begin", "int64"), Var("number", "int64")
    others: dict[str, Var] = {}

    def read(expr: Expr) -> Expr:
        if isinstance(expr, tirx.IntImm):
            return tirx.const(int(expr), "int64")
        if isinstance(expr, tirx.Cast):
            return read(expr.value)
        for kind in (tirx.Add, tirx.Sub, tirx.Mul):
            if isinstance(expr, kind):
                return kind(read(expr.a), read(expr.b))
        if isinstance(expr, TensorLoad):
            return begin if ranges.is_begin(expr) else others.setdefault(str(expr), _value())
        if isinstance(expr, Var) and expr.same_as(ranges.row):
            return number - begin
        if variables_of(_without_loads(expr)) & unknown:
            return begin
        return others.setdefault(str(expr), _value())

    return begin in variables_of(tvm.sym.Analyzer().simplify(read(place)))


def _value() -> Var:
    return Var("value", "int64")


def _computed(realize: SBlockRealize) -> list[Expr]:
    """What statements compute."""
    found: list[Expr] = []
    tvm_ffi.structural_walk(
        realize,
        [
            (tirx.BufferStore, lambda node: found.extend([node.value, *node.indices])),
            (tirx.Evaluate, lambda node: found.append(node.value)),
            (tirx.IfThenElse, lambda node: found.append(node.condition)),
            (For, lambda node: found.append(node.extent)),
        ],
    )
    return found


def _without_loads(expr: Expr) -> Expr:
    """Take loads for numbers."""

    def number(load: TensorLoad, _mutator) -> Expr:
        return tirx.const(0, str(load.ty.dtype))

    return tvm_ffi.structural_mutate(expr, [(TensorLoad, number)])


def _unusual(realize: SBlockRealize, expr: Expr) -> SparseProgramError:
    return SparseProgramError(
        f"block {realize.block.name_hint}: expected rows of a range that are used by their number among "
        f"all, found {expr}"
    )

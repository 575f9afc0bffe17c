"""Rows whose entries are summed in registers: what stands around the sum, before it, in it, and after it.

In: a loop over rows whose blocks are loops already. Out: its parts, the registers that hold sums, and the
sum over some entries of a row alone; or an error where the row is none of this kind.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var
from tvm.tirx import For, IterVar

from ..errors import SparseProgramError
from ..ir.accumulation import Accumulation, accumulation_of, is_accumulation
from ..ir.contents import buffers_loaded, buffers_stored, loads_from, stores_in
from ..ir.renaming import replace_variables
from ..ir.statements import as_int64, in_sequence

__all__ = [
    "SummedRow",
    "check_places",
    "row_pointers",
    "summed_row",
    "sums_of",
    "with_bounds",
]


@dataclass(frozen=True)
class SummedRow:
    """What a row does: what stands around it, before its reduction, the reduction, and after it."""

    around: tuple[For | tirx.AttrStmt, ...]
    before: tuple[tirx.Stmt, ...]
    reduction: For
    after: tuple[tirx.Stmt, ...]

    @property
    def outer_variables(self) -> list[Var]:
        """The variables of the loops and thread axes around the row."""
        return [
            outer.loop_var if isinstance(outer, For) else outer.node.var for outer in self.around
        ]

    @property
    def outer_extents(self) -> list[Expr]:
        """Their extents, in 64 bits."""
        return [
            as_int64(outer.extent if isinstance(outer, For) else outer.value)
            for outer in self.around
        ]

    def wrapped(self, body: tirx.Stmt) -> tirx.Stmt:
        """Put what stands around the row around a statement; a kernel has thread axes of its own."""
        for outer in reversed(self.around):
            if isinstance(outer, For):
                body = For(outer.loop_var, outer.min, outer.extent, outer.kind, body)
                continue
            old = outer.node.var
            var = Var(old.name, str(old.ty.dtype))
            axis = IterVar(outer.node.dom, var, IterVar.ThreadIndex, outer.node.thread_tag)
            body = replace_variables(body, {old: var})
            body = tirx.AttrStmt(axis, outer.attr_key, outer.value, body)
        return body


def summed_row(stmt: tirx.Stmt, indptr: Var) -> SummedRow:
    """Take the body of a row apart."""
    around: list[For | tirx.AttrStmt] = []
    before: list[tirx.Stmt] = []
    after: list[tirx.Stmt] = []
    while not _is_reduction(stmt, indptr):
        if isinstance(stmt, For | tirx.AttrStmt) and not (isinstance(stmt, For) and before + after):
            around.append(stmt)
            after = _by_first_thread(stmt, after)
            stmt = stmt.body
            continue
        parts = list(stmt.seq) if isinstance(stmt, tirx.SeqStmt) else []
        holding = [k for k, part in enumerate(parts) if _holds_reduction(part, indptr)]
        if len(holding) != 1:
            raise SparseProgramError(
                f"expected a row with one loop over its entries {indptr.name}[i] to {indptr.name}[i + 1]"
            )
        before, after = [*before, *parts[: holding[0]]], [*parts[holding[0] + 1 :], *after]
        stmt = parts[holding[0]]
    return SummedRow(tuple(around), tuple(before), stmt, tuple(after))


def _by_first_thread(outer: For | tirx.AttrStmt, after: list[tirx.Stmt]) -> list[tirx.Stmt]:
    """What stood after the threads of a row, as one of them does it."""
    if isinstance(outer, For) or not after:
        return after
    var = outer.node.var
    first = tirx.EQ(var, tirx.const(0, str(var.ty.dtype)))
    return [tirx.IfThenElse(first, in_sequence(after), None)]


def _is_reduction(stmt: tirx.Stmt, indptr: Var) -> bool:
    return isinstance(stmt, For) and bool(loads_from(stmt.extent, indptr))


def _holds_reduction(stmt: tirx.Stmt, indptr: Var) -> bool:
    found: list[For] = []
    tvm_ffi.structural_walk(stmt, (For, found.append))
    return any(_is_reduction(loop, indptr) for loop in found)


def sums_of(row: SummedRow) -> dict[Var, Accumulation]:
    """Return the registers that the reduction adds to and the row's result is made of, and how it adds."""
    needed, written = buffers_loaded(*row.after), buffers_stored(row.reduction)
    found: dict[Var, Accumulation] = {}
    for store in stores_in(row.reduction):
        if store.buffer in needed and is_accumulation(store):
            found.setdefault(store.buffer, accumulation_of(store, "row"))
    strange = [b.name for b in written & needed if b not in found]
    strange += [b.name for b in written if b.ty.storage_scope == "global"]
    if strange or not found:
        raise SparseProgramError(
            "expected a row whose entries are summed in registers, found "
            f"{', '.join(strange) or 'no sum'}"
        )
    return found


def with_bounds(stmt: tirx.Stmt, row: Var, indptr: Var, begin: Var, end: Var) -> tirx.Stmt:
    """Let the reduction of a row go from entry `begin` to `end` of all entries instead of over its row."""
    analyzer = tvm.sym.Analyzer()

    def load(node: TensorLoad, mutator) -> Expr:
        if not node.source.same_as(indptr):
            return mutator.default_mutate(node)
        offset = analyzer.simplify(node.indices[0] - row)
        if not isinstance(offset, tirx.IntImm) or int(offset) not in (0, 1):
            raise SparseProgramError(
                f"expected a row that reads {indptr.name}[i] and [i + 1], found {node}"
            )
        return end if int(offset) else begin

    return tvm_ffi.structural_mutate(stmt, [(TensorLoad, load)])


def check_places(row: SummedRow, loop: For, indptr: Var) -> None:
    """Refuse a row in which the place of an entry counts other than added to where the row begins.

    A share goes from some entry on, and takes its place in the row for 0. So the same entry, taken for one
    of a row that begins a step later, must do the same.

    Raises
    ------
    SparseProgramError
        If it would do something else: what the place itself is an index of, as in ragged rows, say.
    """
    dtype = str(indptr.ty.dtype)
    begin, end = Var("begin", dtype), Var("end", dtype)
    reduction = with_bounds(row.reduction, loop.loop_var, indptr, begin, end)
    step = reduction.loop_var
    analyzer = tvm.sym.Analyzer()
    for var in (
        step,
        begin,
        end,
    ):  # that are small: what is widened is so before or after it is added
        dtype = str(var.ty.dtype)
        most = tirx.const(2**30, dtype)
        analyzer.bind(var, tvm.ir.Range.from_min_extent(tirx.const(0, dtype), most))
    later = {step: step - 1, begin: begin + _entries_of_step(reduction)}
    for expr in _expressions(reduction.body):
        same, other = (analyzer.simplify(each) for each in (expr, replace_variables(expr, later)))
        if not tvm_ffi.structural_equal(same, other):
            raise SparseProgramError(
                f"loop {loop.loop_var.name}: expected a row whose entries are found by {indptr.name} "
                f"alone, found {expr}, which depends on the place of an entry in its row; such rows "
                "can't be shared by entries"
            )


def _entries_of_step(reduction: For) -> int:
    """How many entries a step of a reduction goes on by: that its extent is divided by, else one."""
    extent = reduction.extent
    while isinstance(extent, tirx.Cast):
        extent = extent.value
    is_divided = isinstance(extent, tirx.Div | tirx.FloorDiv) and isinstance(extent.b, tirx.IntImm)
    return int(extent.b) if is_divided else 1


def _expressions(stmt: tirx.Stmt) -> list[Expr]:
    """What a statement computes: stored values and their places, conditions, bounds of loops."""
    found: list[Expr] = []
    tvm_ffi.structural_walk(
        stmt,
        [
            (tirx.BufferStore, lambda node: found.extend([node.value, *node.indices])),
            (tirx.Bind, lambda node: found.append(node.value)),
            (tirx.IfThenElse, lambda node: found.append(node.condition)),
            (tirx.While, lambda node: found.append(node.condition)),
            (For, lambda node: found.extend([node.min, node.extent])),
            (tirx.Evaluate, lambda node: found.append(node.value)),
        ],
    )
    return found


def row_pointers(loop: For, name: str) -> Var:
    """Return the row pointers of this name that a loop over rows reads."""
    found = {buffer for buffer in buffers_loaded(loop.body) if buffer.name == name}
    if len(found) != 1:
        raise SparseProgramError(f"loop {loop.loop_var.name}: expected a body that reads {name}")
    return found.pop()

"""Go over the rows of all ranges of columns in a kernel, where each range lists rows of its own.

A CPU goes over one range after another, each with its rows in parallel. On a GPU the host doesn't know
how many rows a range lists, but how many there are in all. Runs on stage III, before scheduling.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, TensorLoad, TensorRegion, Var
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import For, IterVar

from ..errors import SparseProgramError
from ..ir.accumulation import accumulation_of
from ..ir.contents import variables_of
from ..ir.renaming import replace_variables
from ._blocks import changed_block
from ._column_ranges import ColumnRanges, check_rows, read_ranges
from ._layout import count_of_entries
from ._row_nests import loops_around
from .atomic_sums import atomic_sum

__all__ = ["MergeRanges"]


def MergeRanges(in_order: bool = False) -> tvm.transform.Pass:
    """Build the pass that puts one loop over rows in the place of those over ranges and their rows.

    Parameters
    ----------
    in_order : bool
        Go over one range after another, and in each over the rows of all, of which only its own do
        something: sums then depend on nothing but the order of the ranges. Otherwise all ranges go
        together, and a row, which several may list, is added to its result atomically.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs of stage III, before scheduling.

    Raises
    ------
    SparseProgramError
        If a sum can't be added atomically, or the rows of a range are used in another way than as
        ``pointers[t] + i``.

    Notes
    -----
    Before::

        for t in range(parts):
            with T.sblock("spmm_0"):
                for i in range(pointers[vt + 1] - pointers[vt]):
                    with T.sblock("spmm_1"):
                        for j, k in T.grid(entries(pointers[vt] + vi), f):
                            with T.sblock("spmm_2"):
                                C[row[pointers[vt] + vi] * f + vk] += ...

    and after::

        for i in range(rows):
            with T.sblock("spmm_0"):
                for j, k in T.grid(entries(vi), f):
                    with T.sblock("spmm_1"):
                        C_row[vk] += ...
                for k in range(f):
                    with T.sblock("spmm_add"):
                        T.cuda.atomic_add(T.address_of(C[row[vi] * f + vk]), C_row[vk])

    or, in order::

        for t in range(parts):
            with T.sblock("spmm_0"):
                for i in range(rows):
                    with T.sblock("spmm_1"):
                        if pointers[vt] <= vi and vi < pointers[vt + 1]:
                            with T.sblock("spmm_2"):
                                for j, k in T.grid(entries(vi), f):
                                    with T.sblock("spmm_3"):
                                        C[row[vi] * f + vk] += ...

    A result that the first range initialises is filled by a nest of its own before it is added to.

    Examples
    --------
    >>> from tvm_sparse.transform import MergeRanges
    >>> MergeRanges().info.name
    'tvm_sparse.MergeRanges'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        root = func.body
        if not isinstance(root, SBlockRealize):
            return func
        body = root.block.body
        statements: list[tirx.Stmt] = []
        for stmt in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
            ranges = read_ranges(stmt)
            if ranges is None:
                statements.append(stmt)
            elif in_order:
                statements.append(_in_order(func, ranges))
            else:
                statements += _together(func, ranges)
        whole = statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)
        block = changed_block(root.block, body=whole)
        return func.with_body(SBlockRealize(root.iter_values, root.predicate, block))

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.MergeRanges")


def _together(func: tirx.PrimFunc, ranges: ColumnRanges) -> list[tirx.Stmt]:
    """One loop over the rows of all ranges, which are added atomically."""
    added = accumulation_of(ranges.rows.store, ranges.rows.block.name_hint)
    if added.operator is not tirx.Add:
        raise SparseProgramError(
            f"block {ranges.rows.block.name_hint}: expected rows that are summed, which are added "
            f"atomically, found {ranges.rows.store.value}; pass deterministic=True"
        )
    start = _value_at_start(ranges)
    adding = ranges.rows.finished(
        "add",
        tirx.const(0, str(ranges.rows.result.ty.dtype)),
        lambda place, total: atomic_sum(ranges.rows.result, place, total),
        ranges.rows.result,
    )
    check_rows(ranges, adding.body, is_merged=True)
    (loop,) = ranges.rows.loops
    row, realize = _all_rows(ranges, adding.body)
    renamed = _renumbered(realize, ranges.rows.block.name_hint, -1)
    nest = _row_loop(func, ranges, loop, row, renamed)
    return [nest] if start is None else [_fill(ranges, start), nest]


def _value_at_start(ranges: ColumnRanges) -> Expr | None:
    """What the first range initialises all rows with; None where all add to what is there."""
    init = ranges.rows.init.value
    if isinstance(init, TensorLoad):
        return None
    if isinstance(init, Call) and init.op.name == "prim.if_then_else":
        first, start, before = init.args
        if ranges.number in variables_of(first) and isinstance(before, TensorLoad):
            return start
    raise SparseProgramError(
        f"block {ranges.rows.block.name_hint}: expected rows of ranges that begin with what is there, "
        f"found {init}"
    )


def _in_order(func: tirx.PrimFunc, ranges: ColumnRanges) -> tirx.Stmt:
    """A loop over ranges, and in it over the rows of all."""
    check_rows(ranges, ranges.rows.realize, is_merged=False)
    (loop,) = ranges.rows.loops
    row, realize = _all_rows(ranges, ranges.rows.realize)
    realize = _renumbered(realize, ranges.rows.block.name_hint, 1)
    inside = changed_block(realize.block, iter_vars=[])
    iterator = realize.block.iter_vars[0]
    begins, ends = ranges.pointer(0) <= iterator.var, iterator.var < ranges.pointer(1)
    body = tirx.IfThenElse(
        tirx.And(begins, ends), SBlockRealize([], realize.predicate, inside), None
    )
    guarded = changed_block(
        realize.block,
        name_hint=ranges.rows.block.name_hint,
        body=body,
        reads=ranges.rows.block.reads[:1] + list(inside.reads),
        alloc_buffers=[],
        match_buffers=[],
    )
    rows = _row_loop(func, ranges, loop, row, SBlockRealize([row], True, guarded))
    outer = changed_block(ranges.realize.block, body=rows)
    made = SBlockRealize(ranges.realize.iter_values, ranges.realize.predicate, outer)
    return loops_around([ranges.loop], made)


def _fill(ranges: ColumnRanges, value: Expr) -> For:
    """Fill all of a result."""
    result = ranges.rows.result
    (size,) = result.ty.shape
    loop_var, var = (Var(name, str(size.ty.dtype)) for name in ("i", "vi"))
    zero = tirx.const(0, str(size.ty.dtype))
    point = tvm.ir.Range.from_min_extent(var, tirx.const(1, str(size.ty.dtype)))
    block = SBlock(
        [IterVar(tvm.ir.Range.from_min_extent(zero, size), var, IterVar.DataPar)],
        [],
        [tirx.BufferRegion(result, [point])],
        f"{ranges.realize.block.name_hint.removesuffix('_0')}_init_0",
        tirx.BufferStore(result, value, [var]),
    )
    return For(loop_var, zero, size, tirx.ForKind.SERIAL, SBlockRealize([loop_var], True, block))


def _all_rows(ranges: ColumnRanges, realize: SBlockRealize) -> tuple[Var, SBlockRealize]:
    """Let the block of a row of a range be that of a row among all; return its loop's variable too."""
    old = realize.block.iter_vars[0]
    dtype = str(old.var.ty.dtype)
    row, loop_var = Var(old.var.name, dtype), Var(old.var.name.removeprefix("v"), dtype)

    analyzer = tvm.sym.Analyzer()

    def load(node: TensorLoad, mutator) -> Expr:
        if ranges.is_begin(node):
            return tirx.const(0, str(node.ty.dtype))
        indices = [analyzer.simplify(mutator.mutate(index)) for index in node.indices]
        return tirx.BufferLoad(node.source, indices)

    def block(node: SBlock, mutator) -> SBlock:
        made = mutator.default_mutate(node)
        return changed_block(made, reads=[r for r in made.reads if not _is_pointer(r)])

    def _is_pointer(region: TensorRegion) -> bool:
        return region.source.same_as(ranges.pointers)

    body = tvm_ffi.structural_mutate(realize.block, [(TensorLoad, load), (SBlock, block)])
    body = replace_variables(changed_block(body, iter_vars=[]), {old.var: row})
    return loop_var, SBlockRealize(
        [loop_var],
        realize.predicate,
        changed_block(body, iter_vars=[IterVar(old.dom, row, IterVar.DataPar)]),
    )


def _row_loop(
    func: tirx.PrimFunc, ranges: ColumnRanges, loop: For, row: Var, realize: SBlockRealize
) -> For:
    """The loop over the rows of all ranges around the block of a row."""
    count = count_of_entries(func, ranges.pointers.name).astype(str(row.ty.dtype))
    old = realize.block.iter_vars[0]
    domain = tvm.ir.Range.from_min_extent(old.dom.min, count)
    iterator = IterVar(domain, old.var, IterVar.DataPar)
    block = changed_block(realize.block, iter_vars=[iterator])
    made = SBlockRealize(realize.iter_values, realize.predicate, block)
    return For(row, loop.min, count, tirx.ForKind.SERIAL, made, None, loop.annotations)


def _renumbered(realize: SBlockRealize, name: str, step: int) -> SBlockRealize:
    """Count a block and those inside of it from further outside or inside."""
    prefix = name.rpartition("_")[0]

    def block(node: SBlock, mutator) -> SBlock:
        made = mutator.default_mutate(node)
        stem, _, number = made.name_hint.rpartition("_")
        if stem != prefix or not number.isdigit():
            return made
        return changed_block(made, name_hint=f"{stem}_{int(number) + step}")

    return tvm_ffi.structural_mutate(realize, [(SBlock, block)])

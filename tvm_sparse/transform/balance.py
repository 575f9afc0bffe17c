"""Share the rows of a parallel loop between tasks by stored entries, not by count.

A schedule marks its parallel row loop with ``"tvm_sparse.balance"``, the name of the row pointer
array, or the empty name where all rows cost the same. Once blocks are loops, this pass turns such
a loop into one over a few tasks; each finds its first and last row by binary search in the row
pointers, so that all tasks hold about the same number of entries and rows. Work too small to pay
for waking the other threads runs serially.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx

from ..ir.contents import has_loads, loads_in, variables_of
from ..ir.statements import as_int64
from .versions import VERSIONS

BALANCE = "tvm_sparse.balance"
#: Annotation beside it, with the ``steps`` of a task where they are not the default ones.
GRAIN = "tvm_sparse.grain"
#: Annotation beside it: row loops of one name that follow each other are independent, and become one
#: parallel loop over the tasks of all.
TOGETHER = "tvm_sparse.together"


@dataclass(frozen=True)
class Grain:
    """When to run in parallel, and in how many tasks.

    Work is counted in inner-loop steps: each stored entry and each row costs as many as the loops
    inside it of known extent, plus ``overhead``.

    Parameters
    ----------
    steps : int
        Least work of one task. Below twice this number the loop runs serially.
    overhead : int
        Steps that an entry or a row costs besides its inner loops.
    multiple : int
        The number of tasks is a multiple of this, so that few threads get equal shares.
    most_tasks : int
        Largest number of tasks.
    """

    steps: int = 1 << 17
    overhead: int = 16
    multiple: int = 16
    most_tasks: int = 256


DEFAULT_GRAIN = Grain()


def BalanceRows(grain: Grain = DEFAULT_GRAIN) -> tvm.transform.Pass:
    """Build the pass that balances annotated parallel loops.

    Parameters
    ----------
    grain : Grain
        The size of a task.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs whose blocks are already lowered to loops.

    Notes
    -----
    Before::

        for i in T.parallel(m, annotations={"tvm_sparse.balance": "indptr"}):
            row(i)

    and after, with ``work = (indptr[m] - indptr[0] + m) * steps``::

        if work < 2 * grain:
            for i in range(m):
                row(i)
        else:
            for task in T.parallel(tasks(work)):
                for i in range(first_row(task), first_row(task + 1)):
                    row(i)

    The split is that of merge-path partitioning (Merrill and Garland, "Merge-based parallel sparse
    matrix-vector multiplication", SC 2016), kept to whole rows.

    Examples
    --------
    >>> from tvm_sparse.transform import BalanceRows
    >>> BalanceRows().info.name
    'tvm_sparse.BalanceRows'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        balanced = []

        def rewrite(loop: tirx.For) -> tirx.Stmt:
            if BALANCE not in loop.annotations or TOGETHER in loop.annotations:
                return loop
            balanced.append(loop)
            return _balance(loop, grain_of(loop, grain))

        body = tvm_ffi.structural_map(func.body, (tirx.For, rewrite))
        return func.with_body(body) if balanced else func

    balance = tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.BalanceRows")
    return tvm.transform.Sequential(
        [balance, tirx.transform.ConvertSSA()], name="tvm_sparse.BalanceRows"
    )


def grain_of(loop: tirx.For, grain: Grain) -> Grain:
    steps = loop.annotations.get(GRAIN)
    return grain if steps is None else dataclasses.replace(grain, steps=int(steps))


@dataclass(frozen=True)
class Shares:
    """A row loop in shares: how many, of how much work, and the rows of one."""

    bindings: list[tirx.Stmt]
    work: tirx.Var
    tasks: tirx.Var
    chunk: Callable[[tvm.ir.Expr], tirx.Stmt]
    annotations: dict


def shares_of(loop: tirx.For, grain: Grain) -> Shares | None:
    """Cut an annotated loop; None where its row pointers are not found or it is not parallel."""
    indptr_name = str(loop.annotations[BALANCE])
    annotations = _without_marks(loop)
    found = _find_indptr(loop, indptr_name) if indptr_name else None
    if (found is None and indptr_name) or loop.kind != tirx.ForKind.PARALLEL:
        return None
    bindings: list[tirx.Stmt] = []
    rows = _bound("balance_rows", as_int64(loop.extent), bindings)
    total = tirx.Var("balance_total", "int64")
    work = tirx.Var("balance_work", "int64")
    tasks = tirx.Var("balance_tasks", "int64")
    indptr, base = found or (None, loop.min)
    start = _bound("balance_start", base, bindings)
    search = _RowSearch(indptr, start, rows, total, tasks)
    row_type = str(loop.loop_var.ty.dtype)

    def chunk(task: tvm.ir.Expr) -> tirx.Stmt:
        first, last = search.row(task), search.row(task + 1)
        begin = first.result.astype(row_type)
        rows_of_task = _loop(
            loop.loop_var,
            loop.min + begin,
            last.result.astype(row_type) - begin,
            tirx.ForKind.SERIAL,
            loop.body,
            annotations,
        )
        searches = [*first.statements, *last.statements]
        return tirx.SeqStmt([*searches, rows_of_task]) if searches else rows_of_task

    bindings += [
        tirx.Bind(total, search.key(rows)),
        tirx.Bind(work, total * (_steps_of_an_entry(loop) + grain.overhead)),
        tirx.Bind(tasks, _number_of_tasks(work, grain)),
    ]
    return Shares(bindings, work, tasks, chunk, annotations)


def _without_marks(loop: tirx.For) -> dict:
    marks = (BALANCE, GRAIN, TOGETHER)
    return {key: value for key, value in loop.annotations.items() if key not in marks}


def _balance(loop: tirx.For, grain: Grain) -> tirx.Stmt:
    """Rewrite one annotated loop; if its row pointers are not found it only loses the marks."""
    shares = shares_of(loop, grain)
    if shares is None:
        return _loop(
            loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, _without_marks(loop)
        )
    # Few rows do not repay code of their own for each width.
    few = {key: value for key, value in shares.annotations.items() if key != VERSIONS}
    serial = _loop(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body, few)
    task = tirx.Var("balance_task", "int64")
    parallel = tasks_in_parallel(task, shares.tasks, shares.chunk(task))
    choice = tirx.IfThenElse(shares.work < 2 * grain.steps, serial, parallel)
    return tirx.SeqStmt([*shares.bindings, choice])


def tasks_in_parallel(task: tirx.Var, tasks, body: tirx.Stmt) -> tirx.For:
    return _loop(task, tirx.IntImm("int64", 0), tasks, tirx.ForKind.PARALLEL, body, {})


def _loop(var, start, extent, kind, body, annotations) -> tirx.For:
    return tirx.For(var, start, extent, kind, body, annotations=annotations)


def _bound(name: str, value: tvm.ir.Expr, bindings: list[tirx.Stmt]) -> tvm.ir.Expr:
    """Read memory once: return a variable bound to a value that loads, other values as they are."""
    if not has_loads(value):
        return value
    var = tirx.Var(name, str(value.ty.dtype))
    bindings.append(tirx.Bind(var, value))
    return var


def _find_indptr(loop: tirx.For, name: str) -> tuple[tirx.Buffer, tvm.ir.Expr] | None:
    """The integer array ``name`` that the body reads for each row, and its index for the first row."""
    found: list[tuple[tirx.Buffer, tvm.ir.Expr]] = []
    for load in loads_in(loop.body):
        base, _, suffix = load.source.name.rpartition("_")
        named = load.source.name == name or (base == name and suffix.isdigit())
        if named and len(load.indices) == 1:
            found.append((load.source, load.indices[0]))
    if not found:
        return None
    analyzer = tvm.sym.Analyzer()
    best = None
    for indptr, index in found:
        row = loop.loop_var.astype(str(index.ty.dtype))
        first = analyzer.simplify(index - row + loop.min.astype(str(index.ty.dtype)))
        if loop.loop_var in variables_of(first):
            continue
        if best is None or analyzer.can_prove(first < best[1]):
            best = indptr, first
    return best


def _number_of_tasks(work, grain: Grain):
    """As many tasks as give each about ``grain.steps``, a multiple of ``grain.multiple``."""
    size = tirx.IntImm("int64", grain.steps * grain.multiple)
    groups = tirx.truncdiv(work, size) + 1  # not a floor, which costs TVM a proof of the sign
    most = tirx.IntImm("int64", grain.most_tasks // grain.multiple)
    return tirx.min(groups, most) * grain.multiple


def _steps_of_an_entry(loop: tirx.For):
    """Steps of the loops of known extent inside ``loop``, on the deepest path to a store."""
    local: list[tirx.Var] = [loop.loop_var]

    def known(extent) -> bool:
        return not has_loads(extent) and not variables_of(extent) & set(local)

    def depth_and_steps(stmt):
        if isinstance(stmt, tirx.For):
            local.append(stmt.loop_var)
            depth, steps = depth_and_steps(stmt.body)
            if known(stmt.extent):
                steps = steps * as_int64(stmt.extent)
            return depth + 1, steps
        children = {
            tirx.SeqStmt: lambda: list(stmt.seq),
            tirx.IfThenElse: lambda: [
                part for part in (stmt.then_case, stmt.else_case) if part is not None
            ],
            tirx.AttrStmt: lambda: [stmt.body],
        }.get(type(stmt), list)()
        found = [depth_and_steps(child) for child in children]
        return max(found, key=lambda pair: pair[0], default=(0, tirx.IntImm("int64", 1)))

    return depth_and_steps(loop.body)[1]


@dataclass(frozen=True)
class _Search:
    """Statements that find a row, and the expression that reads it afterwards."""

    statements: list[tirx.Stmt]
    result: tvm.ir.Expr


@dataclass(frozen=True)
class _RowSearch:
    """Binary search for the first row whose entries and rows before it reach a task's share."""

    indptr: tirx.Buffer | None
    start: tvm.ir.Expr
    rows: tvm.ir.Expr
    total: tirx.Var
    tasks: tirx.Var

    def key(self, row):
        """Entries and rows before ``row``."""
        if self.indptr is None:
            return row
        index = self.start + row.astype(str(self.start.ty.dtype))
        entries = tirx.BufferLoad(self.indptr, [index])
        first = tirx.BufferLoad(self.indptr, [self.start])
        return as_int64(entries) - as_int64(first) + row

    def row(self, task) -> _Search:
        """Find the first row of a task."""
        share = tirx.truncdiv(task * self.total, self.tasks)
        if self.indptr is None:
            return _Search([], share)
        zero = tirx.IntImm("int64", 0)
        low = tirx.decl_buffer((1,), "int64", name="balance_low", scope="global")
        high = tirx.decl_buffer((1,), "int64", name="balance_high", scope="global")
        read_low, read_high = tirx.BufferLoad(low, [zero]), tirx.BufferLoad(high, [zero])
        below, above, middle = (
            tirx.Var(f"balance_{name}", "int64") for name in ("below", "above", "middle")
        )
        # Selections between named values: no branch for the processor to guess.
        behind = self.key(middle) < share
        step = tirx.SeqStmt(
            [
                tirx.Bind(below, read_low),
                tirx.Bind(above, read_high),
                tirx.Bind(middle, tirx.truncdiv(below + above, tirx.IntImm("int64", 2))),
                tirx.BufferStore(low, tirx.Select(behind, middle + 1, below), [zero]),
                tirx.BufferStore(high, tirx.Select(behind, above, middle), [zero]),
            ]
        )
        statements = [
            tirx.AllocBuffer(low),
            tirx.AllocBuffer(high),
            tirx.BufferStore(low, zero, [zero]),
            tirx.BufferStore(high, self.rows, [zero]),
            tirx.While(read_low < read_high, step),
        ]
        return _Search(statements, read_low)

"""Share the rows of a CUDA kernel by stored entries: long rows are split, and their parts put together.

A schedule marks a loop over rows, which it leaves serial, with ``"tvm_sparse.split_rows"``: the name of
the row pointer array, how many entries and rows a group of threads takes, and how many groups a thread
block has. Runs once blocks are loops. The result does not depend on the order in which blocks run, and
nothing is updated atomically, except for results that the row itself is added to atomically.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, Range, TensorLoad, Var
from tvm.tirx import For, IterVar

from ..errors import SparseProgramError
from ..ir.accumulation import Accumulation, accumulation_of, is_accumulation
from ._layout import count_of_entries
from .atomic_sums import ATOMIC_ADD
from .kernel_fusion import LEAST_BLOCKS

__all__ = ["SPLIT_ROWS", "SplitRows"]

#: Annotation of row loops: name of the row pointers, entries and rows of a group, groups of a block.
SPLIT_ROWS = "tvm_sparse.split_rows"


def SplitRows() -> tvm.transform.Pass:
    """Build the pass that shares marked loops over rows by entries.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs whose blocks are already lowered to loops.

    Raises
    ------
    SparseProgramError
        If a marked loop is no reduction over the entries of its row.

    Notes
    -----
    Before::

        for i in T.serial(m, annotations={"tvm_sparse.split_rows": ["indptr", 256, 8]}):
            sum[0] = 0
            for j in range(indptr[i + 1] - indptr[i]):
                sum[0] = sum[0] + A[indptr[i] + j]
            C[i] = sum[0]

    and after, for two kernels of a group of threads for each ``share`` of 256 entries and ends of rows::

        for i in the rows of the share:
            begin, end = max(indptr[i], first entry), min(indptr[i + 1], last entry)
            sum[0] = 0
            for j in range(end - begin):
                sum[0] = sum[0] + A[begin + j]
            if the row begins and ends here:
                C[i] = sum[0]
            else:
                part[share, does it end here] = sum[0]

        if a row begins in the share, and ends in a later one:
            sum[0] = 0
            for part in the parts of the row:
                sum[0] = sum[0] + part
            C[i] = sum[0]

    Rows that are added to their result atomically are so part by part, without a second kernel.

    The shares are those of merge-path partitioning (Merrill and Garland, "Merge-based parallel sparse
    matrix-vector multiplication", SC 2016): many empty rows are as well shared as long ones.

    Examples
    --------
    >>> from tvm_sparse.transform import SplitRows
    >>> SplitRows().info.name
    'tvm_sparse.SplitRows'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        split = []

        def rewrite(loop: For) -> tirx.Stmt:
            if SPLIT_ROWS not in loop.annotations:
                return loop
            split.append(loop)
            return _Split(func, loop).statements()

        body = tvm_ffi.structural_map(func.body, (For, rewrite))
        return func.with_body(body) if split else func

    each = tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.SplitRows")
    return tvm.transform.Sequential(
        [each, tirx.transform.ConvertSSA()], name="tvm_sparse.SplitRows"
    )


@dataclass(frozen=True)
class _Row:
    """What a row does: what stands around it, before its reduction, the reduction, and after it."""

    around: tuple[For | tirx.AttrStmt, ...]
    before: tuple[tirx.Stmt, ...]
    reduction: tirx.Stmt
    after: tuple[tirx.Stmt, ...]

    def wrapped(self, body: tirx.Stmt) -> tirx.Stmt:
        """Put what stands around the row around a statement; a kernel has thread axes of its own."""
        for outer in reversed(self.around):
            if isinstance(outer, For):
                body = For(outer.loop_var, outer.min, outer.extent, outer.kind, body)
                continue
            old = outer.node.var
            var = Var(old.name, str(old.ty.dtype))
            axis = IterVar(outer.node.dom, var, IterVar.ThreadIndex, outer.node.thread_tag)
            body = _substitute(body, old, var)
            body = tirx.AttrStmt(axis, outer.attr_key, outer.value, body)
        return body


class _Split:
    """One marked loop, and the kernels that take its place."""

    def __init__(self, func: tirx.PrimFunc, loop: For) -> None:
        self.loop = loop
        name, work, groups = (loop.annotations[SPLIT_ROWS][k] for k in range(3))
        self.work, self.groups = _int64(int(work)), int(groups)
        self.indptr = _pointers(loop, str(name))
        self.entries = _int64(count_of_entries(func, self.indptr.name))
        self.rows = _int64(loop.extent)
        self.row = _row(loop.body, self.indptr)
        self.sums = _sums(self.row)
        self.adds = _adds_atomically(self.row)
        self.total = self.rows + self.entries
        self.shares = tirx.truncdiv(self.total + (self.work - 1), self.work)
        slots = functools.reduce(lambda a, b: a * b, self._outer_extents(), _int64(2) * self.shares)
        self.parts = {
            buffer: tirx.decl_buffer(
                (slots * _size(buffer),), str(buffer.ty.dtype), f"{buffer.name}_parts"
            )
            for buffer in self.sums
        }

    def statements(self) -> tirx.Stmt:
        """Both kernels, and the memory for what the first leaves to the second, if it leaves something."""
        if self.adds:
            return self._kernel(self._share)
        memory = [tirx.AllocBuffer(parts) for parts in self.parts.values()]
        return tirx.SeqStmt([*memory, self._kernel(self._share), self._kernel(self._join)])

    def _kernel(self, of_share: Callable[[Var], tirx.Stmt]) -> tirx.Stmt:
        """Launch a group of threads for each share."""
        block, group = Var("blockIdx_x", "int64"), Var("threadIdx_y", "int32")
        share = Var("share", "int64")
        body = tirx.SeqStmt(
            [
                tirx.Bind(share, block * self.groups + group.astype("int64")),
                tirx.IfThenElse(share < self.shares, of_share(share), None),
            ]
        )
        if self.adds:  # the assembler would spill registers to fit more thread blocks
            least = tirx.const(1, "int32")
            body = tirx.AttrStmt(tirx.const(0, "int32"), LEAST_BLOCKS, least, body)
        blocks = tirx.truncdiv(self.shares + (self.groups - 1), _int64(self.groups))
        return _bound(block, blocks, _bound(group, tirx.const(self.groups, "int32"), body))

    # --- the first kernel ----------------------------------------------------------------------

    def _share(self, share: Var) -> tirx.Stmt:
        """Go over the rows of a share."""
        names = ("begin", "end", "first_row", "last_row", "first_entry", "last_entry")
        begin, end, first_row, last_row, first_entry, last_entry = (
            Var(f"share_{name}", "int64") for name in names
        )
        first, last = self._row_at(begin), self._row_at(end)
        base, step = Var("share_base", "int64"), Var("row_of_share", "int64")
        body = self._row_of_share(
            share, first_row + step, last_row, base + first_entry, base + last_entry
        )
        count = tirx.min(last_row + 1, self.rows) - first_row
        return tirx.SeqStmt(
            [
                tirx.Bind(begin, share * self.work),
                tirx.Bind(end, tirx.min(begin + self.work, self.total)),
                *first.statements,
                tirx.Bind(first_row, first.row),
                *last.statements,
                tirx.Bind(last_row, last.row),
                tirx.Bind(first_entry, begin - first_row),
                tirx.Bind(last_entry, end - last_row),
                tirx.Bind(base, _int64(self.indptr[self._place(_int64(0))])),
                For(step, _int64(0), count, tirx.ForKind.SERIAL, body),
            ]
        )

    def _row_of_share(
        self, share: Var, row: Expr, last_row: Expr, first_entry: Expr, last_entry: Expr
    ) -> tirx.Stmt:
        dtype = str(self.indptr.ty.dtype)
        index = Var("row", "int64")
        begin, end = Var("row_begin", dtype), Var("row_end", dtype)
        here, next_row = self._place(index), self._place(index + 1)
        begins = _int64(self.indptr[here]) >= first_entry
        ends = index < last_row
        whole = tirx.And(begins, ends)
        finish = _sequence([self._at(each, index) for each in self.row.after])
        if not self.adds:
            parts = self._store_parts(_int64(2) * share + ends.astype("int64"))
            finish = tirx.IfThenElse(whole, finish, parts)
        reduction = self._at(_with_bounds(self.row.reduction, self, begin, end), index)
        before = [self._at(self._begun(each, whole), index) for each in self.row.before]
        return tirx.SeqStmt(
            [
                tirx.Bind(index, row),
                tirx.Bind(begin, tirx.max(_int64(self.indptr[here]), first_entry).astype(dtype)),
                tirx.Bind(end, tirx.min(_int64(self.indptr[next_row]), last_entry).astype(dtype)),
                self.row.wrapped(tirx.SeqStmt([*before, reduction, finish])),
            ]
        )

    def _begun(self, stmt: tirx.Stmt, whole: Expr) -> tirx.Stmt:
        """Let sums of part of a row begin with nothing: what they add to is added once, to all parts."""
        stored: list[tirx.BufferStore] = []
        tvm_ffi.structural_walk(stmt, (tirx.BufferStore, stored.append))
        if not any(store.buffer in self.sums and _loads(store.value) for store in stored):
            return stmt

        def nothing(store: tirx.BufferStore) -> tirx.BufferStore:
            if store.buffer not in self.sums:
                return store
            neutral = self.sums[store.buffer].neutral(str(store.buffer.ty.dtype))
            return tirx.BufferStore(store.buffer, neutral, list(store.indices))

        return tirx.IfThenElse(
            whole, stmt, tvm_ffi.structural_map(stmt, (tirx.BufferStore, nothing))
        )

    def _store_parts(self, slot: Expr) -> tirx.Stmt:
        """Keep the sums of part of a row."""
        return self._each_sum(
            lambda sums, places, part: tirx.BufferStore(
                self.parts[sums], tirx.BufferLoad(sums, places), [part]
            ),
            slot,
        )

    # --- the second kernel ---------------------------------------------------------------------

    def _join(self, share: Var) -> tirx.Stmt:
        """Put the parts of the row together that begins in a share and ends in a later one."""
        end, row = Var("share_end", "int64"), Var("row", "int64")
        found = self._row_at(end)
        first, last = Var("first_share", "int64"), Var("last_share", "int64")
        base = _int64(self.indptr[self._place(_int64(0))])
        entry = _int64(self.indptr[self._place(row)]) - base
        after = _int64(self.indptr[self._place(row + 1)]) - base
        step = Var("part", "int64")
        slot = _int64(2) * (first + step) + (first + step >= last).astype("int64")
        add = For(step, _int64(0), last - first + 1, tirx.ForKind.SERIAL, self._add_parts(slot))
        before = [self._at(each, row) for each in self.row.before]
        finish = [self._at(each, row) for each in self.row.after]
        joined = tirx.SeqStmt(
            [
                tirx.Bind(first, tirx.truncdiv(row + entry, self.work)),
                tirx.Bind(last, tirx.truncdiv(row + after, self.work)),
                tirx.IfThenElse(
                    tirx.And(first.equal(share), last > share),
                    self.row.wrapped(tirx.SeqStmt([*before, add, *finish])),
                    None,
                ),
            ]
        )
        return tirx.SeqStmt(
            [
                tirx.Bind(end, tirx.min((share + 1) * self.work, self.total)),
                *found.statements,
                tirx.Bind(row, found.row),
                tirx.IfThenElse(row < self.rows, joined, None),
            ]
        )

    def _add_parts(self, slot: Expr) -> tirx.Stmt:
        def add(sums: Var, places: Sequence[Expr], part: Expr) -> tirx.Stmt:
            value = self.sums[sums].combine(
                tirx.BufferLoad(sums, places), tirx.BufferLoad(self.parts[sums], [part])
            )
            return tirx.BufferStore(sums, value, places)

        return self._each_sum(add, slot)

    # --- what both need ------------------------------------------------------------------------

    def _each_sum(
        self, of: Callable[[Var, Sequence[Expr], Expr], tirx.Stmt], slot: Expr
    ) -> tirx.Stmt:
        """A statement for every element of the sums that a thread holds."""
        place = slot
        for var, extent in zip(self._outer_variables(), self._outer_extents()):
            place = place * extent + _int64(var)
        statements = []
        for buffer in self.sums:
            variables = [Var(f"sum_{k}", "int32") for k in range(len(buffer.ty.shape))]
            inner: Expr = _int64(0)
            for var, extent in zip(variables, buffer.ty.shape):
                inner = inner * _int64(extent) + _int64(var)
            places = [
                var.astype(str(size.ty.dtype)) for var, size in zip(variables, buffer.ty.shape)
            ]
            statement = of(buffer, places, place * _size(buffer) + inner)
            for var, extent in reversed(list(zip(variables, buffer.ty.shape))):
                size = tirx.const(int(extent), "int32")
                statement = For(var, tirx.const(0, "int32"), size, tirx.ForKind.UNROLLED, statement)
            statements.append(statement)
        return _sequence(statements)

    def _outer_variables(self) -> list[Var]:
        return [
            outer.loop_var if isinstance(outer, For) else outer.node.var
            for outer in self.row.around
        ]

    def _outer_extents(self) -> list[Expr]:
        return [
            _int64(outer.extent if isinstance(outer, For) else outer.value)
            for outer in self.row.around
        ]

    def _at(self, stmt: tirx.Stmt, row: Expr) -> tirx.Stmt:
        """A statement of the loop for another row."""
        return _substitute(stmt, self.loop.loop_var, self._place(row))

    def _place(self, row: Expr) -> Expr:
        return row.astype(str(self.loop.loop_var.ty.dtype))

    def _row_at(self, item: Var) -> _Found:
        """Search how many rows end among the first `item` entries and ends of rows."""
        zero = tirx.const(0, "int32")
        low = tirx.decl_buffer((1,), "int64", name="share_low", scope="local")
        high = tirx.decl_buffer((1,), "int64", name="share_high", scope="local")
        read_low, read_high = tirx.BufferLoad(low, [zero]), tirx.BufferLoad(high, [zero])
        middle = Var("share_middle", "int64")
        base = _int64(self.indptr[self._place(_int64(0))])
        until = _int64(self.indptr[self._place(middle + 1)]) - base
        step = tirx.SeqStmt(
            [
                tirx.Bind(middle, tirx.truncdiv(read_low + read_high, _int64(2))),
                tirx.IfThenElse(
                    until + middle < item,
                    tirx.BufferStore(low, middle + 1, [zero]),
                    tirx.BufferStore(high, middle, [zero]),
                ),
            ]
        )
        statements = [
            tirx.AllocBuffer(low),
            tirx.AllocBuffer(high),
            tirx.BufferStore(low, tirx.max(item - self.entries, _int64(0)), [zero]),
            tirx.BufferStore(high, tirx.min(item, self.rows), [zero]),
            tirx.While(read_low < read_high, step),
        ]
        return _Found(statements, read_low)


@dataclass(frozen=True)
class _Found:
    """Statements that search a row, and the expression that reads it afterwards."""

    statements: list[tirx.Stmt]
    row: Expr


def _row(stmt: tirx.Stmt, indptr: Var) -> _Row:
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
    return _Row(tuple(around), tuple(before), stmt, tuple(after))


def _by_first_thread(outer: For | tirx.AttrStmt, after: list[tirx.Stmt]) -> list[tirx.Stmt]:
    """What stood after the threads of a row, as one of them does it."""
    if isinstance(outer, For) or not after:
        return after
    var = outer.node.var
    first = tirx.EQ(var, tirx.const(0, str(var.ty.dtype)))
    return [tirx.IfThenElse(first, _sequence(after), None)]


def _is_reduction(stmt: tirx.Stmt, indptr: Var) -> bool:
    return isinstance(stmt, For) and _reads(stmt.extent, indptr)


def _holds_reduction(stmt: tirx.Stmt, indptr: Var) -> bool:
    found: list[For] = []
    tvm_ffi.structural_walk(stmt, (For, found.append))
    return any(_is_reduction(loop, indptr) for loop in found)


def _loads(value: Expr) -> bool:
    found: list[TensorLoad] = []
    tvm_ffi.structural_walk(value, (TensorLoad, found.append))
    return bool(found)


def _reads(node: object, buffer: Var) -> bool:
    found: list[TensorLoad] = []
    tvm_ffi.structural_walk(node, (TensorLoad, found.append))
    return any(load.source.same_as(buffer) for load in found)


def _sums(row: _Row) -> dict[Var, Accumulation]:
    """The registers that the reduction adds to and the row's result is made of, and how it adds."""
    needed: set[Var] = set()
    for stmt in row.after:
        tvm_ffi.structural_walk(stmt, (TensorLoad, lambda load: needed.add(load.source)))
    found: dict[Var, Accumulation] = {}
    written: set[Var] = set()

    def note(store: tirx.BufferStore) -> None:
        written.add(store.buffer)
        if store.buffer in needed and is_accumulation(store):
            found.setdefault(store.buffer, accumulation_of(store, "row"))

    tvm_ffi.structural_walk(row.reduction, (tirx.BufferStore, note))
    strange = [b.name for b in written & needed if b not in found]
    strange += [b.name for b in written if b.ty.storage_scope == "global"]
    if strange or not found:
        raise SparseProgramError(
            "expected a row whose entries are summed in registers, found "
            f"{', '.join(strange) or 'no sum'}"
        )
    return found


def _adds_atomically(row: _Row) -> bool:
    """Whether a row does nothing with its sums but add them to its result, in any number of parts."""
    stores: list[tirx.BufferStore] = []
    calls: list[Call] = []
    for stmt in row.after:
        tvm_ffi.structural_walk(stmt, [(tirx.BufferStore, stores.append), (Call, calls.append)])
    return not stores and any(call.op.name == ATOMIC_ADD for call in calls)


def _with_bounds(stmt: tirx.Stmt, split: _Split, begin: Var, end: Var) -> tirx.Stmt:
    """Let a reduction go from entry `begin` to `end` instead of over its row."""
    analyzer = tvm.sym.Analyzer()

    def load(node: TensorLoad, mutator) -> Expr:
        if not node.source.same_as(split.indptr):
            return mutator.default_mutate(node)
        offset = analyzer.simplify(node.indices[0] - split.loop.loop_var)
        if not isinstance(offset, tirx.IntImm) or int(offset) not in (0, 1):
            raise SparseProgramError(
                f"expected a row that reads {split.indptr.name}[i] and [i + 1], found {node}"
            )
        return end if int(offset) else begin

    return tvm_ffi.structural_mutate(stmt, [(TensorLoad, load)])


def _pointers(loop: For, name: str) -> Var:
    found: set[Var] = set()

    def note(load: TensorLoad) -> None:
        if load.source.name == name:
            found.add(load.source)

    tvm_ffi.structural_walk(loop.body, (TensorLoad, note))
    if len(found) != 1:
        raise SparseProgramError(f"loop {loop.loop_var.name}: expected a body that reads {name}")
    return found.pop()


def _substitute(stmt: tirx.Stmt, old: Var, new: Expr) -> tirx.Stmt:
    return tvm_ffi.structural_map(stmt, (Var, lambda var: new if var.same_as(old) else var))


def _size(buffer: Var) -> Expr:
    return _int64(functools.reduce(lambda a, b: a * b, (int(size) for size in buffer.ty.shape), 1))


def _bound(var: Var, extent: Expr, body: tirx.Stmt) -> tirx.Stmt:
    """Bind a variable to the thread axis that it is named after."""
    tag = var.name.replace("_", ".")
    size = extent.astype(str(var.ty.dtype))
    zero = tirx.const(0, str(var.ty.dtype))
    axis = IterVar(Range.from_min_extent(zero, size), var, IterVar.ThreadIndex, tag)
    return tirx.AttrStmt(axis, "thread_extent", size, body)


def _sequence(parts: Sequence[tirx.Stmt]) -> tirx.Stmt:
    return parts[0] if len(parts) == 1 else tirx.SeqStmt(list(parts))


def _int64(value: Expr | int) -> Expr:
    return value.astype("int64") if isinstance(value, Expr) else tirx.IntImm("int64", value)

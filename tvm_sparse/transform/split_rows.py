"""Share the rows of a CUDA kernel by stored entries: long rows are split, and their parts put together.

A schedule marks a loop over rows, which it leaves serial, with ``"tvm_sparse.split_rows"``: the name of
the row pointer array, how many entries and rows a group of threads takes, and how many groups a thread
block has. Runs once blocks are loops. The result does not depend on the order in which blocks run, and
nothing is updated atomically, except for results that the row itself is added to atomically.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, Var
from tvm.tirx import For

from ..ir.contents import has_loads, stores_in
from ..ir.renaming import replace_variables
from ..ir.statements import as_int64, in_sequence, thread_scope
from ._layout import count_of_entries
from ._merge_path import MergePath
from ._summed_rows import (
    SummedRow,
    check_places,
    row_pointers,
    summed_row,
    sums_of,
    with_bounds,
)
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
        If a marked loop is no reduction over the entries of its row, or the place of an entry in its row
        says more than where it is stored.

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


class _Split:
    """One marked loop, and the kernels that take its place."""

    def __init__(self, func: tirx.PrimFunc, loop: For) -> None:
        self.loop = loop
        name, work, groups = (loop.annotations[SPLIT_ROWS][k] for k in range(3))
        self.groups = int(groups)
        indptr = row_pointers(loop, str(name))
        self.path = MergePath(
            indptr,
            str(loop.loop_var.ty.dtype),
            as_int64(loop.extent),
            as_int64(count_of_entries(func, indptr.name)),
            int(work),
        )
        self.row = summed_row(loop.body, indptr)
        check_places(self.row, loop, indptr)
        self.sums = sums_of(self.row)
        self.adds = _adds_atomically(self.row)
        slots = functools.reduce(
            operator.mul, self.row.outer_extents, as_int64(2) * self.path.shares
        )
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
                tirx.IfThenElse(share < self.path.shares, of_share(share), None),
            ]
        )
        if self.adds:  # the assembler would spill registers to fit more thread blocks
            least = tirx.const(1, "int32")
            body = tirx.AttrStmt(tirx.const(0, "int32"), LEAST_BLOCKS, least, body)
        blocks = tirx.truncdiv(self.path.shares + (self.groups - 1), as_int64(self.groups))
        body = thread_scope(group, tirx.const(self.groups, "int32"), body, "threadIdx.y")
        return thread_scope(block, blocks, body, "blockIdx.x")

    # --- the first kernel ----------------------------------------------------------------------

    def _share(self, share: Var) -> tirx.Stmt:
        """Go over the rows of a share."""
        names = ("begin", "end", "first_row", "last_row", "first_entry", "last_entry")
        begin, end, first_row, last_row, first_entry, last_entry = (
            Var(f"share_{name}", "int64") for name in names
        )
        first, last = self.path.row_at(begin), self.path.row_at(end)
        base, step = Var("share_base", "int64"), Var("row_of_share", "int64")
        body = self._row_of_share(
            share, first_row + step, last_row, base + first_entry, base + last_entry
        )
        count = tirx.min(last_row + 1, self.path.rows) - first_row
        return tirx.SeqStmt(
            [
                tirx.Bind(begin, share * self.path.work),
                tirx.Bind(end, tirx.min(begin + self.path.work, self.path.total)),
                *first.statements,
                tirx.Bind(first_row, first.row),
                *last.statements,
                tirx.Bind(last_row, last.row),
                tirx.Bind(first_entry, begin - first_row),
                tirx.Bind(last_entry, end - last_row),
                tirx.Bind(base, self.path.base),
                For(step, as_int64(0), count, tirx.ForKind.SERIAL, body),
            ]
        )

    def _row_of_share(
        self, share: Var, row: Expr, last_row: Expr, first_entry: Expr, last_entry: Expr
    ) -> tirx.Stmt:
        dtype = str(self.path.indptr.ty.dtype)
        index = Var("row", "int64")
        begin, end = Var("row_begin", dtype), Var("row_end", dtype)
        begins = self.path.pointer(index) >= first_entry
        ends = index < last_row
        whole = tirx.And(begins, ends)
        finish = in_sequence([self._at(each, index) for each in self.row.after])
        if not self.adds:
            parts = self._store_parts(as_int64(2) * share + ends.astype("int64"))
            finish = tirx.IfThenElse(whole, finish, parts)
        reduction = self._at(
            with_bounds(self.row.reduction, self.loop.loop_var, self.path.indptr, begin, end), index
        )
        before = [self._at(self._begun(each, whole), index) for each in self.row.before]
        return tirx.SeqStmt(
            [
                tirx.Bind(index, row),
                tirx.Bind(begin, tirx.max(self.path.pointer(index), first_entry).astype(dtype)),
                tirx.Bind(end, tirx.min(self.path.pointer(index + 1), last_entry).astype(dtype)),
                self.row.wrapped(tirx.SeqStmt([*before, reduction, finish])),
            ]
        )

    def _begun(self, stmt: tirx.Stmt, whole: Expr) -> tirx.Stmt:
        """Let sums of part of a row begin with nothing: what they add to is added once, to all parts."""
        if not any(s.buffer in self.sums and has_loads(s.value) for s in stores_in(stmt)):
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
        found = self.path.row_at(end)
        first, last = Var("first_share", "int64"), Var("last_share", "int64")
        base = self.path.base
        entry = self.path.pointer(row) - base
        after = self.path.pointer(row + 1) - base
        step = Var("part", "int64")
        slot = as_int64(2) * (first + step) + (first + step >= last).astype("int64")
        add = For(step, as_int64(0), last - first + 1, tirx.ForKind.SERIAL, self._add_parts(slot))
        before = [self._at(each, row) for each in self.row.before]
        finish = [self._at(each, row) for each in self.row.after]
        joined = tirx.SeqStmt(
            [
                tirx.Bind(first, tirx.truncdiv(row + entry, self.path.work)),
                tirx.Bind(last, tirx.truncdiv(row + after, self.path.work)),
                tirx.IfThenElse(
                    tirx.And(first.equal(share), last > share),
                    self.row.wrapped(tirx.SeqStmt([*before, add, *finish])),
                    None,
                ),
            ]
        )
        return tirx.SeqStmt(
            [
                tirx.Bind(end, tirx.min((share + 1) * self.path.work, self.path.total)),
                *found.statements,
                tirx.Bind(row, found.row),
                tirx.IfThenElse(row < self.path.rows, joined, None),
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
        for var, extent in zip(self.row.outer_variables, self.row.outer_extents):
            place = place * extent + as_int64(var)
        statements = []
        for buffer in self.sums:
            variables = [Var(f"sum_{k}", "int32") for k in range(len(buffer.ty.shape))]
            inner: Expr = as_int64(0)
            for var, extent in zip(variables, buffer.ty.shape):
                inner = inner * as_int64(extent) + as_int64(var)
            places = [
                var.astype(str(size.ty.dtype)) for var, size in zip(variables, buffer.ty.shape)
            ]
            statement = of(buffer, places, place * _size(buffer) + inner)
            for var, extent in reversed(list(zip(variables, buffer.ty.shape))):
                size = tirx.const(int(extent), "int32")
                statement = For(var, tirx.const(0, "int32"), size, tirx.ForKind.UNROLLED, statement)
            statements.append(statement)
        return in_sequence(statements)

    def _at(self, stmt: tirx.Stmt, row: Expr) -> tirx.Stmt:
        """A statement of the loop for another row."""
        return replace_variables(stmt, {self.loop.loop_var: self.path.place(row)})


def _adds_atomically(row: SummedRow) -> bool:
    """Whether a row does nothing with its sums but add them to its result, in any number of parts."""
    calls: list[Call] = []
    for stmt in row.after:
        tvm_ffi.structural_walk(stmt, (Call, calls.append))
    stores = any(stores_in(stmt) for stmt in row.after)
    return not stores and any(call.op.name == ATOMIC_ADD for call in calls)


def _size(buffer: Var) -> Expr:
    return as_int64(
        functools.reduce(lambda a, b: a * b, (int(size) for size in buffer.ty.shape), 1)
    )

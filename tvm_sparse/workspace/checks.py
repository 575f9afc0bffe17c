"""The function that looks whether the index arrays of a kernel's operands are sound.

It finds out in one fast pass whether there is a fault at all; the checks of the runtime say which.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr, Var

from ..ir import Axis
from ..ir.buffer import declare_buffer
from .producer import Producer
from .statements import Local, int64, loop, minimum, sequence, when
from .tasks import Argument, Generated

__all__ = ["check_function"]


#: Counts more than all coordinates that do not rise; as many faults as 32 bits count do not add up to 0.
_FAULT = int64(1 << 32)


def check_function(producer: Producer, axes: list[Axis]) -> Generated | None:
    """Count the faults of every compressed axis, by task; None where one pass does not find all.

    There are faults if the sum over tasks is not 0.
    """
    stored = [axis for axis in axes if axis.kind not in ("dense_fixed", "sparse_output")]
    if not all(
        axis.kind == "sparse_variable" and (axis.sorted or not axis.unique) for axis in stored
    ):
        return None
    tasks = Var("tasks", "int64")
    faults = declare_buffer([tasks], "int64", "faults")
    total = Local("found", "int64")

    def task(number: Var) -> tirx.Stmt:
        parts = [_axis_faults(axis, number, tasks, total) for axis in stored]
        return sequence(total.declare(0), *parts, tirx.BufferStore(faults, total.value, [number]))

    body = loop("task", int64(0), tasks, task, tirx.ForKind.PARALLEL)
    own = [Argument(tasks, (), "scalar"), Argument(faults, ("tasks",), "output")]
    return Generated(own, body)


def _axis_faults(axis: Axis, task: Expr, tasks: Expr, total: Local) -> list[tirx.Stmt]:
    """Count the faults of a share of an axis.

    Coordinates that do not rise are counted over all entries, without regard to rows; those that begin a
    row are taken off again, for they may.
    """
    rows, stored = axis.parent.slots.astype("int64"), axis.nnz.astype("int64")
    ends = tirx.Or(axis.indptr[0] != 0, axis.indptr[rows].astype("int64") != stored)
    first = total.set(total.value + _is_outside(axis, int64(0)).astype("int64") * _FAULT)
    once = sequence(when(ends, total.set(total.value + _FAULT)), when(stored > 0, first))
    return [
        when(task.equal(0), once),
        *_share("row", 0, rows, task, tasks, lambda row: _row_faults(axis, row, total)),
        *_share("entry", 1, stored, task, tasks, lambda entry: _entry_faults(axis, entry, total)),
    ]


def _share(
    name: str, least: int, end: Expr, task: Expr, tasks: Expr, body: Callable[[Var], tirx.Stmt]
) -> list[tirx.Stmt]:
    """Visit a task's share of the numbers from one to another."""
    share, first = Var("share", "int64"), Var("first", "int64")
    return [
        tirx.Bind(share, tirx.truncdiv(end, tasks) + 1),
        tirx.Bind(first, minimum(task * share + least, end)),
        loop(name, first, minimum(first + share, end), body),
    ]


def _row_faults(axis: Axis, row: Var, total: Local) -> tirx.Stmt:
    """Check the bounds of a row; count its first entry where the one before it has no less."""
    begin, end = Var("begin", "int64"), Var("end", "int64")
    is_sound = tirx.And(tirx.And(begin >= 0, begin <= end), end <= axis.nnz.astype("int64"))
    checked = []
    if axis.sorted:
        first = total.set(total.value - _falls(axis, begin).astype("int64"))
        checked = [when(tirx.And(begin > 0, begin < end), first)]
    return sequence(
        tirx.Bind(begin, axis.indptr[row].astype("int64")),
        tirx.Bind(end, axis.indptr[row + 1].astype("int64")),
        when(is_sound, sequence(*checked), total.set(total.value + _FAULT))
        if checked
        else when(tirx.Not(is_sound), total.set(total.value + _FAULT)),
    )


def _entry_faults(axis: Axis, entry: Var, total: Local) -> tirx.Stmt:
    """Check the range of a coordinate; count it where the one before it is no less."""
    found = _is_outside(axis, entry).astype("int64") * _FAULT
    if axis.sorted:
        found = found + _falls(axis, entry).astype("int64")
    return total.set(total.value + found)


def _is_outside(axis: Axis, entry: Expr) -> Expr:
    """Whether a coordinate is negative, which as an unsigned number is large, or too large."""
    unsigned = f"u{axis.dtype}"
    return axis.indices[entry].astype(unsigned) >= axis.length.astype(unsigned)


def _falls(axis: Axis, entry: Expr) -> Expr:
    """Whether a coordinate breaks the order with the one before it, were they of one row."""
    broken = tirx.LE if axis.unique else tirx.LT
    return broken(axis.indices[entry], axis.indices[entry - 1])

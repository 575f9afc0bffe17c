"""The functions that assemble a sparse result: work, count and fill, each parallel over rows.

``work`` says how many entries the loops of each row produce at most, repeated ones included, so that rows
can be shared between tasks. ``count`` inserts them into a workspace without values and says how many each
row has. ``fill`` does so with values and writes the row to its place. ``append`` needs no count: each task
writes its rows one after another to memory of its own.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Var

from ..ir.buffer import declare_buffer
from ..ir.contents import buffers_stored
from ..ir.renaming import replace_variables
from ..transform._merge_loops import STEPS_MARK
from .output import Output
from .policy import Policy
from .producer import Producer
from .statements import Local, int64, loop, sequence
from .tasks import Argument, Generated, Tasks, levels_of, product_of

__all__ = ["append_function", "count_function", "fill_function", "work_function"]


def work_function(producer: Producer) -> Generated:
    """Count what the loops of each row produce at most, without running the innermost ones."""
    lengths = producer.lengths
    work = declare_buffer([product_of(lengths)], "int64", "work")

    def row(number: Expr) -> tirx.Stmt:
        total = Local("produced", "int64")
        parts = [
            replace_variables(
                _counted(own.body, producer.marker, total), levels_of(own.levels, number, lengths)
            )
            for own in producer.rows
        ]
        store = tirx.BufferStore(work, total.value, [number])
        return sequence(total.declare(0), parts, store)

    body = loop("row", int64(0), product_of(lengths), row, tirx.ForKind.PARALLEL)
    return Generated([Argument(work, ("rows",), "output")], body)


def count_function(producer: Producer, policy: Policy, windowed: bool = False) -> Generated:
    """Count the distinct entries of each row; ``windowed``: by windows of places."""
    tasks = Tasks(producer, policy, symbolic=True, windowed=windowed)
    counts = declare_buffer([tasks.units], "int64", "counts")
    total = Local("distinct", "int64")

    def finish(memory, row, base):
        del base
        statements, held = policy.count(memory, row)
        return sequence(statements, total.set(total.value + held))

    body = tasks.run(
        before=lambda number: total.declare(0),
        finish=finish,
        after=lambda number: [tirx.BufferStore(counts, total.value, [number])],
    )
    return Generated([Argument(counts, (tasks.shape,), "output"), *tasks.arguments], body)


def fill_function(
    producer: Producer, policy: Policy, dtype: str, index_dtype: str, windowed: bool = False
) -> Generated:
    """Compute the entries of each row and write them to its place.

    ``index_dtype`` is that of a place in a row.
    """
    tasks = Tasks(producer, policy, symbolic=False, dtype=dtype, windowed=windowed)
    stored = Var("result_nnz", "int64")
    indptr = declare_buffer([tasks.units + 1], "int64", "result_indptr")
    indices = declare_buffer([stored], index_dtype, "result_indices")
    values = declare_buffer([stored], dtype, "result_values")
    tasks.output = output = Output(values, indices)
    body = tasks.run(
        before=lambda number: output.slot.declare(tirx.BufferLoad(indptr, [number])),
        finish=tasks.drain,
    )
    own = [
        Argument(indptr, (f"{tasks.shape} + 1",), "input"),
        Argument(indices, ("result_nnz",), "output"),
        Argument(values, ("result_nnz",), "output"),
        Argument(stored, (), "scalar"),
    ]
    return Generated([*own, *tasks.arguments], body)


def append_function(producer: Producer, policy: Policy, dtype: str, index_dtype: str) -> Generated:
    """Compute the entries of each row, and write those of a task one after another.

    Task ``t`` writes from ``task_begins[t]`` on; ``counts`` are the entries of each row.
    """
    room = Var("result_room", "int64")
    counts = declare_buffer([product_of(producer.lengths)], "int64", "counts")
    indices = declare_buffer([room], index_dtype, "result_indices")
    values = declare_buffer([room], dtype, "result_values")
    tasks = Tasks(producer, policy, symbolic=False, dtype=dtype)
    begins = declare_buffer([tasks.count], "int64", "task_begins")
    tasks.output = output = Output(values, indices)
    slot, begin = output.slot, Local("row_begin", "int64")
    own = [
        Argument(counts, ("rows",), "output"),
        Argument(indices, ("result_room",), "output"),
        Argument(values, ("result_room",), "output"),
        Argument(room, (), "scalar"),
        Argument(begins, ("tasks",), "input"),
    ]
    body = tasks.run(
        before=lambda number: begin.declare(slot.value),
        finish=tasks.drain,
        after=lambda number: [tirx.BufferStore(counts, slot.value - begin.value, [number])],
        start=lambda task: slot.declare(tirx.BufferLoad(begins, [task])),
    )
    return Generated([*own, *tasks.arguments], body)


def _counted(body: tirx.Stmt, marker: Var, total: Local) -> tirx.Stmt:
    """Let a nest add up how often it stores to the marker at most; innermost loops add their extent.

    What they search for and test is left out: it would take as long as the kernel itself.
    """

    def stores(stmt: tirx.Stmt) -> bool:
        return marker in buffers_stored(stmt)

    def is_leaf(stmt: tirx.Stmt) -> bool:
        inner: list[tirx.Stmt] = []
        tvm_ffi.structural_walk(stmt, [(kind, inner.append) for kind in (tirx.For, tirx.While)])
        return not any(map(stores, inner))

    def add(extent: Expr) -> tirx.Stmt:
        return total.set(total.value + extent.astype("int64"))

    def visit(node: tirx.For, mutator) -> tirx.Stmt:
        adds = is_leaf(node.body) and stores(node.body)
        return add(node.extent) if adds else mutator.default_mutate(node)

    def merged(node: tirx.AttrStmt, mutator) -> tirx.Stmt:
        return add(node.value) if node.attr_key == STEPS_MARK else mutator.default_mutate(node)

    def store(node: tirx.BufferStore, mutator) -> tirx.Stmt:
        return add(int64(1)) if node.buffer.same_as(marker) else mutator.default_mutate(node)

    rules = [(tirx.For, visit), (tirx.AttrStmt, merged), (tirx.BufferStore, store)]
    return tvm_ffi.structural_mutate(body, rules)

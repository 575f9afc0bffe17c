"""Functions that compute new values where the structure of the result is known.

``refill`` collects the values of a row in a workspace, and takes those of its places. ``trace`` writes down
which entry of its row each term of the loops belongs to; with that ``replay`` adds terms up in their
entries, without a workspace.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr, Var

from ..ir.buffer import declare_buffer
from .output import Output
from .policy import Policy, Scratch
from .producer import Producer
from .statements import Local, loop, sequence
from .tasks import Argument, Generated, Tasks, product_of

__all__ = ["TRACE_SCRATCH", "refill_function", "replay_function", "trace_function"]

#: Type of the number of an entry in its row.
_ENTRY_DTYPE = "int32"
#: What a trace needs: for each place of a row which entry it is.
TRACE_SCRATCH = Scratch("where", _ENTRY_DTYPE, "length")


def refill_function(
    producer: Producer, policy: Policy, dtype: str, index_dtype: str
) -> Generated | None:
    """Compute the values of each row at known places; None where the policy cannot do better."""
    stored = Var("result_nnz", "int64")
    indptr = declare_buffer([product_of(producer.lengths) + 1], "int64", "result_indptr")
    indices = declare_buffer([stored], index_dtype, "result_indices")
    values = declare_buffer([stored], dtype, "result_values")
    probe = tirx.const(0, "int64")
    tasks = Tasks(producer, policy, symbolic=False, dtype=dtype, known=True)
    memory = {**tasks.memory(probe), **tasks.registers()}
    own = [
        Argument(indptr, ("rows + 1",), "input"),
        Argument(indices, ("result_nnz",), "input"),
        Argument(values, ("result_nnz",), "output"),
        Argument(stored, (), "scalar"),
    ]
    if policy.streams:
        tasks.output = output = Output(values, None)
        body = tasks.run(
            before=lambda number: output.slot.declare(tirx.BufferLoad(indptr, [number])),
            finish=tasks.drain,
        )
        return Generated([*own, *tasks.arguments], body)
    if policy.insert_known(memory, probe, tirx.const(0, dtype), None) is None:
        return None

    def finish(memory, row, base):
        del row, base

        def gather(slot: Var) -> tirx.Stmt:
            place = tirx.BufferLoad(indices, [slot]).astype("int64")
            value, clear = policy.take(memory, place, producer.neutral)
            return sequence(tirx.BufferStore(values, value, [slot]), clear)

        return loop("slot", begin.value, end.value, gather)

    begin, end = Local("row_begin", "int64"), Local("row_end", "int64")

    def before(number):
        return [
            *begin.declare(tirx.BufferLoad(indptr, [number])),
            *end.declare(tirx.BufferLoad(indptr, [number + 1])),
        ]

    return Generated([*own, *tasks.arguments], tasks.run(before=before, finish=finish))


def trace_function(producer: Producer, index_dtype: str) -> Generated | None:
    """Note the entries of the terms; None where it may depend on values which terms there are."""
    if producer.has_tests:
        return None
    known = _Known(producer)
    indices = declare_buffer([known.stored], index_dtype, "result_indices")
    tasks = Tasks(producer, _Trace(known, indices), symbolic=True)
    body = tasks.run(finish=lambda memory, row, base: None, before=known.row)
    own = [*known.arguments("output"), Argument(indices, ("result_nnz",), "input")]
    return Generated([*own, *tasks.arguments], body)


def replay_function(producer: Producer, dtype: str) -> Generated | None:
    """Add up the terms in their entries; None where there is no trace."""
    if producer.has_tests:
        return None
    known = _Known(producer)
    values = declare_buffer([known.stored], dtype, "result_values")
    tasks = Tasks(producer, _Replay(known, values), symbolic=False, dtype=dtype)
    body = tasks.run(finish=lambda memory, row, base: None, before=known.row)
    own = [*known.arguments("input"), Argument(values, ("result_nnz",), "output")]
    return Generated([*own, *tasks.arguments], body)


class _Known:
    """Where the entries of a row are, and its next term."""

    def __init__(self, producer: Producer) -> None:
        rows = product_of(producer.lengths) + 1
        self.stored, self.terms = Var("result_nnz", "int64"), Var("terms", "int64")
        self.indptr = declare_buffer([rows], "int64", "result_indptr")
        self.before = declare_buffer([rows], "int64", "before")
        self.entries = declare_buffer([self.terms], _ENTRY_DTYPE, "term_entries")
        self.begin, self.end = Local("row_begin", "int64"), Local("row_end", "int64")
        self.term = Local("term", "int64")

    def row(self, number: Expr) -> list[tirx.Stmt]:
        """Return what begins a row."""
        return [
            *self.begin.declare(tirx.BufferLoad(self.indptr, [number])),
            *self.end.declare(tirx.BufferLoad(self.indptr, [number + 1])),
            *self.term.declare(tirx.BufferLoad(self.before, [number])),
        ]

    def next_term(self) -> tirx.Stmt:
        """Return what goes to the next term."""
        return self.term.set(self.term.value + 1)

    def arguments(self, role: str) -> list[Argument]:
        """Return the parameters; ``role`` is that of the trace."""
        return [
            Argument(self.indptr, ("rows + 1",), "input"),
            Argument(self.before, ("rows + 1",), "input"),
            Argument(self.entries, ("terms",), role),
            Argument(self.terms, (), "scalar"),
            Argument(self.stored, (), "scalar"),
        ]


class _KnownPolicy(Policy):
    """What happens to terms whose entries are known; nothing is counted or drained."""

    def __init__(self, known: _Known) -> None:
        self._known = known

    def count(self, memory, row):
        raise NotImplementedError

    def drain(self, memory, row, emit):
        raise NotImplementedError


class _Trace(_KnownPolicy):
    """Looks up the entry of each term by its place, in a table of the row's places."""

    name = "trace"
    scratch = (TRACE_SCRATCH,)

    def __init__(self, known: _Known, indices: Var) -> None:
        super().__init__(known)
        self._indices = indices

    def begin(self, memory, row):
        begin, end = self._known.begin.value, self._known.end.value

        def note(slot: Var) -> tirx.Stmt:
            place = tirx.BufferLoad(self._indices, [slot]).astype("int64")
            return memory["where"].store(place, (slot - begin).astype(_ENTRY_DTYPE))

        return [loop("slot", begin, end, note)]

    def insert(self, memory, place, value, combine):
        own = tirx.BufferStore(
            self._known.entries, memory["where"][place], [self._known.term.value]
        )
        return sequence(own, self._known.next_term())


class _Replay(_KnownPolicy):
    """Adds each term to its entry."""

    name = "replay"
    scratch = ()

    def __init__(self, known: _Known, values: Var) -> None:
        super().__init__(known)
        self._values = values

    def begin(self, memory, row):
        def clear(slot: Var) -> tirx.Stmt:
            return tirx.BufferStore(self._values, row.neutral, [slot])

        return [loop("slot", self._known.begin.value, self._known.end.value, clear)]

    def insert(self, memory, place, value, combine):
        entry = tirx.BufferLoad(self._known.entries, [self._known.term.value]).astype("int64")
        slot = Var("entry", "int64")
        held = tirx.BufferLoad(self._values, [slot])
        return sequence(
            tirx.Bind(slot, self._known.begin.value + entry),
            tirx.BufferStore(self._values, combine(held, value) if combine else value, [slot]),
            self._known.next_term(),
        )

"""What a workspace does: the interface of its policies.

A workspace collects the entries of one row of a result, which the producer's loops give in any order and
several times. The template (:mod:`.template`) asks a policy for pieces of code: how to take an entry in
(insert), how to count the entries that it holds, and how to give them out in order (drain), which leaves
it empty. A policy declares the scratch memory of a task and the local variables of a row; both arrive in
``memory`` by name. It may also ask for a pass over the places before the entries are inserted (plan), and
say what it costs, so that ``workspace="auto"`` may choose it.

Examples
--------
A policy of one's own: a dense row of values and of flags, for short rows. A drain looks at every place.

>>> from tvm import tirx
>>> from tvm_sparse.workspace import Policy, Scratch
>>> from tvm_sparse.workspace.statements import Local, int64, loop, sequence, when
>>> class Flags(Policy):
...     name = "flags"
...     scratch = (
...         Scratch("values", "value", "length", fill=None, symbolic=False),
...         Scratch("used", "int8", "length"),
...     )
...     registers = ("held",)
...
...     def insert(self, memory, place, value, combine):
...         used, held = memory["used"], memory["held"]
...         first = sequence(used.store(place, tirx.const(1, "int8")), held.set(held.value + 1))
...         parts = [when(used[place] == 0, first)]
...         if value is not None:
...             own = memory["values"]
...             parts.append(own.store(place, combine(own[place], value) if combine else value))
...         return sequence(parts)
...
...     def count(self, memory, row):
...         clear = lambda place: memory["used"].store(place, tirx.const(0, "int8"))
...         return [loop("place", int64(0), row.length, clear)], memory["held"].value
...
...     def drain(self, memory, row, emit):
...         def visit(place):
...             own, used = memory["values"], memory["used"]
...             clear = own.store(place, row.neutral), used.store(place, tirx.const(0, "int8"))
...             return when(used[place] != 0, sequence(emit(place, own[place]), *clear))
...
...         return loop("place", int64(0), row.length, visit)

``register_policy(Flags())`` lets ``tvm_sparse.compile(program, workspace="flags")`` find it; the policy
itself may be given too, ``workspace=Flags()``.
"""

from __future__ import annotations

import functools
import types
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr, Var

from .costs import Work
from .statements import Local

__all__ = [
    "OVERFLOW",
    "Combine",
    "Memory",
    "Policy",
    "Row",
    "Scratch",
    "find_policy",
    "known_policies",
    "register_policy",
    "scratch_elements",
]

#: What a policy counts where a row did not fit into its memory: the sum over windows stays negative.
OVERFLOW = -(1 << 48)

#: From what a place holds and a new value to what it holds then; None where a value replaces another.
Combine = Callable[[Expr, Expr], Expr]


@dataclass(frozen=True)
class Scratch:
    """Memory of a workspace.

    Attributes
    ----------
    name : str
        Unique in the policy.
    dtype : str
        Of its elements; ``"value"`` stands for that of the result.
    size : str
        Number of elements of one task, as an expression of ``length``, the number of places of a row,
        ``most``, the most entries that its loops produce, repeated ones included, and ``room``, the number
        of entries that a limit of memory allows; ``min``, ``max`` and ``pow2``, the next power of two, may
        be called.
    fill : int or None
        What it holds when empty; None stands for what leaves other values as they are.
    symbolic : bool
        Whether counting needs it too.
    """

    name: str
    dtype: str
    size: str
    fill: int | None = 0
    symbolic: bool = True


def scratch_elements(size: str, length: int, most: int, room: int) -> int:
    """Return the elements of one task that a :attr:`Scratch.size` stands for."""
    names = {"length": length, "most": most, "room": room, "min": min, "max": max, "pow2": _power}
    return int(eval(_compiled(size), {"__builtins__": {}}, names))


@functools.cache
def _compiled(size: str) -> types.CodeType:
    return compile(size, "<size of scratch>", "eval")


def _power(size: int) -> int:
    """The next power of two, at least 1."""
    return 1 << max(0, int(size) - 1).bit_length()


@dataclass(frozen=True)
class Memory:
    """The scratch memory of one task in generated code.

    Attributes
    ----------
    buffer : Var
        Memory of all tasks.
    begin : Expr
        Where that of this task begins.
    size : Expr
        Its number of elements, int64.
    """

    buffer: Var
    begin: Expr
    size: Expr

    def __getitem__(self, index: Expr) -> Expr:
        """Return what an element holds."""
        return tirx.BufferLoad(self.buffer, [self.begin + index])

    def store(self, index: Expr, value: Expr) -> tirx.Stmt:
        """Return the statement that stores an element."""
        return tirx.BufferStore(self.buffer, value, [self.begin + index])

    def vector(self, index: Expr, lanes: int) -> Expr:
        """Return neighbouring elements as a vector."""
        ramp = tirx.Ramp(self.begin + index, tirx.const(1, "int64"), lanes)
        return tirx.BufferLoad(self.buffer, [ramp])

    def store_vector(self, index: Expr, value: Expr, lanes: int) -> tirx.Stmt:
        """Return the statement that stores neighbouring elements."""
        ramp = tirx.Ramp(self.begin + index, tirx.const(1, "int64"), lanes)
        return tirx.BufferStore(self.buffer, value, [ramp])


@dataclass(frozen=True)
class Row:
    """What generated code knows of a row.

    Attributes
    ----------
    length : Expr
        Number of places, int64.
    expected : Expr
        How many entries its loops produce at most, repeated ones included, int64.
    neutral : Expr or None
        What an empty place holds; None when only the structure counts.
    is_ordered : Expr
        Whether the caller wants entries in order, bool.
    combine : callable or None
        How entries of one place combine, for a policy that does so at the end; None where the last stays.
    """

    length: Expr
    expected: Expr
    neutral: Expr | None
    is_ordered: Expr
    combine: Combine | None


#: Scratch by the name of its :class:`Scratch`, and locals by their names.
Memories = dict[str, "Memory | Local"]


class Policy(ABC):
    """One way to hold the entries of a row.

    Attributes
    ----------
    name : str
        By which a user chooses it.
    scratch : tuple of Scratch
        Memory that each task has of its own.
    registers : tuple of str
        Local variables of a row, int64, that are 0 at its begin.
    combines_late : bool
        Whether it combines entries after all are in, by one operation.
    is_bounded : bool
        Whether it runs in less memory than its entries would need, as ``room`` says, and counts
        :data:`OVERFLOW` where that is not enough.
    streams : bool
        Whether it holds no entries: loops that produce them in order let them go out as they come.
    """

    name: str
    scratch: tuple[Scratch, ...]
    registers: tuple[str, ...] = ()
    combines_late: bool = False
    is_bounded: bool = False
    streams: bool = False

    @property
    def has_cost(self) -> bool:
        """Whether it estimates its time, so that it may be chosen automatically."""
        return type(self).cost is not Policy.cost

    def begin(self, memory: Memories, row: Row) -> list[tirx.Stmt]:
        """Return what precedes the first insertion of a row; nothing unless a policy says otherwise."""
        del memory, row
        return []

    def plan(self, memory: Memories, place: Expr) -> tirx.Stmt | None:
        """Look at a place before anything is inserted; None where no such pass is needed."""
        del memory, place
        return None

    def planned(self, memory: Memories, row: Row) -> list[tirx.Stmt]:
        """Return what follows the pass of :meth:`plan`."""
        del memory, row
        return []

    @abstractmethod
    def insert(
        self, memory: Memories, place: Expr, value: Expr | None, combine: Combine | None
    ) -> tirx.Stmt:
        """Take in an entry.

        Parameters
        ----------
        memory : dict of str to Memory or Local
            Scratch and registers, by name.
        place : Expr
            The coordinate in the row, int64; a row of several dimensions is counted row-major.
        value : Expr or None
            What is combined with the place, a variable or constant; None when only the structure counts.
        combine : callable or None
            How; None where a value replaces another.
        """

    def after_insert(self, memory: Memories, row: Row) -> tirx.Stmt | None:
        """Return what follows each insertion, such as a drain of what is full; None: nothing."""
        del memory, row
        return None

    @abstractmethod
    def count(self, memory: Memories, row: Row) -> tuple[list[tirx.Stmt], Expr]:
        """Count the entries, and empty the workspace; return the statements and the number, int64."""

    @abstractmethod
    def drain(
        self, memory: Memories, row: Row, emit: Callable[[Expr, Expr], tirx.Stmt]
    ) -> tirx.Stmt:
        """Give out every entry, by ``emit(place, value)``, and empty the workspace.

        In order of places if ``row.is_ordered``; otherwise in any order.
        """

    def stream(
        self, memory: Memories, place: Expr, value: Expr, combine: Combine | None, output: Any
    ) -> tirx.Stmt:
        """Write an entry where it belongs, for a policy that streams.

        ``output`` has the methods ``append(place, value)`` and ``update_last(combine, value)``.
        """
        raise NotImplementedError

    def insert_known(
        self, memory: Memories, place: Expr, value: Expr, combine: Combine | None
    ) -> tirx.Stmt | None:
        """Take in an entry of a structure that is known; None where the policy cannot do better."""
        del memory, place, value, combine
        return None

    def take(self, memory: Memories, place: Expr, neutral: Expr) -> tuple[Expr, tirx.Stmt]:
        """Return the value at a known place, and the statement that empties it."""
        raise NotImplementedError

    def cost(self, work: Work) -> float | None:
        """Estimate the time of a call in nanoseconds of one core; None: never chosen automatically."""
        del work
        return None


_POLICIES: dict[str, Policy] = {}


def register_policy(policy: Policy) -> Policy:
    """Let users choose a policy by its name.

    Raises
    ------
    ValueError
        If another one has the name.
    """
    if _POLICIES.setdefault(policy.name, policy) is not policy:
        raise ValueError(f"policy: expected a name of its own, found {policy.name!r} again")
    return policy


def find_policy(name: str | Policy) -> Policy:
    """Return the policy of a name; ``"auto"`` is the one that suits most.

    Raises
    ------
    ValueError
        If there is none.
    """
    if isinstance(name, Policy):
        return name
    name = "dense" if name == "auto" else name
    if name not in _POLICIES:
        known = ", ".join(["auto", *_POLICIES])
        raise ValueError(f"workspace: expected one of {known}, or a Policy, found {name!r}")
    return _POLICIES[name]


def known_policies() -> list[Policy]:
    """Return every registered policy, in the order of registration."""
    return list(_POLICIES.values())

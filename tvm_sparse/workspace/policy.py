"""What a workspace does: the interface of its policies.

A workspace collects the entries of one row of a result, which the producer's loops give in any order and
several times. The template (:mod:`.template`) asks a policy for four pieces of code: how to take an entry
in (insert), how to count the entries that it holds, and how to give them out in order (drain), which
leaves it empty.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr, Var

__all__ = ["Combine", "Memory", "Policy", "Scratch", "find_policy", "register_policy"]

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
        Number of elements of one task, as an expression of ``length``, the number of places of a row, and
        ``most``, the most entries that its loops produce; ``min``, ``max`` and ``pow2``, the next power of
        two, may be called.
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


class Policy(ABC):
    """One way to hold the entries of a row.

    Attributes
    ----------
    name : str
        By which a user chooses it.
    scratch : tuple of Scratch
        Memory that each task has of its own.
    is_sorted : bool
        Whether entries come out in order.
    """

    name: str
    scratch: tuple[Scratch, ...]
    is_sorted: bool = True

    def begin(self, memory: dict[str, Memory]) -> list[tirx.Stmt]:
        """Return what precedes the first insertion of a row; nothing unless a policy says otherwise."""
        del memory
        return []

    @abstractmethod
    def insert(
        self, memory: dict[str, Memory], place: Expr, value: Expr | None, combine: Combine | None
    ) -> tirx.Stmt:
        """Take in an entry.

        Parameters
        ----------
        memory : dict of str to Memory
            Scratch, by name.
        place : Expr
            The coordinate in the row, int64; a row of several dimensions is counted row-major.
        value : Expr or None
            What is combined with the place; None when only the structure counts.
        combine : callable or None
            How; None where a value replaces another.
        """

    @abstractmethod
    def count(self, memory: dict[str, Memory], length: Expr) -> tuple[list[tirx.Stmt], Expr]:
        """Count the entries, and empty the workspace; return the statements and the number, int64."""

    @abstractmethod
    def drain(
        self,
        memory: dict[str, Memory],
        length: Expr,
        neutral: Expr,
        emit: Callable[[Expr, Expr], tirx.Stmt],
    ) -> tirx.Stmt:
        """Give out every entry, by ``emit(place, value)``, and empty the workspace."""

    def insert_known(
        self, memory: dict[str, Memory], place: Expr, value: Expr, combine: Combine | None
    ) -> tirx.Stmt | None:
        """Take in an entry of a structure that is known; None where the policy cannot do better."""
        del memory, place, value, combine
        return None

    def take(self, memory: dict[str, Memory], place: Expr, neutral: Expr) -> tuple[Expr, tirx.Stmt]:
        """Return the value at a known place, and the statement that empties it."""
        raise NotImplementedError


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


def find_policy(name: str) -> Policy:
    """Return the policy of a name; ``"auto"`` is the one that suits most.

    Raises
    ------
    ValueError
        If there is none.
    """
    name = "dense" if name == "auto" else name
    if name not in _POLICIES:
        raise ValueError(f"workspace: expected one of {', '.join(_POLICIES)}, found {name!r}")
    return _POLICIES[name]

"""Policies without a workspace, for loops that produce the entries of a row in order.

``append`` takes every entry as a new one; ``scalar`` adds it to the last one if the place is the same, as
loops with reductions inside of those over the result need.
"""

from __future__ import annotations

from tvm import tirx

from .policy import Policy, register_policy
from .statements import sequence, when

__all__ = ["Append", "Scalar"]


class Append(Policy):
    """Entries go out as they come; see the module."""

    name = "append"
    scratch = ()
    registers = ("held",)
    streams = True

    def insert(self, memory, place, value, combine):
        held = memory["held"]
        return held.set(held.value + 1)

    def stream(self, memory, place, value, combine, output):
        return output.append(place, value)

    def count(self, memory, row):
        return [], memory["held"].value

    def drain(self, memory, row, emit):
        raise NotImplementedError  # nothing is held


class Scalar(Append):
    """Entries of one place follow one another, and are combined; see the module."""

    name = "scalar"
    registers = ("held", "following")

    def insert(self, memory, place, value, combine):
        return self._if_new(memory, place, super().insert(memory, place, value, combine), None)

    def stream(self, memory, place, value, combine, output):
        return self._if_new(
            memory, place, output.append(place, value), output.update_last(combine, value)
        )

    def _if_new(self, memory, place, first: tirx.Stmt, again: tirx.Stmt | None) -> tirx.Stmt:
        """A row begins with a place that no entry has: the one after the last is 0."""
        following = memory["following"]
        new = sequence(first, following.set(place + 1))
        return when(following.value != place + 1, new, again)


register_policy(Append())
register_policy(Scalar())

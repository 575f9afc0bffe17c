"""Where the entries of a result go in generated code: one after another, from a place on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tvm import tirx
from tvm.ir import Expr, Var

from .policy import Combine
from .statements import Local, sequence

__all__ = ["Output"]


class Output:
    """Where the entries of a result go, one after another.

    Parameters
    ----------
    values : Var
        Buffer of the values.
    indices : Var or None
        Buffer of the places; None if they are known.

    Attributes
    ----------
    slot : Local
        Where the next entry goes.
    """

    def __init__(self, values: Var, indices: Var | None) -> None:
        self._values, self._indices = values, indices
        self._lane: Var | None = None
        self.slot = Local("slot", "int64")

    def append(self, place: Expr, value: Expr) -> tirx.Stmt:
        """Return what writes an entry."""
        slot = self.slot.value
        if self._lane is not None:
            slot = slot + self._lane.astype("int64")
        parts = [tirx.BufferStore(self._values, value, [slot])]
        if self._indices is not None:
            dtype = str(self._indices.ty.dtype)
            parts.insert(0, tirx.BufferStore(self._indices, place.astype(dtype), [slot]))
        return sequence(parts, self._skip(1) if self._lane is None else [])

    def update_last(self, combine: Combine | None, value: Expr) -> tirx.Stmt:
        """Return what combines a value with that of the last entry, or replaces it."""
        last = self.slot.value - 1
        held = tirx.BufferLoad(self._values, [last])
        return tirx.BufferStore(self._values, combine(held, value) if combine else value, [last])

    @contextlib.contextmanager
    def run(self, lane: Var) -> Iterator[None]:
        """Let entries that are written be those of one short loop, each at the lane of its variable."""
        self._lane = lane
        yield
        self._lane = None

    def after_run(self, loop: tirx.For, body: tirx.Stmt) -> tirx.Stmt:
        """Return the loop of a run, all lanes at once."""
        lanes = tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.VECTORIZED, body)
        return sequence(lanes, self._skip(int(loop.extent)))

    def _skip(self, count: int) -> tirx.Stmt:
        return self.slot.set(self.slot.value + count)

"""The search over outer points: each measured once, the better ones further, all of it on record."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..schedule.trace import Trace
from .base import Base, PackedOperands
from .fingerprint import fingerprint
from .halving import halve
from .loops import LoopSearch, Session, measure_first
from .points import Point
from .result import FormatReport

__all__ = ["Contest", "Entrant"]

JOURNAL = "formats.json"
#: Points whose kernels are timed in turns at the end: other work on the machine slows all alike.
FINALISTS = 3


@dataclass
class Entrant:
    """A point in the search: what is known of it, and, once it is needed, its problem."""

    point: Point
    key: str
    known: dict[str, Any]
    search: LoopSearch | None = None
    packed: PackedOperands | None = None
    trace: Trace | None = None
    error: str | None = None
    is_exhausted: bool = False

    @property
    def seconds(self) -> float:
        """Time of its fastest candidate, infinite if none ran."""
        if self.error is not None:
            return float("inf")
        return self.search.seconds if self.search else self.known.get("seconds", float("inf"))

    @property
    def trials(self) -> int:
        """Its candidates that were measured."""
        return self.search.measured if self.search else self.known.get("trials", 0)

    @property
    def report(self) -> FormatReport:
        """What a result says about it."""
        pack_seconds = self.packed.seconds if self.packed else self.known.get("pack_seconds")
        return FormatReport(self.seconds, self.trials, pack_seconds, self.error)

    def prepare(self, session: Session) -> bool:
        """Decompose and pack, unless that was done; False if it fails."""
        if self.search is not None:
            return True
        try:
            self.trace, problem, self.packed = self.point.make()
            self.search = LoopSearch(session, problem)
        except Exception as error:  # a user's own format may fail in any way
            self.fail(session, f"{type(error).__name__}: {error}")
            return False
        return True

    def fail(self, session: Session, error: str) -> None:
        """Give up."""
        self.error = error
        session.tally.failures += 1
        session.tally.errors.append(f"{self.point.name}: {error}")


class Contest:
    """The outer search.

    Parameters
    ----------
    session : Session
        Where candidates are kept and measured.
    base : Base
        The call.
    points : sequence of Point
        What to choose from.
    """

    def __init__(self, session: Session, base: Base, points: Sequence[Point]) -> None:
        self.session = session
        self._path = session.folder / JOURNAL
        self._journal = _read(self._path)
        about = _about(session, base)
        self.entrants = []
        for point in points:
            key = hashlib.blake2b(f"{about}\n{point.describe}".encode(), digest_size=16).hexdigest()
            self.entrants.append(Entrant(point, key, self._journal.get(key, {})))
        session.tally.measured += sum(entrant.trials for entrant in self.entrants)

    def run(self, trials: int, margin: float) -> list[Entrant]:
        """Measure every point once, then share the trials; return the fastest few, best first."""
        new = [entrant for entrant in self.entrants if not entrant.trials]
        prepared = [entrant for entrant in new if entrant.prepare(self.session)]
        for entrant in prepared:  # of a run that was interrupted before it wrote the journal
            self.session.tally.measured += entrant.trials
        fresh = [entrant for entrant in prepared if not entrant.trials]
        for entrant, error in zip(fresh, measure_first([e.search for e in fresh])):
            if error is not None:
                self.session.tally.errors.append(f"{entrant.point.name}: {error}")
                entrant.error = error
        self._write()
        halve(self.entrants, trials, self._give, margin)
        self._write()
        running = [entrant for entrant in self.entrants if entrant.seconds < float("inf")]
        best = sorted(running, key=lambda entrant: entrant.seconds)[:FINALISTS]
        return [entrant for entrant in best if entrant.prepare(self.session)]

    def _give(self, entrant: Entrant, trials: int) -> None:
        if entrant.is_exhausted or not entrant.prepare(self.session):
            return
        before = entrant.trials
        try:
            entrant.search.run(trials)
        except Exception as error:  # of a user's space; what was measured stands
            self.session.tally.errors.append(f"{entrant.point.name}: {error}")
            entrant.is_exhausted = True
        entrant.is_exhausted |= entrant.trials == before
        self._write()

    def _write(self) -> None:
        """Write what is known, the traces in a form that another process can apply."""
        for entrant in self.entrants:
            if entrant.search is None or entrant.error is not None:
                continue
            self._journal[entrant.key] = {
                "name": entrant.point.name,
                **asdict(entrant.report),
                "fingerprint": entrant.search.problem.fingerprint,
                "target": str(self.session.target),
                "trace": _as_json(entrant.trace),
            }
        document = {"version": 1, "points": self._journal}
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, self._path)


def _about(session: Session, base: Base) -> str:
    """Text that is equal where records may be shared: of program, sizes, sparsity and target."""
    arrays = [
        value
        for arg, value in zip(base.metadata["args"], base.arguments)
        if arg.get("index_of") is not None
    ]
    sizes = [
        f"{arg['name']}={value}"
        for arg, value in zip(base.metadata["args"], base.arguments)
        if arg["kind"] == "scalar"
    ]
    return "\n".join([base.program.script(), *sizes, fingerprint(arrays), str(session.target)])


def _as_json(trace: Trace) -> Any:
    """Return a trace as its JSON document; one with formats that cannot be saved, as text."""
    try:
        return json.loads(trace.as_json())
    except TypeError:
        return str(trace)


def _read(path: Path) -> dict[str, dict]:
    """Return what an earlier run wrote; nothing where there is none or it cannot be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document["points"] if document.get("version") == 1 else {}

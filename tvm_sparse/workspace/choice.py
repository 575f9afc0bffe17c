"""Which policy a call uses: the fastest by estimate of those whose memory fits.

Comes in: what the rows of a call produce (:class:`~.costs.Work`), the scratch that each policy declares,
how many tasks run, and a limit of memory. Goes out: ways to run the call, best first. Where a policy needs
more than the limit, it gets fewer tasks, the room that there is if it is bounded, or windows: the places
of a row in stretches that the workspace holds one after another, each with a run of the row's loops. Where
there are fewer rows than tasks, tasks may share the places of each row in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .costs import Work, memory_bytes
from .policy import Policy, scratch_elements

__all__ = ["Choice", "choose", "more_windows", "scratch_bytes"]

#: Windows of fewer places than this are not worth a run of the loops.
_LEAST_WIDTH = 64
#: The largest part of a row takes so many times its share.
_UNEVEN = 1.3


@dataclass(frozen=True)
class Choice:
    """A way to run a call.

    Attributes
    ----------
    policy : str
        Name of the policy.
    tasks : int
        How many stretches of rows run at the same time, each with scratch of its own.
    parts : int
        Into how many parts the places of a row are cut, each of which a task takes.
    windows : int
        Into how many windows the places of a part are cut.
    width : int
        Places of a window.
    room : int
        Entries for which a bounded policy has room.
    bytes : int
        Scratch of the call.
    nanoseconds : float
        Estimate of its time; infinite where the policy has none.
    """

    policy: str
    tasks: int
    parts: int
    windows: int
    width: int
    room: int
    bytes: int
    nanoseconds: float

    @property
    def is_windowed(self) -> bool:
        """Whether the loops of a row run several times."""
        return self.parts * self.windows > 1

    def __str__(self) -> str:
        parts = [f"{self.bytes / 2**20:.3g} MiB of scratch", f"{self.tasks} tasks"]
        if self.parts > 1:
            parts.append(f"{self.parts} parts of each row")
        if self.windows > 1:
            parts.append(f"{self.windows} windows of {self.width} places")
        if np.isfinite(self.nanoseconds):
            parts.append(f"estimated {self.nanoseconds * 1e-6:.3g} ms")
        return f"{self.policy}: {', '.join(parts)}"


def scratch_bytes(
    scratch: Mapping[str, Mapping], value_bytes: int, length: int, most: int, room: int
) -> int:
    """Return the scratch of one task; a value takes ``value_bytes``."""
    total = 0
    for own in scratch.values():
        size = value_bytes if own["dtype"] == "value" else np.dtype(own["dtype"]).itemsize
        total += size * scratch_elements(own["size"], length, most, room)
    return total


def choose(
    work: Work,
    candidates: Sequence[tuple[Policy, Mapping[str, Mapping]]],
    tasks: int,
    limit: int | None = None,
) -> list[Choice]:
    """Return the ways to run a call, best first.

    Parameters
    ----------
    work : Work
        What it has to do.
    candidates : sequence of (Policy, dict)
        Policies, and their scratch as plain data.
    tasks : int
        How many tasks the work is worth.
    limit : int or None
        Most bytes of scratch; half of this machine's memory otherwise.

    Returns
    -------
    list of Choice
        Empty if nothing fits.

    Examples
    --------
    A thousand rows of 8192 places that produce half as many entries, and one that produces a million in
    many more.

    >>> import numpy as np
    >>> from tvm_sparse.workspace import Work, known_policies
    >>> def best(work):
    ...     found = [(own, {part.name: vars(part) for part in own.scratch}) for own in known_policies()]
    ...     return choose(work, found, tasks=2)[0].policy
    >>> best(Work.of(np.full(1000, 4096), length=8192, value_bytes=8))
    'dense'
    >>> best(Work.of(np.array([1_000_000]), length=1 << 40, value_bytes=8))
    'sort'
    """
    limit = memory_bytes() // 2 if limit is None else limit
    found = []
    for policy, scratch in candidates:
        whole = _fit(work, policy, scratch, tasks, 1, limit)
        ways = [whole]
        if whole is None or whole.windows > 1:
            ways.append(_fit(work, policy, scratch, 1, 1, limit))
        if work.rows < tasks:
            ways.append(_fit(work, policy, scratch, tasks, tasks, limit))
        found += [own for own in ways if own is not None]
    return sorted(found, key=lambda own: own.nanoseconds)


def _fit(
    work: Work, policy: Policy, scratch: Mapping, tasks: int, parts: int, limit: int
) -> Choice | None:
    """Fit a policy into a limit; None if it does not."""
    most, length = work.most, max(1, -(-work.length // parts))

    def needs(width: int, room: int) -> int:
        return tasks * scratch_bytes(scratch, work.value_bytes, width, most, room)

    room = 64
    if policy.is_bounded:
        enough = 16 * min(most, length) + 64
        room = _largest(lambda n: needs(length, n) <= limit, 64, enough)
        if room is None:
            return None
    windows, width = 1, length
    if needs(length, room) > limit:
        width = _largest(lambda n: needs(n, room) <= limit, _LEAST_WIDTH, length)
        if width is None:
            return None
        windows = -(-length // width)
    elif policy.is_bounded:
        windows = _windows_for_room(work, room, parts)
        width = -(-length // windows)
    size = needs(width, room)
    time = _estimate(work, policy, tasks, parts, windows) + size * work.costs.byte
    return Choice(policy.name, tasks, parts, windows, width, room, size, time)


def _estimate(work: Work, policy: Policy, tasks: int, parts: int, windows: int) -> float:
    """Estimate the nanoseconds of a call; parts are not of the same size."""
    runs = parts * windows
    part = replace(work, produced=work.produced / runs, length=max(1, -(-work.length // runs)))
    each = policy.cost(part)
    if each is None:
        return float("inf")
    repeated = 2 * work.costs.window * work.total(work.produced) if runs > 1 else 0.0
    uneven = _UNEVEN if parts > 1 else 1.0
    return runs * (each * uneven + repeated) / max(1, min(tasks, work.rows * parts))


def more_windows(choice: Choice, work: Work) -> Choice | None:
    """Return the choice with twice the windows, for rows that did not fit; None if they are too small."""
    windows = 2 * choice.windows
    width = -(-work.length // (windows * choice.parts))
    return None if width < _LEAST_WIDTH // 8 else replace(choice, windows=windows, width=width)


def _windows_for_room(work: Work, room: int, parts: int) -> int:
    """Estimate the windows that leave room for the distinct entries of the largest row."""
    largest = replace(work, produced=np.array([float(work.most)]))
    distinct = float(largest.distinct()[0]) / parts
    runs = room // 8 * 3
    return max(1, int(np.ceil(distinct * 1.5 / runs))) if distinct > runs else 1


def _largest(fits, least: int, most: int) -> int | None:
    """Return the largest number that fits, to within an eighth; None if the least does not."""
    least = min(least, most)
    if not fits(least):
        return None
    if fits(most):
        return most
    low, high = least, most
    while high - low > max(1, low // 8):
        middle = (low + high) // 2 if high < 4 * low else 2 * low
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low

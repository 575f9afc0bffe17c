"""Successive halving: how the trials of one search are shared among contestants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

__all__ = ["Contestant", "halve"]


class Contestant(Protocol):
    """Something that becomes faster, or not, with trials."""

    @property
    def seconds(self) -> float:
        """The best so far; infinite where nothing worked."""

    @property
    def trials(self) -> int:
        """How many it had, earlier runs included."""


Chosen = TypeVar("Chosen", bound=Contestant)


def halve(
    contestants: Sequence[Chosen],
    trials: int,
    give: Callable[[Chosen, int], None],
    margin: float = float("inf"),
) -> Chosen | None:
    """Share trials: all contestants get some, the better half as many again, and so on to the last.

    Parameters
    ----------
    contestants : sequence of Contestant
        Each has had its first trial.
    trials : int
        Of all together, the first ones and those of earlier runs included.
    give : callable
        ``give(contestant, number)`` measures so many more of its candidates.
    margin : float
        Contestants that are so many times slower than the best get no more than the first.

    Returns
    -------
    Contestant or None
        The fastest, of those that had no more trials too; None where nothing worked.

    Notes
    -----
    Successive halving of Jamieson and Talwalkar, "Non-stochastic best arm identification and
    hyperparameter optimization", AISTATS 2016. What a contestant had in an earlier run counts, so a
    second run with as many trials measures nothing, and one with more goes on.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> four = [SimpleNamespace(seconds=s, trials=1) for s in (4.0, 1.0, 2.0, 3.0)]
    >>> def give(contestant, number):
    ...     contestant.trials += number
    >>> halve(four, 28, give).seconds, [one.trials for one in four]
    (1.0, [3, 15, 7, 3])
    """
    running = [one for one in contestants if one.seconds < float("inf")]
    if not running:
        return None
    best = min(one.seconds for one in running)
    left = [one for one in running if one.seconds <= margin * best]
    rounds = max(1, (len(left) - 1).bit_length() + 1)
    budget = max(0, trials - len(contestants))
    wanted = 1
    for number in range(rounds):
        share = budget // (rounds - number) // len(left)
        wanted += share
        budget -= share * len(left)
        for one in left:
            spare = trials - sum(other.trials for other in contestants)
            if (more := min(wanted - one.trials, spare)) > 0:
                give(one, more)
        left = sorted(left, key=lambda one: one.seconds)[: -(-len(left) // 2)]
    return min(running, key=lambda one: one.seconds)

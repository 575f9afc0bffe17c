"""Choices of a random program, drawn one after another from hypothesis, and fresh names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

__all__ = ["Choices"]

T = TypeVar("T")


@dataclass
class Choices:
    """Draws choices; the writers of a program's parts derive from it."""

    draw: DrawFn
    count: int = 0

    def chance(self, percent: int) -> bool:
        """Return True so many times in a hundred."""
        return self.draw(st.integers(0, 99)) < percent

    def pick(self, options: Iterable[T]) -> T:
        """Return one of the options."""
        return self.draw(st.sampled_from(list(options)))

    def number(self, low: int, high: int) -> int:
        """Return an integer between two bounds, both included."""
        return self.draw(st.integers(low, high))

    def fresh(self, prefix: str) -> str:
        """Return a name that no other part of the program has."""
        self.count += 1
        return f"{prefix}{self.count}"

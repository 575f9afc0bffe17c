"""Sizes of the tiles that the schedules cut loops into."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.target import Target

from .vectors import vector_lanes

__all__ = ["EntryTile", "RowTile"]


@dataclass(frozen=True)
class RowTile:
    """Part of one row of a dense result that is computed at once.

    Parameters
    ----------
    width : int
        Features of a tile, `lanes` times a power of two. They stay in registers while all entries
        of the row are added: ``width // lanes`` must be below the number of vector registers.
    lanes : int
        Features of a vector.
    """

    width: int
    lanes: int

    def __post_init__(self) -> None:
        _check(self.width, self.lanes)

    @staticmethod
    def of_target(target: Target | str | dict | None, bits: int = 32) -> RowTile:
        """Return the default tile: eight vectors of the target."""
        lanes = vector_lanes(target, bits)
        return RowTile(width=8 * lanes, lanes=lanes)

    def within(self, features: int) -> RowTile:
        """Return the largest tile, no larger than this, that a row of so many features fills."""
        width = min(self.width, 1 << (features.bit_length() - 1))
        return RowTile(width=width, lanes=min(self.lanes, width))


@dataclass(frozen=True)
class EntryTile:
    """Entries of one row that are taken at once.

    Parameters
    ----------
    width : int
        Number of partial sums, `lanes` times a power of two.
    lanes : int
        Entries of a vector. Few: most rows are short, and the gathered operand is loaded lane by
        lane.
    """

    width: int = 4
    lanes: int = 4

    def __post_init__(self) -> None:
        _check(self.width, self.lanes)


def _check(width: int, lanes: int) -> None:
    vectors = width // lanes
    if width % lanes or vectors & (vectors - 1):
        raise ValueError(
            f"width: expected lanes times a power of two, found {width} with {lanes} lanes"
        )

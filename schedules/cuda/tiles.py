"""How many rows and features the threads of a block take: named sizes, and what suits a width."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from tvm.target import Target

from ...runtime import resolve_target

__all__ = [
    "THREADS",
    "WARP",
    "FeatureTile",
    "RowTile",
    "check_sizes",
    "check_staging",
    "check_threads",
    "check_vector",
    "vector_width",
]

WARP = 32
#: Threads of a block: eight warps hide each other's latency, and 65536 registers hold eight such blocks.
THREADS = 256
#: Threads that a block may have.
_MOST_THREADS = 1024
#: The oldest architecture that staged programs are for.
_OLDEST = 80
#: Bytes of the widest load.
_LOAD_BYTES = 16
#: Vectors of features a thread holds; more take registers from the loads in flight.
_MOST_VECTORS = 4


@dataclass(frozen=True)
class RowTile:
    """Rows of a dense result that a thread block computes, and who computes which features of them.

    Parameters
    ----------
    vector : int
        Features that a thread loads at once: a power of two up to 16.
    lanes : int
        Threads (``threadIdx.x``) along the features of a row.
    vectors : int
        Vectors that a thread holds, `lanes` vectors apart, so that loads of neighbours are contiguous.
    rows : int
        Rows (``threadIdx.y``) of a thread block.

    Raises
    ------
    ValueError
        If a size is not positive, the vector is no power of two up to 16, or the block has more than 1024
        threads.

    Examples
    --------
    >>> from tvm_sparse.schedules.cuda import RowTile
    >>> RowTile.of_width(128, bits=32)
    RowTile(vector=4, lanes=32, vectors=1, rows=8)
    >>> RowTile.of_width(100, bits=16)
    RowTile(vector=4, lanes=25, vectors=1, rows=10)
    """

    vector: int
    lanes: int
    vectors: int
    rows: int

    def __post_init__(self) -> None:
        check_sizes(self, "vector", "lanes", "vectors", "rows")
        check_vector(self.vector)
        check_threads(self, "lanes", "rows")

    @property
    def width(self) -> int:
        """Features of the tile."""
        return self.vector * self.lanes * self.vectors

    def within(self, features: int | None) -> RowTile:
        """Return the tile without what lies beyond a row of so many features.

        Examples
        --------
        >>> from tvm_sparse.schedules.cuda import RowTile
        >>> RowTile(vector=4, lanes=32, vectors=2, rows=8).within(24)
        RowTile(vector=4, lanes=6, vectors=1, rows=8)
        """
        if not features:
            return self
        vector = min(self.vector, 1 << (features.bit_length() - 1))  # vectors are powers of two
        lanes = min(self.lanes, -(-features // vector))
        vectors = min(self.vectors, -(-features // (vector * lanes)))
        return RowTile(vector, lanes, vectors, self.rows)

    @staticmethod
    def of_width(features: int | None, bits: int = 32, threads: int = THREADS) -> RowTile:
        """Return the tile that suits a feature width.

        Parameters
        ----------
        features : int or None
            The width; None where it is known at run time only, which rules out vectors.
        bits : int
            Width of a value of the operand that rows are gathered from.
        threads : int
            Threads of a block, about.
        """
        if features is None:
            return RowTile(1, WARP, _MOST_VECTORS, max(1, threads // WARP))
        vector = vector_width(features, bits)
        count = max(1, features // vector)
        vectors = min(_MOST_VECTORS, -(-count // WARP))
        # Registers: a thread keeps as many sums as it loads values.
        while vectors > 1 and vectors * vector > 16:
            vectors -= 1
        tiles = -(-count // (WARP * vectors))
        lanes = -(-count // (vectors * tiles))
        return RowTile(vector, lanes, vectors, max(1, threads // lanes))


class FeatureTile(Protocol):
    """What tiles have in common that say which thread computes which features."""

    @property
    def vector(self) -> int:
        """Features of a vector."""

    @property
    def lanes(self) -> int:
        """Threads along the features."""

    @property
    def vectors(self) -> int:
        """Vectors that a thread holds."""

    @staticmethod
    def of_width(features: int | None, bits: int = 32) -> Any:
        """Return the tile that suits a feature width."""


def check_sizes(tile: object, *names: str) -> None:
    """Check that sizes of a tile, its attributes of these names, are positive integers.

    Raises
    ------
    ValueError
        If one is not.
    """
    for name in names:
        value = getattr(tile, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: expected a positive integer, found {value!r}")


def check_vector(vector: int) -> None:
    """Check that vectors have as many values as CUDA loads at once of some type.

    Raises
    ------
    ValueError
        If they have not.
    """
    if vector > _LOAD_BYTES or vector & (vector - 1):
        raise ValueError(
            f"vector: expected a power of two up to {_LOAD_BYTES} (bytes of a load), found {vector}"
        )


def check_threads(tile: object, *names: str) -> None:
    """Check that a block does not have more threads than it may; their number is the product of sizes.

    Raises
    ------
    ValueError
        If it has.
    """
    threads = math.prod(getattr(tile, name) for name in names)
    if threads > _MOST_THREADS:
        raise ValueError(
            f"{', '.join(names)}: expected at most {_MOST_THREADS} threads in a block, found {threads}"
        )


def vector_width(features: int, bits: int) -> int:
    """Return how many values the widest load takes that rows of a width are aligned to.

    Parameters
    ----------
    features : int
        Values of a row.
    bits : int
        Of a value.

    Examples
    --------
    >>> from tvm_sparse.schedules.cuda import vector_width
    >>> vector_width(100, 32), vector_width(100, 16), vector_width(17, 16)
    (4, 4, 1)
    """
    width = max(1, _LOAD_BYTES * 8 // bits)
    while features % width:
        width //= 2
    return width


def stages_copies(target: Target | str | dict | None) -> bool:
    """Whether a target has the asynchronous copies and the tensor cores of sm_80; None has them.

    Examples
    --------
    >>> from tvm_sparse.schedules.cuda.tiles import stages_copies
    >>> [stages_copies({"kind": "cuda", "arch": arch}) for arch in ("sm_75", "sm_80", "sm_90a")]
    [False, True, True]
    """
    if target is None:
        return True
    arch = str(resolve_target(target).attrs.get("arch", "sm_80"))
    return int(arch.removeprefix("sm_").rstrip("af")) >= _OLDEST


def check_staging(target: Target | str | dict | None, what: str) -> None:
    """Refuse `what` for a target that has neither asynchronous copies nor the tensor cores of sm_80.

    Raises
    ------
    ValueError
        If it has not.
    """
    if not stages_copies(target):
        found = resolve_target(target).attrs["arch"]
        raise ValueError(f"target: expected sm_{_OLDEST} or later for {what}, found {found}")

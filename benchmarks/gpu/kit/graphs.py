"""Sparse matrices to measure on: made from a seed, or read from files that the kit holds.

Each is square, in CSR with 32-bit indices, sorted and without duplicates. Made graphs have the rows,
entries, largest degree and spread of degrees of well-known ones, after which they are called, and no
other likeness to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = [
    "SHAPES",
    "TINY",
    "BlockMatrix",
    "Graph",
    "block_matrix",
    "power_law",
    "read_graph",
    "read_graphs",
    "scattered",
    "write_graph",
]

#: Rows, entries, most entries of a row, and standard deviation over mean of entries of a row.
SHAPES = {
    "cora_like": (2708, 10556, 168, 1.34),
    "pubmed_like": (19717, 88651, 171, 1.65),
    "ppi_like": (44906, 1271274, 721, 1.5),
    "arxiv_like": (169343, 2315598, 13161, 5.0),
    "reddit_quarter": (116482, 28653973, 10828, 1.6),
    "proteins_like": (132534, 39561252, 7750, 1.0),
}
TINY = {"tiny_even": (60, 240, 8, 0.3), "tiny_skewed": (70, 300, 60, 2.0)}


@dataclass(frozen=True)
class Graph:
    """A square matrix in CSR; values are drawn where they are needed."""

    name: str
    rows: int
    indptr: np.ndarray
    indices: np.ndarray

    @property
    def entries(self) -> int:
        """Number of stored entries."""
        return self.indices.size

    def entry_rows(self) -> np.ndarray:
        """Return the row of each entry."""
        return np.repeat(np.arange(self.rows, dtype=np.int32), np.diff(self.indptr))


@dataclass(frozen=True)
class BlockMatrix:
    """The structure of a matrix of dense blocks: block rows in CSR."""

    name: str
    block: int
    rows: int
    columns: int
    indptr: np.ndarray
    indices: np.ndarray

    @property
    def blocks(self) -> int:
        """Number of stored blocks."""
        return self.indices.size

    def block_rows(self) -> np.ndarray:
        """Return the block row of each block."""
        return np.repeat(np.arange(self.indptr.size - 1, dtype=np.int32), np.diff(self.indptr))


def power_law(name: str, rows: int, entries: int, most: int, spread: float, seed: int = 0) -> Graph:
    """Make a graph whose degrees are lognormal, of rows and of columns alike.

    Parameters
    ----------
    name : str
        What to call it.
    rows, entries, most : int
        Rows, about how many entries, and the most of a row.
    spread : float
        Standard deviation over mean of the entries of a row.
    seed : int
        Of the random generator.
    """
    rng = np.random.default_rng(seed)
    sigma = np.sqrt(np.log1p(spread * spread))
    degrees = _scaled(np.exp(rng.normal(0, sigma, rows)), entries, most)
    degrees = np.minimum(np.floor(degrees + rng.random(rows)), most).astype(np.int64)
    weights = _scaled(np.exp(rng.normal(0, sigma, rows)), entries, most)
    # A pool that holds each column as often as its weight says: drawing from it is one lookup.
    pool = np.repeat(np.arange(rows), np.floor(weights + rng.random(rows)).astype(np.int64))
    keys = np.repeat(np.arange(rows, dtype=np.int64) * rows, degrees)
    keys += pool[rng.integers(0, pool.size, keys.size, dtype=np.int32)]
    keys.sort()
    keys = keys[np.concatenate([[True], keys[1:] != keys[:-1]])]
    counts = np.bincount(keys // rows, minlength=rows)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return Graph(name, rows, indptr, (keys % rows).astype(np.int32))


def _scaled(weights: np.ndarray, total: int, most: int) -> np.ndarray:
    """Scale weights to a sum, with none above a limit."""
    for _ in range(8):
        weights = np.minimum(weights * (total / weights.sum()), most)
    return weights


def scattered(size: int, density: float, seed: int = 0) -> Graph:
    """Make a square matrix with entries at random places, as pruned weights have."""
    rng = np.random.default_rng(seed)
    stored = rng.random((size, size), dtype=np.float32) < density
    indptr = np.concatenate([[0], np.cumsum(stored.sum(axis=1))]).astype(np.int32)
    return Graph(f"{size}, {density:.0%}", size, indptr, np.nonzero(stored)[1].astype(np.int32))


def block_matrix(size: int, block: int, density: float, seed: int = 0) -> BlockMatrix:
    """Make a square matrix with a share of its blocks stored, at random places."""
    rng = np.random.default_rng(seed)
    count = size // block
    stored = rng.random((count, count)) < density
    indptr = np.concatenate([[0], np.cumsum(stored.sum(axis=1))]).astype(np.int32)
    name = f"{size}, {density:.0%} of {block}x{block}"
    return BlockMatrix(name, block, size, size, indptr, np.nonzero(stored)[1].astype(np.int32))


def write_graph(path: Path, graph: Graph) -> None:
    """Write a graph to a file, so that other processes need not make it."""
    path.parent.mkdir(exist_ok=True)
    shape = np.array([graph.rows, graph.rows])
    np.savez(path, indptr=graph.indptr, indices=graph.indices, shape=shape)


def read_graph(path: Path) -> Graph:
    """Read a graph: arrays ``indptr``, ``indices`` and ``shape`` of an ``.npz`` file."""
    with np.load(path) as arrays:
        indptr, indices = (arrays[name].astype(np.int32) for name in ("indptr", "indices"))
        return Graph(path.stem, int(arrays["shape"][0]), indptr, indices)


def read_graphs(folder: Path, names: Sequence[str] | None = None) -> list[Graph]:
    """Read the graphs of a folder, all or some."""
    paths = sorted(folder.glob("*.npz"))
    return [read_graph(path) for path in paths if names is None or path.stem in names]

"""Matrices for the command line and the benchmarks: read from files, or made."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse as sp

__all__ = ["power_law", "read_matrix"]


def read_matrix(path: str | Path, seed: int = 0) -> sp.csr_matrix:
    """Read a sparse matrix as CSR with float32 values, columns sorted, duplicates summed.

    Parameters
    ----------
    path : str or pathlib.Path
        Matrix Market (``.mtx``, ``.mtx.gz``), NumPy (``.npz``: SciPy's own, or arrays ``indptr``,
        ``indices``, ``shape`` and optionally ``data``), or an edge list (any other suffix): one
        ``row column [value]`` a line, counted from 0, ``#`` or ``%`` begins a comment.
    seed : int
        Seeds the values of a matrix that stores a pattern only.

    Returns
    -------
    scipy.sparse.csr_matrix
        The matrix.

    Raises
    ------
    ValueError
        If the file cannot be read as a sparse matrix.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"matrix: no file {str(path)!r}")
    try:
        if file.name.endswith((".mtx", ".mtx.gz")):
            matrix, has_values = _read_matrix_market(file)
        elif file.suffix == ".npz":
            matrix, has_values = _read_npz(file)
        else:
            matrix, has_values = _read_edges(file)
    except (OSError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"matrix: cannot read {str(path)!r}: {error}") from error
    matrix = sp.csr_matrix(matrix)
    if not has_values:
        matrix.data = _values(matrix.nnz, seed)
    matrix = matrix.astype(np.float32)
    matrix.sum_duplicates()
    return matrix


def power_law(
    rows: int = 169_343, entries: int = 1_166_243, largest: int = 13_150, seed: int = 0
) -> sp.csr_matrix:
    """Make a square matrix with lognormal row and column degrees.

    Parameters
    ----------
    rows, entries, largest : int
        Size, number of stored entries (exact) and bound of the row degree; by default those of
        ogbn-arxiv, directed.
    seed : int
        Makes the matrix reproducible.

    Returns
    -------
    scipy.sparse.csr_matrix
        Float32 values in ``[0, 1)``.

    Examples
    --------
    >>> power_law(1000, 5000, 300).nnz
    5000
    """
    random = np.random.default_rng(seed)
    sigma = np.sqrt(np.log1p(6.0**2))  # standard deviation of degrees six times their mean
    weights = np.exp(random.normal(0, sigma, rows))
    weights = np.minimum(weights, weights.sum() * largest / entries)
    row_share, column_share = weights, random.permutation(weights)
    keys = np.empty(0, np.int64)
    while keys.size < entries:
        missing = int((entries - keys.size) * 1.3) + 16
        drawn = _draw(row_share, missing, random) * rows + _draw(column_share, missing, random)
        keys = np.unique(np.concatenate([keys, drawn]))
    keys = np.sort(random.permutation(keys)[:entries])
    row, column = np.divmod(keys, rows)
    values = random.random(entries, dtype=np.float32)
    return sp.csr_matrix((values, (row, column)), shape=(rows, rows))


def _draw(weights: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    cumulated = np.cumsum(weights)
    return np.searchsorted(cumulated, random.random(count) * cumulated[-1]).clip(
        0, len(weights) - 1
    )


def _values(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count, dtype=np.float32)


def _read_matrix_market(file: Path) -> tuple[sp.spmatrix, bool]:
    field = scipy.io.mminfo(file)[4]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which class SciPy returns does not matter here
        return sp.csr_matrix(scipy.io.mmread(file)), field != "pattern"


def _read_npz(file: Path) -> tuple[sp.spmatrix, bool]:
    with np.load(file) as arrays:
        if "format" in arrays:
            return sp.load_npz(file), True
        names = set(arrays.files)
        if not {"indptr", "indices", "shape"} <= names:
            raise ValueError(f"expected arrays indptr, indices and shape, found {sorted(names)}")
        indices = arrays["indices"].astype(np.int32)
        has_values = "data" in names
        data = arrays["data"] if has_values else np.ones(indices.size, np.float32)
        if data.ndim != 1:
            raise ValueError("holds blocks, expected single values")
        shape = tuple(int(size) for size in arrays["shape"])
        return sp.csr_matrix((data, indices, arrays["indptr"]), shape=shape), has_values


def _read_edges(file: Path) -> tuple[sp.spmatrix, bool]:
    table = np.loadtxt(file, comments=("#", "%"), ndmin=2)
    if table.shape[1] not in (2, 3):
        raise ValueError(f"expected two or three columns, found {table.shape[1]}")
    ends = table[:, :2].astype(np.int64)
    if (ends != table[:, :2]).any() or (ends < 0).any():
        raise ValueError("expected row and column numbers that are integers and not negative")
    has_values = table.shape[1] == 3
    values = table[:, 2] if has_values else np.ones(len(table))
    size = int(ends.max(initial=-1)) + 1
    return sp.coo_matrix((values, (ends[:, 0], ends[:, 1])), shape=(size, size)), has_values

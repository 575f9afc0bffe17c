"""Square sparse matrices to measure on: those of a folder, or generated ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse as sp

__all__ = ["from_folder", "generated"]


def from_folder(folder: Path) -> dict[str, sp.csr_matrix]:
    """Return every square matrix of a folder of ``.npz`` and ``.mtx`` files, by name.

    ``.npz`` files are SciPy's, or hold ``indptr``, ``indices``, ``shape`` and perhaps ``data``.
    Matrices without values get random ones. Files that hold anything else are passed over.
    """
    found = {}
    for path in sorted([*folder.glob("*.npz"), *folder.glob("*.mtx")]):
        matrix = _read(path)
        if matrix is not None and matrix.shape[0] == matrix.shape[1]:
            found[path.stem] = _normalized(matrix)
    if not found:
        raise ValueError(f"--data: expected .npz or .mtx files of square matrices in {folder}")
    return found


def generated(quick: bool = False) -> dict[str, sp.csr_matrix]:
    """Return matrices of several degree distributions, from equal rows to one hub."""
    rng = np.random.default_rng(0)
    rows = 4_000 if quick else 40_000
    hub = np.full(rows, 8)
    hub[0] = rows // 2
    degrees = {
        "equal": np.full(rows, 16),
        "power_law": np.minimum(np.maximum(rng.pareto(1.2, rows) * 6, 1), rows // 4).astype(int),
        "one_hub": hub,
        "hypersparse": (rng.random(rows) < 0.05).astype(int) * 4,
    }
    matrices = {name: _random_columns(degree, rng) for name, degree in degrees.items()}
    offsets = list(range(-8, 9))
    matrices["banded"] = _normalized(
        sp.diags([np.ones(rows - abs(k)) for k in offsets], offsets, format="csr")
    )
    return matrices


def _random_columns(degree: np.ndarray, rng: np.random.Generator) -> sp.csr_matrix:
    rows = degree.size
    row = np.repeat(np.arange(rows), degree)
    column = rng.integers(0, rows, row.size)
    return _normalized(sp.csr_matrix((np.ones(row.size), (row, column)), shape=(rows, rows)))


def _read(path: Path) -> sp.csr_matrix | None:
    if path.suffix == ".mtx":
        return sp.csr_matrix(scipy.io.mmread(path))
    with np.load(path) as arrays:
        if "format" in arrays:
            return sp.csr_matrix(sp.load_npz(path))
        if not {"indptr", "indices", "shape"} <= set(arrays) or "blocksize" in arrays:
            return None
        values = arrays["data"] if "data" in arrays else _values(arrays["indices"].size)
        if values.ndim != 1:
            return None
        structure = (values, arrays["indices"], arrays["indptr"])
        return sp.csr_matrix(structure, shape=tuple(arrays["shape"]))


def _normalized(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """Sorted, without duplicates, float32 values and int32 indices."""
    matrix = sp.csr_matrix(matrix)
    matrix.sum_duplicates()
    values = matrix.data
    if values.size and (values == values[0]).all():
        values = _values(values.size)
    structure = (values.astype("f4"), matrix.indices.astype("i4"), matrix.indptr.astype("i4"))
    return sp.csr_matrix(structure, shape=matrix.shape)


def _values(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(count).astype("f4")

"""Matrices, value types, choices of kernels and comparisons that the tests of CUDA operators share."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import scipy.sparse as sp
from tvm.s_tir import Schedule

from tvm_sparse.schedules._build import scheduled

__all__ = [
    "CUDA",
    "FEATURES",
    "MATRICES",
    "WIDTHS",
    "Stored",
    "assert_sums",
    "covering",
    "kernel_of",
    "poisoned",
    "power_law",
    "random_values",
    "stored",
    "typed",
]

CUDA = {"kind": "cuda", "arch": "sm_80"}
#: Feature widths that kernels are compiled for; None is any.
FEATURES = [1, 17, 32, 64, 100, 128, 256, None]
#: Widths that kernels for any width are called with.
WIDTHS = [0, 1, 17, 100, 130]

_DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
#: Half of the distance of neighbouring values, relative to them.
_ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
#: The smallest distance of neighbouring values.
_SPACING = {"float64": 0.0, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}


def power_law(rows: int, columns: int, seed: int = 3) -> sp.csr_matrix:
    """Row lengths by a power law: many short rows, one full one, and empty ones at both ends."""
    random = np.random.default_rng(seed)
    lengths = np.minimum((random.pareto(1.0, rows) * 3).astype(int), columns)
    lengths[[0, rows // 2, -1]] = 0, columns, 0
    coordinates = np.concatenate([random.choice(columns, n, replace=False) for n in lengths])
    values = random.standard_normal(coordinates.size).astype("f4")
    pairs = np.repeat(np.arange(rows), lengths), coordinates
    return sp.csr_matrix((values, pairs), shape=(rows, columns))


def _mostly_empty() -> sp.csr_matrix:
    matrix = sp.random(60, 40, 0.4, "lil", dtype="f4", random_state=4)
    matrix[np.arange(60) % 7 != 3] = 0
    return matrix.tocsr()


MATRICES = {
    "random": sp.random(70, 50, 0.1, "csr", dtype="f4", random_state=1),
    "power law": power_law(90, 130),
    "mostly empty rows": _mostly_empty(),
    "no entries": sp.csr_matrix((40, 30), dtype="f4"),
    "no rows": sp.csr_matrix((0, 10), dtype="f4"),
    "no columns": sp.csr_matrix((10, 0), dtype="f4"),
    "nothing": sp.csr_matrix((0, 0), dtype="f4"),
    "one full row": sp.csr_matrix(np.linspace(-1, 1, 97, dtype="f4")[None]),
    "one column": sp.random(33, 1, 0.5, "csr", dtype="f4", random_state=2),
}


def covering(seed: int = 0, **axes: Sequence[Any]) -> list[tuple]:
    """Choose combinations in which every pair of values of two axes appears.

    Examples
    --------
    >>> sorted({(a, c) for a, _, c in covering(a="xy", b=range(3), c="zw")})
    [('x', 'w'), ('x', 'z'), ('y', 'w'), ('y', 'z')]
    """
    names = list(axes)
    pairs = {
        (one, a, two, b)
        for one, two in itertools.combinations(range(len(names)), 2)
        for a, b in itertools.product(range(len(axes[names[one]])), range(len(axes[names[two]])))
    }
    everything = list(itertools.product(*(range(len(values)) for values in axes.values())))
    np.random.default_rng(seed).shuffle(everything)
    chosen = []
    while pairs:
        of = {tuple(each): _pairs_of(each) & pairs for each in everything}
        best = max(of, key=lambda each: len(of[each]))
        pairs -= of[best]
        chosen.append(tuple(axes[name][place] for name, place in zip(names, best)))
    return chosen


def _pairs_of(places: Sequence[int]) -> set[tuple[int, int, int, int]]:
    numbered = list(enumerate(map(int, places)))
    return {(one, a, two, b) for (one, a), (two, b) in itertools.combinations(numbered, 2)}


@dataclass(frozen=True)
class Stored:
    """A matrix as kernels take it, and as float64 holds the same values."""

    values: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    exact: sp.csr_matrix

    @property
    def rows(self) -> np.ndarray:
        """The row of each entry."""
        return np.repeat(np.arange(self.exact.shape[0]), np.diff(self.indptr))

    @property
    def structure(self) -> dict[str, np.ndarray]:
        """The index arrays, by the names of parameters."""
        return {"indptr": self.indptr, "indices": self.indices}


def stored(matrix: sp.csr_matrix, dtype: str, index_dtype: str = "int32") -> Stored:
    """Hold a matrix in other types."""
    values = typed(matrix.data, dtype)
    indptr, indices = matrix.indptr.astype(index_dtype), matrix.indices.astype(index_dtype)
    exact = sp.csr_matrix((values.astype("f8"), matrix.indices, matrix.indptr), matrix.shape)
    return Stored(values, indptr, indices, exact)


def kernel_of(operator, program, features: int | None = None, **options: Any) -> Schedule:
    """Return an operator's default schedule for CUDA, to be emulated."""
    return scheduled(operator.__name__, program, CUDA, features, **options)


def typed(values: Any, dtype: str) -> np.ndarray:
    """Return values in a type that NumPy need not know."""
    return np.asarray(values).astype(_DTYPES.get(dtype, dtype))


def poisoned(shape: int | tuple[int, ...], dtype: str) -> np.ndarray:
    """Return an array of NaN, or of 77 where there is none."""
    is_float = dtype in _ROUNDING
    return typed(np.full(shape, np.nan if is_float else 77), dtype)


def random_values(shape: int | tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Draw values of both signs, whole ones for types of whole numbers."""
    values = np.random.default_rng(seed).standard_normal(shape)
    return typed(values if dtype in _ROUNDING else np.round(4 * values), dtype)


def assert_sums(found: np.ndarray, exact: np.ndarray, terms: np.ndarray, dtype: str) -> None:
    """Check sums that were made in float32 (float64 for float64), and rounded to their type once.

    Parameters
    ----------
    found, exact : numpy.ndarray
        The sums, and what they should be, in float64.
    terms : numpy.ndarray
        Sums of the absolute values of the terms.
    dtype : str
        Of the sums.
    """
    assert found.shape == exact.shape
    if dtype not in _ROUNDING:
        np.testing.assert_array_equal(found, exact)
        return
    summing = 1e-14 if dtype == "float64" else 1e-6
    bound = 1.01 * _ROUNDING[dtype] * np.abs(exact) + summing * terms + _SPACING[dtype]
    wrong = ~(np.abs(found.astype("f8") - exact) <= bound)  # NaN is wrong
    assert not wrong.any(), f"wrong at {np.argwhere(wrong)[:5].tolist()}, {wrong.sum()} in all"

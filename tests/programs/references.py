"""Inputs and float64 results of the nineteen programs, in plain NumPy.

Every function takes a :class:`Draw` and returns a :class:`Case`. Structures hold empty rows at the
start, in the middle and at the end.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse

__all__ = ["REFERENCES", "STRUCTURES", "Case", "Draw"]

STRUCTURES = ("empty_rows", "no_entries", "one_row", "one_column")


@dataclass
class Case:
    """Arguments by parameter name, and what the outputs must hold."""

    arrays: dict[str, np.ndarray]
    sizes: dict[str, int]
    expected: dict[str, np.ndarray] = field(default_factory=dict)


class Draw:
    """Random structures and values of one shape class."""

    def __init__(self, structure: str, index: str, seed: int) -> None:
        self.structure = structure
        self.index = index
        self.rng = np.random.default_rng(seed)
        self.rows = 1 if structure == "one_row" else 11
        self.columns = 1 if structure == "one_column" else 9

    def values(self, *shape: int) -> np.ndarray:
        """Return standard normal float32 values."""
        return self.rng.standard_normal(shape).astype("float32")

    def counts(self, rows: int, most: int) -> np.ndarray:
        """Return a number of entries for every row."""
        if self.structure == "no_entries":
            return np.zeros(rows, "int64")
        counts = self.rng.integers(0, most + 1, rows)
        if rows > 4:
            counts[[0, rows // 2, rows // 2 + 1, -1]] = 0
        return counts

    def indptr(self, counts: np.ndarray) -> np.ndarray:
        """Return the row pointer of rows of the given lengths."""
        return np.concatenate([[0], np.cumsum(counts)]).astype(self.index)

    def csr(self, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
        """Return ``indptr`` and sorted, unique ``indices`` of a random structure."""
        counts = self.counts(rows, columns)
        chosen = [np.sort(self.rng.permutation(columns)[:c]) for c in counts]
        indices = np.concatenate([*chosen, np.zeros(0)]).astype(self.index)
        return self.indptr(counts), indices

    def transposed(self, indptr, indices, columns) -> tuple[np.ndarray, np.ndarray]:
        """Return the structure of the transpose."""
        ones = np.ones(len(indices))
        matrix = scipy.sparse.csr_matrix((ones, indices, indptr), (len(indptr) - 1, columns))
        swapped = matrix.T.tocsr()
        swapped.sort_indices()
        return swapped.indptr.astype(self.index), swapped.indices.astype(self.index)


def _dense(data, indptr, indices, columns) -> np.ndarray:
    """Return the dense float64 form of CSR rows; ``data`` may hold a block per entry."""
    result = np.zeros((len(indptr) - 1, columns, *data.shape[1:]))
    for row in range(len(indptr) - 1):
        for slot in range(indptr[row], indptr[row + 1]):
            result[row, indices[slot]] += data[slot]
    return result


def _sampled(dense: np.ndarray, indptr, indices) -> np.ndarray:
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return dense[rows, indices]


def _csrmm(draw: Draw) -> Case:
    m, n, f = draw.rows, draw.columns, 5
    indptr, indices = draw.csr(m, n)
    a, b = draw.values(len(indices)), draw.values(n, f)
    c = np.zeros((m, f), "float32")
    return Case(
        {"a": a, "b": b, "c": c, "indptr": indptr, "indices": indices},
        {"m": m, "n": n, "f": f, "nnz": len(indices)},
        {"c": _dense(a, indptr, indices, n) @ b.astype("float64")},
    )


def _segment_reduce(draw: Draw) -> Case:
    indptr = draw.indptr(draw.counts(draw.rows, 7))
    a = draw.values(int(indptr[-1]))
    wide = a.astype("float64")
    sums = [wide[b:e].sum() for b, e in itertools.pairwise(indptr)]
    return Case(
        {"a": a, "b": np.zeros(draw.rows, "float32"), "indptr": indptr},
        {"n": draw.rows, "width": 7, "nnz": len(a)},
        {"b": np.array(sums)},
    )


def _csr_reduce(draw: Draw) -> Case:
    n, m = draw.rows, draw.columns
    indptr, indices = draw.csr(n, m)
    a = draw.values(len(indices))
    return Case(
        {"a": a, "b": np.zeros(n, "float32"), "indptr": indptr, "indices": indices},
        {"n": n, "m": m, "nnz": len(indices)},
        {"b": _dense(a, indptr, indices, m).sum(1)},
    )


def _bsrmm(draw: Draw) -> Case:
    nb, mb, blk, f = draw.rows, draw.columns, 3, 4
    indptr, indices = draw.csr(nb, mb)
    a, b = draw.values(len(indices), blk, blk), draw.values(mb, blk, f)
    dense = _dense(a, indptr, indices, mb)
    return Case(
        {
            **{"a": a, "b": b, "c": np.zeros((nb, blk, f), "float32")},
            **{"indptr": indptr, "indices": indices},
        },
        {"nb": nb, "mb": mb, "nnzb": len(indices), "blk": blk, "f": f},
        {"c": np.einsum("ijab,jbf->iaf", dense, b.astype("float64"))},
    )


def _ellmm(draw: Draw) -> Case:
    """Padding slots hold NaN and index ``mb``; row 0 of B, which no entry uses, Inf and NaN."""
    nb, mb, blk, f, col = draw.rows, draw.columns + 1, 2, 4, 4
    counts = draw.counts(nb, min(col, mb - 1))
    indices = np.full((nb, col), mb, draw.index)
    a = np.full((nb, col, blk, blk), np.nan, "float32")
    dense = np.zeros((nb, mb, blk, blk))
    for row, count in enumerate(counts):
        indices[row, :count] = 1 + np.sort(draw.rng.permutation(mb - 1)[:count])
        a[row, :count] = draw.values(count, blk, blk)
        dense[row, indices[row, :count]] = a[row, :count]
    b = draw.values(mb, blk, f)
    used = b.astype("float64")
    used[0] = 0
    b[0] = np.inf
    b[0, 0, ::2] = np.nan
    return Case(
        {"a": a, "b": b, "c": np.zeros((nb, blk, f), "float32"), "indices": indices},
        {"nb": nb, "mb": mb, "f": f, "col": col, "blk": blk},
        {"c": np.einsum("ijab,jbf->iaf", dense, used)},
    )


def _csr_element_wise(draw: Draw) -> Case:
    m, n = draw.rows, draw.columns
    indptr, indices = draw.csr(m, n)
    a = draw.values(len(indices))
    return Case(
        {"a": a, "b": np.zeros_like(a), "indptr": indptr, "indices": indices},
        {"m": m, "n": n, "nnz": len(indices)},
        {"b": 2.5 * a.astype("float64")},
    )


def _hyper_gnn(draw: Draw) -> Case:
    n, m, f = draw.rows, draw.columns, 5
    indptr, indices = draw.csr(n, m)
    indptr_t, indices_t = draw.transposed(indptr, indices, m)
    x = draw.values(n, f)
    incidence = _dense(np.ones(len(indices)), indptr, indices, m)
    return Case(
        {
            **{"x": x, "y": np.zeros((n, f), "float32"), "indptr": indptr, "indices": indices},
            **{"indptr_t": indptr_t, "indices_t": indices_t},
        },
        {"n": n, "m": m, "nnz": len(indices), "f": f},
        {"y": incidence @ incidence.T @ x.astype("float64")},
    )


def _bmm(draw: Draw) -> Case:
    batch, width = (1 if draw.structure == "one_row" else 5), 6
    heights = [draw.counts(batch, 3 if draw.structure == "one_column" else width) for _ in "ijk"]
    rows, inner, columns = heights
    x = [draw.values(a, b) for a, b in zip(rows, inner)]
    y = [draw.values(b, c) for b, c in zip(inner, columns)]
    z = [a.astype("float64") @ b.astype("float64") for a, b in zip(x, y)]
    ragged = {
        "indptr_i": rows,
        "indptr_j": inner,
        "indptr_k": columns,
        "indptr_ij": np.repeat(inner, rows),
        "indptr_jk": np.repeat(columns, inner),
        "indptr_ik": np.repeat(columns, rows),
    }
    indptrs = {name: draw.indptr(counts) for name, counts in ragged.items()}
    flat = lambda parts: np.concatenate([p.ravel() for p in parts])  # noqa: E731
    return Case(
        {"x": flat(x), "y": flat(y), "z": np.zeros(flat(z).shape, "float32"), **indptrs},
        {
            **{"batch": batch, "width": width},
            **{name.replace("indptr", "nnz"): int(array[-1]) for name, array in indptrs.items()},
        },
        {"z": flat(z)},
    )


def _sddmm(draw: Draw) -> Case:
    m, n, f = draw.rows, draw.columns, 6
    indptr, indices = draw.csr(m, n)
    a, b = draw.values(m, f), draw.values(n, f)
    product = a.astype("float64") @ b.astype("float64").T
    c = np.zeros(len(indices), "float32")
    return Case(
        {"a": a, "b": b, "c": c, "indptr": indptr, "indices": indices},
        {"m": m, "n": n, "f": f, "nnz": len(indices)},
        {"c": _sampled(product, indptr, indices)},
    )


def _square_sum(draw: Draw) -> Case:
    m, n1, n2 = draw.rows, draw.columns, 6
    indptr_j, indices_j = draw.csr(m, n1)
    indptr_k, indices_k = draw.csr(len(indices_j), n2)
    a = draw.values(len(indices_k))
    inner = _dense(a, indptr_k, indices_k, n2).sum(1)
    return Case(
        {
            **{"a": a, "b": np.zeros(m, "float32"), "indptr_j": indptr_j, "indices_j": indices_j},
            **{"indptr_k": indptr_k, "indices_k": indices_k},
        },
        {"m": m, "n1": n1, "n2": n2, "nnz_j": len(indices_j), "nnz_k": len(indices_k)},
        {"b": _dense(inner, indptr_j, indices_j, n1).sum(1)},
    )


def _square_sum_two_structures(draw: Draw) -> Case:
    m, n1, n2 = draw.rows, draw.columns, 6
    indptr_j, indices_j = draw.csr(m, n1)
    indptr_k0, indices_k0 = draw.csr(len(indices_j), n2)
    indptr_k1, indices_k1 = draw.csr(len(indices_j), n2)
    a = draw.values(len(indices_k0))
    walked = _dense(np.ones(len(indices_k1)), indptr_k1, indices_k1, n2)
    inner = (_dense(a, indptr_k0, indices_k0, n2) * walked).sum(1)
    return Case(
        {
            **{"a": a, "b": np.zeros(m, "float32"), "indptr_j": indptr_j, "indices_j": indices_j},
            **{"indptr_k0": indptr_k0, "indices_k0": indices_k0},
            **{"indptr_k1": indptr_k1, "indices_k1": indices_k1},
        },
        {
            **{"m": m, "n1": n1, "n2": n2, "nnz_j": len(indices_j)},
            **{"nnz_k0": len(indices_k0), "nnz_k1": len(indices_k1)},
        },
        {"b": _dense(inner, indptr_j, indices_j, n1).sum(1)},
    )


def _ragged_sums(values: np.ndarray, indptr: np.ndarray) -> np.ndarray:
    return np.array([values[b:e].sum() for b, e in itertools.pairwise(indptr)], "float64")


def _fused_reduction(levels: int):
    def reference(draw: Draw) -> Case:
        n, width = draw.rows, 4
        indptr_j = draw.indptr(draw.counts(n, width))
        indptr_k = draw.indptr(draw.counts(int(indptr_j[-1]), width))
        indptr_l = draw.indptr(draw.counts(int(indptr_k[-1]), width))
        x = draw.values(int(indptr_l[-1]))
        expected = _ragged_sums(x.astype("float64"), indptr_l)
        if levels == 2:
            expected = _ragged_sums(expected, indptr_k)
        return Case(
            {
                **{"x": x, "y": np.zeros(expected.shape, "float32")},
                **{"indptr_j": indptr_j, "indptr_k": indptr_k, "indptr_l": indptr_l},
            },
            {
                **{"n": n, "width": width, "nnz_j": int(indptr_j[-1])},
                **{"nnz_k": int(indptr_k[-1]), "nnz_l": int(indptr_l[-1])},
            },
            {"y": expected},
        )

    return reference


def _rgcn_homo(draw: Draw) -> Case:
    m, n, r, f = draw.rows, draw.columns, 3, 4
    indptr, indices = draw.csr(m, n)
    etype = draw.rng.integers(0, r, len(indices)).astype("int32")
    w, x = draw.values(r, f, f), draw.values(n, f)
    expected = np.zeros((m, f))
    for row in range(m):
        for slot in range(indptr[row], indptr[row + 1]):
            expected[row] += w[etype[slot]].astype("float64") @ x[indices[slot]]
    return Case(
        {
            **{"etype": etype, "w": w, "x": x, "y": np.zeros((m, f), "float32")},
            **{"indptr": indptr, "indices": indices},
        },
        {"m": m, "n": n, "r": r, "f": f, "nnz": len(indices)},
        {"y": expected},
    )


def _rgcn_hetero(draw: Draw) -> Case:
    m, n, r, f = draw.rows, draw.columns, 5, 4
    indptr_i, indices_i = draw.csr(r, m)
    indptr_j, indices_j = draw.csr(len(indices_i), n)
    a, w, x = draw.values(len(indices_j)), draw.values(r, f, f), draw.values(n, f)
    expected = np.zeros((m, f))
    for rel in range(r):
        for outer in range(indptr_i[rel], indptr_i[rel + 1]):
            for slot in range(indptr_j[outer], indptr_j[outer + 1]):
                message = w[rel].astype("float64") @ x[indices_j[slot]]
                expected[indices_i[outer]] += a[slot] * message
    return Case(
        {
            **{"a": a, "w": w, "x": x, "y": np.zeros((m, f), "float32")},
            **{"indptr_i": indptr_i, "indices_i": indices_i},
            **{"indptr_j": indptr_j, "indices_j": indices_j},
        },
        {
            **{"m": m, "n": n, "r": r, "f": f},
            **{"nnz_i": len(indices_i), "nnz_j": len(indices_j)},
        },
        {"y": expected},
    )


def _sparse_softmax(draw: Draw) -> Case:
    """Scores are far from zero: without the shift by the row's maximum they overflow."""
    n = draw.rows
    indptr, indices = draw.csr(n, n)
    a = draw.values(len(indices)) * 3 + np.float32(200)
    expected = np.zeros(len(a))
    for begin, end in itertools.pairwise(indptr):
        if end > begin:
            shifted = np.exp(a[begin:end].astype("float64") - a[begin:end].max())
            expected[begin:end] = shifted / shifted.sum()
    return Case(
        {"a": a, "b": np.zeros_like(a), "indptr": indptr, "indices": indices},
        {"n": n, "nnz": len(indices)},
        {"b": expected},
    )


def _csr2bsr(draw: Draw) -> Case:
    blk = 3
    mb, nb = -(-draw.rows // blk), -(-draw.columns // blk)
    indptr, indices = draw.csr(draw.rows, draw.columns)
    a = draw.values(len(indices))
    dense = np.zeros((mb * blk, nb * blk))
    dense[: draw.rows, : draw.columns] = _dense(a, indptr, indices, draw.columns)
    blocks = dense.reshape(mb, blk, nb, blk).transpose(0, 2, 1, 3)
    stored = (blocks != 0).any((2, 3))
    stored[0, 0] = True  # a stored block without any entry is zero
    if stored.sum() > 3:
        stored[-1, stored[-1].argmax()] = False  # entries without a block are dropped
    block_indptr = draw.indptr(stored.sum(1))
    block_indices = np.nonzero(stored)[1].astype(draw.index)
    b = np.zeros((len(block_indices), blk, blk), "float32")
    return Case(
        {
            **{"a": a, "b": b, "indptr": indptr, "indices": indices},
            **{"block_indptr": block_indptr, "block_indices": block_indices},
        },
        {
            **{"m": draw.rows, "n": draw.columns, "mb": mb, "nb": nb},
            **{"nnz": len(indices), "nnzb": len(block_indices), "blk": blk},
        },
        {"b": blocks[stored]},
    )


REFERENCES = {
    "csrmm": _csrmm,
    "csrmm_dense_iter": _csrmm,
    "segment_reduce": _segment_reduce,
    "csr_reduce": _csr_reduce,
    "bsrmm": _bsrmm,
    "ellmm": _ellmm,
    "csr_element_wise": _csr_element_wise,
    "hyper_gnn": _hyper_gnn,
    "bmm": _bmm,
    "sddmm": _sddmm,
    "fused_sddmm": _sddmm,
    "square_sum": _square_sum,
    "square_sum_two_K": _square_sum_two_structures,
    "fused_reduction_4d_2d": _fused_reduction(2),
    "fused_reduction_4d_3d": _fused_reduction(3),
    "rgcn_homo": _rgcn_homo,
    "rgcn_hetero": _rgcn_hetero,
    "sparse_softmax": _sparse_softmax,
    "csr2bsr": _csr2bsr,
}

"""Products and sums of matrices, ours and those of other libraries."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp

from ..programs import product, total
from . import libraries
from .measure import OURS, Contender, Limits, measure

__all__ = ["products", "sums"]

#: Products of more multiply-adds are left out.
_MOST_PRODUCED = 200_000_000
#: Our result where its order does not matter.
UNSORTED = f"{OURS} unsorted"


def products(matrices: dict[str, sp.csr_matrix], limits: Limits) -> Iterator[dict]:
    """Measure ``A A`` for each matrix."""
    kernel = product()
    for name, matrix in matrices.items():
        produced = int(np.diff(matrix.indptr)[matrix.indices].sum(dtype=np.int64))
        if produced > _MOST_PRODUCED:
            continue
        plan = kernel.plan(a=matrix, b=matrix)
        ours = {
            OURS: Contender(lambda a=matrix: kernel(a=a, b=a)),
            UNSORTED: Contender(lambda a=matrix: kernel(a=a, b=a, sorted=False)),
            "plan": Contender(lambda a=matrix, p=plan: p(a=a, b=a)),
        }
        wide = matrix.astype(np.float64)
        found = measure(ours | libraries.products(matrix, matrix), wide @ wide, limits)
        yield {"case": name, "F": produced, **found}


def sums(matrices: dict[str, sp.csr_matrix], limits: Limits) -> Iterator[dict]:
    """Measure sums with the transpose, which has a like pattern, and with a matrix of another one."""
    for name, matrix in matrices.items():
        transposed, shuffled = matrix.T.tocsr(), _shuffled(matrix)
        for label, terms in (
            ("A + A^T", [matrix, transposed]),
            ("A + P A P^T", [matrix, shuffled]),
            ("A + A^T + P A P^T", [matrix, transposed, shuffled]),
        ):
            kernel = total(operands=len(terms))
            named = dict(zip("abc", terms))
            ours = {OURS: Contender(lambda named=named, kernel=kernel: kernel(**named))}
            expected = sum(own.astype(np.float64) for own in terms)
            found = measure(ours | libraries.sums(terms), expected, limits)
            yield {"case": f"{name}: {label}", "F": sum(own.nnz for own in terms), **found}


def _shuffled(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """Return the matrix with rows and columns in one random order."""
    order = np.random.default_rng(2).permutation(matrix.shape[0])
    shuffled = matrix[order][:, order].tocsr()
    shuffled.sort_indices()
    return shuffled

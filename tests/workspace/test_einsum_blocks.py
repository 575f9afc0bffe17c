"""Results of ``einsum`` in blocks: BSR, one block wherever there is an entry."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import tvm_sparse


@pytest.mark.parametrize("blocksize", [(1, 1), (2, 3), (6, 1), (6, 9)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_blocks_stand_where_there_are_entries(blocksize, dtype):
    rng = np.random.default_rng(0)
    left, right = (
        (sp.random_array(shape, density=0.15, rng=rng, format="csr") != 0).astype(dtype)
        for shape in ((6, 5), (5, 9))
    )
    found = tvm_sparse.einsum("ik,kj->ij", left, right, out="bsr", blocksize=blocksize)
    plain = tvm_sparse.einsum("ik,kj->ij", left, right)
    assert isinstance(found, sp.bsr_array) and found.blocksize == blocksize and found.dtype == dtype
    np.testing.assert_array_equal(found.toarray(), plain.toarray())
    rows, columns = (own // n for own, n in zip(plain.tocoo().coords, blocksize))
    expected = sorted(set(zip(rows.tolist(), columns.tolist())))
    blocks = np.repeat(np.arange(found.indptr.size - 1), np.diff(found.indptr))
    assert list(zip(blocks.tolist(), found.indices.tolist())) == expected


def test_blocks_of_cancelled_entries_stay_unless_pruned():
    a = sp.csr_matrix(np.array([[1.0, 0], [0, 0]]))
    found = tvm_sparse.einsum("ij-ij->ij", a, a, out="bsr", blocksize=(1, 1))
    assert isinstance(found, sp.bsr_matrix) and found.data.shape == (1, 1, 1)
    found = tvm_sparse.einsum("ij-ij->ij", a, a, out="bsr", blocksize=(1, 1), prune=True)
    assert found.data.shape == (0, 1, 1)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 8), (8, 1)])
def test_empty_and_thin_results(shape):
    a = sp.csr_array(shape)
    found = tvm_sparse.einsum("ij->ij", a, out="bsr", blocksize=(1, 1))
    assert found.shape == shape and found.nnz == 0


def test_blocks_are_filled_up_with_zeros_alone():
    a = sp.eye_array(4, format="csr")
    with pytest.raises(
        ValueError, match="out: expected a semiring whose sum of nothing is 0 for 'bsr'"
    ):
        tvm_sparse.einsum("ij->ij", a, out="bsr", blocksize=(2, 2), semiring="min-plus")
    with pytest.raises(ValueError, match="out: expected csr, coo or dense for a result of 1 dim"):
        tvm_sparse.einsum("ij->i", a, out="bsr", blocksize=(2, 2))

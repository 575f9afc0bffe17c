"""Candidate formats are few and suit the matrix; the choice among them is right and checked."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from tvm_sparse import schedules
from tvm_sparse.formats import CSR, ColumnParts, RowList, choose_column_parts

rng = np.random.default_rng(2)


def _blocks(size: int) -> sp.csr_matrix:
    pattern = sp.random(32, 32, 0.1, "csr", dtype="f4", random_state=1)
    values = rng.standard_normal((pattern.nnz, size, size)).astype("f4")
    return sp.csr_matrix(sp.bsr_matrix((values, pattern.indices, pattern.indptr)))


def test_full_blocks_make_bsr_a_candidate():
    names = list(schedules.spmm.candidate_formats(_blocks(8), 64))
    assert "bsr8" in names and "bsr4" in names and "bsr16" not in names


def test_equal_rows_make_ell_a_candidate():
    matrix = sp.csr_matrix(np.eye(50, dtype="f4"))
    assert "ell" in schedules.spmm.candidate_formats(matrix, 64)


def test_long_rows_and_a_large_operand_make_ranges_of_columns_candidates():
    matrix = sp.random(500, 4000, 0.05, "csr", dtype="f4", random_state=1)
    found = schedules.spmm.candidate_formats(matrix, 256, cache_bytes=1 << 20)
    assert any(isinstance(fmt, ColumnParts) for fmt in found.values())
    few = schedules.spmm.candidate_formats(matrix, 4, cache_bytes=1 << 20)
    assert not any(isinstance(fmt, ColumnParts) for fmt in few.values())


@pytest.mark.parametrize("density", [0, 0.001, 0.1, 1])
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 300), (300, 1), (200, 300)])
def test_candidates_are_at_most_twelve_and_begin_with_csr(shape, density):
    matrix = sp.random(*shape, density, "csr", dtype="f4", random_state=1)
    names = list(schedules.spmm.candidate_formats(matrix, 512, cache_bytes=1 << 14))
    assert names[0] == "csr" and len(names) <= 12


def test_a_range_of_columns_fills_half_of_the_cache():
    assert choose_column_parts((1000, 1000), 10**6, 256, cache_bytes=1 << 20) == 2
    assert choose_column_parts((1000, 1000), 10**6, 256, "float64", cache_bytes=1 << 20) == 4
    assert choose_column_parts((1000, 1000), 16_000, 4096, cache_bytes=1 << 20) == 2
    assert choose_column_parts((0, 0), 0, 64) == 1


def test_every_candidate_gives_the_right_result():
    for matrix in (_blocks(8), sp.random(300, 400, 0.2, "csr", dtype="f4", random_state=1)):
        choice = schedules.spmm.choose_format(
            matrix,
            24,
            candidates=schedules.spmm.candidate_formats(matrix, 24, cache_bytes=1 << 14),
            rounds=1,
        )
        b = rng.standard_normal((matrix.shape[1], 24)).astype("f4")
        found = choice.kernel(a=choice.packed, b=b)
        np.testing.assert_allclose(found, matrix @ b, rtol=1e-3, atol=1e-3)


def test_a_candidate_with_a_wrong_result_is_refused():
    class Wrong(CSR):
        def store(self, entries, index_dtype):
            storage = super().store(entries, index_dtype)
            storage.values[:] = 3
            return storage

    matrix = sp.random(30, 40, 0.2, "csr", dtype="f4", random_state=1)
    with pytest.raises(RuntimeError, match="wrong result with mine"):
        schedules.spmm.choose_format(matrix, 8, candidates={"mine": Wrong(), "other": RowList()})


@pytest.mark.parametrize("dtype", ["int8", "int32", "bool"])
def test_integers_have_a_choice_too(dtype):
    matrix = sp.random(40, 30, 0.2, "csr", random_state=1)
    matrix.data[:] = 1
    choice = schedules.spmm.choose_format(matrix.astype(dtype), 4, candidates=[CSR()], rounds=1)
    dense = np.ones((30, 4), dtype)
    found = choice.kernel(a=choice.packed, b=dense)
    np.testing.assert_array_equal(found, matrix.toarray() @ np.ones((30, 4)))


def test_no_candidates_are_refused():
    with pytest.raises(ValueError, match="candidates: expected one format or more, found none"):
        schedules.spmm.choose_format(sp.eye(3, format="csr"), 4, candidates={})

"""Rows are visited in the order that was asked for, and results do not depend on it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from tvm_sparse import SparseSchedule, schedules
from tvm_sparse.formats import Bucket, Hyb, RowList
from tvm_sparse.schedule.trace import Trace

MATRIX = sp.csr_array(
    np.array([[0, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1], [1, 1, 0, 1]], "f4")
)


def _rows(packed) -> list[int]:
    return packed.storage.arrays["row_indices"].ravel().tolist()


def test_a_list_holds_every_row_once_empty_ones_last():
    for order in (None, "rcm", "degree"):
        rows = _rows(RowList(order).pack(MATRIX))
        assert sorted(rows) == [0, 1, 2, 3, 4]
        assert rows[-1] == 2


def test_rows_go_by_degree_and_equal_ones_as_they_come():
    assert _rows(RowList("degree").pack(MATRIX)) == [1, 4, 0, 3, 2]
    assert _rows(Bucket(3, order="degree").pack(MATRIX)) == [1, 4, 0, 3]


def test_rows_go_as_the_user_says():
    assert _rows(RowList([4, 2, 3, 0, 1]).pack(MATRIX)) == [4, 3, 0, 1, 2]
    assert _rows(RowList(lambda pattern: [3, 1, 2, 0, 4]).pack(MATRIX)) == [3, 1, 0, 4, 2]


def test_a_callable_gets_the_pattern_of_all_rows():
    seen = []

    def order(pattern):
        seen.append(pattern.toarray())
        return np.arange(pattern.shape[0])

    RowList(order).pack(MATRIX)
    np.testing.assert_array_equal(seen[0], MATRIX.toarray() != 0)


def test_rcm_brings_rows_of_the_same_columns_together():
    rng = np.random.default_rng(0)
    group = rng.permutation(np.repeat(np.arange(10), 20))
    columns = group[:, None] * 8 + np.arange(8)
    indptr = np.arange(0, 8 * 200 + 1, 8)
    matrix = sp.csr_array((np.ones(1600, "f4"), columns.ravel(), indptr), shape=(200, 80))
    visited = group[_rows(RowList("rcm").pack(matrix))]
    assert np.count_nonzero(np.diff(visited)) == 9


@pytest.mark.parametrize("order", ["upwards", [0, 0, 1], [0, 1, 3], [0.5, 1.5], [[0, 1]]])
def test_what_is_no_order_is_refused(order):
    with pytest.raises(ValueError, match=r"^order: expected"):
        RowList(order)


@pytest.mark.parametrize("order", [[1, 0], lambda pattern: [0, 0, 1, 2, 3], lambda pattern: [0]])
def test_an_order_of_other_rows_is_refused(order):
    with pytest.raises(ValueError, match=r"^order: expected"):
        RowList(order).pack(MATRIX)


@pytest.mark.parametrize(
    "fmt", [RowList("degree"), RowList([1, 0, 4, 2, 3]), Hyb(2, [1, 2], "rcm")]
)
def test_traces_keep_the_order(fmt):
    first = SparseSchedule(schedules.spmm.program())
    first.decompose_format("spmm", "A", fmt)
    again = Trace.from_json(first.trace.as_json())
    assert again.entries[-1].arguments["formats"].order == fmt.order


@pytest.mark.parametrize("order", [None, "rcm", "degree", [1, 0, 4, 2, 3]])
def test_products_do_not_depend_on_the_order(order):
    b = np.arange(24, dtype="f4").reshape(4, 6)
    for fmt in (RowList(order), Hyb(2, [1, 2], order)):
        kernel = schedules.spmm.build(formats=fmt)
        c = np.full((5, 6), np.nan, "f4")
        kernel(a=fmt.pack(MATRIX), b=b, c=c)
        np.testing.assert_array_equal(c, MATRIX @ b)

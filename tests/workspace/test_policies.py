"""Every policy gives the entries of a result in order, once each, whatever the rows hold."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from .programs import (
    POLICIES,
    by_outer_products,
    by_rows,
    check,
    combined,
    product,
    sparse,
    terms,
    total,
)

SPARSE_POLICIES = ("hash", "sort", "merge", "bucket")

# name: rows, inner, columns, entries of both operands
SHAPES = {
    "some": (50, 40, 70, 200, 200),
    "one row": (1, 40, 500, 20, 4000),
    "one column": (300, 40, 1, 900, 20),
    "one place": (1, 30, 1, 20, 20),
    "one inner": (30, 1, 40, 20, 25),
    "no entries on the left": (30, 20, 10, 0, 50),
    "no entries on the right": (30, 20, 10, 50, 0),
    "no rows": (0, 20, 10, 0, 50),
    "mostly empty rows": (2000, 30, 5000, 40, 400),
    "full": (20, 30, 25, 10_000, 10_000),
    "long rows": (40, 60, 300_000, 600, 9000),
    "many terms": (300, 300, 3000, 20_000, 20_000),
}


@pytest.fixture(params=POLICIES)
def policy(request) -> str:
    return request.param


@pytest.fixture(autouse=True)
def filled_memory(monkeypatch):
    """Let memory that nobody writes to show: every new array of the runtime holds NaN or rubbish."""
    from tvm_sparse.runtime import sparse_results

    class Numpy:
        def __getattr__(self, name):
            return getattr(np, name)

        def empty(self, shape, dtype=float):
            array = np.empty(shape, dtype)
            array.view(np.uint8)[...] = 0xFF
            return array

        def empty_like(self, array):
            return self.empty(array.shape, array.dtype)

    monkeypatch.setattr(sparse_results, "np", Numpy())


@pytest.mark.parametrize("name", SHAPES)
def test_products_by_rows(policy, name):
    m, k, n, first, second = SHAPES[name]
    a, b = sparse(m, k, first), sparse(k, n, second, seed=1)
    check(by_rows(policy)(a=a, b=b), product(a, b))


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "long rows"])
def test_outer_products(policy, name):
    m, k, n, first, second = SHAPES[name]
    a, b = sparse(m, k, first), sparse(k, n, second, seed=1)
    if m:
        check(by_outer_products(policy)(a=a.T.tocsr(), b=b), product(a, b))


def test_sums(policy):
    a, b = sparse(100, 300, 2000), sparse(100, 300, 2000, seed=1)
    rows = [np.repeat(np.arange(100), np.diff(own.indptr)) for own in (a, b)]
    every = [np.concatenate(pair) for pair in (rows, (a.indices, b.indices), (a.data, b.data))]
    check(total(policy)(a=a, b=b), combined(*every, a.shape))


def test_one_row_is_full(policy):
    a = sp.vstack([sparse(20, 50, 40), np.ones((1, 50)), sparse(20, 50, 40, seed=1)]).tocsr()
    b = sp.csr_matrix(np.random.default_rng(0).standard_normal((50, 700)))
    check(by_rows(policy)(a=a, b=b), product(a, b))


def test_all_terms_at_one_place(policy):
    a, b = sp.csr_matrix(np.ones((3, 5000))), sp.csr_matrix(np.ones((5000, 1)))
    assert by_rows(policy)(a=a, b=b).toarray().tolist() == [[5000.0]] * 3


@pytest.mark.parametrize("policy", SPARSE_POLICIES)
def test_keys_past_32_bits(policy):
    a, b = sparse(70_000, 50, 300), sparse(50, 70_000, 300, seed=1)
    check(by_outer_products(policy)(a=a.T.tocsr(), b=b), product(a, b))


def test_operands_may_be_unsorted_and_repeat_places(policy):
    rng = np.random.default_rng(0)
    shape, entries = (30, 30), 200
    row = np.sort(rng.integers(0, 30, entries))
    indptr = np.append(0, np.cumsum(np.bincount(row, minlength=30)))
    column, value = rng.integers(0, 30, entries), rng.standard_normal(entries)
    a = sp.csr_matrix((value, column.astype(np.int32), indptr.astype(np.int32)), shape=shape)
    arrays = dict(a_indptr=a.indptr, a_indices=a.indices, b_indptr=a.indptr, b_indices=a.indices)
    sizes = dict(m=30, k=30, n=30)
    found = by_rows(policy)(a=a.data, b=a.data, **arrays, **sizes)
    check(found, combined(*terms(a, a), shape))


def test_infinite_and_undefined_values(policy):
    a, b = sparse(30, 40, 300), sparse(40, 50, 300, seed=1)
    a.data[::17], b.data[::13], b.data[5::29] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        check(by_rows(policy)(a=a, b=b), product(a, b))


def test_terms_that_cancel_stay_unless_pruned(policy):
    a = sp.csr_matrix(np.array([[1.0, -1.0, 0.0], [2.0, 0.0, 3.0]]))
    b = sp.csr_matrix(np.array([[1.0, 5.0], [1.0, 2.0], [0.0, 1.0]]))
    kernel = by_rows(policy)
    assert kernel(a=a, b=b).nnz == 4
    pruned = kernel(a=a, b=b, prune=True)
    assert pruned.nnz == 3
    assert pruned.toarray().tolist() == (a @ b).toarray().tolist()


def test_two_calls_give_the_same_bits(policy):
    a, b = sparse(200, 200, 8000), sparse(200, 200, 8000, seed=1)
    kernel = by_rows(policy)
    first, second = kernel(a=a, b=b), kernel(a=a, b=b)
    assert first.data.tobytes() == second.data.tobytes()


def test_unsorted_results_have_the_same_entries(policy):
    a, b = sparse(100, 100, 3000), sparse(100, 5000, 3000, seed=1)
    found = by_rows(policy)(a=a, b=b, sorted=False)
    assert not found.has_canonical_format
    found.sort_indices()
    check(found, product(a, b))


def test_plans_compute_new_values(policy):
    a, b = sparse(60, 50, 400), sparse(50, 400, 900, seed=1)
    plan = by_rows(policy).plan(a=a, b=b)
    for _ in range(3):
        a.data *= -1.5
        check(plan(a=a, b=b), product(a, b))


COMBINATIONS = {
    "largest, float32": ("S.max(C[i, j], A[i, kk] * B[kk, j])", "float32", "int64", np.maximum),
    "smallest sum, int64": ("S.min(C[i, j], A[i, kk] + B[kk, j])", "int64", "int32", np.minimum),
    "product, float64": ("C[i, j] * (A[i, kk] * B[kk, j])", "float64", "int32", np.multiply),
    "sum, int32": ("C[i, j] + A[i, kk] * B[kk, j]", "int32", "int64", np.add),
}


@pytest.mark.parametrize(
    "policy, name",
    [
        *((policy, "largest, float32") for policy in POLICIES),
        ("dense", "smallest sum, int64"),
        ("hash", "smallest sum, int64"),
        ("sort", "product, float64"),
        ("bucket", "sum, int32"),
        ("merge", "sum, int32"),
    ],
)
def test_other_combinations_and_dtypes(policy, name):
    update, value, index, ufunc = COMBINATIONS[name]
    a, b = (10 * sparse(40, 40, 300, seed=s) for s in (0, 1))
    a, b = a.astype(value), b.astype(value)
    for own in (a, b):
        own.indptr, own.indices = own.indptr.astype(index), own.indices.astype(index)
    found = by_rows(policy, update, value, index)(a=a, b=b)
    assert found.dtype == value
    assert found.indices.dtype == index
    multiply = np.add if "A[i, kk] + " in update else np.multiply
    check(
        found, combined(*terms(a, b, multiply), (40, 40), ufunc), 1e-5 if "32" in value else 1e-12
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_the_last_of_repeated_entries_stays(policy):
    a, b = sparse(30, 30, 300), sparse(30, 30, 300, seed=1)
    row, column, value = terms(a, b)
    last = {(i, j): v for i, j, v in zip(row, column, value)}
    found = by_rows(policy, "A[i, kk] * B[kk, j]")(a=a, b=b).tocoo()
    assert {(i, j): v for i, j, v in zip(found.row, found.col, found.data)} == last


@pytest.fixture
def many_tasks(monkeypatch):
    """Share any work between seven tasks."""
    from tvm_sparse.runtime import sparse_results

    monkeypatch.setattr(sparse_results, "_LEAST_WORK", 1)
    monkeypatch.setattr(sparse_results, "get_num_threads", lambda: 7)


def test_tasks_share_rows(policy, many_tasks):
    a, b = sparse(50, 60, 500), sparse(60, 400, 900, seed=1)
    check(by_rows(policy)(a=a, b=b), product(a, b))


def test_tasks_share_the_places_of_one_row(policy, many_tasks):
    a, b = sparse(50, 60, 300), sparse(60, 400, 500, seed=1)
    kernel = by_outer_products(policy)
    check(kernel(a=a.T.tocsr(), b=b), product(a, b))
    known = kernel._bind((), {"a": a.T.tocsr(), "b": b})
    shared = kernel._share(kernel._work(known), kernel._length(known))
    parts = {"parts": 7, "windows": 2, "width": 20_000 // 14 + 1, "room": 1 << 14}
    given = shared | parts | {"tasks": 7, "task_rows": np.arange(8)}
    variant = kernel._variant(policy, True)
    check(variant._fill(known, given | variant._structure(known, given)), product(a, b))

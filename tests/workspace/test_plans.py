"""Plans of sparse results: for one structure, which sizes and values may decide, and in several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tvm_sparse
from tests.workspace.programs import BY_ROWS, by_rows, check, product, sparse, terms
from tvm_sparse.script import from_source

#: A sparse matrix times a dense one, whose sizes stand in no index array.
DENSE_RIGHT = """
@S.prim_func
def dense_right(a: S.handle, d: S.handle, c: S.handle, a_indptr: S.handle, a_indices: S.handle,
                m: S.int32, k: S.int32, n: S.int32, a_nnz: S.int32):
    I = S.dense_fixed(m)
    K = S.sparse_variable(I, (k, a_nnz), (a_indptr, a_indices), "int32")
    K_dense = S.dense_fixed(k)
    J = S.dense_fixed(n)
    JO = S.sparse_output(I, n)
    A = S.match_sparse_buffer(a, (I, K), "float64")
    D = S.match_sparse_buffer(d, (K_dense, J), "float64")
    C = S.match_sparse_buffer(c, (I, JO), "float64")
    with S.sp_iter([I, K, J], "SRS", "rows") as [i, kk, j]:
        C[i, j] = C[i, j] + A[i, kk] * D[kk, j]
"""

#: Columns go where an array says.
MOVED = """
@S.prim_func
def moved(a: S.handle, p: S.handle, c: S.handle, a_indptr: S.handle, a_indices: S.handle,
          m: S.int32, k: S.int32, a_nnz: S.int32):
    I = S.dense_fixed(m)
    K = S.sparse_variable(I, (k, a_nnz), (a_indptr, a_indices), "int32")
    K_dense = S.dense_fixed(k)
    JO = S.sparse_output(I, k)
    A = S.match_sparse_buffer(a, (I, K), "float64")
    P = S.match_sparse_buffer(p, (K_dense,), "int32")
    C = S.match_sparse_buffer(c, (I, JO), "float64")
    with S.sp_iter([I, K], "SS", "rows") as [i, kk]:
        C[i, P[kk]] = C[i, P[kk]] + A[i, kk]
"""


def test_plan_refuses_other_sizes_than_planned_for():
    """Fewer columns gave a matrix with columns outside of it, more rows an error of compiled code."""
    kernel = tvm_sparse.compile(from_source(DENSE_RIGHT))
    a, dense = sparse(5, 4, 10), np.random.default_rng(0).random((4, 6))
    plan = kernel.plan(a=a, d=dense)
    for _ in range(3):
        np.testing.assert_allclose(plan(a=a, d=dense).toarray(), a.toarray() @ dense)
        with pytest.raises(
            ValueError, match=r"the shape \(5, 6\) that was planned for, found \(5, 3"
        ):
            plan(a=a, d=np.ones((4, 3)))


@pytest.mark.parametrize("policy", ["dense", "hash", "sort", "auto"])
def test_plan_refuses_values_that_decide_other_entries(policy):
    """With more entries than planned for it wrote behind the result."""
    update = "C[i, j] + A[i, kk] * B[kk, j]"
    guarded = f"C[i, j] = {update}"
    text = BY_ROWS.replace("C[i, j] = UPDATE", f"if A[i, kk] > 0:\n            {guarded}")
    text = text.replace("VALUE", "float64").replace("INDEX", "int32")
    kernel = tvm_sparse.compile(from_source(text), workspace=policy)
    a, b = sparse(40, 30, 200, 1), sparse(30, 50, 300, 2)
    plan, first = kernel.plan(a=a, b=b), kernel(a=a, b=b)
    for factor in (1, 2, 3):  # those of b decide nothing
        found = plan(a=a, b=factor * b)
        check(found, factor * first)
        with pytest.raises(ValueError, match="'a': expected the values that were planned for"):
            plan(a=-a, b=b)
    assert 0 < first.nnz < terms(a, b)[0].size


def test_plan_refuses_other_places_from_an_array():
    """Places that an array holds were taken for those of the first call."""
    kernel = tvm_sparse.compile(from_source(MOVED))
    a, rng = sparse(20, 30, 100), np.random.default_rng(0)
    moved = rng.permutation(30).astype("int32")
    plan = kernel.plan(a=a, p=moved)
    for factor in (1, 2, 3):
        expected = factor * a.toarray()[:, np.argsort(moved)]
        np.testing.assert_array_equal(plan(a=factor * a, p=moved).toarray(), expected)
        with pytest.raises(ValueError, match="'p': expected the values that were planned for"):
            plan(a=a, p=moved[::-1].copy())


@pytest.mark.parametrize("calls_before", [0, 1])
def test_threads_share_a_plan(calls_before):
    """One replayed a trace that another one had not written yet."""
    a, b = sparse(2000, 300, 40000, 1), sparse(300, 400, 9000, 2)
    expected = product(a, b)
    for _ in range(3):
        plan = by_rows("dense").plan(a=a, b=b)
        for _ in range(calls_before):
            plan(a=a, b=b)
        with ThreadPoolExecutor(4) as pool:
            for call in [pool.submit(plan, a=a, b=b) for _ in range(8)]:
                check(call.result(), expected)


def test_plan_keeps_to_the_limit_of_scratch_memory():
    """A table of the places of a row, to note where terms go, took more than was allowed."""
    a, b = sparse(20, 30, 60, 1), sparse(30, 50_000, 300, 2)
    plan = by_rows("hash").plan(a=a, b=b, workspace_bytes=100_000)
    for factor in (1, 2, 3):
        check(plan(a=factor * a, b=b), product(factor * a, b))
    assert "term_entries" not in plan._structure

"""Unions and intersections into results whose structure the kernel finds, whatever runs them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_sparse.runtime.threads import get_num_threads, set_num_threads

from .merged_kernels import compiled, random_csr
from .programs import POLICIES

KINDS = ("union", "intersect")
EVERY = ("append", "scalar", *POLICIES)


def expected(kind: str, a: sp.csr_matrix, b: sp.csr_matrix) -> sp.csr_matrix:
    """Return the result with an entry for each coordinate that is visited, zeros too."""
    left, right = (sp.csr_matrix((np.ones(x.nnz), x.indices, x.indptr), x.shape) for x in (a, b))
    visited = left + right if kind == "union" else left.multiply(right).tocsr()
    visited.sort_indices()
    dense = [x.toarray().astype("float64") for x in (a, b)]
    values = dense[0] + dense[1] if kind == "union" else dense[0] * dense[1]
    row = np.repeat(np.arange(a.shape[0]), np.diff(visited.indptr))
    return sp.csr_matrix((values[row, visited.indices], visited.indices, visited.indptr), a.shape)


def same(found: sp.csr_matrix, wanted: sp.csr_matrix) -> None:
    np.testing.assert_array_equal(found.indptr, wanted.indptr)
    np.testing.assert_array_equal(found.indices, wanted.indices)
    np.testing.assert_array_equal(found.data.astype("float64"), wanted.data)


@pytest.fixture(autouse=True)
def filled_memory(monkeypatch):
    """Let memory that nobody writes to show."""
    from tvm_sparse.runtime import sparse_results

    class Numpy:
        def __getattr__(self, name):
            return getattr(np, name)

        def empty(self, shape, dtype=float):
            array = np.empty(shape, dtype)
            array.view(np.uint8)[...] = 0xFF
            return array

    monkeypatch.setattr(sparse_results, "np", Numpy())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workspace", ["auto", *EVERY])
def test_every_policy_gives_the_same(kind, workspace):
    kernel = compiled(kind, workspace)
    for seed in range(3):
        a, b = random_csr(60, 80, 0.3, seed), random_csr(60, 80, 0.2, seed + 10)
        same(kernel(a=a, b=b), expected(kind, a, b))
        pruned = kernel(a=a, b=b - 2 * a if kind == "union" else b, prune=True)
        assert pruned.nnz == np.count_nonzero(pruned.toarray())
        found = kernel(a=a, b=b, sorted=False)
        assert (found.toarray() == expected(kind, a, b).toarray()).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workspace", ["auto", "dense", "hash"])
def test_plans_are_refilled(kind, workspace):
    kernel = compiled(kind, workspace)
    a, b = random_csr(60, 80, 0.3, 1), random_csr(60, 80, 0.2, 2)
    plan = kernel.plan(a=a, b=b)
    for _ in range(3):
        same(plan(a=a, b=b), expected(kind, a, b))
        a.data[:], b.data[:] = a.data[::-1].copy(), b.data + 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (1, 1), (7, 1), (1, 300)])
def test_shapes_without_rows_or_columns(kind, shape):
    kernel = compiled(kind)
    for density in (0, 0.5, 1):
        a, b = random_csr(*shape, density, 3), random_csr(*shape, 1, 4)
        for _ in range(2):
            same(kernel(a=a, b=b), expected(kind, a, b))
            plan = kernel.plan(a=a, b=b)
            same(plan(a=a, b=b), expected(kind, a, b))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_tasks_write_rows_of_their_own(kind, threads):
    kernel = compiled(kind)
    a, b = random_csr(3000, 90, 0.3, 1), random_csr(3000, 90, 0.3, 2)
    a = (sp.diags_array((np.arange(3000) % 1000 > 700).astype(float)) @ a).tocsr()
    a.eliminate_zeros()
    a = sp.csr_matrix(a)
    a.indices, a.indptr = a.indices.astype("int32"), a.indptr.astype("int32")
    before = get_num_threads()
    try:
        set_num_threads(threads)
        for _ in range(2):
            same(kernel(a=a, b=b), expected(kind, a, b))
        same(kernel.plan(a=a, b=b)(a=a, b=b), expected(kind, a, b))
    finally:
        set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS)
def test_results_that_need_no_room_in_advance(kind, monkeypatch):
    """Entries are counted first where all that rows may produce would take too much memory."""
    from tvm_sparse.runtime import sparse_results

    monkeypatch.setattr(sparse_results, "_MOST_ROOM", 64)
    a, b = random_csr(60, 80, 0.3, 1), random_csr(60, 80, 0.2, 2)
    same(compiled(kind)(a=a, b=b), expected(kind, a, b))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("value", ["float32", "int8", "int64"])
def test_types(kind, index, value):
    kernel = compiled(kind, "auto", index, value)
    a, b = (random_csr(40, 50, 0.4, seed, "float64", index) for seed in (1, 2))
    wanted = expected(kind, a, b)
    for matrix in (a, b):
        matrix.data = matrix.data.astype(value)
    for _ in range(2):
        found = kernel(a=a, b=b)
        assert found.dtype == value and found.indices.dtype == index
        same(found, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_runs_and_long_rows(kind):
    rng = np.random.default_rng(0)
    dense = np.zeros((6, 4000))
    dense[0], dense[1, :50], dense[2, ::3], dense[3, 5] = 1, 1, 1, 1
    other = dense.copy()
    other[0, 3::40], other[1, 49], other[2, 2000:], other[4, 7], other[5, ::400] = 0, 0, 0, 1, 1
    dense[5] = 1
    for first, second in [(dense, other), (other, dense), (dense, dense)]:
        a, b = (sp.csr_matrix(x * rng.integers(1, 9, x.shape)) for x in (first, second))
        same(compiled(kind)(a=a, b=b), expected(kind, a, b))


matrices = st.lists(
    st.tuples(*[st.sets(st.integers(0, 39), max_size=40)] * 2), min_size=1, max_size=5
)


@given(rows=matrices, full=st.booleans())
@settings(max_examples=80)
def test_any_structure(rows, full):
    pair = []
    for k in range(2):
        own = [sorted(row[k] | (set(range(40)) - row[1 - k] if full else set())) for row in rows]
        indptr = np.cumsum([0, *map(len, own)]).astype("int32")
        indices = np.array([c for row in own for c in row], "int32")
        values = np.arange(1.0, indices.size + 1)
        pair.append(sp.csr_matrix((values, indices, indptr), (len(rows), 40)))
    for kind in KINDS:
        same(compiled(kind)(a=pair[0], b=pair[1]), expected(kind, *pair))

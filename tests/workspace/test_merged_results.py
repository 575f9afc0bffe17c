"""Unions and intersections into results whose structure the kernel finds, whatever runs them."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import tvm_sparse
from tvm_sparse.runtime.threads import get_num_threads, set_num_threads
from tvm_sparse.script import from_source

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


THREE = """
@S.prim_func
def three(a: S.handle, b: S.handle, d: S.handle, c: S.handle, a_indptr: S.handle, a_indices: S.handle,
          b_indptr: S.handle, b_indices: S.handle, d_indptr: S.handle, d_indices: S.handle,
          m: S.int32, n: S.int32, a_nnz: S.int32, b_nnz: S.int32, d_nnz: S.int32):
    I = S.dense_fixed(m)
    JA = S.sparse_variable(I, (n, a_nnz), (a_indptr, a_indices), "int32")
    JB = S.sparse_variable(I, (n, b_nnz), (b_indptr, b_indices), "int32")
    JD = S.sparse_variable(I, (n, d_nnz), (d_indptr, d_indices), "int32")
    JO = S.sparse_output(I, n)
    A = S.match_sparse_buffer(a, (I, JA), "float64")
    B = S.match_sparse_buffer(b, (I, JB), "float64")
    D = S.match_sparse_buffer(d, (I, JD), "float64")
    C = S.match_sparse_buffer(c, (I, JO), "float64")
"""
PAIRS = """
@S.prim_func
def pairs(a: S.handle, b: S.handle, c: S.handle, a_indptr: S.handle, a_indices: S.handle,
          b_indptr: S.handle, b_indices: S.handle,
          m: S.int32, l: S.int32, n: S.int32, a_nnz: S.int32, b_nnz: S.int32):
    I = S.dense_fixed(m)
    L = S.dense_fixed(l)
    K = S.sparse_variable(I, (n, a_nnz), (a_indptr, a_indices), "int32")
    KB = S.sparse_variable(L, (n, b_nnz), (b_indptr, b_indices), "int32")
    LO = S.sparse_output(I, l)
    A = S.match_sparse_buffer(a, (I, K), "float64")
    B = S.match_sparse_buffer(b, (L, KB), "float64")
    C = S.match_sparse_buffer(c, (I, LO), "float64")
    with S.sp_iter([I, L, S.intersect(K, KB)], "SSR", "rows") as [i, h, k]:
        C[i, h] = C[i, h] + A[i, k] * B[h, k]
"""


@functools.cache
def kernel_of(text: str, workspace: str = "auto"):
    return tvm_sparse.compile(from_source(text), workspace=workspace)


BODIES = {
    "three": ("S.union(JA, JB, JD)", "A[i, j] - B[i, j] + 2.0 * D[i, j]", "A - B + 2 * D"),
    "product of three": (
        "S.intersect(JA, JB, JD)",
        "A[i, j] * B[i, j] * D[i, j]",
        "A * B * D",
    ),
    "searched": ("S.union(JA, JB)", "(A[i, j] + B[i, j]) * D[i, j]", "(A + B) * D"),
    "row of another": ("S.union(JA, JB)", "A[i, j] + B[i, j] + D[i, 0]", None),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("condition", ["", "        if j % 2 == 0:\n    "])
def test_three_operands(name, condition):
    axes, value, formula = BODIES[name]
    text = f"{THREE}    with S.sp_iter([I, {axes}], 'SS', 'rows') as [i, j]:\n"
    kernel = kernel_of(f"{text}{condition}        C[i, j] = {value}\n")
    a, b, d = (random_csr(50, 41, density, seed) for seed, density in enumerate((0.3, 0.5, 0.2)))
    found = kernel(a=a, b=b, d=d)
    dense = {"A": a.toarray(), "B": b.toarray(), "D": d.toarray()}
    if formula is None:
        stored = (dense["A"] != 0) | (dense["B"] != 0)
        wanted = stored * (dense["A"] + dense["B"] + dense["D"][:, :1])
    else:
        wanted = eval(formula, dense)
    if condition:
        wanted[:, 1::2] = 0
    np.testing.assert_array_equal(found.toarray(), wanted)
    assert found.has_sorted_indices and found.has_canonical_format


def test_several_iterations_into_one_result():
    text = f"""{THREE}
    with S.sp_iter([I, S.union(JA, JB)], "SS", "first") as [i, j]:
        C[i, j] = C[i, j] + (A[i, j] - B[i, j])
    with S.sp_iter([I, S.intersect(JA, JD)], "SS", "second") as [i, j]:
        C[i, j] = C[i, j] + A[i, j] * D[i, j]
"""
    a, b, d = (random_csr(50, 41, density, seed) for seed, density in enumerate((0.3, 0.5, 0.2)))
    wanted = a.toarray() - b.toarray() + a.toarray() * d.toarray()
    for workspace in ("auto", *POLICIES):
        found = kernel_of(text, workspace)(a=a, b=b, d=d)
        np.testing.assert_array_equal(found.toarray(), wanted)


@pytest.mark.parametrize("workspace", ["auto", "scalar", "dense", "sort"])
def test_inner_products_of_all_pairs_of_rows(workspace):
    a, b = random_csr(30, 50, 0.1, 1), random_csr(20, 50, 0.1, 2)
    found = kernel_of(PAIRS, workspace)(a=a, b=b)
    np.testing.assert_array_equal(found.toarray(), (a @ b.T).toarray())
    assert found.nnz == np.count_nonzero((a @ b.T).toarray())


def test_union_below_a_sum():
    """The rows of another matrix beside those that a row selects: out of order, several times."""
    text = """
@S.prim_func
def rows(a: S.handle, b: S.handle, d: S.handle, c: S.handle, a_indptr: S.handle, a_indices: S.handle,
         b_indptr: S.handle, b_indices: S.handle, d_indptr: S.handle, d_indices: S.handle,
         m: S.int32, k: S.int32, n: S.int32, a_nnz: S.int32, b_nnz: S.int32, d_nnz: S.int32):
    I = S.dense_fixed(m)
    R = S.dense_fixed(k)
    K = S.sparse_variable(I, (k, a_nnz), (a_indptr, a_indices), "int32")
    JB = S.sparse_variable(R, (n, b_nnz), (b_indptr, b_indices), "int32")
    JD = S.sparse_variable(R, (n, d_nnz), (d_indptr, d_indices), "int32")
    JO = S.sparse_output(I, n)
    A = S.match_sparse_buffer(a, (I, K), "float64")
    B = S.match_sparse_buffer(b, (R, JB), "float64")
    D = S.match_sparse_buffer(d, (R, JD), "float64")
    C = S.match_sparse_buffer(c, (I, JO), "float64")
    with S.sp_iter([I, K, S.union(S.attach(JB, K), S.attach(JD, K))], "SRS", "rows") as [i, h, j]:
        C[i, j] = C[i, j] + A[i, h] * (B[h, j] - D[h, j])
"""
    a, b, d = random_csr(30, 40, 0.2, 1), random_csr(40, 50, 0.2, 2), random_csr(40, 50, 0.2, 3)
    for workspace in ("auto", *POLICIES):
        found = kernel_of(text, workspace)(a=a, b=b, d=d)
        np.testing.assert_array_equal(found.toarray(), (a @ (b - d)).toarray())
    for limit in (3000, 10_000):
        found = kernel_of(text)(a=a, b=b, d=d, workspace_bytes=limit)
        np.testing.assert_array_equal(found.toarray(), (a @ (b - d)).toarray())


def test_levels_of_tensors():
    """A result of three levels, whose innermost loops are bounded by what an outer union stands at."""
    text = """
@S.prim_func
def levels(a: S.handle, b: S.handle, c: S.handle, ap: S.handle, aq: S.handle, as_: S.handle, at: S.handle,
           bp: S.handle, bq: S.handle, bs: S.handle, bt: S.handle,
           m: S.int32, n: S.int32, l: S.int32, az: S.int32, aw: S.int32, bz: S.int32, bw: S.int32):
    I = S.dense_fixed(m)
    JA = S.sparse_variable(I, (n, az), (ap, aq), "int32")
    KA = S.sparse_variable(JA, (l, aw), (as_, at), "int32")
    JB = S.sparse_variable(I, (n, bz), (bp, bq), "int32")
    KB = S.sparse_variable(JB, (l, bw), (bs, bt), "int32")
    JO = S.sparse_output(I, n)
    KO = S.sparse_output(JO, l)
    A = S.match_sparse_buffer(a, (I, JA, KA), "float64")
    B = S.match_sparse_buffer(b, (I, JB, KB), "float64")
    C = S.match_sparse_buffer(c, (I, JO, KO), "float64")
    with S.sp_iter([I, S.union(JA, JB), S.KIND(KA, KB)], "SSS", "levels") as [i, j, k]:
        C[i, j, k] = 2.0 * A[i, j, k] - B[i, j, k]
"""
    rng = np.random.default_rng(0)
    dense = [rng.integers(1, 9, (6, 7, 8)) * (rng.random((6, 7, 8)) < p) for p in (0.2, 0.5)]
    arrays, sizes = {}, {"m": 6, "n": 7, "l": 8}
    for name, own, second in zip("ab", dense, (("as_", "at"), ("bs", "bt"))):
        own[3] = 0
        fibres = own.any(axis=2)
        arrays[f"{name}p"] = np.append(0, np.cumsum(fibres.sum(axis=1))).astype("int32")
        arrays[f"{name}q"] = np.nonzero(fibres)[1].astype("int32")
        inside = own[fibres]
        arrays[second[0]] = np.append(0, np.cumsum((inside != 0).sum(axis=1))).astype("int32")
        arrays[second[1]] = np.nonzero(inside)[1].astype("int32")
        arrays[name] = inside[inside != 0].astype("float64")
        sizes |= {f"{name}z": arrays[f"{name}q"].size, f"{name}w": arrays[name].size}
    for kind in KINDS:
        for workspace in ("auto", "append", "sort", "hash"):
            found = kernel_of(text.replace("KIND", kind), workspace)(**arrays, **sizes)
            both = (dense[0] != 0) & (dense[1] != 0) if kind == "intersect" else True
            np.testing.assert_array_equal(found.toarray(), both * (2 * dense[0] - dense[1]))

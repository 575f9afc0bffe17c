"""Results of merged axes over several levels, of several operands, and of one row."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.sparse as sp

import tvm_sparse
from tvm_sparse.script import from_source

from .merged_kernels import TWO, random_csr
from .programs import POLICIES

KINDS = ("union", "intersect")

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


DOUBLY_COMPRESSED = """
@S.prim_func
def rows(a: S.handle, b: S.handle, c: S.handle, ip: S.handle, ii: S.handle, ap: S.handle, ai: S.handle,
         jp: S.handle, ji: S.handle, bp: S.handle, bi: S.handle,
         m: S.int32, n: S.int32, ra: S.int32, rb: S.int32, az: S.int32, bz: S.int32):
    O = S.dense_fixed(1)
    IA = S.sparse_variable(O, (m, ra), (ip, ii), "int32")
    JA = S.sparse_variable(IA, (n, az), (ap, ai), "int32")
    IB = S.sparse_variable(O, (m, rb), (jp, ji), "int32")
    JB = S.sparse_variable(IB, (n, bz), (bp, bi), "int32")
    I = S.dense_fixed(m)
    JO = S.sparse_output(I, n)
    A = S.match_sparse_buffer(a, (O, IA, JA), "float64")
    B = S.match_sparse_buffer(b, (O, IB, JB), "float64")
    C = S.match_sparse_buffer(c, (I, JO), "float64")
    with S.sp_iter([O, S.KIND(IA, IB), S.KIND(JA, JB)], "RSS", "first") as [o, i, j]:
        C[i, j] = C[i, j] + (A[o, i, j] - B[o, i, j])
    with S.sp_iter([O, IA, S.union(JA)], "RSS", "second") as [o, i, j]:
        C[i, j] = C[i, j] + A[o, i, j]
"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("iterations", [1, 2])
@pytest.mark.parametrize("workspace", ["auto", "hash", "bucket"])
def test_rows_that_are_merged_themselves(kind, iterations, workspace):
    """No loop over rows stands around the merged ones, whose scratch belongs to each iteration."""
    text = DOUBLY_COMPRESSED.replace("KIND", kind).replace("S.union(JA)", "JA")
    if iterations == 1:
        text = text[: text.index("    with S.sp_iter([O, IA, JA]")]
    kernel = kernel_of(text, workspace)
    dense, arrays = [], {"m": 30, "n": 20}
    for seed, (name, rows) in enumerate((("a", "ii"), ("b", "ji"))):
        matrix = random_csr(30, 20, 0.1, seed + 5)
        stored = np.flatnonzero(np.diff(matrix.indptr))
        inner = matrix[stored]
        dense.append(matrix.toarray())
        arrays |= {
            name: inner.data,
            f"{rows[0]}p": np.array([0, stored.size], "int32"),
            f"{rows[0]}i": stored.astype("int32"),
            f"{name}p": inner.indptr.astype("int32"),
            f"{name}i": inner.indices.astype("int32"),
        }
    both = (dense[0] != 0) & (dense[1] != 0) if kind == "intersect" else True
    wanted = both * (dense[0] - dense[1]) + (dense[0] if iterations == 2 else 0)
    np.testing.assert_array_equal(kernel(**arrays).toarray(), wanted)


@pytest.mark.parametrize("axes", ["JA", "S.union(JA, JB)", "S.intersect(JA, JB)"])
@pytest.mark.parametrize("workspace", ["auto", "dense", "sort"])
def test_results_of_one_row(axes, workspace):
    """TVM leaves out a loop of one step: what stood inside was taken for the loop over rows."""
    text = TWO.replace("m: S.int32, ", "").replace('S.dense_fixed(m, "INDEX")', "S.dense_fixed(1)")
    text = text.replace("S.KIND(JA, JB)", axes).replace("KIND", "one").replace("OPERATOR", "+")
    kernel = kernel_of(text.replace("INDEX", "int32").replace("VALUE", "float64"), workspace)
    a, b = random_csr(1, 50, 0.4, 1), random_csr(1, 50, 0.5, 3)
    wanted = a.toarray() + b.toarray()
    if axes == "JA":
        wanted *= a.toarray() != 0
    elif "intersect" in axes:
        wanted *= (a.toarray() != 0) & (b.toarray() != 0)
    for _ in range(2):
        np.testing.assert_array_equal(kernel(a=a, b=b).toarray(), wanted)


def test_last_coordinate_of_narrow_indices_in_a_union_of_three():
    """2**31 - 1 was taken for the end of a row where rows are 2**31 long and indices int32."""
    text = (
        THREE.replace("n: S.int32", "n: S.int64")
        + """
    with S.sp_iter([I, S.union(JA, JB, JD)], "SS", "rows") as [i, j]:
        C[i, j] = A[i, j] + B[i, j] + D[i, j]
"""
    )
    kernel = tvm_sparse.compile(from_source(text))
    ends = [np.array([0, 2**31 - 1]), np.array([5, 2**31 - 1]), np.array([2**31 - 2])]
    operands = {}
    for name, columns in zip("abd", ends):
        matrix = sp.csr_matrix((1, 2**31))
        matrix.data = np.ones(columns.size)
        matrix.indices = columns.astype("int32")
        matrix.indptr = np.array([0, columns.size], "int32")
        operands[name] = matrix
    found = kernel(**operands)
    assert found.indices.tolist() == [0, 5, 2**31 - 2, 2**31 - 1]
    assert found.data.tolist() == [1, 1, 1, 2]

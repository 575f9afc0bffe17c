"""What users of sparse libraries have run into, as far as the language and the operators go.

Every test names the symptom; the programs and matrices are the smallest that show it.
"""

from __future__ import annotations

import functools
import resource

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp
import tvm_ffi
from tvm import tirx

import tvm_sparse
from tests.execution import build, lower, poisoned
from tests.programs.scripts import PROGRAMS, parse
from tvm_sparse import schedules
from tvm_sparse.errors import SparseProgramError
from tvm_sparse.script import from_source
from tvm_sparse.transform._layout import LAYOUT_ATTR


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@functools.cache
def spmm(**options):
    return schedules.spmm.build(**options)


@functools.cache
def sddmm(**options):
    return schedules.sddmm.build(**options)


@functools.cache
def segment(operation: str, **options):
    return schedules.segment_reduce.build(operation=operation, **options)


def close(found, expected, tolerance=1e-5):
    scale = max(1.0, float(np.abs(np.asarray(expected, "float64")).max(initial=0)))
    np.testing.assert_allclose(
        np.asarray(found, "float64"), expected, rtol=tolerance, atol=tolerance * scale
    )


# --- unsorted columns ----------------------------------------------------------------------------


@pytest.fixture
def unsorted():
    """Return an unsorted CSR matrix and its dense form."""
    dense = np.array([[1, 0, 2, 3], [0, 4, 5, 0], [6, 0, 0, 7]], "float32")
    data = np.array([3, 1, 2, 5, 4, 7, 6], "float32")
    indices = np.array([3, 0, 2, 2, 1, 3, 0], "int32")
    return sp.csr_matrix((data, indices, np.array([0, 3, 5, 7], "int32")), shape=(3, 4)), dense


def test_unsorted_rows_give_the_product_of_the_sorted_matrix(unsorted, rng):
    matrix, dense = unsorted
    b = rng.standard_normal((4, 5)).astype("float32")
    close(spmm()(a=matrix, b=b), dense.astype("float64") @ b)


def test_unsorted_rows_keep_the_order_of_a_sampled_product(unsorted, rng):
    matrix, _ = unsorted
    x, y = rng.standard_normal((2, 4, 6)).astype("float32")
    rows = np.repeat(np.arange(3), np.diff(matrix.indptr))
    expected = (x[:3].astype("float64") @ y.T)[rows, matrix.indices]
    found = sddmm()(x=x[:3], y=y, indptr=matrix.indptr, indices=matrix.indices)
    close(found, expected)


def test_search_in_rows_declared_unsorted_finds_every_entry(unsorted, rng):
    matrix, dense = unsorted
    text = PROGRAMS["csrmm_dense_iter"].replace("indices), idx)", "indices), idx, sorted=False)")
    b = rng.standard_normal((4, 5)).astype("float32")
    arrays = {"a": matrix.data, "b": b, "c": poisoned((3, 5), "float32")}
    arrays |= {"indptr": matrix.indptr, "indices": matrix.indices}
    kernel = build(parse("csrmm_dense_iter", text=text))
    close(kernel(arrays, {"m": 3, "n": 4, "f": 5, "nnz": 7})["c"], dense.astype("float64") @ b)


def test_search_in_rows_declared_sorted_refuses_unsorted_ones_on_full_validation(unsorted, rng):
    matrix, _ = unsorted
    kernel = tvm_sparse.compile(parse("csrmm_dense_iter"))["csrmm_dense_iter"]
    b = rng.standard_normal((4, 5)).astype("float32")
    with pytest.raises(
        ValueError, match=r"indices.*expected coordinates that increase within a row"
    ):
        kernel(a=matrix.data, b=b, indptr=matrix.indptr, indices=matrix.indices, validate="full")


# --- widths and tails ----------------------------------------------------------------------------

WIDTHS = [1, 2, 3, 5, 7, 17, 31, 33, 63, 65, 100, 127, 129, 257, 1000]


@pytest.mark.parametrize("width", WIDTHS)
def test_any_feature_width_is_right_and_nothing_is_written_past_the_end(width, rng):
    a = sp.random(257, 301, 0.03, "csr", dtype="float32", random_state=1)
    b = rng.standard_normal((301, width)).astype("float32")
    room = np.full(257 * width + 64, 123, "float32")
    c = room[: 257 * width].reshape(257, width)
    c[:] = np.nan
    spmm()(a=a, b=b, c=c)
    close(c, a.astype("float64") @ b)
    assert (room[257 * width :] == 123).all()


@pytest.mark.parametrize("width", [1, 3, 7, 33, 100])
def test_any_specialized_width_is_right(width, rng):
    a = sp.random(57, 41, 0.1, "csr", dtype="float32", random_state=1)
    b = rng.standard_normal((41, width)).astype("float32")
    close(spmm(features=width)(a=a, b=b), a.astype("float64") @ b)


# --- half precision ------------------------------------------------------------------------------

HALVES = [np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)]


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_half_precision_products_accumulate_in_single(half):
    degree = 20000
    ones = np.ones(degree, half)
    indptr, indices = np.array([0, degree], "int32"), np.arange(degree, dtype="int32")
    found = spmm(dtype=str(half))(
        a=ones, b=np.ones((degree, 8), half), indptr=indptr, indices=indices
    )
    assert found.dtype == half
    assert (found.astype("float64") == float(np.float32(degree).astype(half))).all()


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("operation", ["sum", "mean"])
def test_half_precision_segments_accumulate_in_single(half, operation):
    x = np.ones((20000, 3), half)
    indptr = np.array([0, 0, 20000], "int32")
    found = segment(operation, dtype=str(half))(x=x, indptr=indptr).astype("float64")
    full = float(np.float32(20000).astype(half)) if operation == "sum" else 1.0
    np.testing.assert_array_equal(found, [[0] * 3, [full] * 3])


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_half_precision_dot_products_accumulate_in_single(half):
    x, y = np.ones((1, 20000), half), np.ones((2, 20000), half)
    found = sddmm(dtype=str(half))(
        x=x, y=y, indptr=np.array([0, 2], "int32"), indices=np.array([0, 1], "int32")
    )
    assert (found.astype("float64") == float(np.float32(20000).astype(half))).all()


# --- sizes beyond 2^31 ---------------------------------------------------------------------------


def test_entry_counts_beyond_int32_need_int64_indices():
    many = 2**31 + 8
    sizes = {"m": 1, "n": 4, "f": 2, "nnz": many}
    with pytest.raises(SparseProgramError, match=rf"J.*{many}.*int64"):
        parse("csrmm", "int32", literal=sizes)
    wide = lower(parse("csrmm", "int64", literal=sizes))["csrmm"]
    by_name = {param.name: param for param in wide.params}
    assert [int(size) for size in by_name["A"].ty.shape] == [many]
    assert str(by_name["J_indptr"].ty.dtype) == str(by_name["J_indices"].ty.dtype) == "int64"
    symbolic = tvm_sparse.compile(schedules.spmm.program(index_dtype="int64"))
    entry = symbolic.metadata["functions"]["spmm"]
    dtypes = {arg["name"]: arg["dtype"] for arg in entry["args"]}
    assert {dtypes[n] for n in ("indptr", "indices", "m", "n", "f", "nnz")} == {"int64"}


def test_offsets_of_a_dense_operand_beyond_int32():
    """Only pages that are touched take memory."""
    rows, width = 2**31 // 256 + 2, 256
    assert (rows - 1) * width + width - 1 > 2**31 - 1
    b = np.zeros((rows, width), "float16")
    b[-1] = np.arange(width)
    found = spmm(dtype="float16")(
        a=np.ones(1, "float16"),
        b=b,
        indptr=np.array([0, 1], "int32"),
        indices=np.array([rows - 1], "int32"),
    )
    np.testing.assert_array_equal(found, b[-1:])


# --- small integers ------------------------------------------------------------------------------


def test_eight_bit_values_do_not_wrap():
    a = sp.csr_matrix(np.array([[200, 100], [1, 0]], "uint8"))
    found = spmm(dtype="uint8")(a=a, b=np.ones((2, 1), "uint8"))
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, [[300], [1]])


def test_signed_eight_bit_values_do_not_wrap():
    a = sp.csr_matrix(np.array([[-100, -100], [0, 0]], "int8"))
    found = spmm(dtype="int8")(a=a, b=np.full((2, 1), 127, "int8"))
    np.testing.assert_array_equal(found, [[-25400], [0]])


def test_reachability_stays_true_for_any_number_of_neighbours():
    a = sp.csr_matrix(np.ones((1, 300), bool))
    found = spmm(dtype="bool")(a=a, b=np.ones((300, 2), bool))
    assert found.astype(bool).all() and (found == 300).all()


def test_sum_of_eight_bit_segments_does_not_wrap():
    found = segment("sum", dtype="uint8")(
        x=np.full((300, 1), 255, "uint8"), indptr=np.array([0, 300], "int32")
    )
    assert found.item() == 76500


# --- skew and hypersparsity ----------------------------------------------------------------------


def test_a_row_of_a_million_entries_is_right(rng):
    """Its speed is in ``python -m benchmarks.cpu --special``."""
    rows, columns = 10_000, 1_000_000
    indptr = np.concatenate([[0], np.arange(columns, columns + rows)]).astype("int32")
    tail = rng.integers(0, columns, rows - 1)
    indices = np.concatenate([np.arange(columns), tail]).astype("int32")
    data = np.ones(len(indices), "float32")
    hub = sp.csr_matrix((data, indices, indptr), shape=(rows, columns))
    b = rng.standard_normal((columns, 1)).astype("float32")
    expected = hub.astype("float64") @ b
    found = spmm()(a=hub, b=b)
    assert abs(found - expected).max() <= 1e-4 * abs(expected).max()


DOUBLY_COMPRESSED = """
@S.prim_func
def {name}(
    rows: T.handle, indptr: T.handle, indices: T.handle, a: T.handle, x: T.handle, y: T.handle,
    n: T.int32, present: T.int32, nnz: T.int32
):
    O = S.dense_fixed(1)
    R = S.sparse_fixed(O, (n, present), rows, "int32")
    C = S.sparse_variable(R, (n, nnz), (indptr, indices), "int32")
    D = S.dense_fixed(n)
    A = S.match_sparse_buffer(a, (O, R, C), "float32")
    X = S.match_sparse_buffer(x, (D,), "float32")
"""
DCSR_SPMV = (
    DOUBLY_COMPRESSED.replace("{name}", "dcsr_spmv")
    + """
    Y = S.match_sparse_buffer(y, (O, R), "float32")
    with S.sp_iter([O, R, C], "SSR", "dcsr_spmv") as [o, r, c]:
        with T.init():
            Y[o, r] = T.float32(0)
        Y[o, r] = Y[o, r] + A[o, r, c] * X[c]
"""
)
DCSR_SDDMM = (
    DOUBLY_COMPRESSED.replace("{name}", "dcsr_sddmm")
    + """
    Y = S.match_sparse_buffer(y, (O, R, C), "float32")
    with S.sp_iter([O, R, C], "SSS", "dcsr_sddmm") as [o, r, c]:
        Y[o, r, c] = A[o, r, c] * X[r] * X[c]
"""
)


@pytest.mark.parametrize("text", [DCSR_SPMV, DCSR_SDDMM], ids=["spmv", "sddmm"])
def test_almost_every_row_is_empty_and_costs_nothing(text):
    n = 50_000_000
    rows = np.array([[7, 25_000_000, 49_999_999]], "int32")
    arrays = {
        "rows": rows,
        "indptr": np.arange(4, dtype="int32"),
        "indices": np.array([0, 3, 49_999_999], "int32"),
        "a": np.array([1, 2, 3], "float32"),
        "x": np.zeros(n, "float32"),
    }
    arrays["x"][[0, 3, *rows.ravel()]] = 1
    program = from_source(text)
    found = tvm_sparse.compile(program)(**arrays)
    np.testing.assert_array_equal(found.ravel(), [1, 2, 3])
    extents: list[str] = []
    (func,) = lower(program).functions.values()
    tvm_ffi.structural_walk(func.body, [(tirx.For, lambda loop: extents.append(str(loop.extent)))])
    assert extents
    assert not any(extent in ("n", 'T.Cast("int64", n)') for extent in extents), extents


def test_no_row_at_all_works():
    nothing = np.zeros(0, "float32")
    none = np.zeros(0, "int32")
    kernel = tvm_sparse.compile(from_source(DCSR_SPMV))
    found = kernel(
        rows=none.reshape(1, 0),
        indptr=np.zeros(1, "int32"),
        indices=none,
        a=nothing,
        x=np.ones(9, "float32"),
        y=np.zeros((1, 0), "float32"),
    )
    assert found is None or found.size == 0


# --- sampled products ----------------------------------------------------------------------------


@pytest.fixture
def sampled():
    x = np.array([[1, 2], [3, 4]], "float32")
    y = np.array([[1, 0], [0, 1], [2, 1]], "float32")  # one row per column of the pattern
    return x, y, sp.csr_matrix(np.array([[10, 0, 0], [0, 100, 1000]], "float32"))


def test_sampled_product_of_a_pattern_ignores_its_values(sampled):
    x, y, pattern = sampled
    found = sddmm()(x=x, y=y, indptr=pattern.indptr, indices=pattern.indices)
    np.testing.assert_array_equal(found, [1, 4, 10])


def test_scaled_sampled_product_multiplies_by_the_stored_values(sampled):
    x, y, pattern = sampled
    np.testing.assert_array_equal(sddmm(scaled=True)(a=pattern, x=x, y=y), [10, 400, 10000])


def test_stored_zero_is_zero_when_scaled_and_a_dot_product_in_a_pattern(sampled):
    x, y, pattern = sampled
    pattern.data[1] = 0
    np.testing.assert_array_equal(sddmm(scaled=True)(a=pattern, x=x, y=y), [10, 0, 10000])
    found = sddmm()(x=x, y=y, indptr=pattern.indptr, indices=pattern.indices)
    np.testing.assert_array_equal(found, [1, 4, 10])


def test_right_operand_of_the_wrong_layout_is_refused(sampled):
    x, y, pattern = sampled
    with pytest.raises(ValueError, match="y"):
        sddmm()(x=x, y=np.ascontiguousarray(y.T), indptr=pattern.indptr, indices=pattern.indices)


def test_both_formulas_are_documented():
    text = schedules.sddmm.__doc__
    assert "x[i, k] * y[j, k]" in text and "scaled" in text


# --- empty segments ------------------------------------------------------------------------------

SEGMENTS = np.array([0, 0, 2, 2, 5, 5], "int32")
VALUES = np.array([[1], [-2], [3], [-4], [5]], "float32")
OF_SEGMENTS = {
    "sum": [0, -1, 0, 4, 0],
    "mean": [0, -0.5, 0, 4 / 3, 0],
    "max": [0, 1, 0, 5, 0],
    "min": [0, -2, 0, -4, 0],
}


@pytest.mark.parametrize("operation", OF_SEGMENTS)
def test_empty_segments_have_the_documented_value(operation):
    found = segment(operation)(x=VALUES, indptr=SEGMENTS)
    close(found.ravel(), OF_SEGMENTS[operation])


@pytest.mark.parametrize("operation", OF_SEGMENTS)
def test_graph_without_edges_gives_zeros(operation):
    found = segment(operation)(x=np.zeros((0, 3), "float32"), indptr=np.zeros(6, "int32"))
    np.testing.assert_array_equal(found, np.zeros((5, 3)))


@pytest.mark.parametrize("operation, identity", [("max", -np.inf), ("min", np.inf)])
def test_empty_segments_have_the_identity_on_request(operation, identity):
    found = segment(operation, empty="identity")(x=VALUES, indptr=SEGMENTS).ravel()
    np.testing.assert_array_equal(found[[0, 2, 4]], [identity] * 3)
    np.testing.assert_array_equal(found[[1, 3]], np.array(OF_SEGMENTS[operation])[[1, 3]])


def test_maximum_of_negative_values_is_negative():
    found = segment("max")(x=-np.ones((4, 2), "float32"), indptr=np.array([0, 3, 4], "int32"))
    np.testing.assert_array_equal(found, -np.ones((2, 2)))


# --- compile time --------------------------------------------------------------------------------


def _chain(depth: int) -> str:
    """Return a program that sums over a tree of ``depth`` compressed levels."""
    names = [f"L{k}" for k in range(depth + 1)]
    arrays = [f"p{k}: T.handle, q{k}: T.handle" for k in range(1, depth + 1)]
    sizes = ["n: T.int32", *(f"z{k}: T.int32" for k in range(1, depth + 1))]
    lines = ["    L0 = S.dense_fixed(n)"]
    for k in range(1, depth + 1):
        lines.append(f"    L{k} = S.sparse_variable(L{k - 1}, (n, z{k}), (p{k}, q{k}), 'int32')")
    variables = ", ".join(name.lower() for name in names)
    kinds = "S" + "R" * depth
    return "\n".join(
        [
            "@S.prim_func",
            f"def chain(x: T.handle, y: T.handle, {', '.join([*arrays, *sizes])}):",
            *lines,
            f"    X = S.match_sparse_buffer(x, ({', '.join(names)}), 'float32')",
            "    Y = S.match_sparse_buffer(y, (L0,), 'float32')",
            f"    with S.sp_iter([{', '.join(names)}], '{kinds}', 'chain') as [{variables}]:",
            "        with T.init():",
            "            Y[l0] = T.float32(0)",
            f"        Y[l0] = Y[l0] + X[{variables}] * X[{variables}]",
        ]
    )


def test_the_lowered_program_grows_gently_with_the_number_of_levels():
    def size(depth: int) -> int:
        (func,) = lower(from_source(_chain(depth))).functions.values()
        return len(func.without_attr(LAYOUT_ATTR).script().split())

    build(from_source(_chain(8)))
    assert size(8) < 8 * size(2)


def test_compiling_many_widths_keeps_memory_in_bounds():
    schedules.spmm.build(features=3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for width in range(4, 24):
        schedules.spmm.build(features=width)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 200  # MiB


# --- 64-bit indices ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("width", [2, 3, 4, 7, 8, 32, 64])
def test_wide_indices_work_with_even_and_odd_widths(width, dtype, rng):
    a = sp.random(33, 40, 0.2, "csr", dtype="float32", random_state=17)
    values = a.data.astype(dtype)
    indptr, indices = a.indptr.astype("int64"), a.indices.astype("int64")
    b = rng.standard_normal((40, width)).astype(dtype)
    expected = sp.csr_matrix((values.astype("float64"), indices, indptr), a.shape) @ b.astype(
        "float64"
    )
    tolerance = 1e-5 if dtype == "float32" else 2e-3
    options = {"dtype": dtype, "index_dtype": "int64"}
    for kernel in (spmm(**options), spmm(features=width, **options)):
        close(kernel(a=values, b=b, indptr=indptr, indices=indices), expected, tolerance)
    x = rng.standard_normal((33, width)).astype(dtype)
    rows = np.repeat(np.arange(33), np.diff(indptr))
    dots = (x.astype("float64") @ b.astype("float64").T)[rows, indices]
    found = sddmm(**options)(x=x, y=b, indptr=indptr, indices=indices)
    close(found, dots, tolerance)


@pytest.mark.parametrize("operation", ["max", "min", "mean", "sum"])
def test_segments_of_bfloat16_are_reduced(operation):
    x = np.array([[1, -4], [3, 2], [-2, 8]]).astype(ml_dtypes.bfloat16)
    indptr = np.array([0, 2, 2, 3], "int32")
    expected = schedules.segment_reduce.reference(operation, x, indptr)
    close(segment(operation, dtype="bfloat16")(x=x, indptr=indptr), expected)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint32", "bool"])
def test_indices_may_be_read_from_narrow_integers(dtype):
    program = from_source(f"""
@S.prim_func
def gather(a: S.handle, b: S.handle, c: S.handle, m: S.int32, n: S.int32):
    I = S.dense_fixed(m)
    N = S.dense_fixed(n)
    A = S.match_sparse_buffer(a, (I,), {dtype!r})
    B = S.match_sparse_buffer(b, (N,), "float32")
    C = S.match_sparse_buffer(c, (I,), "float32")
    with S.sp_iter([I], "S", "gather") as [i]:
        C[i] = B[A[i]]
""")
    a, b = np.array([1, 0, 1], dtype), np.array([5, 7], "float32")
    assert tvm_sparse.compile(program)(a=a, b=b).tolist() == [7, 5, 7]

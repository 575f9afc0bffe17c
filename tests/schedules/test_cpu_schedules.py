"""Default CPU schedules are right for all widths, structures, value types and targets."""

from __future__ import annotations

import platform

import numpy as np
import pytest
import scipy.sparse as sp
import tvm
import tvm_ffi
from tvm import s_tir, tirx

import tvm_sparse
from tvm_sparse import schedules
from tvm_sparse.runtime import lower, set_num_threads
from tvm_sparse.schedules import cpu
from tvm_sparse.transform import BalanceRows, PeelVectorTail

WIDTHS = [0, 1, 2, 3, 5, 7, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 256, 257, 1000]
rng = np.random.default_rng(0)


def with_long_row() -> sp.csr_matrix:
    matrix = sp.random(400, 600, 0.02, "lil", dtype="f4", random_state=2)
    matrix[7] = rng.standard_normal(600)
    return matrix.tocsr()


MATRICES = {
    "random": sp.random(57, 101, 0.1, "csr", dtype="f4", random_state=1),
    "no entries": sp.csr_matrix((50, 70), dtype="f4"),
    "last cell": sp.csr_matrix((np.ones(1, "f4"), ([49], [69])), shape=(50, 70)),
    "no rows": sp.csr_matrix((0, 10), dtype="f4"),
    "no columns": sp.csr_matrix((10, 0), dtype="f4"),
    "one full row": sp.csr_matrix(np.ones((1, 90), "f4")),
    "one long row": with_long_row(),
    "many": sp.random(3000, 2000, 0.02, "csr", dtype="f4", random_state=3),
}
KERNELS = {
    "spmm": schedules.spmm.build,
    "sddmm": schedules.sddmm.build,
    "spmv": schedules.spmv.build,
    "segment_sum": schedules.segment_reduce.build,
}


@pytest.fixture(scope="module", params=["int32", "int64"])
def index_dtype(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def kernels(index_dtype) -> dict:
    return {name: build(index_dtype=index_dtype) for name, build in KERNELS.items()}


def assert_close(found: np.ndarray, expected: np.ndarray, scale: np.ndarray) -> None:
    """Errors are relative to the sum of the absolute values of the terms."""
    assert found.shape == expected.shape
    assert (np.abs(found - expected) <= 1e-5 * scale + 1e-30).all()


def selection(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """The matrix whose product with rows of entries is their segment sum."""
    structure = (np.ones(matrix.nnz), np.arange(matrix.nnz), matrix.indptr)
    return sp.csr_matrix(structure, shape=(matrix.shape[0], matrix.nnz))


@pytest.mark.parametrize("name", MATRICES)
def test_every_width_of_spmm_and_segment_sum(kernels, index_dtype, name):
    matrix = MATRICES[name]
    (m, n), indptr, indices = (
        matrix.shape,
        matrix.indptr.astype(index_dtype),
        matrix.indices.astype(index_dtype),
    )
    for f in WIDTHS if name != "many" else [5, 64, 100]:
        b = rng.standard_normal((n, f)).astype("f4")
        c = np.full((m, f), np.nan, "f4")
        kernels["spmm"](matrix.data, b, c, indptr, indices, m, n, f, matrix.nnz)
        exact = matrix.astype("f8")
        assert_close(c, exact @ b, abs(exact) @ np.abs(b))
        x = rng.standard_normal((matrix.nnz, f)).astype("f4")
        c = np.full((m, f), np.nan, "f4")
        kernels["segment_sum"](x, c, indptr, m, f, matrix.nnz)
        assert_close(c, selection(matrix) @ x, selection(matrix) @ np.abs(x))


@pytest.mark.parametrize("name", MATRICES)
def test_every_width_of_sddmm(kernels, index_dtype, name):
    matrix = MATRICES[name]
    m, n = matrix.shape
    rows = np.repeat(np.arange(m), np.diff(matrix.indptr))
    for f in [width for width in WIDTHS if width <= 257] if name != "many" else [5, 64, 100]:
        x, y = (rng.standard_normal((size, f)).astype("f4") for size in (m, n))
        c = np.full(matrix.nnz, np.nan, "f4")
        structure = matrix.indptr.astype(index_dtype), matrix.indices.astype(index_dtype)
        kernels["sddmm"](x, y, c, *structure, m, n, f, matrix.nnz)
        terms = x[rows].astype("f8") * y[matrix.indices]
        assert_close(c, terms.sum(1), np.abs(terms).sum(1))


@pytest.mark.parametrize("name", MATRICES)
def test_spmv(kernels, index_dtype, name):
    matrix = MATRICES[name]
    m, n = matrix.shape
    x, y = rng.standard_normal(n).astype("f4"), np.full(m, np.nan, "f4")
    structure = matrix.indptr.astype(index_dtype), matrix.indices.astype(index_dtype)
    kernels["spmv"](matrix.data, x, y, *structure, m, n, matrix.nnz)
    exact = matrix.astype("f8")
    assert_close(y, exact @ x, abs(exact) @ np.abs(x))


@pytest.mark.parametrize("operation", ["mean", "max", "min"])
def test_segment_mean_and_extrema(operation):
    matrix = MATRICES["one long row"]
    kernel = schedules.segment_reduce.build(operation=operation)
    for f in (1, 17, 64, 100):
        x = -1 - rng.random((matrix.nnz, f), dtype="f4")
        y = np.full((matrix.shape[0], f), np.nan, "f4")
        kernel(x, y, matrix.indptr, matrix.shape[0], f, matrix.nnz)
        reduce = {"mean": np.mean, "max": np.max, "min": np.min}[operation]
        for row, (start, end) in enumerate(zip(matrix.indptr, matrix.indptr[1:])):
            expected = reduce(x[start:end].astype("f8"), axis=0) if end > start else np.zeros(f)
            np.testing.assert_allclose(y[row], expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "int32"])
def test_other_value_types_of_spmm(dtype):
    matrix = MATRICES["random"]
    small = (rng.integers(-5, 6, matrix.nnz)).astype(dtype)
    exact = sp.csr_matrix((small.astype("f8"), matrix.indices, matrix.indptr), matrix.shape)
    kernel = schedules.spmm.build(dtype=dtype)
    for f in (3, 16, 40, 64):
        b = rng.integers(-5, 6, (matrix.shape[1], f)).astype(dtype)
        c = kernel(small, b, None, matrix.indptr, matrix.indices, *matrix.shape, f, matrix.nnz)
        np.testing.assert_array_equal(c, exact @ b.astype("f8"))


@pytest.mark.parametrize("f", [1, 15, 33, 100])
def test_nothing_is_written_behind_the_result(f):
    matrix = MATRICES["random"]
    m, n = matrix.shape
    base = np.full(m * f + 64, 7e37, "f4")
    c = base[: m * f].reshape(m, f)
    b = rng.standard_normal((n, f)).astype("f4")
    kernel = schedules.spmm.build()
    kernel(matrix.data, b, c, matrix.indptr, matrix.indices, m, n, f, matrix.nnz)
    assert (base[m * f :] == np.float32(7e37)).all()


def test_lanes_behind_a_row_read_nothing():
    """Inf in column 0, which no row names, never reaches a result, whatever the length of a row."""
    lengths = np.arange(40)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype("i4")
    indices = np.concatenate([1 + np.arange(length) for length in lengths]).astype("i4")
    values = np.ones(indices.size, "f4")
    x = np.ones(60, "f4")
    x[0] = np.inf
    y = np.full(40, np.nan, "f4")
    schedules.spmv.build()(values, x, y, indptr, indices, 40, 60, indices.size)
    np.testing.assert_array_equal(y, lengths)


def test_infinite_operands_stay_in_their_lanes():
    """A width that leaves lanes unused: Inf times nothing must not turn sums into NaN."""
    f = 19
    x, y = np.ones((1, f), "f4"), np.ones((2, f), "f4")
    x[0, 3] = np.inf
    c = np.full(2, np.nan, "f4")
    indptr, indices = np.array([0, 2], "i4"), np.array([0, 1], "i4")
    schedules.sddmm.build()(x, y, c, indptr, indices, 1, 2, f, 2)
    assert np.isposinf(c).all()


def test_a_row_of_a_million_entries_is_summed_exactly_enough():
    """O13: relative error below 1e-4 against float64."""
    count = 1_000_000
    x = rng.standard_normal(count).astype("f4")
    values, y = np.ones(count, "f4"), np.full(3, np.nan, "f4")
    indptr, indices = np.array([0, 0, count, count], "i4"), np.arange(count, dtype="i4")
    schedules.spmv.build()(values, x, y, indptr, indices, 3, count, count)
    expected = x.astype("f8").sum()
    assert y[0] == y[2] == 0
    assert abs(y[1] - expected) <= 1e-4 * abs(expected)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_results_do_not_depend_on_threads(threads):
    matrix = MATRICES["many"]
    m, n = matrix.shape
    b = rng.standard_normal((n, 48)).astype("f4")
    kernel = schedules.spmm.build()
    arguments = (matrix.indptr, matrix.indices, m, n, 48, matrix.nnz)
    set_num_threads(1)
    one = np.full((m, 48), np.nan, "f4")
    kernel(matrix.data, b, one, *arguments)
    set_num_threads(threads)
    try:
        several = np.full((m, 48), np.nan, "f4")
        kernel(matrix.data, b, several, *arguments)
    finally:
        set_num_threads(None)
    np.testing.assert_array_equal(one, several)


@pytest.mark.parametrize("operator", ["spmm", "sddmm", "spmv", "segment_reduce"])
def test_every_variant_of_a_space_is_right(operator):
    matrix = MATRICES["random"]
    (m, n), f = matrix.shape, 37
    program = getattr(schedules, operator).program()
    target = tvm_sparse.runtime.resolve_target("llvm")
    rows = np.repeat(np.arange(m), np.diff(matrix.indptr))
    left, right = (rng.standard_normal((size, f)).astype("f4") for size in (m, n))
    entries = rng.standard_normal((matrix.nnz, f)).astype("f4")
    exact = matrix.astype("f8")
    inputs, sizes, expected = {
        "spmm": ((matrix.data, right), (m, n, f, matrix.nnz), exact @ right),
        "spmv": ((matrix.data, right[:, 0].copy()), (m, n, matrix.nnz), exact @ right[:, 0]),
        "sddmm": (
            (left, right),
            (m, n, f, matrix.nnz),
            (left[rows].astype("f8") * right[matrix.indices]).sum(1),
        ),
        "segment_reduce": ((entries,), (m, f, matrix.nnz), selection(matrix) @ entries),
    }[operator]
    structure = (
        (matrix.indptr,) if operator == "segment_reduce" else (matrix.indptr, matrix.indices)
    )
    variants = getattr(cpu, operator).space(s_tir.Schedule(lower(program)), target=target)
    assert len(variants) > 1
    for variant in variants:
        result = np.full(expected.shape, np.nan, "f4")
        tvm_sparse.compile(variant, target)(*inputs, result, *structure, *sizes)
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86 processors")
@pytest.mark.parametrize("mcpu", ["x86-64", "x86-64-v2", "x86-64-v3"])
def test_narrower_vectors(mcpu):
    matrix = MATRICES["random"]
    m, n = matrix.shape
    kernel = schedules.spmm.build(target={"kind": "llvm", "mcpu": mcpu})
    for f in (1, 9, 32, 77):
        b = rng.standard_normal((n, f)).astype("f4")
        c = np.full((m, f), np.nan, "f4")
        kernel(matrix.data, b, c, matrix.indptr, matrix.indices, m, n, f, matrix.nnz)
        np.testing.assert_allclose(c, matrix.astype("f8") @ b, rtol=1e-3, atol=1e-5)


def test_a_tile_must_be_a_power_of_two_of_vectors():
    with pytest.raises(ValueError, match="width: expected lanes times a power of two, found 48"):
        cpu.RowTile(48, 16)


@pytest.mark.parametrize("operator", ["spmm", "sddmm", "spmv", "segment_reduce"])
def test_the_original_module_is_left_alone(operator):
    module = lower(getattr(schedules, operator).program())
    before = module.script()
    getattr(cpu, operator).schedule(s_tir.Schedule(module), target="llvm")
    assert module.script() == before


def test_a_wrong_name_is_refused():
    schedule = s_tir.Schedule(lower(schedules.spmm.program()))
    with pytest.raises(ValueError, match="name: expected a sparse iteration"):
        cpu.spmm.schedule(schedule, target="llvm", name="spmv")


def _as_loops(schedule: s_tir.Schedule) -> tvm.IRModule:
    passes = [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
    ]
    return tvm.transform.Sequential(passes)(schedule.mod)


def _loops(module: tvm.IRModule, kind: tirx.ForKind) -> list[tirx.For]:
    found: list[tirx.For] = []

    def visit(loop: tirx.For) -> None:
        if loop.kind == kind:
            found.append(loop)

    for func in module.functions.values():
        tvm_ffi.structural_walk(func.body, (tirx.For, visit))
    return found


def _scheduled_spmm(dtype: str = "float32", features: int | None = None) -> tvm.IRModule:
    program = schedules.spmm.program(dtype)
    bound = program if features is None else program.specialize({"f": features})
    schedule = s_tir.Schedule(lower(bound))
    cpu.spmm.schedule(schedule, target="llvm")
    return _as_loops(schedule)


def test_balanced_rows_run_in_tasks_that_search_their_rows():
    before = _scheduled_spmm()
    assert len(_loops(before, tirx.ForKind.PARALLEL)) == 1
    after = BalanceRows()(before)
    (tasks,) = _loops(after, tirx.ForKind.PARALLEL)
    searches: list[tirx.While] = []
    tvm_ffi.structural_walk(tasks.body, (tirx.While, searches.append))
    assert len(searches) == 2


def test_a_peeled_tail_has_no_predicated_vectors():
    after = PeelVectorTail()(_scheduled_spmm())
    vectors = _loops(after, tirx.ForKind.VECTORIZED)
    assert vectors
    assert not any(isinstance(loop.body, tirx.IfThenElse) for loop in vectors)
    assert "masked_store" in after.script()


@pytest.mark.parametrize("features", [None, 5, 37])
def test_lanes_that_are_off_are_not_stored_where_other_rows_are(features):
    """The sums of a half-precision product are one array: to store its old values is a race."""
    stores: list[tirx.BufferStore] = []
    module = PeelVectorTail()(_scheduled_spmm("float16", features))
    for func in module.functions.values():
        tvm_ffi.structural_walk(func.body, [(tirx.BufferStore, stores.append)])
    to_sums = [
        store.value for store in stores if store.buffer.name.rstrip("_0123456789") == "C_sum"
    ]
    assert to_sums
    assert not any(isinstance(value, tirx.Select) for value in to_sums)
    assert "masked_store" in module.script()


@pytest.mark.parametrize("entries", range(9))
def test_lanes_beyond_a_row_do_not_let_nan_in(entries):
    matrix = sp.csr_matrix(
        (
            np.ones(entries + 9, "f4"),
            ([0] * entries + [1] * 9, [*range(1, entries + 1), *range(9)]),
        ),
        shape=(2, 10),
    )
    values = np.where(np.arange(entries + 9) < entries, 1, np.nan).astype("f4")
    x = np.arange(10, dtype="f4")
    x[0] = np.nan
    result = schedules.spmv.build()(values, x, None, matrix.indptr, matrix.indices)
    assert result[0] == sum(range(1, entries + 1))
    assert np.isnan(result[1])


def test_llvm_does_not_unroll_the_loop_over_entries():
    # LLVM marks what it has unrolled.
    assert "llvm.loop.unroll.disable" not in schedules.spmv.build().inspect_source("ll")

"""What broke for users of other libraries on GPUs, run by the emulator; numbered as the reports are."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.sparse as sp

from tests.cuda.emulation import emulated, running_last, running_order
from tests.cuda.operator_cases import (
    CUDA,
    assert_sums,
    kernel_of,
    poisoned,
    random_values,
    stored,
    typed,
)
from tvm_sparse import schedules
from tvm_sparse.formats import BSR, ELL, Entries, Hyb, as_entries
from tvm_sparse.runtime import Executable
from tvm_sparse.schedules import sddmm, segment_reduce, spmm, spmv
from tvm_sparse.schedules._build import scheduled_parts

HYB = Hyb(1, [1, 2, 4])


@functools.cache
def kernel(name: str, dtype: str = "float32", index: str = "int32", features=None) -> Executable:
    """Compile a default schedule, by a name such as ``spmm``, ``spmm over hyb`` or ``segment mean``."""
    operator, _, what = name.partition(" ")
    if what.startswith("over"):
        formats = {"over hyb": HYB, "over ell": ELL(), "over blocks": BSR(16, 16)}[what]
        program = spmm.program(dtype, index)
        return emulated(scheduled_parts("parts", program, "A", formats, CUDA, features))
    if operator == "segment":
        return emulated(kernel_of(segment_reduce, segment_reduce.program(what, dtype), features))
    module = getattr(schedules, operator)
    return emulated(kernel_of(module, module.program(dtype, index), features))


def check_product(
    matrix: sp.csr_matrix, b: np.ndarray, dtype="float32", index="int32", features=None
) -> None:
    a, c = stored(matrix, dtype, index), poisoned((matrix.shape[0], b.shape[1]), dtype)
    kernel("spmm", dtype, index, features)(a=a.values, b=b, c=c, **a.structure)
    exact = b.astype("f8")
    assert_sums(c, a.exact @ exact, abs(a.exact) @ np.abs(exact), dtype)


def check_dots(pattern: sp.csr_matrix, x, y, dtype="float32", index="int32", features=None) -> None:
    a, c = stored(pattern, dtype, index), poisoned(pattern.nnz, dtype)
    kernel("sddmm", dtype, index, features)(x=x, y=y, c=c, **a.structure)
    terms = x.astype("f8")[a.rows] * y.astype("f8")[a.indices]
    assert_sums(c, terms.sum(1), np.abs(terms).sum(1), dtype)


def halves(matrix: sp.csr_matrix) -> Entries:
    """Hold a matrix in a type that SciPy has no matrices of."""
    entries = as_entries(matrix)
    return entries.with_values(entries.values.astype("f2"))


@pytest.mark.parametrize(
    "matrix",
    [
        sp.csr_matrix((1000, 700), dtype="f4"),
        sp.csr_matrix((np.ones(1, "f4"), ([999], [699])), shape=(1000, 700)),
        sp.random(1000, 1000, 2e-5, "csr", dtype="f4", random_state=0),
    ],
    ids=["no entry", "one entry", "20 entries"],
)
def test_o01_hardly_any_entries(matrix):
    """O01: no entries gave a grid of size zero, which CUDA refuses."""
    rows, columns = matrix.shape
    b, x = random_values((columns, 33), "float32"), random_values((rows, 33), "float32")
    check_product(matrix, b)
    check_dots(matrix, x, b)
    exact = matrix.astype("f8")
    y = poisoned(rows, "float32")
    kernel("spmv")(a=matrix, x=b[:, 0].copy(), y=y)
    np.testing.assert_allclose(y, exact @ b[:, 0].astype("f8"), rtol=1e-6)
    c = poisoned((rows, 33), "float32")
    kernel("spmm over hyb")(a=HYB.pack(matrix), b=b, c=c)
    np.testing.assert_allclose(c, exact @ b.astype("f8"), rtol=1e-6)
    values, reduced = random_values((matrix.nnz, 33), "float32"), poisoned((rows, 33), "float32")
    kernel("segment sum")(x=values, y=reduced, indptr=matrix.indptr)
    ones = sp.csr_matrix(
        (np.ones(matrix.nnz), np.arange(matrix.nnz), matrix.indptr), (rows, matrix.nnz)
    )
    np.testing.assert_allclose(reduced, ones @ values.astype("f8"), rtol=1e-6)


@pytest.mark.parametrize(
    "m, k, n", [(0, 10, 4), (10, 0, 4), (10, 7, 0), (0, 0, 0), (1, 1, 1), (1, 9, 1), (9, 1, 5)]
)
def test_o02_dimensions_of_length_0(m, k, n):
    """O02: extents of zero compiled fine, and then the kernel died with an illegal address."""
    matrix, b = sp.csr_matrix((m, k), dtype="f4"), np.ones((k, n), "f4")
    for features in {None, n} & {None, 0, 4}:
        check_product(matrix, b, features=features)
        check_dots(matrix, np.ones((m, n), "f4"), b, features=features)
        for name, fmt in (("hyb", HYB), ("ell", ELL())):
            c = poisoned((m, n), "float32")
            kernel(f"spmm over {name}", features=features)(a=fmt.pack(matrix), b=b, c=c)
            np.testing.assert_array_equal(c, np.zeros((m, n)))
        reduced = poisoned((m, n), "float32")
        kernel("segment mean", features=features)(
            x=np.ones((0, n), "f4"), y=reduced, indptr=matrix.indptr
        )
        np.testing.assert_array_equal(reduced, np.zeros((m, n)))
    y = poisoned(m, "float32")
    kernel("spmv")(a=matrix, x=np.ones(k, "f4"), y=y)
    np.testing.assert_array_equal(y, np.zeros(m))


@pytest.mark.parametrize(
    "is_known, width",
    [(False, width) for width in (1, 2, 3, 5, 7, 17, 31, 33, 63, 65, 100, 127, 129, 257, 1000)]
    + [(True, width) for width in (3, 33, 65, 129, 1000)],
)
def test_o04_any_number_of_features(is_known, width):
    """O04: zeros in some columns, unless the number of features was a power of two."""
    matrix = sp.random(257, 301, 0.03, "csr", dtype="f4", random_state=1)
    b = random_values((301, width), "float32")
    wider = np.full((257, width + 8), 7e37, "f4")
    kernel("spmm", features=width if is_known else None)(a=matrix, b=b, c=wider[:, :width])
    exact = matrix.astype("f8")
    terms = abs(exact) @ np.abs(b.astype("f8"))
    assert_sums(wider[:, :width], exact @ b.astype("f8"), terms, "float32")
    assert (wider[:, width:] == np.float32(7e37)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_o07_long_sums_of_half_precision(dtype):
    """O07: a running sum of ones in half precision sticks at 2048, in bfloat16 at 256."""
    count = 20000
    row = sp.csr_matrix(np.ones((1, count), "f4"))
    ones = typed(np.ones((count, 8)), dtype)
    expected = typed([[20000.0] * 8], dtype)
    a, c = stored(row, dtype), poisoned((1, 8), dtype)
    kernel("spmm", dtype, features=8)(a=a.values, b=ones, c=c, **a.structure)
    np.testing.assert_array_equal(c, expected)
    for operation, value in (("sum", expected), ("mean", typed(np.ones((1, 8)), dtype))):
        y = poisoned((1, 8), dtype)
        kernel(f"segment {operation}", dtype, features=8)(x=ones, y=y, indptr=row.indptr)
        np.testing.assert_array_equal(y, value)
    y = poisoned(1, dtype)
    kernel("spmv", dtype)(a=a.values, x=ones[:, 0].copy(), y=y, **a.structure)
    np.testing.assert_array_equal(y, expected[0, :1])
    long, dot = typed(np.ones((1, count)), dtype), poisoned(1, dtype)
    one = np.array([0, 1], "i4"), np.zeros(1, "i4")
    kernel("sddmm", dtype)(x=long, y=long, c=dot, indptr=one[0], indices=one[1])
    np.testing.assert_array_equal(dot, expected[0, :1])


@pytest.mark.parametrize("name, fmt", [("hyb", HYB), ("blocks", BSR(16, 16))])
def test_o07_long_sums_of_half_precision_over_formats(name, fmt):
    """O07 on CUDA cores and tensor cores: 4096 ones."""
    packed = fmt.pack(halves(sp.csr_matrix(np.ones((1, 4096), "f4"))))
    c = poisoned((1, 8), "float16")
    kernel(f"spmm over {name}", "float16", features=8)(a=packed, b=np.ones((4096, 8), "f2"), c=c)
    np.testing.assert_array_equal(c, np.full((1, 8), 4096))


ROWS, WIDTH = 2**31 // 256 + 2, 256


def lazy_zeros() -> np.ndarray:
    """An array of 4.3 GB, whose memory is taken where it is touched."""
    try:
        return np.zeros((ROWS, WIDTH), "f2")
    except MemoryError:
        pytest.skip("no address space for 4.3 GB")


@pytest.mark.parametrize("name", ["spmm", "spmm over hyb", "spmm over ell"])
@pytest.mark.parametrize("features", [WIDTH, None])
def test_o09_more_offsets_into_the_operand_than_32_bits_count(name, features):
    """O09: each index is small, but rows times features exceed 2**31."""
    b = lazy_zeros()
    b[-1] = np.arange(WIDTH)
    matrix = sp.csr_matrix(
        (np.ones(1, "f2"), np.array([ROWS - 1], "i4"), np.array([0, 1], "i4")), (1, ROWS)
    )
    c = poisoned((1, WIDTH), "float16")
    if name == "spmm":
        arguments = {"a": matrix.data, "indptr": matrix.indptr, "indices": matrix.indices}
    else:
        arguments = {"a": {"hyb": HYB, "ell": ELL()}[name[-3:]].pack(halves(matrix))}
    kernel(name, "float16", features=features)(b=b, c=c, **arguments)
    np.testing.assert_array_equal(c[0], np.arange(WIDTH))


@pytest.mark.parametrize("features", [WIDTH, None])
def test_o09_more_offsets_into_both_operands_of_dot_products(features):
    x = lazy_zeros()
    x[-1] = 1
    y = x[::-1][:1].copy()
    indptr = np.zeros(ROWS + 1, "i4")
    indptr[-1] = 2
    c = poisoned(2, "float16")
    kernel("sddmm", "float16", features=features)(
        x=x, y=np.vstack([y, 2 * y]), c=c, indptr=indptr, indices=np.array([0, 1], "i4")
    )
    np.testing.assert_array_equal(c, [256, 512])


@pytest.mark.parametrize("features", [WIDTH, None])
def test_o09_more_offsets_into_the_result(features):
    """Rows of one entry each; of the grid, the last blocks run."""
    b = typed(np.arange(WIDTH)[None], "float16")
    c, values = lazy_zeros(), np.ones(ROWS, "f2")
    indptr, indices = np.arange(ROWS + 1, dtype="i4"), np.zeros(ROWS, "i4")
    with running_last(2):
        kernel("spmm", "float16", features=features)(
            a=values, b=b, c=c, indptr=indptr, indices=indices
        )
    np.testing.assert_array_equal(c[-3:], np.vstack([b] * 3))
    assert not c[:3].any()


def test_o09_more_offsets_into_segments_and_their_results():
    x, y = lazy_zeros(), lazy_zeros()
    x[-1] = np.arange(WIDTH)
    with running_last(2):
        kernel("segment mean", "float16", features=WIDTH)(
            x=x, y=y, indptr=np.arange(ROWS + 1, dtype="i4")
        )
    np.testing.assert_array_equal(y[-1], np.arange(WIDTH))
    assert not y[-2].any()


SCHEDULES = {
    "spmm": lambda: kernel_of(spmm, spmm.program(), 32),
    "spmm, shared rows": lambda: kernel_of(spmm, spmm.program(), 32, share=16),
    "spmm over hyb": lambda: scheduled_parts("parts", spmm.program(), "A", HYB, CUDA, 32),
    "spmv": lambda: kernel_of(spmv, spmv.program()),
    "spmv, shared rows": lambda: kernel_of(spmv, spmv.program(), share=16),
    "segment sum, shared rows": lambda: kernel_of(
        segment_reduce, segment_reduce.program("sum"), 32, share=16
    ),
    "sddmm": lambda: kernel_of(sddmm, sddmm.program(), 32),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_o15_the_same_bits_in_any_order(name):
    """O15: sums by atomic additions depend on which block comes first."""
    call = emulated(SCHEDULES[name]())
    assert "atomic" not in call.inspect_source()
    matrix = sp.random(300, 300, 0.05, "csr", dtype="f4", random_state=7)
    rng = np.random.default_rng(0)
    b = (rng.standard_normal((300, 32)) * 10.0 ** rng.integers(-4, 5, (300, 1))).astype("f4")
    structure = {"indptr": matrix.indptr, "indices": matrix.indices}
    arguments = {
        "spmm": {"a": matrix, "b": b, "c": poisoned((300, 32), "float32")},
        "spmv": {"a": matrix, "x": b[:, 0].copy(), "y": poisoned(300, "float32")},
        "segment": {
            "x": b[matrix.indices],
            "indptr": matrix.indptr,
            "y": poisoned((300, 32), "float32"),
        },
        "sddmm": {"x": b, "y": b, "c": poisoned(matrix.nnz, "float32"), **structure},
    }[name.split()[0].rstrip(",")]
    if "hyb" in name:
        arguments["a"] = HYB.pack(matrix)
    result = arguments["y" if name.startswith(("spmv", "segment")) else "c"]
    found = []
    for order, seed in [("forward", 0), ("reverse", 0), *(("shuffled", seed) for seed in range(6))]:
        result[...] = np.nan
        with running_order(order, seed):
            call(**arguments)
        assert np.isfinite(result).all()
        found.append(result.tobytes())
    assert len(set(found)) == 1


@pytest.mark.parametrize("features", [2, 3, 4, 7, 8, 32, 64])
def test_o40_indices_of_64_bits_beside_vectors(features):
    """O40: a vector of indices mixed two widths where the number of features was even."""
    matrix = sp.random(33, 40, 0.2, "csr", dtype="f4", random_state=17)
    b, x = random_values((40, features), "float32"), random_values((33, features), "float32")
    check_product(matrix, typed(b, "float16"), "float16", "int64", features)
    check_product(matrix, b, "float32", "int64", features)
    check_dots(matrix, typed(x, "float16"), typed(b, "float16"), "float16", "int64", features)

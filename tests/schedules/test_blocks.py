"""Products with blocks of entries are right for every width, size and kind of padding."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from tvm_sparse import schedules
from tvm_sparse.formats import BSR, CSR, DBSR, SRBCRS, Composition

rng = np.random.default_rng(5)
FORMATS = {
    "bsr1x1": BSR(1, 1),
    "bsr4x4": BSR(4, 4),
    "bsr3x5": BSR(3, 5),
    "bsr16x8": BSR(16, 8),
    "dbsr4x2": DBSR(4, 2),
    "sr_bcrs8x4": SRBCRS(8, 4),
    "blocks_and_rest": Composition({"blocks": BSR(4, 4, min_fill=0.5), "rest": CSR()}),
}
WIDTHS = (1, 3, 15, 16, 17, 32, 40, 64, 100, 128, 200)


def _matrix(rows: int, columns: int) -> sp.csr_matrix:
    """Full blocks, blocks with holes, blocks that stick out, explicit zeros and empty block rows."""
    dense = np.zeros((rows, columns), "f4")
    dense[4:12, 4:16] = rng.standard_normal(dense[4:12, 4:16].shape)
    dense[20:30] = rng.standard_normal(dense[20:30].shape) * (rng.random(dense[20:30].shape) < 0.3)
    dense[-3:, -5:] = rng.standard_normal(dense[-3:, -5:].shape)
    matrix = sp.csr_matrix(dense)
    matrix.data[::7] = 0
    return matrix


MATRICES = {
    "ragged": _matrix(61, 37),
    "even": _matrix(48, 80),
    "no entries": sp.csr_matrix((50, 70), dtype="f4"),
    "no rows": sp.csr_matrix((0, 10), dtype="f4"),
    "no columns": sp.csr_matrix((10, 0), dtype="f4"),
}


@pytest.fixture(scope="module", params=FORMATS)
def chosen(request):
    return FORMATS[request.param], schedules.spmm.build(formats=FORMATS[request.param])


@pytest.mark.parametrize("name", MATRICES)
def test_every_width(chosen, name):
    fmt, kernel = chosen
    matrix = MATRICES[name]
    packed = fmt.pack(matrix)
    for f in WIDTHS:
        b = rng.standard_normal((matrix.shape[1], f)).astype("f4")
        base = np.full(matrix.shape[0] * f + 64, np.nan, "f4")
        c = base[: matrix.shape[0] * f].reshape(matrix.shape[0], f)
        kernel(a=packed, b=b, c=c)
        exact = matrix.astype("f8")
        assert (np.abs(c - exact @ b) <= 1e-5 * (abs(exact) @ np.abs(b)) + 1e-30).all()
        assert np.isnan(base[matrix.shape[0] * f :]).all()


def test_padding_meets_no_infinity(chosen):
    fmt, kernel = chosen
    matrix = MATRICES["ragged"]
    b = rng.standard_normal((matrix.shape[1], 40)).astype("f4")
    unused = np.setdiff1d(np.arange(matrix.shape[1]), matrix.indices)
    b[[*unused, 5]] = np.inf
    expected = np.zeros((matrix.shape[0], 40), "f4")
    with np.errstate(invalid="ignore"):
        for row in range(matrix.shape[0]):
            entries = slice(matrix.indptr[row], matrix.indptr[row + 1])
            for value, column in zip(matrix.data[entries], matrix.indices[entries]):
                expected[row] += value * b[column]
        found = kernel(a=fmt.pack(matrix), b=b)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "int32"])
@pytest.mark.parametrize("name", ["bsr4x4", "sr_bcrs8x4"])
def test_other_value_types(name, dtype):
    matrix = MATRICES["ragged"]
    whole = rng.integers(-5, 6, matrix.nnz).astype(dtype)
    exact = sp.csr_matrix((whole.astype("f8"), matrix.indices, matrix.indptr), matrix.shape)
    kernel = schedules.spmm.build(dtype=dtype, formats=FORMATS[name])
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    packed = FORMATS[name].pack(((rows, matrix.indices), whole, matrix.shape))
    for f in (3, 16, 40, 64):
        b = rng.integers(-5, 6, (matrix.shape[1], f)).astype(dtype)
        np.testing.assert_array_equal(kernel(a=packed, b=b), exact @ b.astype("f8"))


@pytest.mark.parametrize("features", [1, 5, 16, 48, 128])
def test_kernels_for_one_width(features):
    matrix = MATRICES["ragged"]
    b = rng.standard_normal((matrix.shape[1], features)).astype("f4")
    for fmt in (BSR(4, 4), BSR(16, 16), BSR(7, 3)):
        kernel = schedules.spmm.build(formats=fmt, features=features)
        found = kernel(a=fmt.pack(matrix), b=b)
        np.testing.assert_allclose(found, matrix @ b, rtol=1e-4, atol=1e-5)


def test_many_blocks_in_parallel():
    pattern = sp.random(128, 64, 0.3, "csr", dtype="f4", random_state=1)
    values = rng.standard_normal((pattern.nnz, 8, 8)).astype("f4")
    matrix = sp.bsr_matrix((values, pattern.indices, pattern.indptr))
    b = rng.standard_normal((matrix.shape[1], 64)).astype("f4")
    fmt = BSR(8, 8)
    found = schedules.spmm.build(formats=fmt)(a=fmt.pack(matrix), b=b)
    np.testing.assert_allclose(found, matrix.astype("f8") @ b, rtol=1e-3, atol=1e-3)

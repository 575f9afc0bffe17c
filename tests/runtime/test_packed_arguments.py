"""A kernel over formats takes tensors in those formats, and refuses all others by name."""

import numpy as np
import pytest
import scipy.sparse as sp

import tvm_sparse
from tvm_sparse import schedules
from tvm_sparse.formats import BSR, CSC, CSF, CSR, DIA, ELL, Composition

#: Square, so that rows taken for columns would pass every check of shapes.
MATRIX = sp.random(20, 20, 0.2, "csr", dtype="f4", random_state=0)
DENSE = np.random.default_rng(0).standard_normal((20, 4)).astype("f4")
EXPECTED = MATRIX @ DENSE
PARTS = Composition({"blocks": BSR(2, 2, min_fill=0.5), "rest": CSR()})


@pytest.fixture(scope="module")
def build():
    """Kernels by format, each compiled once."""
    kernels = {}

    def get(fmt):
        if repr(fmt) not in kernels:
            kernels[repr(fmt)] = schedules.spmm.build(formats=fmt)
        return kernels[repr(fmt)]

    return get


@pytest.mark.parametrize("fmt", [CSR(), CSC(), BSR(2, 2)], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("layout", ["csr", "csc", "bsr", "coo"])
def test_matrices_stand_for_formats_that_scipy_has(build, fmt, layout):
    result = build(fmt)(a=MATRIX.asformat(layout), b=DENSE)
    np.testing.assert_allclose(result, EXPECTED, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fmt", [ELL(), DIA(), CSF(2, order=[1, 0])], ids=lambda fmt: fmt.name)
def test_matrices_do_not_stand_for_other_formats(build, fmt):
    with pytest.raises(TypeError, match=f"'a': expected a tensor packed as {fmt.name}, found a sp"):
        build(fmt)(a=MATRIX, b=DENSE)


@pytest.mark.parametrize(
    "fmt, other",
    [(CSC(), CSR()), (CSR(), CSC()), (CSF(2, order=[1, 0]), CSF(2)), (BSR(2, 2), BSR(4, 4))],
    ids=lambda fmt: fmt.name,
)
def test_other_formats_with_the_same_arrays_are_refused(build, fmt, other):
    with pytest.raises(TypeError, match=f"packed as {fmt.name}, found one packed as {other.name}"):
        build(fmt)(a=other.pack(MATRIX), b=DENSE)


def test_parts_of_other_formats_are_refused(build):
    other = Composition({"blocks": BSR(4, 4, min_fill=0.5), "rest": CSR()})
    with pytest.raises(TypeError, match="bsr2x2 for 'a_blocks', found one packed as bsr4x4"):
        build(PARTS)(a=other.pack(MATRIX), b=DENSE)


def test_a_matrix_does_not_stand_for_a_sum_of_parts(build):
    with pytest.raises(TypeError, match=r"sum of parts \(a_blocks as bsr2x2, a_rest as csr\)"):
        build(PARTS)(a=MATRIX, b=DENSE)


@pytest.mark.parametrize("fmt", [CSR(), ELL(), DIA()], ids=lambda fmt: fmt.name)
def test_a_tensor_in_one_format_does_not_stand_for_a_sum_of_parts(build, fmt):
    with pytest.raises(TypeError, match=rf"a_rest as csr\), found <Packed {fmt.name}: 20x20"):
        build(PARTS)(a=fmt.pack(MATRIX), b=DENSE)


def test_arrays_that_the_layout_does_not_declare_are_named(build):
    class Extra(CSR):
        def store(self, entries, index_dtype):
            storage = super().store(entries, index_dtype)
            storage.arrays["extra"] = storage.slots
            return storage

    with pytest.raises(TypeError, match="'a': its layout declares no array 'a_extra'"):
        build(CSR())(a=Extra().pack(MATRIX), b=DENSE)


def test_packed_tensors_are_passed_by_name(build):
    with pytest.raises(TypeError, match="expected packed tensors by name, as in a=, found one as"):
        build(PARTS)(PARTS.pack(MATRIX), DENSE)


def test_a_kernel_without_formats_says_what_to_pass():
    with pytest.raises(TypeError, match=r"it holds 'a' in no format, pass unpack\(\)"):
        schedules.spmm.build()(a=CSR().pack(MATRIX), b=DENSE)


def test_exported_kernels_know_their_formats(build, tmp_path):
    loaded = tvm_sparse.load(build(CSC()).export_library(tmp_path / "spmm.so"))
    np.testing.assert_allclose(loaded(a=MATRIX, b=DENSE), EXPECTED, rtol=1e-5, atol=1e-5)
    with pytest.raises(TypeError, match="packed as csc, found one packed as csr"):
        loaded(a=CSR().pack(MATRIX), b=DENSE)

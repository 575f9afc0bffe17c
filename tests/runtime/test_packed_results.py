"""A packed tensor as a result: its entries are written, its padding stays padding."""

import numpy as np
import pytest
import scipy.sparse as sp

import tvm_sparse
from tvm_sparse import SparseSchedule, schedules
from tvm_sparse.formats import BSR, CSR, DIA, ELL, SRBCRS, Composition, Hyb

rng = np.random.default_rng(0)
X, Y = rng.standard_normal((2, 30, 8)).astype("f4")
Y[3] = 0  # results of zero, which padding must not be mistaken for
PATTERN = sp.random(30, 30, 0.2, "csr", dtype="f4", random_state=1)
PRODUCT = PATTERN.copy()
PRODUCT.data = np.einsum("ik,ik->i", X[PATTERN.nonzero()[0]], Y[PATTERN.indices])


def decomposed(program, operand, formats):
    schedule = SparseSchedule(program)
    schedule.decompose_format(program.name, operand, formats)
    return tvm_sparse.compile(schedule)


@pytest.mark.parametrize(
    "fmt",
    [
        CSR(),
        ELL(),
        BSR(2, 2),
        DIA(),
        SRBCRS(2, 2),
        Hyb(2, [2, 4]),
        Composition({"blocks": BSR(2, 2, min_fill=0.5), "rest": CSR()}),
    ],
    ids=repr,
)
def test_a_result_is_the_operand_of_the_next_kernel(fmt):
    packed = fmt.pack(PATTERN)
    decomposed(schedules.sddmm.program(), "C", fmt)(x=X, y=Y, c=packed)
    packed.check()
    assert packed.unpack().nnz == PATTERN.nnz
    np.testing.assert_allclose(packed.unpack().toarray(), PRODUCT.toarray(), rtol=1e-4, atol=1e-5)
    dense = rng.standard_normal((30, 4)).astype("f4")
    result = decomposed(schedules.spmm.program(), "A", fmt)(a=packed, b=dense)
    np.testing.assert_allclose(result, PRODUCT @ dense, rtol=1e-4, atol=1e-4)


def test_padding_written_through_the_arrays_is_restored_when_asked():
    packed = BSR(2, 2).pack(sp.csr_matrix(np.eye(3, dtype="f4")))
    packed.values[:] = 7
    packed.restore_padding()
    packed.check()
    assert packed.unpack().toarray().tolist() == (7 * np.eye(3)).tolist()

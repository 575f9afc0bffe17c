"""Complex values in ``einsum``: both parts, and the structure of the products."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given

import tvm_sparse
from tests.workspace.einsum_oracle import check
from tests.workspace.einsum_problems import SETTINGS, problem

EXPRESSIONS = [
    "ij->ji",
    "ik,kj->ij",
    "ij,ij,ij->ij",
    "ik,kl,lj->ij",
    "ij+ji->ij",
    "ik,kj-0.5*ij->ij",
    "ij,ji->",
    "ii->i",
    "ijk,kl->ijl",
    "ikl,kj,lj->ij",
    "i,j->ij",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_products_of_complex_and_real_operands(expression):
    @SETTINGS
    @given(problem(expression, ("complex128", "float64", "complex64", "int32")))
    def run(operands):
        check(tvm_sparse.einsum(expression, *operands), expression, *operands)

    run()


def matrices(count, dtype="complex128"):
    rng = np.random.default_rng(3)
    found = []
    for _ in range(count):
        matrix = sp.random_array((20, 20), density=0.2, rng=rng, format="csr")
        matrix = matrix.astype(dtype)
        if matrix.dtype.kind == "c":
            matrix.data += 1j * rng.standard_normal(matrix.nnz).astype(matrix.data.real.dtype)
        found.append(matrix)
    return found


@pytest.mark.parametrize(
    "left, right, result",
    [
        ("complex64", "complex64", "complex64"),
        ("complex64", "float32", "complex64"),
        ("complex64", "float64", "complex128"),
        ("complex64", "int32", "complex128"),
        ("complex64", "bool", "complex64"),
        ("complex128", "complex64", "complex128"),
    ],
)
def test_types_are_those_of_numpy(left, right, result):
    a, b = matrices(1, left)[0], matrices(2, right)[1]
    found = tvm_sparse.einsum("ik,kj->ij", a, b)
    assert found.dtype == np.result_type(a, b) == result
    check(found, "ik,kj->ij", a, b, tolerance=1e-5 if result == "complex64" else 1e-12)


def test_a_type_may_be_asked_for():
    (a,) = matrices(1)
    found = tvm_sparse.einsum("ij->ij", a, dtype="complex64")
    assert found.dtype == np.complex64
    found = tvm_sparse.einsum("ij->ij", a.real, dtype="complex128")
    assert found.dtype == np.complex128 and not found.imag.count_nonzero()
    with pytest.raises(TypeError, match="dtype: expected one that holds results of complex128"):
        tvm_sparse.einsum("ij->ij", a, dtype="float64")


def test_no_entry_is_lost_when_a_part_cancels():
    a = sp.csr_array(np.array([[1 + 1j, 1 - 1j]]))
    found = tvm_sparse.einsum("ik,jk->ij", a, sp.csr_array(np.array([[1j, 1j], [0, 1]])))
    assert found.toarray().tolist() == [[2j, 1 - 1j]]
    found = tvm_sparse.einsum("ij-ij->ij", a, a)
    assert found.nnz == 2 and not found.data.any()
    assert tvm_sparse.einsum("ij-ij->ij", a, a, prune=True).nnz == 0
    imaginary = sp.csr_array(np.array([[1j, 0]]))
    assert tvm_sparse.einsum("ij->ij", imaginary, prune=True).nnz == 1


@pytest.mark.parametrize("out", ["csr", "csc", "coo", "dcsr", "bsr", "dense"])
def test_results_come_as_asked_for(out):
    a, b = matrices(2)
    options = {"blocksize": (4, 5)} if out == "bsr" else {}
    found = tvm_sparse.einsum("ik,kj->ij", a, b, out=out, **options)
    dense = found if out == "dense" else (found.unpack() if out == "dcsr" else found).toarray()
    np.testing.assert_allclose(dense, (a @ b).toarray(), atol=1e-12)


def test_plans_compute_for_new_values():
    a, b, c = matrices(3)
    expression = "ik,kl,lj - 2*ij -> ij"
    plan = tvm_sparse.einsum_plan(expression, a, b, c, a)
    for scale in (1j, 2 - 1j):
        operands = a * scale, b.tocsc(), c, a
        check(plan(*operands), expression, *operands)
    check(plan.first_result(), expression, a, b, c, a)


def test_a_real_term_has_no_imaginary_part():
    """Not even one of NaN, where it is infinite."""
    a = sp.csr_array(np.array([[1j, 0]]))
    b = sp.csr_array(np.array([[0, np.inf]]))
    found = tvm_sparse.einsum("ij+ij->ij", a, b)
    assert found.data.tolist() == [1j, complex(np.inf, 0)]


def test_masks_and_dense_operands():
    a, b, mask = matrices(3)
    dense = b.toarray()
    for complement in (False, True):
        options = {"mask": mask, "complement": complement}
        found = tvm_sparse.einsum("ik,kj->ij", a, dense, **options)
        check(found, "ik,kj->ij", a, dense, **options)


@pytest.mark.parametrize("semiring", ["min-plus", "max-times", "max-min"])
def test_complex_values_have_no_order(semiring):
    a, b = matrices(2)
    with pytest.raises(
        TypeError, match="expected 'plus-times' for complex operands, which have no"
    ):
        tvm_sparse.einsum("ik,kj->ij", a, b, semiring=semiring)
    assert tvm_sparse.einsum("ik,kj->ij", a, b, semiring="or-and").dtype == bool

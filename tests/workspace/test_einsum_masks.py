"""Masked results of ``einsum``: entries where a structure has some, or where it has none."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given

import tvm_sparse
from tests.workspace.einsum_oracle import check
from tests.workspace.einsum_problems import SETTINGS, problem
from tvm_sparse.formats import DCSR

EXPRESSIONS = [
    "ik,kj->ij",
    "ki,kj->ij",
    "ij->ji",
    "ij+ij->ij",
    "ik,kj-2*ij->ij",
    "ik,kl,lj->ij",
    "ij->j",
    "i,j->ij",
    "ijk,kl->ijl",
    "bik,bkj->bij",
    "ij,jk->ijk",
    "ijkl,ijkl->ijkl",
]


@pytest.mark.parametrize("complement", [False, True])
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_masked_results(expression, complement):
    @SETTINGS
    @given(problem(expression, masked=True))
    def run(operands):
        *operands, mask = operands
        options = {"mask": mask, "complement": complement}
        found = tvm_sparse.einsum(expression, *operands, **options)
        check(found, expression, *operands, **options)

    run()


@functools.cache
def matrices(count=3, size=30):
    rng = np.random.default_rng(5)
    return tuple(
        sp.csr_array(sp.random_array((size, size), density=0.15, rng=rng)) for _ in range(count)
    )


SEMIRINGS = ["min-plus", "max-plus", "max-times", "min-times", "max-min", "min-max", "or-and"]


@pytest.mark.parametrize("complement", [False, True])
@pytest.mark.parametrize("semiring", SEMIRINGS)
@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_masks_multiply_as_one_in_every_semiring(semiring, complement, dtype):
    a, b, mask = (sp.csr_array(10 * own).astype(dtype) for own in matrices())
    a.data[::3] *= -1
    options = {"mask": mask, "complement": complement, "semiring": semiring}
    check(tvm_sparse.einsum("ik,kj->ij", a, b, **options), "ik,kj->ij", a, b, **options)
    check(tvm_sparse.einsum("ij->ij", a, **options), "ij->ij", a, **options)


@pytest.mark.parametrize("complement", [False, True])
@pytest.mark.parametrize("out", ["csr", "csc", "coo", "dcsr", "bsr", "dense"])
def test_masked_results_come_as_asked_for(out, complement):
    a, b, mask = matrices()
    options = {"blocksize": (5, 3)} if out == "bsr" else {}
    found = tvm_sparse.einsum(
        "ik,kj->ij", a, b, mask=mask, complement=complement, out=out, **options
    )
    dense = found if out == "dense" else (found.unpack() if out == "dcsr" else found).toarray()
    expected = np.where((mask.toarray() != 0) != complement, (a @ b).toarray(), 0)
    np.testing.assert_allclose(dense, expected)


def test_explicit_zeros_of_a_mask_count():
    a = sp.csr_array(np.ones((2, 2)))
    mask = sp.csr_array((np.zeros(2), ([0, 1], [0, 1])), shape=(2, 2))
    assert tvm_sparse.einsum("ij->ij", a, mask=mask).toarray().tolist() == [[1, 0], [0, 1]]
    found = tvm_sparse.einsum("ij->ij", a, mask=mask, complement=True)
    assert found.toarray().tolist() == [[0, 1], [1, 0]]


def test_masks_come_as_operands_do():
    a, b, mask = matrices()
    expected = tvm_sparse.einsum("ik,kj->ij", a, b, mask=mask)
    twice = sp.coo_array(sp.vstack([mask.tocoo()]))
    row, column = (np.concatenate([own, own[::-1]]) for own in twice.coords)
    repeated = sp.coo_array((np.ones(row.size), (row, column)), shape=mask.shape)
    for own in (mask.tocsc(), repeated, DCSR().pack(mask), mask.toarray(), mask.toarray() != 0):
        found = tvm_sparse.einsum("ik,kj->ij", a, b, mask=own)
        assert np.array_equal(found.indices, expected.indices)
        np.testing.assert_array_equal(found.data, expected.data)


@pytest.mark.parametrize("complement", [False, True])
def test_masks_that_are_empty_or_full(complement):
    a, b, _ = matrices()
    for mask in (sp.csr_array(a.shape), np.ones(a.shape), sp.csr_array(np.ones(a.shape))):
        options = {"mask": mask, "complement": complement}
        check(tvm_sparse.einsum("ik,kj->ij", a, b, **options), "ik,kj->ij", a, b, **options)


@pytest.mark.parametrize("complement", [False, True])
def test_masks_over_dense_operands(complement):
    a, b, mask = matrices()
    for operands in ([a.toarray(), b], [a, b.toarray()], [a.toarray(), b.toarray()]):
        options = {"mask": mask, "complement": complement}
        found = tvm_sparse.einsum("ik,kj->ij", *operands, **options)
        check(found, "ik,kj->ij", *operands, **options)


def test_a_thin_mask_spares_products():
    """A plain mask is no filter of what was computed: loops run over its entries."""
    a, b, _ = matrices(3, 300)
    mask = sp.csr_array((np.ones(3), ([0, 7, 9], [3, 1, 8])), shape=(300, 300))
    plan = tvm_sparse.einsum_plan("ik,kj->ij", a, b, mask=mask)
    assert len(plan.functions) == 1
    text = str(plan)
    assert "mask ('ij'): levels i, j (as stored), 3 entries, drives loops" in text
    check(plan(a, b), "ik,kj->ij", a, b, mask=mask)
    text = str(tvm_sparse.einsum_plan("ik,kj->ij", a, b, mask=mask, complement=True))
    assert "3 entries, excludes" in text


@pytest.mark.parametrize("complement", [False, True])
def test_plans_keep_their_mask(complement):
    a, b, mask = matrices()
    options = {"mask": mask, "complement": complement}
    plan = tvm_sparse.einsum_plan("ik,kj-ij->ij", a, b, a, **options)
    for scale in (2, -3):
        check(plan(scale * a, b, a), "ik,kj-ij->ij", scale * a, b, a, **options)


@pytest.mark.parametrize("complement", [False, True])
def test_masks_of_sizes_beyond_64_bits(complement):
    rng = np.random.default_rng(5)
    shapes = {"ij,jk->ik": [(70_000, 70_000)] * 3, "ijkl,ijkl->ijkl": [(2**20,) * 4] * 3}
    for expression, own in shapes.items():
        a, b, mask = (
            sp.coo_array((np.ones(400), tuple(rng.integers(0, 40, 400) for _ in s)), shape=s)
            for s in own
        )
        options = {"mask": mask, "complement": complement}
        check(tvm_sparse.einsum(expression, a, b, **options), expression, a, b, **options)


@pytest.mark.parametrize("complement", [False, True])
@pytest.mark.parametrize("shape", [(1, 9), (9, 1), (1, 1)])
def test_single_rows_columns_and_special_values(shape, complement):
    a = sp.csr_array(
        np.array([np.nan, np.inf, 0, 1, -1, 2, 0, -np.inf, 3])[: max(shape)].reshape(shape)
    )
    mask = sp.csr_array(np.arange(max(shape)).reshape(shape) % 2)
    options = {"mask": mask, "complement": complement}
    check(tvm_sparse.einsum("ij->ij", a, **options), "ij->ij", a, **options)


def test_masks_that_are_refused():
    a, b, _ = matrices()
    with pytest.raises(ValueError, match="mask: expected a result with dimensions, found '->'"):
        tvm_sparse.einsum("ij,ij->", a, b, mask=a)
    with pytest.raises(ValueError, match=r"mask \('ij'\): expected 2 dimensions"):
        tvm_sparse.einsum("ik,kj->ij", a, b, mask=np.ones(3))
    with pytest.raises(TypeError, match=r"mask \('ij'\): expected a SciPy sparse matrix"):
        tvm_sparse.einsum("ik,kj->ij", a, b, mask="upper")


@pytest.mark.parametrize("workspace", ["dense", "list", "hash", "sort", "merge", "bucket"])
def test_masked_results_with_every_workspace(workspace):
    a, b, mask = matrices()
    for complement in (False, True):
        options = {"mask": mask, "complement": complement}
        found = tvm_sparse.einsum("ki,kj->ij", a, b, workspace=workspace, **options)
        check(found, "ki,kj->ij", a, b, **options)


def test_complemented_masks_are_looked_up_once_an_entry_where_products_meet():
    """Many products meet at few places: these are found first."""
    rng = np.random.default_rng(0)
    a, b = (sp.random_array((300, 300), density=0.3, rng=rng, format="csr") for _ in range(2))
    options = {"mask": b, "complement": True}
    plan = tvm_sparse.einsum_plan("ik,kj->ij", a, b, **options)
    assert len(plan.functions) == 2
    check(plan.first_result(), "ik,kj->ij", a, b, **options)

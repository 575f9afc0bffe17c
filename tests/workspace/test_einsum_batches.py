"""Lists of matrices as batches of ``einsum``, whose members differ in structure and in size."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import tvm_sparse
from tests.workspace.einsum_oracle import check
from tvm_sparse.formats import CSR, DCSR


def batch(shapes, seed=0, format="csr"):
    rng = np.random.default_rng(seed)
    return [sp.random_array(shape, density=0.3, rng=rng, format=format) for shape in shapes]


RAGGED = [(3, 4), (1, 2), (5, 0), (0, 3), (7, 6)]


@pytest.mark.parametrize("shapes", [[(5, 6)] * 4, RAGGED, [(4, 4)]])
def test_batched_products_are_those_of_block_diagonals(shapes):
    left, right = batch(shapes), batch([(k, 1 + k % 3) for _, k in shapes], seed=1)
    found = tvm_sparse.einsum("bik,bkj->bij", left, right)
    check(found, "bik,bkj->bij", left, right)
    assert found.shape == (len(shapes), max(m for m, _ in shapes), max(b.shape[1] for b in right))
    expected = (sp.block_diag(left) @ sp.block_diag(right)).toarray()
    row = column = 0
    for number, (a, b) in enumerate(zip(left, right)):
        height, width = a.shape[0], b.shape[1]
        block = expected[row : row + height, column : column + width]
        own = found.coords[0] == number
        parts = found.data[own], tuple(c[own] for c in found.coords[1:])
        dense = sp.coo_array(parts, shape=found.shape[1:]).toarray()[:height, :width]
        np.testing.assert_allclose(dense, block, atol=1e-12)
        row, column = row + height, column + width


@pytest.mark.parametrize("expression", ["bij->bi", "bij->ji", "bij,bij->", "bij,jk->bik", "bii->b"])
def test_batches_stand_for_tensors(expression):
    shapes = [(4, 4), (2, 2), (3, 3)]
    shared = sp.random_array((4, 5), density=0.4, rng=np.random.default_rng(3))
    known = {"bij": batch(shapes), "bii": batch(shapes), "jk": shared}
    operands = [known[letters] for letters in expression.split("->")[0].split(",")]
    check(tvm_sparse.einsum(expression, *operands), expression, *operands)


def test_members_come_in_any_format():
    plain = batch([*RAGGED[:2], (2, 5)])
    mixed = [plain[0].tocsc(), CSR().pack(plain[1]), DCSR().pack(plain[2])]
    check(tvm_sparse.einsum("bij->bji", tuple(mixed)), "bij->bji", plain)
    tensors = [
        sp.random_array((2, 3, 4), density=0.3, rng=np.random.default_rng(n)) for n in range(3)
    ]
    check(tvm_sparse.einsum("bijk->bik", tensors), "bijk->bik", tensors)
    # Three matrices are no coordinates, values and shape.
    assert tvm_sparse.einsum("bij->", tuple(batch([(2, 2)] * 3))).shape == ()


def test_plans_take_batches_of_the_same_structure():
    left, right = batch(RAGGED), batch([(k, 3) for _, k in RAGGED], seed=1)
    plan = tvm_sparse.einsum_plan("bik,bkj->bij", left, right)
    again = [3 * own for own in left]
    check(plan(again, [own.tocsc() for own in right]), "bik,bkj->bij", again, right)
    with pytest.raises(
        ValueError, match=r"operand 0 \('bik'\): expected the structure that was plan"
    ):
        plan(left[::-1], right)


def test_masks_may_be_batches():
    left, mask = batch(RAGGED), batch(RAGGED, seed=4)
    for complement in (False, True):
        options = {"mask": mask, "complement": complement}
        check(tvm_sparse.einsum("bij->bij", left, **options), "bij->bij", left, **options)


def test_batches_that_do_not_fit_are_refused():
    left, right = batch([(2, 3), (2, 5)]), batch([(5, 2), (3, 2)])
    message = (
        r"operand 1 \('bkj'\): tensor 0: expected size 3 for letter 'k', as tensor 0 of operand 0 "
        r"\('bik'\) has, found 5"
    )
    with pytest.raises(ValueError, match=message):
        tvm_sparse.einsum("bik,bkj->bij", left, right)
    with pytest.raises(ValueError, match=r"operand 0 \('ij'\): expected 2 dimensions"):
        tvm_sparse.einsum("ij->ij", left)
    with pytest.raises(
        ValueError, match=r"operand 0 \('bij'\)\[1\]: expected 2 dimensions, found 1"
    ):
        tvm_sparse.einsum("bij->ij", [left[0], sp.coo_array(np.ones(3))])
    for other in ([left[0], None], (np.ones((2, 2)), left[0])):
        number = int(other[0] is left[0])
        with pytest.raises(
            TypeError, match=rf"operand 0 \('bij'\)\[{number}\]: expected a SciPy sparse matrix or"
        ):
            tvm_sparse.einsum("bij->ij", other)
    for other in ([], [np.ones((2, 2))]):
        with pytest.raises(
            TypeError, match=r"operand 0 \('bij'\): expected a SciPy sparse matrix or"
        ):
            tvm_sparse.einsum("bij->ij", other)

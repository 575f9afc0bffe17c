"""Kernels of the literature, by ``einsum``: structure exactly, values within rounding.

Structures are drawn at random and small: empty operands and rows, sizes of zero and one, explicit zeros,
values that cancel, unsorted and repeated coordinates.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given

import tvm_sparse
from tests.workspace.einsum_oracle import check
from tests.workspace.einsum_problems import SETTINGS, problem
from tvm_sparse.formats import CSF, DCSR

FAMILIES = {
    "product": "ik,kj->ij",
    "product by outer products": "ki,kj->ij",
    "product by inner products": "ik,jk->ij",
    "product of transposed operands": "ki,jk->ij",
    "sum of two": "ij+ij->ij",
    "sum of four": "ij+ij+ij+ij->ij",
    "product and sum": "ik,kj+ij->ij",
    "sum of products": "ik,kj+il,lj->ij",
    "chain": "ik,kl,lj->ij",
    "transposition": "ij->ji",
    "permutation": "kijl->ljik",
    "elementwise, order 1": "i,i->i",
    "elementwise, order 2": "ij,ij->ij",
    "elementwise, order 3": "ijk,ijk->ijk",
    "elementwise, order 4": "ijkl,ijkl->ijkl",
    "elementwise, transposed": "ij,ji->ij",
    "elementwise, three": "ij,ij,ij->ij",
    "sampled product": "ij,ik,kj->ij",
    "MTTKRP, mode 1": "ikl,kj,lj->ij",
    "MTTKRP, mode 2": "kli,kj,lj->ij",
    "MTTKRP, order 4": "iklm,kj,lj,mj->ij",
    "TTM": "ijk,kl->ijl",
    "TTM, mode 1": "kij,kl->ijl",
    "TTM, semi-sparse": "kijl,kx->xijl",
    "TTV": "ijk,k->ij",
    "TTV, mode 1": "kij,k->ij",
    "contraction": "ijk,klm->ijlm",
    "contraction of two modes": "ijk,jkl->il",
    "contraction of first modes": "ijk,ijl->kl",
    "batched product": "bik,bkj->bij",
    "shared batch": "bik,kj->bij",
    "triangles": "ij,jk,ik->",
    "trace": "ij,ji->",
    "total": "ij->",
    "row sums": "ij->i",
    "column sums": "ij->j",
    "matrix and vector": "ij,j->i",
    "outer product": "i,j->ij",
    "outer product of matrices": "ij,kl->ikjl",
    "scaled rows": "i,ij->ij",
    "scaled rows and columns": "i,ij,j->ij",
    "paths kept": "ij,jk->ijk",
    "cycle kept": "ij,jk,ki->ijk",
    "three factors of one row": "ix,iy,iz->xyz",
    "gather and scatter": "koi,id,kdc->oc",
    "difference of products": "ik,kj-jk,ki->ij",
    "diagonal": "ii,ij->ij",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name):
    expression = FAMILIES[name]

    @SETTINGS
    @given(problem(expression))
    def run(operands):
        check(tvm_sparse.einsum(expression, *operands), expression, *operands)

    run()


@functools.cache
def matrices(dtype="float64"):
    """Two matrices whose product has rows without entries, cancelled entries and full ones."""
    rng = np.random.default_rng(3)
    left = sp.random_array((30, 20), density=0.15, rng=rng, format="csr")
    right = sp.random_array((20, 25), density=0.15, rng=rng, format="csr")
    left.data, right.data = (rng.choice([-1, 1, 2], m.nnz).astype(dtype) for m in (left, right))
    left.indptr[5:9] = left.indptr[5]
    left = sp.csr_array((left.data[: left.indptr[-1]], left.indices, left.indptr), shape=left.shape)
    return left, right


@pytest.mark.parametrize("out", ["csr", "csc", "coo", "dcsr"])
def test_results_come_as_asked_for(out):
    left, right = matrices()
    found = tvm_sparse.einsum("ik,kj->ij", left, right, out=out)
    check(found, "ik,kj->ij", left, right)
    assert getattr(found, "format", None) == out or found.format.name == out


def test_dense_results_hold_what_products_sum_to():
    left, right = matrices()
    found = tvm_sparse.einsum("ik,kj->ij", left, right, out="dense")
    np.testing.assert_allclose(found, left.toarray() @ right.toarray())
    found = tvm_sparse.einsum("ik,kj->ij", left, right, out="dense", semiring="min-plus")
    assert np.isposinf(found[5]).all()


def test_dense_truth_values_are_false_where_nothing_meets():
    left, right = matrices()
    expected = (left != 0).astype(int) @ (right != 0).astype(int) > 0
    left, right = (m.astype(bool) for m in (left, right))
    found = tvm_sparse.einsum("ik,kj->ij", left, right, out="dense")
    assert found.dtype == bool and np.array_equal(found, expected.toarray())
    nothing = sp.csr_array((30, 30), dtype=bool)
    assert tvm_sparse.einsum("ij,ij->", nothing, nothing) == np.False_
    stored = sp.csr_array((np.array([True, False]), ([0, 1], [0, 1])), shape=(2, 2))
    assert tvm_sparse.einsum("ij->ij", stored).nnz == 2
    assert tvm_sparse.einsum("ij->ij", stored, prune=True).nnz == 1


SEMIRINGS = ["min-plus", "max-plus", "max-times", "min-times", "max-min", "min-max", "or-and"]


@pytest.mark.parametrize("semiring", SEMIRINGS)
def test_semirings(semiring):
    for expression in ("ik,kj->ij", "ij,jk,ki->"):
        left, right = matrices()
        operands = [left, right]
        if expression.endswith(">"):
            operands = [left @ left.T, left, left.T]
            expression = "ij,jk,ki->"
        found = tvm_sparse.einsum(expression, *operands, semiring=semiring)
        check(found, expression, *operands, semiring=semiring)


@pytest.mark.parametrize("semiring", ["max-times", "min-plus"])
def test_chains_in_other_semirings(semiring):
    """A negative factor turns maxima around, so this product must not be split in pairs."""
    left, right = matrices()
    operands = [left, right, right.T]
    found = tvm_sparse.einsum("ik,kl,lj->ij", *operands, semiring=semiring)
    check(found, "ik,kl,lj->ij", *operands, semiring=semiring)


DENSE = {
    "ij,jk->ik": (1,),
    "ij,j->i": (1,),
    "ij,ij->ij": (1,),
    "ij,ik,jk->ij": (1, 2),
    "ijk,kl->ijl": (1,),
    "ikl,kj,lj->ij": (1, 2),
    "ij+ij->ij": (1,),
    "bik,bkj->bij": (0,),
    "ij,jk,k->i": (1, 2),
    "ij->ji": (0,),
}


@pytest.mark.parametrize("expression", DENSE)
@pytest.mark.parametrize("out", ["csr", "dense"])
def test_dense_operands_have_entries_everywhere(expression, out):
    rng = np.random.default_rng(1)
    sizes = dict(zip("bijkl", (2, 6, 7, 5, 4)))
    operands = []
    for number, letters in enumerate(expression.split("->")[0].replace("+", ",").split(",")):
        shape = tuple(sizes[letter] for letter in letters)
        tensor = sp.random_array(shape, density=0.3, rng=rng)
        operands.append(rng.random(shape) if number in DENSE[expression] else tensor)
    found = tvm_sparse.einsum(expression, *operands, out=out)
    if out == "csr":
        check(found, expression, *operands)
        return
    arrays = [own if isinstance(own, np.ndarray) else own.toarray() for own in operands]
    left, result = expression.split("->")
    numbers = iter(arrays)
    terms = [(term, [next(numbers) for _ in term.split(",")]) for term in left.split("+")]
    expected = sum(np.einsum(f"{term}->{result}", *own) for term, own in terms)
    np.testing.assert_allclose(found, expected)


def test_packed_tensors_of_any_order():
    rng = np.random.default_rng(2)
    tensor = sp.random_array((4, 5, 6), density=0.2, rng=rng)
    packed = CSF().pack(tensor) if _takes_order(CSF) else tensor
    matrix = sp.random_array((6, 3), density=0.4, rng=rng, format="csr")
    found = tvm_sparse.einsum("ijk,kl->ijl", packed, DCSR().pack(matrix))
    check(found, "ijk,kl->ijl", tensor, matrix)


def _takes_order(kind) -> bool:
    try:
        kind()
    except TypeError:
        return False
    return True


def test_letters_that_stand_together_share_kernels():
    """Contractions of tensors of any order are products of matrices: nothing new is compiled."""
    from tvm_sparse.einsum.program import compiled

    rng = np.random.default_rng(4)
    tvm_sparse.einsum("ik,kj->ij", *matrices())
    before = compiled.cache_info().misses
    for expression, shapes in {
        "ijk,kl->ijl": [(3, 4, 5), (5, 6)],
        "ijk,klm->ijlm": [(3, 4, 5), (5, 6, 2)],
        "ijk,jkl->il": [(3, 4, 5), (4, 5, 6)],
        "bik,bkj->bij": [(3, 4, 5), (3, 5, 6)],
        "AB,BC->AC": [(3, 4), (4, 5)],
    }.items():
        operands = [sp.random_array(shape, density=0.4, rng=rng) for shape in shapes]
        check(tvm_sparse.einsum(expression, *operands), expression, *operands)
    assert compiled.cache_info().misses == before


def test_sizes_beyond_memory_and_keys_beyond_64_bits():
    """Rows of 70 000 columns and tensors of 2**60 and more places, of few entries."""
    rng = np.random.default_rng(5)

    def tensor(*shape):
        coordinates = tuple(np.sort(rng.choice(n, 40)) for n in shape)
        return sp.coo_array((np.ones(40), coordinates), shape=shape)

    huge = 2**31 - 1
    cases = {
        "ij,jk->ik": [tensor(70_000, 70_000), tensor(70_000, 70_000)],
        "ij+ij->ij": [tensor(huge, huge), tensor(huge, huge)],
        "ijk,kl->ijl": [tensor(2**30, 2**30, 50), tensor(50, 2**30)],
        "ijkl,ijkl->ijkl": [tensor(2**20, 2**20, 2**20, 2**20)] * 2,
        "ijk,ijl->kl": [tensor(huge, huge, 50), tensor(huge, huge, 50)],
    }
    for expression, operands in cases.items():
        out = "coo" if huge in operands[0].shape else "csr"
        check(tvm_sparse.einsum(expression, *operands, out=out), expression, *operands)


def test_results_do_not_depend_on_what_was_computed_before():
    left, right = matrices()
    results = [tvm_sparse.einsum("ik,kj->ij", left, right) for _ in range(3)]
    for found, again in itertools.pairwise(results):
        assert (found.data == again.data).all()

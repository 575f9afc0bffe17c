"""Differences, coefficients and repeated letters in expressions of ``einsum``."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given

import tvm_sparse
from tests.workspace.einsum_oracle import check, expect
from tests.workspace.einsum_problems import SETTINGS, problem
from tvm_sparse.einsum.expression import parse

EXPRESSIONS = [
    "ij-ij->ij",
    "-ij->ji",
    "2*ij + -0.5*ij -> ij",
    "ik,kj - 0.25*ij -> ij",
    "-.15*ik,kl,lj + 3.*ij -> ij",
    "2*ij,ji - .5*ij -> ",
    "ij - 2*ji + 3*ij - ji -> ij",
    "ii->i",
    "ii->",
    "iij->ij",
    "iji,jk->ik",
    "iijj->ij",
    "iiii->i",
    "ij,jj,ji->i",
    "ii - 2*i -> i",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions(expression):
    @SETTINGS
    @given(problem(expression))
    def run(operands):
        check(tvm_sparse.einsum(expression, *operands), expression, *operands)

    run()


@pytest.mark.parametrize(
    "expression, dtypes, result",
    [
        ("ij-ij->ij", ("int8", "int8"), "int64"),
        ("ij-ij->ij", ("uint8", "uint32"), "int64"),
        ("ij-ij->ij", ("bool", "bool"), "int64"),
        ("2*ij+ij->ij", ("bool", "bool"), "int64"),
        ("0.5*ij+ij->ij", ("int32", "bool"), "float64"),
        ("1.0*ij+ij->ij", ("int32", "int64"), "float64"),
        ("0.5*ij+ij->ij", ("float32", "float32"), "float32"),
        ("2*ij+ij->ij", ("uint64", "uint64"), "uint64"),
    ],
)
def test_types_are_those_of_numpy(expression, dtypes, result):
    rng = np.random.default_rng(0)
    operands = [sp.random_array((6, 5), density=0.4, rng=rng, format="csr") for _ in dtypes]
    for own, dtype in zip(operands, dtypes):
        own.data = rng.integers(1, 4, own.nnz).astype(dtype)
    found = tvm_sparse.einsum(expression, *operands)
    assert found.dtype == result
    check(found, expression, *operands)


def test_numbers_are_read_as_python_writes_them():
    found = parse("-1.5e-1*ij + 2*ij - 3.*ij + -.5*ij - -1E2*ij -> ij").coefficients
    assert found == (-0.15, 2, -3.0, -0.5, 100.0)
    assert [type(own) for own in found] == [float, int, float, float, float]
    assert str(parse("2 * ik, kj - ij -> ij")) == "2*ik,kj-ij->ij"


def test_integers_stay_exact():
    big = sp.csr_matrix(np.array([[2**62 - 1, 5]]))
    found = tvm_sparse.einsum("2*ij - ij -> ij", big, big)
    assert found.dtype == np.int64 and found.toarray().tolist() == [[2**62 - 1, 5]]


def test_cancelled_entries_and_special_values_stay():
    a = sp.csr_matrix(np.array([[1.0, np.inf], [np.nan, 0.0]]))
    found = tvm_sparse.einsum("ij-ij->ij", a, a)
    assert found.nnz == a.nnz == 3
    np.testing.assert_array_equal(found.data, [0, np.nan, np.nan])
    assert tvm_sparse.einsum("ij-ij->ij", a, a, prune=True).nnz == 2


def test_plans_honour_coefficients_for_new_values():
    rng = np.random.default_rng(1)
    expression = "2*ik,kj - 0.5*ij + ii,ij -> ij"
    operands = [sp.random_array((9, 9), density=0.3, rng=rng) for _ in range(5)]
    plan = tvm_sparse.einsum_plan(expression, *operands)
    for _ in range(3):
        operands = [sp.coo_array((rng.random(a.nnz), a.coords), shape=a.shape) for a in operands]
        check(plan(*operands), expression, *operands)


def test_coefficients_are_no_part_of_a_kernel():
    from tvm_sparse.einsum.program import compiled

    a = sp.eye_array(4, format="csr")
    tvm_sparse.einsum("ij+ij->ij", a, a)
    before = compiled.cache_info().misses
    for number in ("2*", "-3.5*", "-"):
        tvm_sparse.einsum(f"ij+{number}ij->ij", a, a)
    assert compiled.cache_info().misses == before


def test_plans_take_entries_in_another_order():
    rng = np.random.default_rng(2)
    a = sp.random_array((9, 8), density=0.3, rng=rng, format="csr")
    b = sp.random_array((8, 7), density=0.3, rng=rng, format="csr")
    plan = tvm_sparse.einsum_plan("ik,kj->ij", a, b)
    check(plan(a.tocsc(), 2 * b.tocsc()), "ik,kj->ij", a, 2 * b)
    shuffled = rng.permutation(a.nnz)
    coordinates = tuple(own[shuffled] for own in a.tocoo().coords)
    mixed = sp.coo_array((a.data[shuffled], coordinates), shape=a.shape)
    check(plan(mixed, b), "ik,kj->ij", a, b)
    again = tvm_sparse.einsum_plan("ik,kj->ij", mixed, b.tocsc())
    for own in (a, a.tocsc(), mixed):
        check(again(own, 3 * b), "ik,kj->ij", a, 3 * b)
    twice = sp.coo_array((np.arange(4.0), ([0, 1, 0, 1], [1, 0, 1, 0])), shape=(2, 2))
    plan = tvm_sparse.einsum_plan("ij->ji", twice)
    turned = sp.coo_array((np.arange(4.0)[::-1], ([1, 0, 1, 0], [0, 1, 0, 1])), shape=(2, 2))
    check(plan(turned), "ij->ji", turned)


@pytest.mark.parametrize("out", ["coo", "dense"])
def test_diagonals_of_dense_arrays(out):
    array = np.random.default_rng(0).random((4, 4, 3))
    matrix = sp.random_array((3, 5), density=0.5, rng=np.random.default_rng(1))
    for expression, operands in {
        "iij->ij": [array],
        "iij,jk->ik": [array, matrix],
        "iij->": [array],
    }.items():
        found = tvm_sparse.einsum(expression, *operands, out=out)
        if out == "coo":
            check(found, expression, *operands)
            continue
        dense = [own if isinstance(own, np.ndarray) else own.toarray() for own in operands]
        np.testing.assert_allclose(found, np.einsum(expression, *dense))


@pytest.mark.parametrize("semiring", ["min-plus", "or-and", "max-min"])
def test_differences_are_refused_where_there_are_none(semiring):
    a = sp.eye_array(3, format="csr")
    message = f"expected sums without differences and coefficients over semiring '{semiring}'"
    for expression in ("ij-ij->ij", "2*ij+ij->ij", "-ij+ij->ij"):
        with pytest.raises(ValueError, match=message):
            tvm_sparse.einsum(expression, a, a, semiring=semiring)


def test_coefficients_that_types_do_not_hold_are_refused():
    a = sp.csr_matrix(np.array([[1, 2]], "uint64"))
    with pytest.raises(
        TypeError, match="expected signed integers or real numbers for a difference"
    ):
        tvm_sparse.einsum("ij-ij->ij", a, a)
    with pytest.raises(TypeError, match="dtype: expected one that holds results of float64, found"):
        tvm_sparse.einsum("0.5*ij->ij", a, dtype="int32")
    with pytest.raises(ValueError, match="expected coefficients of 64 bits"):
        tvm_sparse.einsum("10000000000000000000*ij->ij", a.astype("int64"))


def test_keys_beyond_64_bits():
    huge = 2**31 - 1
    places = np.array([0, 5, huge - 1])
    a = sp.coo_array((np.ones(3), (places, places)), shape=(huge, huge))
    check(tvm_sparse.einsum("ij-2*ji->ij", a, a, out="coo"), "ij-2*ji->ij", a, a)
    found = tvm_sparse.einsum("ii->i", a)
    assert found.coords[0].tolist() == places.tolist()
    assert expect("ii->", a).values == tvm_sparse.einsum("ii->", a) == 3

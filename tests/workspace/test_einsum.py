"""``einsum``: types, structure, plans for new values, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import tvm_ffi

import tvm_sparse
from tests.workspace.einsum_oracle import check, expect
from tvm_sparse.einsum.program import compiled
from tvm_sparse.script import from_source


def csr(rows, dtype="float32"):
    return sp.csr_matrix(np.array(rows, dtype))


# --- what users of other libraries ran into --------------------------------------------------------


def test_small_integers_and_truth_values_do_not_wrap():
    """O10: sums of uint8 roll over at 256; a union of many truth values becomes False."""
    a = csr([[200, 100], [1, 0]], "u1")
    ones = np.ones((2, 1), "u1")
    found = tvm_sparse.einsum("ik,kj->ij", a, sp.csr_matrix(ones))
    assert found.dtype == np.int64 and found[0, 0] == 300
    assert tvm_sparse.einsum("ik,kj->ij", a, ones, out="dense")[0, 0] == 300
    assert tvm_sparse.einsum("ij,ij->", a, a) == 200**2 + 100**2 + 1
    # Repeated coordinates of narrow operands are added up in the wide type too.
    twice = sp.coo_array((np.array([200, 200], "u1"), ([0, 0], [1, 1])), shape=(1, 2))
    assert tvm_sparse.einsum("ij->ji", twice)[1, 0] == 400
    many = sp.csr_matrix(np.ones((1, 300), bool))
    reach = tvm_sparse.einsum("ik,kj->ij", many, many.T)
    assert reach.dtype == bool and reach[0, 0]
    assert tvm_sparse.einsum("ik,jk->ij", many, many, dtype="int64")[0, 0] == 300
    with pytest.raises(
        ValueError, match=r"dtype: expected one that holds 200 \.\. 300, found uint8"
    ):
        tvm_sparse.einsum("ij->i", csr([[200, 100], [200, 0]], "u1"), dtype="uint8")


def test_equal_calls_give_equal_bits():
    """O15: the same input gives other bits from run to run."""
    rng = np.random.default_rng(7)
    a = sp.random(400, 400, 0.05, "csr", dtype="f4", random_state=7)
    b = sp.random(400, 400, 0.05, "csr", dtype="f4", random_state=8)
    b.data *= 10.0 ** rng.integers(-4, 5, b.nnz)
    first = tvm_sparse.einsum("ik,kj->ij", a, b)
    plan = tvm_sparse.einsum_plan("ik,kj->ij", a, b)
    for _ in range(20):
        found = tvm_sparse.einsum("ik,kj->ij", a, b)
        assert np.array_equal(found.data, first.data)
        assert np.array_equal(found.indices, first.indices)
    assert np.array_equal(plan(a, b).data, first.data)


def test_product_without_common_indices_is_an_empty_matrix():
    """O20: row pointers of an empty result are garbage."""
    a = csr([[1, 0, 2, 0], [3, 0, 4, 0]])
    b = csr([[0, 0], [5, 6], [0, 0], [7, 8]])
    empty_a, empty_b = sp.csr_matrix(a.shape, dtype="f4"), sp.csr_matrix(b.shape, dtype="f4")
    for left, right in [(a, b), (empty_a, b), (a, empty_b), (empty_a, empty_b)]:
        found = tvm_sparse.einsum("ik,kj->ij", left, right)
        assert found.nnz == 0 and found.indptr.tolist() == [0, 0, 0]
        assert found.indices.size == found.data.size == 0
        assert found.dtype == np.float32 and found.shape == (2, 2)
    partly = tvm_sparse.einsum("ik,kj->ij", csr([[0, 0, 0, 0], [0, 1, 0, 0]]), b)
    assert partly.indptr.tolist() == [0, 0, 2]


def test_structure_is_that_of_products_sorted_and_usable_again():
    """O21: cancelled entries vanish or not, columns are sorted or not."""
    a = csr([[1, -1, 0], [0, 2, 3]])
    b = csr([[1, 0, 4], [1, 0, 0], [0, 5, 6]])
    found = tvm_sparse.einsum("ik,kj->ij", a, b)
    assert found.nnz == 5 and found[0, 0] == 0
    assert found.indices.tolist() == [0, 2, 0, 1, 2]
    pruned = tvm_sparse.einsum("ik,kj->ij", a, b, prune=True)
    assert pruned.nnz == 4 and (pruned != found).nnz == 0
    plan = tvm_sparse.einsum_plan("ik,kj->ij", a, b)
    new = a.copy()
    new.data[:] = [1, 2, 3, 4]
    np.testing.assert_array_equal(plan(new, b).toarray(), (new @ b).toarray())
    unsorted = sp.csr_matrix((b.data[[1, 0, 2, 3, 4]], b.indices[[1, 0, 2, 3, 4]], b.indptr))
    again = tvm_sparse.einsum("ik,kj->ij", a, unsorted)
    assert again.indices.tolist() == found.indices.tolist()


def test_reduction_over_the_outer_index_merges_partial_sums():
    """O22: partial sums are listed as entries of their own."""
    x = csr([[3, 5, 0], [2, 9, 1], [4, 0, 6]])
    y = csr([[0, 1, 8], [5, 0, 2], [7, 3, 0]])
    found = tvm_sparse.einsum("ij,il->jl", x, y)
    check(found, "ij,il->jl", x, y)
    np.testing.assert_array_equal(found.toarray(), (x.T @ y).toarray())


# --- types -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "left, right, result",
    [
        ("float32", "float32", "float32"),
        ("float32", "float64", "float64"),
        ("int32", "int32", "int64"),
        ("int8", "float32", "float32"),
        ("uint64", "uint8", "uint64"),
        ("bool", "bool", "bool"),
        ("bool", "int16", "int64"),
        ("int64", "float32", "float64"),
    ],
)
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_types(left, right, result, index):
    rng = np.random.default_rng(0)
    a = sp.random_array((9, 8), density=0.3, rng=rng, format="csr")
    b = sp.random_array((8, 7), density=0.3, rng=rng, format="csr")
    for matrix, dtype in ((a, left), (b, right)):
        matrix.data = rng.integers(1, 4, matrix.nnz).astype(dtype)
        matrix.indices, matrix.indptr = matrix.indices.astype(index), matrix.indptr.astype(index)
    found = tvm_sparse.einsum("ik,kj->ij", a, b)
    assert found.dtype == result and found.indices.dtype == index
    expected = expect("ik,kj->ij", a, b, semiring="or-and" if result == "bool" else "plus-times")
    np.testing.assert_array_equal(found.data, expected.values.astype(result))


def test_half_precision_is_added_up_in_single():
    a = np.full((1, 4096), 1, "float16")
    found = tvm_sparse.einsum("ik,jk->ij", sp.csr_matrix(a.astype("float32")), a, out="dense")
    assert found.dtype == np.float32 and found[0, 0] == 4096
    assert tvm_sparse.einsum("ij->i", a, out="dense", dtype="float16").dtype == np.float16


def test_matrices_and_arrays_of_scipy_give_their_own_kind():
    a = sp.eye_array(3, format="csr")
    assert isinstance(tvm_sparse.einsum("ij,jk->ik", a, a), sp.csr_array)
    matrix = sp.csr_matrix(a)
    assert isinstance(tvm_sparse.einsum("ij,jk->ik", matrix, a), sp.csr_matrix)
    assert isinstance(tvm_sparse.einsum("ij,jk->ik", a, a, out="csc"), sp.csc_array)


# --- plans -----------------------------------------------------------------------------------------


PLANNED = {
    "ik,kj->ij": [(9, 8), (8, 7)],
    "ij+ji->ij": [(9, 9), (9, 9)],
    "bik,bkj->bij": [(3, 5, 6), (3, 6, 4)],
    "ij,jk,ki->": [(9, 9), (9, 9), (9, 9)],
    "ik,kl,lj->ij": [(9, 8), (8, 7), (7, 6)],
}


@pytest.mark.parametrize("expression", PLANNED)
def test_plans_compute_for_new_values(expression):
    rng = np.random.default_rng(1)
    operands = [sp.random_array(s, density=0.3, rng=rng) for s in PLANNED[expression]]
    plan = tvm_sparse.einsum_plan(expression, *operands)
    for _ in range(3):
        operands = [sp.coo_array((rng.random(a.nnz), a.coords), shape=a.shape) for a in operands]
        check(plan(*operands), expression, *operands)
    check(tvm_sparse.einsum(expression, *operands), expression, *operands)


def test_plans_refuse_other_structures():
    a = csr([[1, 0], [1, 1]])
    plan = tvm_sparse.einsum_plan("ij,jk->ik", a, np.ones((2, 2), "f4"))
    message = r"operand 0 \('ij'\): expected the structure that was planned for"
    with pytest.raises(ValueError, match=message):
        plan(csr([[1, 1], [1, 0]]), np.ones((2, 2), "f4"))
    with pytest.raises(ValueError, match=r"operand 1 \('jk'\): expected a dense array of shape"):
        plan(a, np.ones((2, 3), "f4"))
    with pytest.raises(TypeError, match="operands: expected 2"):
        plan(a)
    with pytest.raises(
        ValueError, match=r"operand 0 \('ij'\): expected a sparse tensor, as planned"
    ):
        plan(a.toarray(), np.ones((2, 2), "f4"))
    with pytest.raises(
        ValueError, match=r"expected a dense array of shape \(2, 2\), as planned, found csr"
    ):
        plan(a, a)
    with pytest.raises(
        TypeError, match="expected values that convert to float32, as planned, found"
    ):
        plan(a.astype("complex64"), np.ones((2, 2), "f4"))
    whole = tvm_sparse.einsum_plan("ij->ji", csr([[1, 2]], "int32"))
    assert whole(csr([[1, 2]], "int8")).dtype == np.int64
    with pytest.raises(
        TypeError,
        match=r"expected values that convert to int32, as planned, found float32; make a new plan",
    ):
        whole(csr([[1.5, 2.5]]))


def test_programs_are_printed_and_parse_back():
    a = sp.random_array((9, 9), density=0.3, rng=np.random.default_rng(0))
    cases = [("ij,jk->ik", 2, "plus-times"), ("ij,jk,ki->", 3, "plus-times")]
    # Not split in pairs: an axis is attached to one that is attached itself.
    cases += [("ij+ij->ij", 2, "plus-times"), ("ij,jk,kl->il", 3, "max-times")]
    for expression, count, semiring in cases:
        plan = tvm_sparse.einsum_plan(expression, *[a] * count, semiring=semiring)
        for func in plan.functions:
            assert tvm_ffi.structural_equal(func, from_source(func.script()))


def test_explanations_name_loops_conversions_workspace_and_phases(capsys):
    a = sp.random_array((9, 9), density=0.3, rng=np.random.default_rng(0))
    tvm_sparse.einsum("ki,kj->ij", a, a, explain=True)
    text = capsys.readouterr().out
    for part in (
        "loops i (i), k (k), j (j)",
        "operand 0 ('ki'): levels i, k (brought to this order)",
        "operand 1 ('kj'): levels k, j (as stored)",
        "workspace of 1 dimension(s) over j",
        "phases check, work, count, fill",
    ):
        assert part in text


def test_the_work_phase_counts_products():
    rng = np.random.default_rng(0)
    a, b = (sp.random_array((30, 30), density=0.2, rng=rng) for _ in range(2))
    for expression in ("ik,kj->ij", "ij+ij->ij"):
        assert _work(expression, a, b) == expect(expression, a, b).products


def test_the_work_phase_searches_nothing_so_that_it_bounds_products():
    rng = np.random.default_rng(0)
    a, b = (sp.random_array((30, 30), density=density, rng=rng) for density in (0.2, 0.1))
    assert expect("ij,ij->ij", a, b).products < _work("ij,ij->ij", a, b) <= min(a.nnz, b.nnz)


def _work(expression, *operands):
    plan = tvm_sparse.einsum_plan(expression, *operands)
    (step,) = plan._steps
    kernel = compiled(step.program.text, "auto")
    known = kernel._bind((), step.program.call.arguments(plan._values))
    return kernel._work(known).sum()


def test_a_product_with_a_mask_is_left_whole_where_the_mask_is_thin():
    rng = np.random.default_rng(0)
    a = sp.random_array((300, 300), density=0.2, rng=rng, format="csr")
    thin = sp.random_array((300, 300), density=0.0005, rng=rng, format="csr")
    assert len(tvm_sparse.einsum_plan("ij,ik,kj->ij", thin, a, a).functions) == 1
    # A chain is computed in pairs: paths that meet are merged.
    assert len(tvm_sparse.einsum_plan("ij,jk,kl->il", a, a, a).functions) == 2


# --- real matrices ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cora", "citeseer", "p2p_gnutella31"])
def test_real_matrices(name):
    arrays = load(name)
    structure = np.ones(arrays["indices"].size), arrays["indices"].astype("int32"), arrays["indptr"]
    matrix = sp.csr_array(structure, shape=tuple(arrays["shape"]))
    check(tvm_sparse.einsum("ik,kj->ij", matrix, matrix), "ik,kj->ij", matrix, matrix)
    check(tvm_sparse.einsum("ij+ji->ij", matrix, matrix), "ij+ji->ij", matrix, matrix)
    count = tvm_sparse.einsum("ij,jk,ki->", matrix, matrix, matrix)
    np.testing.assert_allclose(count, (matrix @ matrix).multiply(matrix.T).sum())


def test_a_real_tensor():
    arrays = load("splatt_med_tensor")
    tensor = sp.coo_array((arrays["vals"], tuple(arrays["coords"].T)), shape=tuple(arrays["shape"]))
    rng = np.random.default_rng(0)
    left, right = (
        sp.random_array((size, 8), density=0.3, rng=rng, dtype="float32", format="csr")
        for size in tensor.shape[1:]
    )
    operands = tensor, left, right
    found = tvm_sparse.einsum("ikl,kj,lj->ij", *operands)
    check(found, "ikl,kj,lj->ij", *operands, tolerance=1e-5)


def load(name):
    """Return the arrays of a data set, where there are any beside the checkout."""
    for folder in Path(__file__).resolve().parents:
        path = folder / "shared" / "data" / f"{name}.npz"
        if path.is_file():
            return np.load(path)
    pytest.skip(f"{name} is not here")


# --- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression, message",
    [
        ("ij,jk", r"expression: expected '->' and the letters of the result"),
        ("i1,jk->ik", "operand 0: expected letters a-z or A-Z, found '1' in 'i1'"),
        ("ij,jk->ii", "result: expected each letter once, found 'ii'"),
        ("ij,jk->ix", r"term 0 \('ij,jk'\): expected all letters of the result 'ix', found no 'x'"),
        (
            "ij,jk+ij->ik",
            r"term 1 \('ij'\): expected all letters of the result 'ik', found no 'k'; mult",
        ),
        ("ij+->ij", "operand 1: expected letters, one for each dimension, found none"),
        ("ij---ij->ij", "expected one sign before a term, found '---'"),
        ("--ij,jk->ij", "expected one sign before a term, found '--'"),
        ("2ij,jk->ik", "operand 0: expected letters a-z or A-Z, found '2' in '2ij'"),
        (",jk->jk", "operand 0: expected letters, one for each dimension, found none"),
    ],
)
def test_expressions_that_are_refused(expression, message):
    a = csr([[1, 0], [0, 1]])
    with pytest.raises(ValueError, match=message):
        tvm_sparse.einsum(expression, a, a)


def test_operands_that_are_refused():
    a, wide = csr([[1, 0], [0, 1]]), csr([[1, 0, 2]])
    with pytest.raises(TypeError, match=r"operands: expected 2 for 'ij,jk->ik', found 1"):
        tvm_sparse.einsum("ij,jk->ik", a)
    with pytest.raises(ValueError, match=r"operand 1 \('jkl'\): expected 3 dimensions"):
        tvm_sparse.einsum("ij,jkl->ikl", a, a)
    message = (
        r"operand 1 \('jk'\): expected size 2 for letter 'j', as operand 0 \('ij'\) has, found 1"
    )
    with pytest.raises(ValueError, match=message):
        tvm_sparse.einsum("ij,jk->ik", a, wide)
    with pytest.raises(TypeError, match=r"operand 1 \('jk'\): expected a SciPy sparse matrix"):
        tvm_sparse.einsum("ij,jk->ik", a, [[1, 2], [3, 4]])
    with pytest.raises(
        TypeError, match="operands: expected integers, truth values, real or complex numbers"
    ):
        tvm_sparse.einsum("ij,jk->ik", a, a.astype("longdouble"))
    with pytest.raises(
        ValueError, match=r"operand 0 \('ii'\): expected equal sizes where letter 'i'"
    ):
        tvm_sparse.einsum("ii->i", wide)
    broken = a.copy()
    broken.indices[0] = 7
    with pytest.raises(
        ValueError, match=r"operand 0 \('ij'\): expected coordinates of dimension 1"
    ):
        tvm_sparse.einsum("ij,jk->ik", broken, a)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"out": "ell"}, "out: expected one of csr, csc, coo, dcsr, bsr, dense, found 'ell'"),
        ({"semiring": "plus"}, "semiring: expected one of plus-times, min-plus"),
        ({"workspace": "none"}, "workspace: expected one of .*, found 'none'"),
        ({"dtype": "int32"}, "dtype: expected one that holds results of float32, found int32"),
        ({"dtype": "longdouble"}, "dtype: expected one of integers, real or complex numbers"),
        ({"dtype": "flaot"}, "dtype: expected a dtype of NumPy, found 'flaot'"),
        ({"complement": True}, "complement: expected a mask to complement, found none"),
        ({"mask": sp.eye(3)}, r"mask \('ik'\): expected size 2 for letter 'i', as operand 0"),
        ({"out": "bsr"}, "blocksize: expected rows and columns of a block with out='bsr'"),
        ({"out": "bsr", "blocksize": 2}, "blocksize: expected rows and columns that divide"),
        ({"out": "bsr", "blocksize": (1, 3)}, "blocksize: expected rows and columns that divide"),
        ({"blocksize": (1, 1)}, "blocksize: expected rows and columns of a block with out='bsr'"),
    ],
)
def test_options_that_are_refused(options, message):
    a = csr([[1, 0], [0, 1]])
    with pytest.raises((TypeError, ValueError), match=message):
        tvm_sparse.einsum("ij,jk->ik", a, a, **options)


def test_rows_beyond_memory_are_refused_by_name():
    rng = np.random.default_rng(0)
    shape = 2000, 4_000_000
    coordinates = [tuple(rng.integers(0, size, 80_000) for size in shape) for _ in range(3)]
    a, b, c = (sp.coo_array((np.ones(80_000), own), shape=shape) for own in coordinates)
    message = (
        r"expected rows of the result that workspace 'dense' can hold in memory, found rows of"
    )
    with pytest.raises(ValueError, match=message):
        tvm_sparse.einsum("ix,iy,iz->xyz", a, b, c, workspace="dense")


def test_compressed_results_are_matrices():
    a = csr([[1, 0], [0, 1]])
    with pytest.raises(ValueError, match="out: expected csr, coo or dense for a result of 1 dim"):
        tvm_sparse.einsum("ij->i", a, out="csc")
    assert tvm_sparse.einsum("ij->i", a).format == "coo"

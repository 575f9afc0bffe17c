"""Unfit arguments are refused with an error that names the argument, the expected and the found."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
import tvm

import tvm_sparse
from tvm_sparse import schedules
from tvm_sparse.runtime import axis_checks
from tvm_sparse.runtime.checked_structures import CAPACITY, CheckedStructures
from tvm_sparse.runtime.dimensions import dimension
from tvm_sparse.runtime.structure import check_order, check_padded_rows, check_row_lengths

INDICES, DATA = np.array([0, 1, 2], "i4"), np.ones(3, "f4")
DENSE = np.ones((3, 2), "f4")


def call(spmm, indptr, indices=INDICES, data=DATA, **options):
    out = np.full((3, 2), np.nan, "f4")
    result = spmm(data, DENSE, out, indptr, indices, 3, 3, 2, len(indices), **options)
    return result


@pytest.mark.parametrize(
    ("indptr", "message"),
    [
        ([1, 2, 3, 3], "expected the first pointer to be 0, found 1"),
        ([0, 1, 2, 9], "expected the last pointer to be 3, .*found 9"),
        ([0, 1, 3], r"expected shape \(m \+ 1\) = \(4,\), found \(3,\)"),
        ([5, 0, 0, 0], "expected the first pointer to be 0, found 5"),
        ([0, 1, 2, 2], "expected the last pointer to be 3, .*slice the stored arrays"),
    ],
)
def test_o11_ends_and_length_of_indptr_are_always_checked(spmm, indptr, message):
    with pytest.raises(ValueError, match=f"spmm: argument 'indptr'.*{message}"):
        call(spmm, np.array(indptr, "i4"))


def test_o11_decreasing_pointers_are_found(spmm):
    with pytest.raises(ValueError, match="never decrease, found 2 then 1 at row 1"):
        call(spmm, np.array([0, 2, 1, 3], "i4"), validate="full")


def test_o11_all_zero_pointers_without_entries_are_valid(spmm):
    nothing = np.zeros(0, "i4"), np.zeros(0, "f4")
    out = call(spmm, np.zeros(4, "i4"), *nothing, validate="full")
    assert not out.any()


@pytest.mark.parametrize("bad", [[0, 2, 1, 3], [1, 2, 3, 3], [0, 1, 2, 9], [5, 0, 0, 0]])
def test_o11_broken_scipy_matrices_are_refused(spmm, bad):
    matrix = sp.csr_matrix((DATA, INDICES, np.array([0, 1, 2, 3], "i4")), shape=(3, 3))
    matrix.indptr = np.array(bad, "i4")
    with pytest.raises(ValueError, match="argument 'a', indptr of the matrix"):
        spmm(matrix, DENSE)


@pytest.mark.parametrize("bad", [-1, -100, 3])
def test_o12_coordinates_out_of_range_are_refused_not_wrapped(spmm, bad):
    indices = np.array([0, bad, 2], "i4")
    with pytest.raises(
        ValueError, match=rf"'indices'.*coordinates in \[0, 3\), found {bad} at position 1"
    ):
        call(spmm, np.array([0, 1, 2, 3], "i4"), indices, validate="full")
    matrix = sp.csr_matrix((DATA, INDICES, np.array([0, 1, 2, 3], "i4")), shape=(3, 3))
    matrix.indices[1] = bad
    with pytest.raises(ValueError, match=rf"indices of the matrix.*found {bad}"):
        spmm(matrix, DENSE)


def raw_arrays(kind, indptr, indices):
    """Values, dense, output full of NaN, pointers and indices as arrays of a framework."""
    out = np.full((3, 2), np.nan, "f4")
    host = [DATA, DENSE, out, np.array(indptr, "i4"), np.array(indices, "i4")]
    if kind == "torch":
        return [pytest.importorskip("torch").from_numpy(array.copy()) for array in host]
    return [tvm.runtime.tensor(array) for array in host] if kind == "tvm" else host


FRAMEWORKS = pytest.mark.parametrize("kind", ["numpy", "torch", "tvm"])
BROKEN = pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([0, 1, 2, 3], [0, -1, 2], r"'indices'.*in \[0, 3\), found -1 at position 1"),
        ([0, 1, 2, 3], [0, 1, 99999999], r"'indices'.*in \[0, 3\), found 99999999 at position 2"),
        ([0, 2, 1, 3], [0, 1, 2], "'indptr'.*never decrease, found 2 then 1 at row 1"),
        ([0, 99, -99, 3], [0, 1, 2], "'indptr'.*never decrease, found 99 then -99 at row 1"),
        ([0, 3, 3, 3], [0, 2, 1], "'indices'.*increase within a row, found 2 then 1"),
    ],
)


@FRAMEWORKS
@BROKEN
def test_broken_raw_structure_is_refused_before_anything_is_written(
    spmm, kind, indptr, indices, message
):
    data, dense, out, pointers, columns = raw_arrays(kind, indptr, indices)
    for args, kwargs in (
        ((data, dense, out, pointers, columns, 3, 3, 2, 3), {}),
        ((data, dense, out, pointers, columns), {}),
        ((data, dense, pointers, columns), {}),
        ((data, dense), {"c": out, "indptr": pointers, "indices": columns}),
    ):
        for _ in range(2):
            with pytest.raises(ValueError, match=f"spmm: argument {message}"):
                spmm(*args, **kwargs)
    assert np.isnan(out.numpy() if kind != "numpy" else out).all()


@FRAMEWORKS
def test_structure_is_checked_once_for_the_same_array_objects(spmm, kind, monkeypatch):
    checked = []
    monkeypatch.setattr(axis_checks, "check_coordinates", lambda *args: checked.append(args))
    data, dense, out, indptr, indices = raw_arrays(kind, [0, 1, 2, 3], [0, 1, 2])
    for _ in range(3):
        spmm(data, dense, out, indptr, indices, 3, 3, 2, 3)
        spmm(data, dense, indptr, indices)
        spmm(data, dense, indptr=indptr, indices=indices)
    assert len(checked) == 1
    _, _, _, *others = raw_arrays(kind, [0, 1, 2, 3], [0, 1, 2])
    spmm(data, dense, *others)
    spmm(data, dense, indptr, others[1])
    assert len(checked) == 3
    spmm(data, dense, out, indptr, indices, validate="full")
    assert len(checked) == 4


@FRAMEWORKS
def test_structure_is_checked_again_for_a_shorter_axis(spmm, kind):
    data, dense, out, indptr, indices = raw_arrays(kind, [0, 1, 2, 3], [0, 1, 2])
    spmm(data, dense, out, indptr, indices)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"'indices'.*in \[0, 2\), found 2 at position 2"):
            spmm(data, DENSE[:2], out, indptr, indices)


@FRAMEWORKS
def test_arrays_that_take_the_place_of_freed_ones_are_checked(spmm, kind):
    data, dense, out = raw_arrays(kind, [0], [])[:3]
    for _ in range(200):
        spmm(data, dense, out, *raw_arrays(kind, [0, 1, 2, 3], [0, 1, 2])[3:])
        with pytest.raises(ValueError, match="found 3 at position 2"):
            spmm(data, dense, out, *raw_arrays(kind, [0, 1, 2, 3], [0, 1, 3])[3:])


def test_remembered_structures_are_bounded_and_dropped_with_their_arrays():
    checked = CheckedStructures()
    alive = [(np.zeros(2), np.zeros(3)) for _ in range(2 * CAPACITY)]
    for pair in alive:
        checked.remember(*pair, 5)
    assert not checked.holds(*alive[0], 5)
    assert checked.holds(*alive[-1], 5)
    assert len(checked._entries) == CAPACITY
    alive.clear()
    del pair
    tensor = tvm.runtime.tensor(np.zeros(2))
    checked.remember(tensor, None, 5)
    assert len(checked._entries) == 1
    del tensor
    last = np.zeros(2)
    checked.remember(last, None, 5)
    assert len(checked._entries) == 1
    last.shape = (1, 2)
    assert not checked.holds(last, None, 5)


def test_full_validation_checks_declared_order(spmm):
    with pytest.raises(ValueError, match="increase within a row, found 2 then 0 at position 1"):
        call(spmm, np.array([0, 3, 3, 3], "i4"), np.array([1, 2, 0], "i4"), validate="full")
    with pytest.raises(ValueError, match="increase within a row, found 1 then 1"):
        call(spmm, np.array([0, 3, 3, 3], "i4"), np.array([0, 1, 1], "i4"), validate="full")
    call(spmm, np.array([0, 2, 2, 3], "i4"), np.array([0, 2, 0], "i4"), validate="full")


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("b", np.ones((3, 2)), TypeError, "expected dtype float32, found float64"),
        ("a", np.ones(3, "f2"), TypeError, "expected dtype float32, found float16"),
        ("indices", INDICES.astype("i8"), TypeError, "expected dtype int32, found int64"),
        ("indices", INDICES.astype("f4"), TypeError, "expected dtype int32, found float32"),
        ("b", np.ones((4, 2), "f4"), ValueError, r"shape \(n, f\) = \(3, 2\), found \(4, 2\)"),
        ("b", np.ones((3, 2, 1), "f4"), ValueError, r"found shape \(3, 2, 1\)"),
        ("c", np.ones((3, 3), "f4"), ValueError, r"shape \(m, f\) = \(3, 2\), found \(3, 3\)"),
        ("b", [[1, 2]] * 3, TypeError, "expected an array .*found builtins.list"),
        ("m", 2.5, TypeError, "expected an integer, found float"),
        ("m", 2**40, ValueError, "expected a value that fits int32"),
    ],
)
def test_an_unfit_argument_is_named(spmm, name, value, error, message):
    arguments = {
        "a": DATA,
        "b": DENSE,
        "c": np.empty((3, 2), "f4"),
        "indptr": np.array([0, 1, 2, 3], "i4"),
        "indices": INDICES,
        "m": 3,
        "n": 3,
        "f": 2,
        "nnz": 3,
    }
    arguments[name] = value
    for args, kwargs in (((), arguments), (tuple(arguments.values()), {})):
        with pytest.raises(error, match=f"spmm: argument '{name}': .*{message}"):
            spmm(*args, **kwargs)


def test_missing_and_superfluous_arguments_are_named(spmm):
    matrix = sp.identity(3, dtype="f4", format="csr")
    with pytest.raises(TypeError, match="unexpected argument 'x'"):
        spmm(matrix, DENSE, x=1)
    with pytest.raises(TypeError, match="'indptr': given twice"):
        spmm(a=matrix, b=DENSE, indptr=matrix.indptr)
    with pytest.raises(TypeError, match="at most 9 positional arguments here, found 10"):
        spmm(*range(10))
    with pytest.raises(ValueError, match="validate: expected 'cheap' or 'full', found 'deep'"):
        spmm(matrix, DENSE, validate="deep")


@pytest.mark.parametrize("give", ["nothing", "matrix", "None", "keyword", "output"])
def test_a_missing_input_is_named_before_the_sizes_it_would_give(spmm, give):
    matrix = sp.identity(3, dtype="f4", format="csr")
    args, kwargs, name = {
        "nothing": ((), {}, "a"),
        "matrix": ((matrix,), {}, "b"),
        "None": ((matrix, None), {}, "b"),
        "keyword": ((), {"a": matrix}, "b"),
        "output": ((), {"a": matrix, "c": np.ones((3, 2), "f4")}, "b"),
    }[give]
    with pytest.raises(
        TypeError, match=f"spmm: argument '{name}': missing; expected an array of shape"
    ):
        spmm(*args, **kwargs)


def test_missing_index_arrays_are_named_with_the_matrix_that_would_give_them(spmm):
    with pytest.raises(
        TypeError,
        match=r"'indptr': missing; expected an array of shape \(m \+ 1\) and dtype int32; or, for 'a', "
        "a SciPy or PyTorch sparse matrix, or the arrays 'a', 'indptr', 'indices'",
    ):
        spmm(DATA, DENSE)


def test_a_dense_array_for_a_sparse_buffer_is_refused_with_the_forms_accepted(spmm):
    with pytest.raises(
        ValueError,
        match="argument 'a': expected a SciPy or PyTorch sparse matrix, or the arrays 'a', "
        r"'indptr', 'indices', found a dense array of shape \(3, 3\)",
    ):
        spmm(np.eye(3, dtype="f4"), DENSE)


@pytest.mark.parametrize("shape", [(3,), (6,), (3, 2, 1), ()])
def test_a_wrong_rank_is_named_before_the_sizes_it_would_give(spmm, shape):
    matrix = sp.identity(3, dtype="f4", format="csr")
    dense = np.ones(shape, "f4")
    message = r"argument 'b': expected 2 dimensions, \(n, f\), found shape "
    for args, kwargs in (
        ((matrix, dense), {}),
        ((), {"a": matrix, "b": dense}),
        ((matrix.data, dense, matrix.indptr, matrix.indices), {}),
    ):
        with pytest.raises(ValueError, match=message):
            spmm(*args, **kwargs)
    with pytest.raises(
        ValueError, match=r"'indptr': expected 1 dimension, \(m \+ 1\), found shape"
    ):
        spmm(matrix.data, DENSE, matrix.indptr[None], matrix.indices)


def test_a_flat_array_is_taken_where_the_other_arguments_give_its_sizes(spmm):
    matrix = sp.identity(3, dtype="f4", format="csr")
    flat = np.arange(6, dtype="f4")
    out = np.full((3, 2), np.nan, "f4")
    assert np.array_equal(spmm(matrix, flat, out), flat.reshape(3, 2))
    assert np.array_equal(spmm(matrix, flat, f=2), flat.reshape(3, 2))
    with pytest.raises(ValueError, match=r"'b': expected shape \(n, f\) = \(3, 3\), found \(6,\)"):
        spmm(matrix, flat, f=3)


def test_a_wrong_size_is_named_with_the_argument_that_contradicts_it(spmm):
    indptr = np.array([0, 1, 2, 3], "i4")
    with pytest.raises(
        ValueError, match=r"argument 'm': expected 3 \(from the shape of 'indptr'\), found 4"
    ):
        spmm(DATA, DENSE, np.empty((3, 2), "f4"), indptr, INDICES, 4, 3, 2, 3)
    with pytest.raises(ValueError, match=r"'m': expected 3 .*'indptr'\), found 2"):
        spmm(DATA, DENSE, indptr=indptr, indices=INDICES, m=2)
    matrix = sp.identity(3, dtype="f4", format="csr")
    for name, expected in (("m", 3), ("n", 3), ("nnz", 3)):
        for value in (2, 4):
            with pytest.raises(
                ValueError,
                match=rf"'{name}': expected {expected} \(from the shape of 'a'\), found {value}",
            ):
                spmm(matrix, DENSE, **{name: value})
    with pytest.raises(ValueError, match=r"'n': expected 3 .*found 2"):
        spmm(matrix, DENSE[:2], n=2)
    with pytest.raises(ValueError, match=r"argument 'c': expected shape \(m, f\) = \(3, 2\)"):
        spmm(matrix, DENSE, np.empty((2, 2), "f4"))


def test_a_shape_is_written_without_doubled_parentheses():
    assert dimension("(m + 1)").text == "m + 1"
    assert dimension("(m + 1) * 4").text == "(m + 1) * 4"


def test_unique_coordinates_are_checked_where_no_order_is_declared():
    indptr = np.array([0, 3, 5])
    check_order("j", indptr, np.array([2, 0, 1, 2, 0]), False, True)
    with pytest.raises(ValueError, match="unique coordinates within a row, found 2 again in row 0"):
        check_order("j", indptr, np.array([2, 0, 2, 2, 0]), False, True)
    check_order("j", indptr, np.array([2, 0, 2, 2, 0]), False, False)


def test_rows_of_a_ragged_axis_are_no_longer_than_the_axis():
    check_row_lengths("j", np.array([0, 3, 3, 5]), 3)
    with pytest.raises(ValueError, match="rows of at most 2 entries, found 3 in row 0"):
        check_row_lengths("j", np.array([0, 3, 3, 5]), 2)


def test_padding_of_padded_rows_lies_behind_the_entries():
    check_padded_rows("j", np.array([[0, 2, 9], [9, 9, 9]]), 5, True, True)
    check_padded_rows("j", np.array([[3, -1, 0], [-1, -1, 4]]), 5, False, True)
    check_padded_rows("j", np.zeros((0, 3), "i4"), 5, True, True)
    with pytest.raises(ValueError, match="found 9 then 2 in row 0"):
        check_padded_rows("j", np.array([[0, 9, 2]]), 5, True, True)
    with pytest.raises(ValueError, match="padding of at least 5 in a sorted axis, found -1"):
        check_padded_rows("j", np.array([[0, -1]]), 5, True, True)
    with pytest.raises(ValueError, match="unique coordinates within a row, found 3 then 3"):
        check_padded_rows("j", np.array([[3, -1, 3]]), 5, False, True)


def test_the_text_of_an_executable_shows_parameters_and_target(kernels):
    text = repr(kernels)
    assert text.startswith("<Executable spmm(a, b, c, indptr, indices, m, n, f, nnz), wide_spmv(a,")
    assert text.endswith("select(x, mask, y, n, scale) for llvm>")
    assert repr(kernels["double"]) == "<KernelFunction double(x, y, n)>"


def test_pointers_of_no_length_are_refused(spmm):
    with pytest.raises(
        ValueError, match=r"argument 'indptr': expected row pointers, .* found none"
    ):
        spmm(DATA, DENSE, None, np.zeros(0, "i4"), INDICES)


def test_sparse_arrays_that_are_no_matrix_are_refused(spmm):
    vector = sp.coo_array((np.ones(1, "f4"), (np.array([2]),)), shape=(3,))
    with pytest.raises(ValueError, match=r"argument 'a': expected a matrix, found .* shape \(3,\)"):
        spmm(a=vector, b=DENSE)


@pytest.mark.parametrize("target", [5, None, ["llvm"]])
def test_targets_of_another_kind_are_refused(target):
    with pytest.raises(TypeError, match="target: expected a kind such as"):
        tvm_sparse.compile(schedules.spmv.program(), target)


def test_paths_of_another_kind_are_refused():
    with pytest.raises(TypeError, match="path: expected the path of a library, found None"):
        tvm_sparse.load(None)


def test_executables_are_not_pickled(kernels):
    with pytest.raises(TypeError, match="export_library"):
        pickle.dumps(kernels)

"""A repeated call with the same matrices is as safe as the first one, whatever became of them."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import scipy.sparse as sp

from .merged_kernels import call_twice, compiled, filled_row, random_csr, remembered, total


@pytest.fixture
def called():
    return call_twice()


def test_a_call_is_remembered(called):
    kernel, a, b = called
    assert remembered(kernel, a=a, b=b)
    assert not remembered(kernel, a=b, b=a)


def test_values_may_change_in_place(called):
    kernel, a, b = called
    a.data[:] = np.arange(a.nnz)
    assert (kernel(a=a, b=b).toarray() == total(a, b)).all()


@pytest.mark.parametrize("wrong", [-1, 50, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("place", [0, 7, -1])
def test_coordinates_out_of_range_are_refused(called, place, wrong):
    kernel, a, b = called
    for matrix in (a, b):
        right = matrix.indices[place]
        matrix.indices[place] = wrong
        for _ in range(2):
            with pytest.raises(ValueError, match=r"expected coordinates in \[0, 50\)"):
                kernel(a=a, b=b)
        matrix.indices[place] = right
    assert (kernel(a=a, b=b).toarray() == total(a, b)).all()


def test_entries_out_of_order_are_put_in_order(called):
    kernel, a, b = called
    for matrix in (a, b):
        begin = matrix.indptr[filled_row(matrix)]
        matrix.has_sorted_indices  # noqa: B018 (SciPy remembers the answer)
        for array in (matrix.indices, matrix.data):
            array[begin : begin + 2] = array[begin : begin + 2][::-1].copy()
        before = matrix.indices.copy()
        for _ in range(2):
            assert (kernel(a=a, b=b).toarray() == total(a, b)).all()
        assert (matrix.indices == before).all()


def test_repeated_coordinates_are_added_up(called):
    kernel, a, b = called
    begin = a.indptr[filled_row(a)]
    a.indices[begin + 1] = a.indices[begin]
    expected = sp.coo_array(
        (a.data, (np.repeat(np.arange(40), np.diff(a.indptr)), a.indices)), (40, 50)
    )
    for _ in range(2):
        assert (kernel(a=a, b=b).toarray() == expected.toarray() + b.toarray()).all()


@pytest.mark.parametrize("change", ["decreasing", "first", "last", "negative", "huge"])
def test_broken_pointers_are_refused(called, change):
    kernel, a, b = called
    place, value = {
        "decreasing": (11, int(a.indptr[10]) - 1),
        "first": (0, 1),
        "last": (-1, int(a.indptr[-1]) + 1),
        "negative": (5, -3),
        "huge": (5, 2**31 - 1),
    }[change]
    right, a.indptr[place] = int(a.indptr[place]), value
    for _ in range(2):
        with pytest.raises(ValueError, match="indptr of the matrix"):
            kernel(a=a, b=b)
    a.indptr[place] = right
    assert (kernel(a=a, b=b).toarray() == total(a, b)).all()


def test_pointers_may_move_rows(called):
    kernel, a, b = called
    a.indptr[:] = np.where(np.arange(41) > 20, a.indptr, 0)
    a.has_canonical_format = a.has_sorted_indices = False
    expected = a.copy()
    expected.sum_duplicates()
    assert (kernel(a=a, b=b).toarray() == expected.toarray() + b.toarray()).all()


def test_shorter_rows_leave_entries_out(called):
    kernel, a, b = called
    a.indptr[-1] = a.indptr[-2] = a.indptr[20]
    a.indptr[20:] = a.indptr[20]
    expected = a.toarray()
    assert (kernel(a=a, b=b).toarray() == expected + b.toarray()).all()


@pytest.mark.parametrize("name", ["data", "indices", "indptr"])
def test_replaced_arrays_are_seen(called, name):
    kernel, a, b = called
    old = weakref.ref(getattr(a, name))
    if name == "indptr":
        a.indptr = np.minimum(a.indptr, a.indptr[20])
    elif name == "indices":
        a.indices = (49 - a.indices).astype("int32")
    else:
        a.data = a.data * 3
    a.has_sorted_indices = False
    assert (kernel(a=a, b=b).toarray() == total(a, b)).all()
    assert old() is None


def test_other_arrays_of_a_matrix_are_not_kept(called):
    kernel, a, b = called
    old = weakref.ref(a.data)
    a.data = a.data.astype("float32")
    with pytest.raises((TypeError, ValueError)):
        kernel(a=a, b=b)
    assert old() is None


def test_arrays_are_not_moved_under_a_kernel(called):
    _kernel, a, _b = called
    with pytest.raises(ValueError, match="resize"):
        a.data.resize(10_000_000, refcheck=False)


def test_values_that_become_another_type_in_place_are_refused(called):
    kernel, a, b = called
    a.data.dtype = np.int64
    with pytest.raises((TypeError, ValueError), match="float64"):
        kernel(a=a, b=b)


def test_resized_matrices_are_seen(called):
    kernel, a, b = called
    a.resize(40, 60)
    with pytest.raises(ValueError):
        kernel(a=a, b=b)
    b.resize(40, 60)
    assert (kernel(a=a, b=b).toarray() == total(a, b)).all()
    a.resize(30, 20), b.resize(30, 20)
    assert (kernel(a=a, b=b).toarray() == total(a, b)).all()


def test_a_new_matrix_at_the_place_of_a_freed_one_is_another():
    kernel, b = compiled(), random_csr(30, 30, 0.2, 3)
    places = set()
    for seed in range(200):
        a = random_csr(30, 30, 0.1, seed)
        assert (kernel(a=a, b=b).toarray() == total(a, b)).all()
        places.add(id(a))
        del a
    assert len(places) < 200, "no place was used twice"


def test_arrays_go_with_their_matrices():
    kernel, a, b = call_twice()
    gone = [weakref.ref(array) for array in (a.data, a.indices, a.indptr)]
    assert remembered(kernel, a=a, b=b)
    del a
    gc.collect()
    assert all(reference() is None for reference in gone)


def test_matrices_that_refer_to_themselves_go_too():
    kernel, b = compiled(), random_csr(30, 30, 0.2, 3)
    a = random_csr(30, 30, 0.1, 1)
    a.me = a
    kernel(a=a, b=b)
    gone = weakref.ref(a.data)
    del a
    gc.collect()
    assert gone() is None


def test_few_calls_are_remembered():
    kernel, b = compiled(), random_csr(30, 30, 0.2, 3)
    many = [random_csr(30, 30, 0.1, seed) for seed in range(100)]
    for a in many:
        kernel(a=a, b=b)
    assert len(kernel._calls._entries) <= 16
    assert all((kernel(a=a, b=b).toarray() == total(a, b)).all() for a in many)


def test_one_matrix_may_be_passed_twice(called):
    kernel, a, _ = called
    for _ in range(3):
        assert (kernel(a=a, b=a).toarray() == 2 * a.toarray()).all()
        a.data += 1


def test_matrices_that_share_a_structure_are_compared_each_time():
    """Only the arrays of one of them are used: those of the other might change unnoticed."""
    kernel, b = compiled("three"), random_csr(30, 30, 0.2, 3)
    for changed in ("a", "d"):
        a = random_csr(30, 30, 0.2, 1)
        d = a.copy()
        own = {"a": a, "d": d}
        for _ in range(2):
            found = kernel(**own, b=b)
            assert (found.toarray() == a.toarray() * d.toarray() + b.toarray()).all()
        end = own[changed].indptr[filled_row(a) + 1]
        own[changed].indices[end - 1] = 29 if own[changed].indices[end - 1] < 29 else 28
        for _ in range(2):
            with pytest.raises(ValueError, match="structure of the other matrix"):
                kernel(**own, b=b)


def test_matrices_that_share_their_arrays_are_remembered():
    kernel, a, b = compiled("three"), random_csr(30, 30, 0.2, 1), random_csr(30, 30, 0.2, 3)
    d = sp.csr_matrix((a.data * 2, a.indices, a.indptr), a.shape, copy=False)
    d.indices, d.indptr = a.indices, a.indptr
    for _ in range(2):
        expected = a.toarray() * d.toarray() + b.toarray()
        assert (kernel(a=a, b=b, d=d).toarray() == expected).all()
    assert remembered(kernel, a=a, b=b, d=d)


def test_arrays_may_be_read_only(called):
    kernel, a, b = called
    for array in (a.data, a.indices, a.indptr):
        array.setflags(write=False)
    c = a.copy()
    for array in (c.data, c.indices, c.indptr):
        array.setflags(write=False)
    for _ in range(2):
        assert (kernel(a=a, b=b).toarray() == total(a, b)).all()
        assert (kernel(a=c, b=b).toarray() == total(c, b)).all()


@pytest.mark.parametrize("name", ["data", "indices", "indptr"])
def test_arrays_that_are_copied_are_copied_each_time(called, name):
    kernel, a, b = called
    wide = np.repeat(getattr(a, name), 2)
    setattr(a, name, wide[::2])
    for _ in range(2):
        assert (kernel(a=a, b=b).toarray() == total(a, b)).all()
        a.data[...] = a.data + 1

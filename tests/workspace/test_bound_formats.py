"""Repeated calls with matrices of other formats, by threads, of loaded libraries and of plans."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
import scipy.sparse as sp

import tvm_sparse

from .merged_kernels import call_twice, compiled, filled_row, random_csr, remembered, total


@pytest.fixture
def called():
    return call_twice()


@pytest.mark.parametrize("kind", ["csc", "bsr", "coo", "csr_array"])
def test_other_formats_are_converted_each_time(called, kind):
    kernel, a, b = called
    other = sp.csr_array(a) if kind == "csr_array" else a.asformat(kind)
    for _ in range(3):
        assert (kernel(a=other, b=b).toarray() == total(other, b)).all()
        other.data[...] = other.data + 1
    assert remembered(kernel, a=other, b=b) == (kind == "csr_array")


def test_wide_indices_are_converted_each_time(called):
    kernel, a, b = called
    a.indices, a.indptr = a.indices.astype("int64"), a.indptr.astype("int64")
    for _ in range(2):
        assert (kernel(a=a, b=b).toarray() == total(a, b)).all()
    a.indices[3] = 2**32 + 1
    with pytest.raises(ValueError, match=r"expected coordinates in \[0, 50\)"):
        kernel(a=a, b=b)


@pytest.mark.parametrize("wrong", [-1, 50, 2**32 + 1, -(2**63)])
def test_wide_coordinates_out_of_range_are_refused(wrong):
    kernel = compiled(index="int64")
    a, b = (random_csr(40, 50, 0.2, seed, index="int64") for seed in (1, 2))
    for _ in range(2):
        assert (kernel(a=a, b=b).toarray() == total(a, b)).all()
    assert remembered(kernel, a=a, b=b)
    a.indices[4] = wrong
    with pytest.raises(ValueError, match=r"expected coordinates in \[0, 50\)"):
        kernel(a=a, b=b)


def test_every_fault_of_a_large_matrix_counts():
    """So many faults that their sum might pass 64 bits, in a matrix whose rows need no order."""
    text = """
@S.prim_func
def rows(a: S.handle, c: S.handle, indptr: S.handle, indices: S.handle,
         m: S.int32, n: S.int32, nnz: S.int32):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32", sorted=False, unique=False)
    JO = S.sparse_output(I, n)
    A = S.match_sparse_buffer(a, (I, J), "int8")
    C = S.match_sparse_buffer(c, (I, JO), "int8")
    with S.sp_iter([I, J], "SS", "rows") as [i, j]:
        C[i, j] = C[i, j] + A[i, j]
"""
    from tvm_sparse.script import from_source

    kernel = tvm_sparse.compile(from_source(text), workspace="dense")
    count = 1 << 24
    a = sp.csr_matrix((1, 4), dtype="int8")
    a.data, a.indices = np.zeros(count, "int8"), np.zeros(count, "int32")
    a.indptr = np.array([0, count], "int32")
    assert kernel(a=a).toarray().tolist() == [[0] * 4]
    assert remembered(kernel, a=a)
    a.indices[:] = -1
    with pytest.raises(ValueError, match="expected coordinates"):
        kernel(a=a)


def test_threads_may_call_at_once(called):
    kernel, a, b = called
    expected, failed = total(a, b), []

    def work(seed: int) -> None:
        for k in range(40):
            own = random_csr(40, 50, 0.2, seed * 100 + k)
            if not (kernel(a=a, b=b).toarray() == expected).all():
                failed.append("shared")
            for _ in range(2):
                if not (kernel(a=own, b=b).toarray() == total(own, b)).all():
                    failed.append("own")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_loaded_libraries_look_at_the_structure_as_well(tmp_path):
    path = compiled().export_library(tmp_path / "total.so")
    kernel = tvm_sparse.load(path)
    a, b = random_csr(40, 50, 0.2, 1), random_csr(40, 50, 0.2, 2)
    for _ in range(2):
        assert (kernel(a=a, b=b).toarray() == total(a, b)).all()
    assert remembered(kernel, a=a, b=b)
    a.indices[3] = 50
    with pytest.raises(ValueError, match="expected coordinates"):
        kernel(a=a, b=b)


def test_plans_look_at_the_structure_as_well(called):
    kernel, a, b = called
    plan = kernel.plan(a=a, b=b)
    for _ in range(3):
        assert (plan(a=a, b=b).toarray() == total(a, b)).all()
        a.data += 1
    row = filled_row(a)
    last = a.indptr[row + 1] - 1
    right = a.indices[last]
    a.indices[last] = 50
    with pytest.raises(ValueError, match="expected coordinates"):
        plan(a=a, b=b)
    a.indices[last] = 49 if right != 49 else 48
    with pytest.raises(ValueError):
        plan(a=a, b=b)
    a.indices[last] = right
    assert (plan(a=a, b=b).toarray() == total(a, b)).all()


def test_plans_keep_no_operands():
    kernel, a, b = call_twice()
    plan = kernel.plan(a=a, b=b)
    plan(a=a, b=b)
    gone = [weakref.ref(array) for array in (a.data, a.indices, a.indptr)]
    del a
    gc.collect()
    assert all(reference() is None for reference in gone)
    assert plan.nnz


def test_matrices_without_entries_or_rows():
    kernel = compiled()
    for rows, columns in [(0, 5), (5, 0), (0, 0), (5, 5)]:
        a, b = sp.csr_matrix((rows, columns)), sp.csr_matrix((rows, columns))
        for _ in range(2):
            found = kernel(a=a, b=b)
            assert found.shape == (rows, columns) and found.nnz == 0
    a.indptr[2] = 1
    with pytest.raises(ValueError, match="indptr of the matrix"):
        kernel(a=a, b=b)

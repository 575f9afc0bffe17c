"""Stores outside of a sparse result do nothing; loops of a body may store to one place several times."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import tvm_sparse
from tvm_sparse.errors import SparseProgramError
from tvm_sparse.script import from_source

PROGRAM = """
@S.prim_func
def moved(a: S.handle, c: S.handle, indptr: S.handle, indices: S.handle,
          m: S.int32, n: S.int32, rows: S.int32, columns: S.int32, nnz: S.int32):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    IC = S.dense_fixed(rows)
    JC = S.sparse_output(IC, columns)
    A = S.match_sparse_buffer(a, (I, J), "float64")
    C = S.match_sparse_buffer(c, (IC, JC), "float64")
    with S.sp_iter([I, J], "SS", "moved") as [i, j]:
        BODY
"""
SHAPE = 5, 7


def _kernel(body: str, workspace: str):
    return tvm_sparse.compile(from_source(PROGRAM.replace("BODY", body)), workspace=workspace)


def _matrix() -> sp.csr_array:
    return sp.random_array(SHAPE, density=0.6, format="csr", rng=np.random.default_rng(0))


def _moved(matrix: sp.csr_array, shape: tuple[int, int], down: int, right: int) -> np.ndarray:
    expected, dense = np.zeros(shape), matrix.toarray()
    for i, j in zip(*dense.nonzero()):
        if 0 <= i + down < shape[0] and 0 <= j + right < shape[1]:
            expected[i + down, j + right] = dense[i, j]
    return expected


@pytest.mark.parametrize("workspace", ["auto", "dense", "list", "hash", "sort", "bucket", "merge"])
@pytest.mark.parametrize(("down", "right"), [(0, 1), (0, -1), (1, 0), (-1, 0), (2, -3), (0, 0)])
@pytest.mark.parametrize("shape", [SHAPE, (3, 4), (9, 11)])
def test_places_outside_are_left_out(shape, down, right, workspace):
    matrix = _matrix()
    kernel = _kernel(f"C[i + {down}, j + {right}] = A[i, j]", workspace)
    found = kernel(a=matrix, rows=shape[0], columns=shape[1])
    assert found.shape == shape
    assert found.indptr.size == shape[0] + 1
    assert np.array_equal(found.toarray(), _moved(matrix, shape, down, right))


@pytest.mark.parametrize("shape", [SHAPE, (3, 4), (9, 11)])
def test_iterators_of_other_lengths_are_tested_too(shape):
    matrix = _matrix()
    found = _kernel("C[i, j] = A[i, j]", "auto")(a=matrix, rows=shape[0], columns=shape[1])
    assert np.array_equal(found.toarray(), _moved(matrix, shape, 0, 0))


@pytest.mark.parametrize("workspace", ["auto", "dense", "hash", "sort", "bucket", "merge"])
@pytest.mark.parametrize(
    ("body", "factor"),
    [
        ("for q in range(3): C[i, j] = A[i, j]", 1),
        ("for q in range(3): C[i, j] = C[i, j] + A[i, j]", 3),
    ],
)
def test_loops_of_a_body_store_to_one_place_several_times(body, factor, workspace):
    matrix = _matrix()
    found = _kernel(body, workspace)(a=matrix, rows=SHAPE[0], columns=SHAPE[1])
    assert found.nnz == matrix.nnz
    assert np.allclose(found.toarray(), factor * matrix.toarray())


@pytest.mark.parametrize("workspace", ["auto", "dense", "hash", "sort"])
def test_an_index_that_falls_comes_out_in_order(workspace):
    matrix = _matrix()
    found = _kernel("C[i, 6 - j] = A[i, j]", workspace)(a=matrix, rows=SHAPE[0], columns=SHAPE[1])
    assert (
        found.has_sorted_indices
        and (np.diff(found.indices)[np.diff(found.tocoo().row) == 0] > 0).all()
    )
    assert np.array_equal(found.toarray(), matrix.toarray()[:, ::-1])


@pytest.mark.parametrize(
    "names", [("tasks", "width"), ("work", "before"), ("most", "ordered"), ("counts", "operands")]
)
def test_parameters_may_be_named_as_those_of_phases_are(names):
    text = PROGRAM.replace("rows", names[0]).replace("columns", names[1])
    kernel = tvm_sparse.compile(from_source(text.replace("BODY", "C[i, j + 1] = A[i, j]")))
    matrix = _matrix()
    for _ in range(2):
        found = kernel(a=matrix, **dict(zip(names, (3, 9))))
        assert np.array_equal(found.toarray(), _moved(matrix, (3, 9), 0, 1))
    assert names[0] in repr(kernel)


def test_limits_that_are_no_numbers_are_refused():
    kernel = _kernel("C[i, j] = A[i, j]", "auto")
    with pytest.raises(TypeError, match="workspace_bytes: expected a number of bytes, found '1MB'"):
        kernel(a=_matrix(), rows=5, columns=7, workspace_bytes="1MB")


def test_the_axis_of_a_result_is_not_iterated():
    text = PROGRAM.replace("[I, J]", "[IC, JC]").replace("BODY", "C[i, j] = C[i, j] + 1.0")
    with pytest.raises(SparseProgramError, match=r"axis JC is one of the result"):
        from_source(text)

"""A sparse matrix passed for a sparse buffer supplies all its arrays, in the declared order."""

import numpy as np
import pytest
import scipy.sparse as sp
from runtime_kernels import SPMM, build, csr_axes, spmm_kernel

from tvm_sparse.runtime.sparse_arguments import unpack_sparse

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture
def matrix():
    return sp.random(30, 20, 0.2, "csr", dtype="f4", random_state=3)


@pytest.fixture
def dense(rng):
    return rng.standard_normal((20, 4)).astype("f4")


@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "bsr", "lil", "dok"])
@pytest.mark.parametrize("kind", ["matrix", "array"])
def test_every_scipy_format_is_accepted(spmm, matrix, dense, product, layout, kind):
    given = getattr(sp, f"{layout}_{kind}")(matrix)
    np.testing.assert_allclose(spmm(given, dense), product(matrix, dense), **TOLERANCE)


def test_calls_name_parameters_or_buffers(spmm, matrix, dense, product):
    expected = product(matrix, dense)
    out = np.full((30, 4), np.nan, "f4")
    for result in (
        spmm(matrix, dense),
        spmm(matrix, dense, out),
        spmm(matrix, dense, None),
        spmm(a=matrix, b=dense),
        spmm(A=matrix, B=dense, C=out),
        spmm(matrix.data, dense, indptr=matrix.indptr, indices=matrix.indices),
        spmm(matrix.data, dense, matrix.indptr, matrix.indices),
        spmm(matrix.data, dense, out, matrix.indptr, matrix.indices),
        spmm(matrix.data, dense, None, matrix.indptr, matrix.indices, 30, 20, 4, matrix.nnz),
        spmm(matrix, dense, m=30, f=4),
    ):
        np.testing.assert_allclose(result, expected, **TOLERANCE)


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_torch_sparse_tensors_are_accepted(spmm, matrix, dense, product, index_dtype):
    torch = pytest.importorskip("torch")
    tensor = torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr.astype(index_dtype)),
        torch.from_numpy(matrix.indices.astype(index_dtype)),
        torch.from_numpy(matrix.data),
        size=matrix.shape,
    )
    expected = product(matrix, dense)
    for given in (tensor, tensor.to_sparse_coo(), tensor.to_sparse_csc()):
        result = spmm(given, torch.from_numpy(dense))
        assert isinstance(result, torch.Tensor)
        np.testing.assert_allclose(result.numpy(), expected, **TOLERANCE)


def test_o18_stale_flag_of_sorted_indices_is_not_trusted(spmm):
    matrix = sp.csr_matrix(np.array([[1, 0, 2], [0, 3, 4]], "f4"))
    assert matrix.has_sorted_indices
    matrix.indices[:2] = [2, 0]
    matrix.data[:2] = [2, 1]
    assert matrix.has_sorted_indices
    before = matrix.indices.copy(), matrix.data.copy()
    arrays = unpack_sparse("a", matrix, csr_axes("int32")[:2], {})
    assert arrays.indices["indices"].tolist() == [0, 2, 1, 2]
    assert arrays.values.tolist() == [1, 2, 3, 4]
    result = spmm(matrix, np.eye(3, dtype="f4"))
    assert np.array_equal(result, [[1, 0, 2], [0, 3, 4]])
    assert np.array_equal(matrix.indices, before[0])
    assert np.array_equal(matrix.data, before[1])


def test_o18_duplicates_are_added_up_in_a_copy_where_the_axis_is_unique():
    matrix = sp.csr_matrix(
        (np.array([1, 2, 4, 8], "f4"), np.array([1, 0, 1, 1]), np.array([0, 3, 3, 4])),
        shape=(3, 2),
    )
    arrays = unpack_sparse("a", matrix, csr_axes("int32")[:2], {})
    assert arrays.values.tolist() == [2, 5, 8]
    assert arrays.indices["indices"].tolist() == [0, 1, 1]
    assert arrays.indices["indptr"].tolist() == [0, 2, 2, 3]
    assert matrix.data.tolist() == [1, 2, 4, 8]


def test_order_is_left_alone_where_the_axis_declares_none():
    matrix = sp.csr_matrix(
        (np.array([1, 2, 4], "f4"), np.array([1, 0, 1], "i4"), np.array([0, 3], "i4")),
        shape=(1, 2),
    )
    arrays = unpack_sparse("a", matrix, csr_axes("int32", sorted=False, unique=False)[:2], {})
    assert arrays.values is matrix.data or np.shares_memory(arrays.values, matrix.data)
    assert arrays.indices["indices"].tolist() == [1, 0, 1]
    sorted_only = csr_axes("int32", sorted=True, unique=False)[:2]
    assert unpack_sparse("a", matrix, sorted_only, {}).values.tolist() == [2, 1, 4]


def test_spare_capacity_of_scipy_arrays_is_cut_off(spmm, dense):
    matrix = sp.csr_matrix((2, 20), dtype="f4")
    matrix.data = np.array([1, 2, 9, 9], "f4")
    matrix.indices = np.array([3, 4, -1, -1], "i4")
    matrix.indptr = np.array([0, 1, 2], "i4")
    result = spmm(matrix, dense)
    np.testing.assert_allclose(result, [dense[3], 2 * dense[4]], **TOLERANCE)


def test_index_dtypes_are_converted_where_the_values_fit(spmm, kernels, matrix, dense, product):
    wide = matrix.copy()
    wide.indptr, wide.indices = wide.indptr.astype("i8"), wide.indices.astype("i8")
    np.testing.assert_allclose(spmm(wide, dense), product(matrix, dense), **TOLERANCE)
    x = dense[:, 0].astype("f8")
    result = kernels["wide_spmv"](matrix.astype("f8"), x)
    np.testing.assert_allclose(result, product(matrix, x), rtol=1e-12)


def test_indices_beyond_the_kernels_dtype_are_refused(spmm):
    matrix = sp.csr_matrix((1, 2**33), dtype="f4")
    matrix.data, matrix.indices = np.ones(1, "f4"), np.array([2**32], "i8")
    matrix.indptr = np.array([0, 1], "i8")
    with pytest.raises(ValueError, match="indices that fit int32, found 4294967296"):
        spmm(matrix, np.ones((1, 1), "f4"))


def test_value_dtype_of_a_matrix_is_not_converted(spmm, matrix, dense):
    with pytest.raises(TypeError, match="argument 'a': expected dtype float32, found float64"):
        spmm(matrix.astype("f8"), dense)


def test_a_matrix_passed_for_an_output_gives_its_structure(kernels, matrix, rng):
    x, y = rng.random((30, 5), "f4"), rng.random((20, 5), "f4")
    result = kernels["sddmm"](x, y, matrix)
    expected = matrix.astype(bool).multiply(x.astype("f8") @ y.astype("f8").T)
    assert isinstance(result, sp.csr_matrix)
    np.testing.assert_allclose(result.toarray(), expected.toarray(), **TOLERANCE)


def test_a_matrix_of_other_shape_is_refused(spmm, matrix):
    with pytest.raises(ValueError, match=r"argument 'b': expected shape \(n, f\) = \(20, 4\)"):
        spmm(matrix, np.ones((21, 4), "f4"))


def test_a_matrix_for_a_dense_buffer_is_refused(spmm, matrix):
    with pytest.raises(TypeError, match="argument 'b': expected an array, found a sparse matrix"):
        spmm(matrix, sp.csr_matrix(np.ones((20, 4), "f4")))


def test_bsr_matrices_unpack_into_blocks():
    axes = [
        {"name": "IO", "kind": "dense_fixed", "length": "mb"},
        {
            "name": "JO",
            "kind": "sparse_variable",
            "parent": "IO",
            "length": "nb",
            "nnz": "nnzb",
            "indptr": "indptr",
            "indices": "indices",
            "dtype": "int32",
        },
        {"name": "II", "kind": "dense_fixed", "length": "2"},
        {"name": "JI", "kind": "dense_fixed", "length": "3"},
    ]
    dense = np.kron(np.array([[1, 0], [0, 2], [0, 0]]), np.arange(1, 7).reshape(2, 3)).astype("f4")
    for given in (sp.bsr_matrix(dense, blocksize=(2, 3)), sp.csr_matrix(dense)):
        arrays = unpack_sparse("a", given, axes, {})
        assert arrays.values.shape == (2, 2, 3)
        assert arrays.indices["indptr"].tolist() == [0, 1, 2, 2]
        assert arrays.indices["indices"].tolist() == [0, 1]
        assert dict(arrays.sizes)["mb"] == 3


def test_csc_axes_take_the_columns_of_the_matrix():
    outer, inner = csr_axes("int32")[:2]
    matrix = sp.random(6, 4, 0.5, "csr", dtype="f4", random_state=1)
    arrays = unpack_sparse("a", matrix, [inner, outer], {})
    columns = matrix.tocsc()
    assert np.array_equal(arrays.values, columns.data)
    assert np.array_equal(arrays.indices["indptr"], columns.indptr)
    assert dict(arrays.sizes)["m"] == 4  # the length of the outer axis, the columns


def test_constant_extents_are_checked(rng):
    """A parameter whose shape holds numbers, as after `specialize`."""
    arguments = [dict(argument) for argument in SPMM["args"]]
    arguments[1]["shape"] = ["n", "4"]
    metadata = {**SPMM, "args": arguments}
    kernel = build({"spmm": (spmm_kernel, metadata)})["spmm"]
    matrix = sp.random(5, 6, 0.5, "csr", dtype="f4", random_state=1)
    with pytest.raises(ValueError, match=r"'b': expected shape \(n, 4\) = \(6, 4\)"):
        kernel(matrix, np.ones((6, 5), "f4"), f=4)

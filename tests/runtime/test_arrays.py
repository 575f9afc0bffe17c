"""Arrays of every kind reach a kernel with the values that their owner sees."""

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp
import tvm
import tvm_ffi

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def random_csr(rows, columns, density=0.2, seed=0):
    return sp.random(rows, columns, density, "csr", dtype="f4", random_state=seed)


def parts(matrix):
    return matrix.data, matrix.indptr, matrix.indices


def nan_output(rows, columns):
    return np.full((rows, columns), np.nan, "f4")


def test_o01_matrix_without_entries_gives_zeros(spmm, rng):
    empty = sp.csr_matrix((1000, 700), dtype="f4")
    dense = rng.standard_normal((700, 33)).astype("f4")
    out = nan_output(1000, 33)
    assert spmm(empty, dense, out) is out
    assert not out.any()


def test_o01_single_entry_in_the_last_cell(spmm, rng, product):
    matrix = sp.csr_matrix((np.ones(1, "f4"), ([999], [699])), shape=(1000, 700))
    dense = rng.standard_normal((700, 33)).astype("f4")
    out = spmm(matrix, dense, nan_output(1000, 33))
    np.testing.assert_allclose(out, product(matrix, dense), **TOLERANCE)
    assert np.count_nonzero(out.any(1)) == 1


def test_o01_sddmm_without_entries_gives_an_empty_result(kernels, rng):
    empty = sp.csr_matrix((30, 20), dtype="f4")
    x, y = rng.random((30, 8), "f4"), rng.random((20, 8), "f4")
    result = kernels["sddmm"](x, y, indptr=empty.indptr, indices=empty.indices)
    assert result.shape == (0,)


@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(0, 10, 4), (10, 0, 4), (10, 7, 0), (0, 0, 0), (1, 1, 1), (1, 9, 1), (9, 1, 5)],
)
@pytest.mark.parametrize("framework", ["numpy", "torch", "tvm"])
def test_o02_zero_extents_give_the_right_shape(spmm, m, k, n, framework):
    matrix, dense = sp.csr_matrix((m, k), dtype="f4"), np.ones((k, n), "f4")
    out = nan_output(m, n)
    arrays = [matrix.data, dense, out, matrix.indptr, matrix.indices]
    if framework == "torch":
        torch = pytest.importorskip("torch")
        arrays = [torch.from_numpy(array) for array in arrays]
    elif framework == "tvm":
        arrays = [tvm.runtime.tensor(array) for array in arrays]
    result = spmm(*arrays, m, k, n, 0)
    result = result.numpy() if framework != "numpy" else result
    assert result.shape == (m, n)
    assert not result.any()
    assert spmm(matrix, dense).shape == (m, n)


def strided_views(rng):
    x = rng.standard_normal((4, 5, 3)).astype("f4")
    pad = np.full((4, 3), 7e37, "f4")
    pad[:, 0] = [1, 2, 3, 4]
    return {
        "every third": x[:, :, 0],
        "column-major": np.asfortranarray(x[:, :, 1]),
        "negative": x[::-1, :, 0],
        "steps": x[:, ::2, 0],
        "broadcast": np.broadcast_to(x[:1, :, 0], (4, 5)),
        "column": pad[:, :1],
        "transposed": rng.standard_normal((5, 4)).astype("f4").T,
    }


@pytest.mark.parametrize("view", strided_views(np.random.default_rng(0)))
def test_o05_strided_numpy_inputs_are_read_by_their_strides(spmm, rng, product, view):
    dense = strided_views(rng)[view]
    matrix = random_csr(4, 4, 0.6)
    data, indptr, indices = parts(matrix)
    out = spmm(data, dense, nan_output(4, dense.shape[1]), indptr, indices)
    np.testing.assert_allclose(out, product(matrix, dense), **TOLERANCE)


@pytest.mark.parametrize("view", ["every third", "steps", "expanded", "column", "transposed"])
def test_o05_strided_torch_inputs_are_read_by_their_strides(spmm, product, view):
    torch = pytest.importorskip("torch")
    x = torch.randn(4, 10, 3)
    dense = {
        "every third": x[:, :5, 0],
        "steps": x[:, ::2, 0],
        "expanded": x[:1, :5, 0].expand(4, 5),
        "column": x[:, :1, 1],
        "transposed": x[0, :5, :].reshape(5, 3)[:, :1].expand(5, 4).T,
    }[view]
    matrix = random_csr(4, 4, 0.6)
    data, indptr, indices = parts(matrix)
    out = torch.full((4, dense.shape[1]), torch.nan)
    spmm(data, dense, out, indptr, indices)
    np.testing.assert_allclose(out, product(matrix, dense), **TOLERANCE)


def test_o05_strided_values_and_indices_are_read_by_their_strides(spmm, rng, product):
    matrix = random_csr(40, 30)
    dense = rng.standard_normal((30, 6)).astype("f4")
    spread = [np.repeat(array, 2)[::2] for array in parts(matrix)]
    assert not spread[0].flags.c_contiguous
    out = spmm(spread[0], dense, nan_output(40, 6), spread[1], spread[2])
    np.testing.assert_allclose(out, product(matrix, dense), **TOLERANCE)


def test_o05_gaps_of_a_strided_output_keep_their_content(spmm, rng, product):
    matrix = random_csr(4, 4, 0.6)
    dense = rng.standard_normal((4, 5)).astype("f4")
    whole = np.full((4, 10), 5, "f4")
    spmm(matrix, dense, whole[:, ::2])
    np.testing.assert_allclose(whole[:, ::2], product(matrix, dense), **TOLERANCE)
    assert (whole[:, 1::2] == 5).all()


def test_o05_strided_torch_output_is_written_in_place(spmm, rng, product):
    torch = pytest.importorskip("torch")
    matrix = random_csr(4, 4, 0.6)
    dense = rng.standard_normal((4, 5)).astype("f4")
    whole = torch.full((4, 10), 5.0)
    spmm(matrix, torch.from_numpy(dense), whole[:, ::2])
    np.testing.assert_allclose(whole[:, ::2].numpy(), product(matrix, dense), **TOLERANCE)
    assert (whole[:, 1::2] == 5).all()


def test_an_output_whose_elements_share_memory_is_refused(spmm, rng):
    matrix = random_csr(4, 4, 0.6)
    out = np.lib.stride_tricks.as_strided(np.zeros(5, "f4"), (4, 5), (0, 4))
    with pytest.raises(ValueError, match=r"argument 'c'.*elements share memory"):
        spmm(matrix, rng.random((4, 5), "f4"), out)


def test_o06_repeated_calls_give_the_same_bits(spmm, rng):
    matrix, other = random_csr(50, 40, 0.1, 2), random_csr(50, 40, 0.3, 3)
    dense = rng.standard_normal((40, 8)).astype("f4")
    out = nan_output(50, 8)
    first = spmm(matrix, dense, out).copy()
    for _ in range(2):
        assert np.array_equal(spmm(matrix, dense, out), first)
    spmm(other, dense, out)
    assert np.array_equal(spmm(matrix, dense, out), first)


def test_o19_read_only_inputs_are_accepted_and_not_written(spmm, rng, product):
    matrix = random_csr(50, 40)
    dense = np.ones((40, 5), "f4")
    before = [array.copy() for array in (*parts(matrix), dense)]
    for array in (*parts(matrix), dense):
        array.flags.writeable = False
    data, indptr, indices = parts(matrix)
    expected = product(matrix, dense)
    for out in (
        spmm(data, dense, nan_output(50, 5), indptr, indices, 50, 40, 5, matrix.nnz),
        spmm(matrix, dense),
    ):
        np.testing.assert_allclose(out, expected, **TOLERANCE)
    for array, copy in zip((*parts(matrix), dense), before):
        assert np.array_equal(array, copy)
        assert not array.flags.writeable


def test_o19_memory_mapped_and_broadcast_inputs_are_accepted(spmm, rng, product, tmp_path):
    matrix = random_csr(50, 40)
    dense = rng.random((40, 5), "f4")
    np.save(tmp_path / "dense.npy", dense)
    mapped = np.load(tmp_path / "dense.npy", mmap_mode="r")
    expected = product(matrix, dense)
    np.testing.assert_allclose(spmm(matrix, mapped), expected, **TOLERANCE)
    row = np.broadcast_to(dense[0], (40, 5))
    np.testing.assert_allclose(spmm(matrix, row), product(matrix, row), **TOLERANCE)


def test_o19_read_only_output_is_refused(spmm):
    matrix = random_csr(50, 40)
    out = nan_output(50, 5)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="argument 'c': expected a writable output"):
        spmm(matrix, np.ones((40, 5), "f4"), out)
    assert np.isnan(out).all()


@pytest.mark.parametrize("framework", ["numpy", "torch", "tvm", "dlpack"])
@pytest.mark.parametrize("offset", [1, 4, 7])
def test_o38_offset_views_are_read_at_their_offset(spmm, rng, product, framework, offset):
    matrix = random_csr(60, 12, 0.5)
    dense = rng.standard_normal((12, 10)).astype("f4")
    arrays = (matrix.data, dense, nan_output(60, 10), matrix.indptr, matrix.indices)
    placed = []
    for array in arrays:
        base = np.full(array.size + offset, 99, array.dtype)
        base[offset:] = array.reshape(-1)
        if framework == "torch":
            base = pytest.importorskip("torch").from_numpy(base)
        view = base[offset:].reshape(array.shape)
        if framework == "tvm":
            view = tvm_ffi.from_dlpack(view)
        elif framework == "dlpack":
            view = OnlyDLPack(view)
        placed.append(view)
    spmm(*placed, 60, 12, 10, matrix.nnz)
    result = placed[2].array if framework == "dlpack" else placed[2]
    result = np.from_dlpack(result) if framework == "tvm" else np.asarray(result)
    np.testing.assert_allclose(result, product(matrix, dense), **TOLERANCE)


class OnlyDLPack:
    """An array known by the DLPack protocol alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_o38_byte_offset_of_a_dlpack_tensor_is_honoured(spmm, product):
    base = np.arange(200, dtype="f4")
    whole = tvm.runtime.tensor(base)
    view = whole._create_view((12, 10), "float32", 160)
    matrix = random_csr(6, 12, 0.5)
    data, indptr, indices = parts(matrix)
    out = spmm(data, view, nan_output(6, 10), indptr, indices)
    np.testing.assert_allclose(out, product(matrix, base[40:160].reshape(12, 10)), **TOLERANCE)


def test_unaligned_and_byte_swapped_inputs_are_copied(spmm, rng, product):
    matrix = random_csr(20, 10, 0.5)
    dense = rng.random((10, 3), "f4")
    raw = np.zeros(dense.nbytes + 1, "u1")
    raw[1:] = dense.reshape(-1).view("u1")
    unaligned = raw[1:].view("f4").reshape(10, 3)
    assert not unaligned.flags.aligned
    expected = product(matrix, dense)
    np.testing.assert_allclose(spmm(matrix, unaligned), expected, **TOLERANCE)
    np.testing.assert_allclose(spmm(matrix, dense.astype(">f4")), expected, **TOLERANCE)
    swapped = np.full((20, 3), np.nan, ">f4")
    np.testing.assert_allclose(spmm(matrix, dense, swapped), expected, **TOLERANCE)


def test_o39_strides_of_length_one_axes_are_ignored(spmm, product):
    x = np.lib.stride_tricks.as_strided(np.arange(50, dtype="f4"), (1, 50), (4, 4))
    assert x.strides == (4, 4)
    matrix = sp.csr_matrix(np.ones((3, 1), "f4"))
    data, indptr, indices = parts(matrix)
    out = spmm(data, x, nan_output(3, 50), indptr, indices, 3, 1, 50, 3)
    np.testing.assert_allclose(out, product(matrix, x), **TOLERANCE)


def test_o39_single_column_of_a_wide_array(spmm, product):
    column = np.arange(10, dtype="f4").reshape(5, 2)[:, :1]
    matrix = random_csr(4, 5, 0.7)
    np.testing.assert_allclose(spmm(matrix, column), product(matrix, column), **TOLERANCE)


def test_o39_bool_arrays_and_0d_scalars_arrive_with_their_type(kernels):
    select = kernels["select"]
    x = np.arange(1, 4, dtype="f4")
    mask = np.array([True, False, True])
    expected = np.array([2, 0, 6], "f4")
    out = select(x, mask, np.full(3, np.nan, "f4"), 3, np.array(2, "f4"))
    assert np.array_equal(out, expected)
    assert np.array_equal(select(x, mask, scale=np.float32(2)), expected)
    with pytest.raises(TypeError, match="argument 'mask': expected dtype bool, found uint8"):
        select(x, mask.view("u1"), scale=2.0)
    with pytest.raises(TypeError, match="argument 'n': expected an integer, found bool"):
        select(x, mask, n=np.array(True), scale=2.0)


@pytest.mark.parametrize("framework", ["numpy", "torch", "tvm"])
def test_o39_results_belong_to_the_callers_framework(spmm, rng, product, framework):
    matrix = random_csr(9, 7)
    dense = rng.random((7, 3), "f4")
    arrays = [matrix.data, dense, matrix.indptr, matrix.indices]
    if framework == "torch":
        torch = pytest.importorskip("torch")
        result = spmm(*map(torch.from_numpy, arrays))
        assert isinstance(result, torch.Tensor)
        assert result.is_contiguous()
        result += 0  # writable
    elif framework == "tvm":
        result = spmm(*map(tvm.runtime.tensor, arrays))
        assert isinstance(result, tvm_ffi.Tensor)
        result = np.from_dlpack(result)
    else:
        result = spmm(*arrays)
        assert result.flags.writeable
    np.testing.assert_allclose(np.asarray(result), product(matrix, dense), **TOLERANCE)


def test_bfloat16_comes_from_ml_dtypes_and_from_torch(kernels):
    double = kernels["double"]
    values = np.array([1, 1.5, -3], ml_dtypes.bfloat16)
    expected = values.astype("f4") * 2
    result = double(values)
    assert result.dtype == ml_dtypes.bfloat16
    assert np.array_equal(result.astype("f4"), expected)
    out = np.full(3, np.nan, ml_dtypes.bfloat16)
    double(values, out, 3)
    assert np.array_equal(out.astype("f4"), expected)
    tensor = double(tvm.runtime.tensor(values))
    assert np.array_equal(tensor.numpy().astype("f4"), expected)


def test_bfloat16_torch_tensors(kernels):
    torch = pytest.importorskip("torch")
    values = torch.tensor([1, 1.5, -3], dtype=torch.bfloat16)
    result = kernels["double"](values)
    assert result.dtype is torch.bfloat16
    assert torch.equal(result, values * 2)
    out = torch.zeros(3, dtype=torch.bfloat16)
    kernels["double"](values, out, 3)
    assert torch.equal(out, values * 2)


def test_a_tensor_of_an_autograd_graph_is_refused(spmm):
    torch = pytest.importorskip("torch")
    matrix = random_csr(9, 7)
    dense = torch.ones(7, 3, requires_grad=True)
    with pytest.raises(ValueError, match=r"argument 'b'.*call \.detach\(\)"):
        spmm(matrix, dense)
    with torch.no_grad():
        assert spmm(matrix, dense).shape == (9, 3)


def test_flat_arrays_stand_for_buffers_of_several_dimensions(spmm, rng, product):
    matrix = random_csr(9, 7)
    dense = rng.random((7, 3), "f4")
    out = np.full(27, np.nan, "f4")
    data, indptr, indices = parts(matrix)
    assert spmm(data, dense.reshape(-1), out, indptr, indices, 9, 7, 3, matrix.nnz) is out
    np.testing.assert_allclose(out.reshape(9, 3), product(matrix, dense), **TOLERANCE)


def test_an_output_that_overlaps_an_input_is_refused(spmm):
    matrix = sp.identity(6, dtype="f4", format="csr")
    shared = np.ones((12, 4), "f4")
    data, indptr, indices = parts(matrix)
    with pytest.raises(ValueError, match=r"argument 'c'.*overlaps 'b' in memory"):
        spmm(data, shared[:6], shared[3:9], indptr, indices, 6, 6, 4, 6)
    out = spmm(data, shared[:6], shared[6:], indptr, indices, 6, 6, 4, 6)
    assert (out == 1).all()

"""Everything that can be packed is read alike: SciPy, PyTorch, packed tensors, plain arrays."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp

from tests.formats.cases import CASES, Case
from tests.formats.tensors import assert_same, reference
from tvm_sparse.formats import COO, CSC, CSR, ELL, Entries, as_entries

ROWS, COLUMNS = np.array([3, 0, 3, 1, 0]), np.array([1, 2, 1, 0, 0])
VALUES = np.array([1.0, 2.0, 4.0, 0.0, 8.0], np.float32)
#: Unsorted, with a repeated entry and an explicit zero.
TENSOR = Entries((ROWS, COLUMNS), VALUES, (4, 3))
DENSE = np.array([[8, 0, 2], [0, 0, 0], [0, 0, 0], [0, 5, 0]], np.float32)


def _scipy(kind: str, container):
    return container((VALUES, (ROWS, COLUMNS)), shape=(4, 3)).asformat(kind)


@pytest.mark.parametrize("container", [sp.coo_matrix, sp.coo_array])
@pytest.mark.parametrize("kind", ["coo", "csr", "csc", "bsr", "dok", "lil", "dia"])
def test_scipy_of_every_kind(kind, container):
    matrix = _scipy(kind, container)
    packed = CSC().pack(matrix)
    np.testing.assert_array_equal(packed.unpack().toarray(), DENSE)
    assert packed.values.dtype == np.float32


def test_unsorted_rows_and_repeated_entries_of_csr_are_not_trusted_to_be_absent():
    matrix = sp.csr_matrix((4, 3), dtype=np.float32)
    matrix.indptr = np.array([0, 3, 3, 3, 4], np.int32)
    matrix.indices = np.array([2, 0, 2, 1], np.int32)
    matrix.data = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    matrix.has_sorted_indices = matrix.has_canonical_format = True
    packed = CSR().pack(matrix)
    assert packed.storage.arrays["indices"].tolist() == [0, 2, 1]
    assert packed.values.tolist() == [2.0, 4.0, 4.0]


def test_csr_arrays_may_be_longer_than_their_entries():
    matrix = sp.csr_matrix((2, 3))
    matrix.indptr = np.array([0, 1, 2], np.int32)
    matrix.indices = np.array([2, 0, 99, 99], np.int32)
    matrix.data = np.array([1.0, 2.0, 7.0, 7.0])
    packed = CSR().pack(matrix)
    assert packed.storage.arrays["indices"].tolist() == [2, 0]
    assert packed.values.tolist() == [1.0, 2.0]


def test_scipy_vectors_and_tensors():
    vector = sp.csr_array(np.array([0, 3.0, 0, 4.0]))
    assert COO(rank=1).pack(vector).storage.arrays["indices0"].ravel().tolist() == [1, 3]
    tensor = sp.coo_array((VALUES, (ROWS, COLUMNS, COLUMNS)), shape=(4, 3, 3))
    packed = COO(rank=3).pack(tensor)
    np.testing.assert_array_equal(packed.unpack().toarray(), tensor.toarray())


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint16", "bool", "complex64", "longdouble"])
def test_values_of_other_kinds(dtype):
    values = np.array([1, 0, 1, 1, 1], dtype)
    packed = CSC().pack((TENSOR.coordinates, values, TENSOR.shape))
    assert packed.values.dtype == dtype
    expected = sp.coo_matrix((values, (ROWS, COLUMNS)), shape=(4, 3)).tocsc()
    np.testing.assert_array_equal(packed.unpack().toarray(), expected.toarray())


def test_repeated_values_are_summed_in_a_wider_type():
    for dtype in (np.float16, ml_dtypes.bfloat16):
        values = np.array([256.0] + [0.5] * 64, dtype)
        zeros = np.zeros(values.size, np.int32)
        assert float(CSR().pack(((zeros, zeros), values, (1, 1))).values[0]) == 288.0


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "uint64", ">i4", ">i8"])
def test_coordinates_of_any_integer_type(dtype):
    given = (tuple(c.astype(dtype) for c in TENSOR.coordinates), VALUES.astype(">f4"), (4, 3))
    packed = CSC().pack(given)
    np.testing.assert_array_equal(packed.unpack().toarray(), DENSE)
    assert packed.values.dtype == np.dtype("float32")
    assert packed.values.dtype.isnative


def test_lists_will_do():
    assert CSR().pack(([[], []], [], (2, 2))).values.size == 0
    assert CSR().pack(([[1], [0]], [3.0], (2, 2))).values.tolist() == [3.0]


# --- PyTorch -------------------------------------------------------------------------------------

DTYPES = ["float16", "bfloat16", "float32", "float64"]


def _torch(kind: str, dtype: str = "float32"):
    torch = pytest.importorskip("torch")
    where = torch.tensor(np.stack([ROWS, COLUMNS]))
    values = torch.tensor(VALUES, dtype=getattr(torch, dtype))
    coo = torch.sparse_coo_tensor(where, values, (4, 3), check_invariants=True)
    if kind == "coo":
        return coo
    if kind in ("bsr", "bsc"):
        return getattr(coo, f"to_sparse_{kind}")((2, 3))
    return getattr(coo, f"to_sparse_{kind}")()


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["coo", "csr", "csc", "bsr", "bsc"])
def test_torch_of_every_layout(kind, dtype):
    tensor = _torch(kind, dtype)
    packed = CSR().pack(tensor)
    np.testing.assert_array_equal(packed.unpack().toarray(), DENSE)
    assert packed.values.dtype.name == dtype


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("kind", ["coo", "csr", "csc", "bsr", "bsc"])
def test_new_values_come_in_the_order_of_a_torch_tensor(kind):
    tensor = _torch(kind)
    values = (tensor._values() if kind == "coo" else tensor.values()).numpy().reshape(-1)
    packed = CSC().pack(tensor)
    packed.update_values(values * 2)
    np.testing.assert_array_equal(packed.unpack().toarray(), DENSE * 2)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_torch_tensors_that_require_gradients_and_negated_views_are_read():
    torch = pytest.importorskip("torch")
    values = torch.tensor([1.0, 2.0], requires_grad=True)
    tensor = torch.sparse_coo_tensor([[0, 1], [1, 0]], values, (2, 2), check_invariants=True)
    assert CSR().pack(tensor).values.tolist() == [1.0, 2.0]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_new_values_come_in_the_order_of_a_scipy_matrix():
    for kind in ("coo", "csr", "csc", "bsr"):
        matrix = _scipy(kind, sp.coo_matrix)
        packed = ELL().pack(matrix)
        packed.update_values(matrix.data.reshape(-1) * 2)
        np.testing.assert_array_equal(packed.unpack().toarray(), DENSE * 2)


# --- what stays as it was ------------------------------------------------------------------------


def _tensor_for(case: Case, count: int) -> Entries:
    rng = np.random.default_rng(count)
    shape = (5,) * case.format.rank
    arrays = tuple(rng.integers(0, 5, count).astype(np.int32) for _ in shape)
    tensor = case.arrange(Entries(arrays, rng.standard_normal(count).astype(np.float32), shape))
    return tensor


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sources_are_neither_written_nor_kept(case: Case, in_order):
    tensor = _tensor_for(case, 9)
    if in_order:  # nothing to sort or sum, where a copy is easily forgotten
        tensor = reference(tensor, False)
    given = [*tensor.coordinates, tensor.values]
    copies = [array.copy() for array in given]
    for array in given:
        array.flags.writeable = False
    index_dtype = tensor.coordinates[0].dtype.name
    packed = case.format.pack(tensor, index_dtype)
    for array, copy in zip(given, copies):
        np.testing.assert_array_equal(array, copy)
        for part in (packed.values, *packed.storage.arrays.values()):
            assert part.flags.writeable
            assert not np.shares_memory(part, array)


@pytest.mark.parametrize("matrix", [sp.csr_matrix, sp.csc_matrix, sp.coo_matrix])
@pytest.mark.parametrize("case", [c for c in CASES if c.format.rank == 2], ids=str)
def test_arrays_of_a_matrix_are_not_kept(case: Case, matrix):
    tensor = reference(_tensor_for(case, 9), False)
    source = matrix((tensor.values, tensor.coordinates), shape=tensor.shape)
    arrays = [
        getattr(source, name) for name in ("data", "indices", "indptr") if hasattr(source, name)
    ]
    packed = case.format.pack(source)
    for part in (packed.values, *packed.storage.arrays.values()):
        assert not any(np.shares_memory(part, array) for array in arrays)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_packed_tensors_pack_again(case: Case):
    packed = case.format.pack(_tensor_for(case, 11))
    again = case.format.pack(packed)
    assert_same(again.entries(), packed.entries())
    assert_same(as_entries(packed), packed.entries())
    assert not np.shares_memory(again.values, packed.values)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_arguments_are_named_after_the_prefix_and_the_layout(case: Case):
    packed = case.format.pack(_tensor_for(case, 7))
    arguments = packed.arguments("a")
    names = {*packed.storage.arrays, *packed.storage.sizes}
    assert set(arguments) == {"a", *(f"a_{name}" for name in names)}
    assert arguments["a"] is packed.values
    arrays = [packed.values, *packed.storage.arrays.values()]
    assert packed.nbytes == sum(array.nbytes for array in arrays)

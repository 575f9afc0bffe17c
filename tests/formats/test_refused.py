"""What cannot be packed is refused with a message that says what was expected and what was found."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from tvm import tirx

from tvm_sparse.formats import (
    COO,
    CSC,
    CSF,
    CSR,
    DCSR,
    DIA,
    ELL,
    Entries,
    LayoutBuilder,
    Ragged,
)

MATRIX = sp.coo_matrix(np.array([[1.0, 0, 2.0], [0, 0, 0], [3.0, 4.0, 5.0]]))
FORMATS = [CSR(), CSC(), COO(), DCSR(), ELL(), DIA(), CSF(2), Ragged()]


def refuses(error, message: str):
    return pytest.raises(error, match=message)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_other_numbers_of_dimensions(fmt):
    with refuses(ValueError, "tensor: expected 2 dimensions, found 1"):
        fmt.pack(([[0]], [1.0], (3,)))


def test_other_kinds_of_tensors():
    with refuses(
        TypeError, "tensor: expected a SciPy sparse matrix.*found ndarray; wrap it as scipy"
    ):
        CSR().pack(np.eye(2))


def test_values_that_are_no_numbers():
    with refuses(TypeError, "tensor: expected values that are numbers, found object"):
        CSR().pack(([[0], [0]], np.array([None]), (1, 1)))


def test_coordinates_outside_of_the_shape():
    with refuses(ValueError, r"coordinates of dimension 1 in 0\.\.2, found 0\.\.3"):
        CSR().pack(([[0, 0], [0, 3]], [1.0, 2.0], (2, 3)))
    with refuses(ValueError, r"coordinates of dimension 0 in 0\.\.1, found -1\.\.0"):
        CSR().pack(([[0, -1], [0, 1]], [1.0, 2.0], (2, 3)))
    with refuses(ValueError, r"dimension 0 in 0\.\.-1, found 0\.\.0"):
        CSR().pack(([[0], [0]], [1.0], (0, 3)))


def test_coordinates_that_are_no_integers_or_too_few():
    with refuses(
        ValueError, "integer vectors of coordinates, found float64 of shape .* dimension 1"
    ):
        CSR().pack(([[0], [0.5]], [1.0], (2, 3)))
    with refuses(ValueError, r"as many coordinates as values \(2\), found 1 in dimension 0"):
        CSR().pack(([[0], [0, 1]], [1.0, 2.0], (2, 3)))
    with refuses(ValueError, "expected 2 arrays of coordinates, found 1"):
        CSR().pack(([[0]], [1.0], (2, 3)))
    with refuses(ValueError, "expected 2 arrays of coordinates, found 1"):
        CSR().pack(Entries((np.zeros(1, np.int32),), np.ones(1), (2, 3)))


def test_several_values_for_an_entry_and_negative_sizes():
    with refuses(ValueError, r"expected one value for each entry, found shape \(1, 2\)"):
        CSR().pack(([[0], [0]], [[1.0, 2.0]], (2, 3)))
    with refuses(ValueError, r"expected a shape of sizes >= 0, found \(-1, 3\)"):
        CSR().pack(([[], []], [], (-1, 3)))


def test_pointers_of_a_broken_matrix():
    matrix = MATRIX.tocsr()
    matrix.indptr = np.array([0, 3, 2, 5], np.int32)
    with refuses(ValueError, "row pointers that never fall, found 3 and then 2 at row 1"):
        CSR().pack(matrix)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_dense_and_hybrid_tensors_of_torch():
    torch = pytest.importorskip("torch")
    with refuses(TypeError, "expected a sparse tensor, found one of layout strided"):
        CSR().pack(torch.ones(2, 2))
    hybrid = torch.sparse_coo_tensor([[0], [1]], torch.ones(1, 3), (2, 2, 3), check_invariants=True)
    with refuses(ValueError, "expected one value for each entry, found a hybrid tensor"):
        COO(rank=3).pack(hybrid)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_types_of_torch_that_numpy_lacks():
    torch = pytest.importorskip("torch")
    values = torch.ones(1).to(torch.float8_e4m3fn)
    tensor = torch.sparse_coo_tensor([[0], [1]], values, (2, 2), check_invariants=True)
    with refuses(TypeError, "expected values of a type that NumPy has, found torch.float8_e4m3fn"):
        CSR().pack(tensor)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_index_types_that_are_too_narrow(fmt):
    shape = (2**31, 2) if fmt.name == "csc" else (2, 2**31)  # the dense axis is short
    huge = ([[0], [0]], [1.0], shape)
    with refuses(ValueError, "2147483648 does not fit index_dtype int32; pass index_dtype='int64'"):
        fmt.pack(huge)
    assert fmt.pack(huge, "int64").entries().count == 1
    with refuses(ValueError, "index_dtype: expected 'int32' or 'int64', found 'int16'"):
        fmt.pack(MATRIX, "int16")


def test_slots_that_are_too_many_are_refused_before_they_are_allocated():
    long_row = (np.zeros(70_000, int), np.arange(70_000))
    with refuses(ValueError, "ell: size 4900000000 does not fit index_dtype int32"):
        ELL().pack((long_row, np.ones(70_000), (70_000, 70_000)))
    with refuses(ValueError, "dia: size 4900000000 does not fit index_dtype int32"):
        DIA().pack((long_row, np.ones(70_000), (70_000, 70_000)))


def test_rows_longer_than_the_width_of_ell():
    with refuses(
        ValueError, r"ell2: expected rows of at most 2 entries \(width\), found 3 in row 2"
    ):
        ELL(width=2).pack(MATRIX)


@pytest.mark.parametrize("width", [0, -1, 2.5, "4"])
def test_widths_that_are_no_sizes(width):
    with refuses(ValueError, f"width: expected an integer of at least 1, found {width!r}"):
        ELL(width=width)


def test_gaps_in_ragged_rows():
    with refuses(ValueError, r"ragged: expected coordinates 0\.\.2 in row \(0,\).* from 1 to 1"):
        Ragged().pack(MATRIX)
    gap = ([[0, 1, 1, 1], [2, 0, 0, 0], [0, 0, 2, 3]], [1.0] * 4, (2, 3, 4))
    with refuses(ValueError, r"expected coordinates 0\.\.2 in row \(1, 0\).* from 1 to 1"):
        Ragged(rank=3).pack(gap)


@pytest.mark.parametrize("make, smallest", [(COO, 1), (CSF, 1), (Ragged, 2)])
def test_ranks_that_a_format_does_not_have(make, smallest):
    with refuses(ValueError, f"rank: expected an integer of at least {smallest}, found 0"):
        make(0)


@pytest.mark.parametrize("order", [(0, 0, 1), (0, 1), (1, 2, 3), ()])
def test_orders_that_are_no_permutations(order):
    with refuses(ValueError, r"order: expected a permutation of 0\.\.2, found \["):
        CSF(3, order=order)


def test_new_values_of_another_number_or_kind():
    packed = CSR().pack(MATRIX)
    with refuses(ValueError, r"values: expected shape \(5,\), found \(4,\)"):
        packed.update_values(np.ones(4))
    with refuses(TypeError, "values: expected float64, found complex128"):
        packed.update_values(np.ones(5, complex))


def test_names_of_arrays_that_are_taken():
    build = LayoutBuilder("a")
    row = build.dense("I", tirx.Var("m", "int32"), dims=[0])
    build.padded("J", row, 4, 2, dims=[1])
    with refuses(ValueError, "a: expected a new name for an array, found 'indices' again"):
        build.padded("K", row, 4, 2, dims=[1])


def test_pointers_that_do_not_end_at_the_number_of_values():
    matrix = MATRIX.tocsr()
    matrix.indptr = np.array([0, 2, 3, matrix.nnz + 1], np.int32)
    with refuses(ValueError, "expected row pointers that rise from 0 to the number of values"):
        CSR().pack(matrix)

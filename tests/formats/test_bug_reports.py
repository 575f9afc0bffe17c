"""What users of sparse libraries have run into with formats."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import tvm_ffi
from tvm.ir import TensorLoad

import tvm_sparse
from tvm_sparse import SparseSchedule, schedules
from tvm_sparse.formats import BSR, COO, CSC, CSR, DCSR, DIA, ELL, Composition, Entries, Hyb


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def product(formats, matrix, dense):
    """SpMM through formats, unscheduled."""
    sch = SparseSchedule(schedules.spmm.program())
    sch.decompose_format("spmm", "A", formats)
    return tvm_sparse.compile(sch)(a=formats.pack(matrix), b=dense)


# --- unsorted columns, entries that are not grouped by row ----------------------------------------


@pytest.mark.parametrize(
    "formats", [CSR(), CSC(), COO(), DCSR(), ELL(), DIA(), BSR(2, 3), Hyb(2, [1, 2])], ids=repr
)
def test_unsorted_sources_give_the_product_of_the_sorted_matrix(formats, rng):
    dense = np.array([[1, 0, 2, 3], [0, 4, 5, 0], [6, 0, 0, 7]], "float32")
    right = rng.standard_normal((4, 5)).astype("float32")
    indices = np.array([3, 0, 2, 2, 1, 3, 0], "int32")
    values = np.array([3, 1, 2, 5, 4, 7, 6], "float32")
    unsorted = sp.csr_matrix((values, indices, np.array([0, 3, 5, 7], "int32")), shape=(3, 4))
    coo = sp.coo_matrix(dense)
    order = rng.permutation(coo.nnz)
    shuffled = (coo.row[order], coo.col[order]), coo.data[order], (3, 4)
    for source in (unsorted, shuffled):
        found = product(formats, source, right)
        np.testing.assert_allclose(found, dense @ right, rtol=1e-5, atol=1e-5)
    assert indices.tolist() == [3, 0, 2, 2, 1, 3, 0]


# --- more than 2**31 - 1 entries ---------------------------------------------------------------


def test_offsets_of_padded_blocks_are_computed_in_64_bits():
    sch = SparseSchedule(schedules.spmm.program())
    sch.decompose_format("spmm", "A", BSR(512, 512))
    offsets = []

    def note(load: TensorLoad) -> None:
        if load.source.name == "A":
            offsets.append(str(load.indices[0].ty.dtype))

    tvm_ffi.structural_walk(sch.lower().mod["spmm"].body, [(TensorLoad, note)])
    assert offsets
    assert set(offsets) == {"int64"}  # 9,000 blocks of 512 x 512 have 2**31 slots


@pytest.mark.parametrize(
    ("formats", "shape"),
    [(ELL(), (50_000, 50_000)), (DIA(), (50_000, 50_000)), (BSR(50_000, 50_000), (50_000, 50_000))],
    ids=repr,
)
def test_more_slots_than_an_index_holds_are_refused_before_they_are_allocated(formats, shape):
    # One full row, one full column: few entries that would take 2.5e9 slots.
    line = np.arange(shape[0], dtype="int32")
    zero = np.zeros_like(line)
    rows, columns = np.concatenate([zero, line[1:]]), np.concatenate([line, zero[1:]])
    entries = Entries((rows, columns), np.ones(rows.size, "float32"), shape)
    with pytest.raises(ValueError, match=r"does not fit.*int64"):
        formats.pack(entries)


# --- block sizes that do not divide, are rectangular, or are none ------------------------------


@pytest.mark.parametrize(
    "block", [(2, 2), (2, 1), (1, 2), (4, 3), (5, 7), (8, 8), (1, 1), (3, 2)], ids=str
)
def test_blocks_that_do_not_divide_keep_the_shape(block):
    dense = np.arange(1, 36, dtype="float32").reshape(5, 7)
    dense[dense % 3 == 0] = 0
    packed = BSR(*block).pack(sp.csr_matrix(dense))
    assert packed.values.shape[1:] == block
    unpacked = packed.unpack()
    assert unpacked.shape == (5, 7)
    np.testing.assert_array_equal(unpacked.toarray(), dense)
    right = np.eye(7, dtype="float32")
    np.testing.assert_array_equal(product(BSR(*block), sp.csr_matrix(dense), right), dense)


@pytest.mark.parametrize("block", [(0, 2), (2, 0), (-1, 2), (2, 1.5), (None, 2)], ids=str)
def test_blocks_without_a_size_are_refused(block):
    with pytest.raises((TypeError, ValueError), match="expected an integer of at least 1"):
        BSR(*block)


# --- diagonals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 7), (6, 2), (1, 9), (9, 1), (4, 4)], ids=str)
def test_diagonals_of_matrices_that_are_not_square(shape, rng):
    dense = rng.standard_normal(shape).astype("float32")
    dense.flat[0] = np.nan
    packed = DIA().pack(sp.csr_matrix(dense))
    assert packed.values.shape == (sum(shape) - 1, shape[0])
    np.testing.assert_array_equal(packed.unpack().toarray(), dense)
    found = product(DIA(), sp.csr_matrix(dense), np.ones((shape[1], 2), "float32"))
    assert np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1:, 0], dense[1:].sum(axis=1), rtol=1e-5, atol=1e-6)


# --- stale flags -------------------------------------------------------------------------------


@pytest.mark.parametrize("formats", [CSR(), Hyb(1, [1, 2]), BSR(2, 2)], ids=repr)
def test_cached_order_flags_are_not_trusted(formats):
    matrix = sp.csr_matrix(np.array([[1, 0, 2], [0, 3, 4]], "float32"))
    assert matrix.has_sorted_indices
    matrix.indices[:2] = [2, 0]
    matrix.data[:2] = [2, 1]
    found = product(formats, matrix, np.eye(3, dtype="float32"))
    np.testing.assert_array_equal(found, [[1, 0, 2], [0, 3, 4]])
    assert matrix.indices[:2].tolist() == [2, 0]


# --- values that cancel ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "formats",
    [CSR(), BSR(2, 2), DIA(), Hyb(1, [2]), Composition({"b": BSR(1, 2, 0.9), "r": CSR()})],
    ids=repr,
)
def test_repeated_entries_that_cancel_stay_in_the_structure(formats):
    source = ([0, 0, 1], [2, 2, 0]), np.array([1.0, -1.0, 3.0]), (2, 3)
    packed = formats.pack(source)
    unpacked = packed.unpack()
    assert unpacked.nnz == 2
    assert unpacked.indices.tolist() == [2, 0]
    assert unpacked.data.tolist() == [0, 3]
    packed.update_values(np.array([2.0, 5.0, 4.0]))
    assert packed.unpack().data.tolist() == [7, 4]

"""Formats of blocks: where blocks lie, what they are filled with, and how padding is told apart."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.formats.tensors import FILES, load, random_tensors, reference
from tvm_sparse.formats import BSR, DBSR, SRBCRS, Entries

FORMATS = [BSR(2, 3), BSR(1, 4), BSR(4, 1), BSR(16, 16), DBSR(2, 2), SRBCRS(2, 3), SRBCRS(4, 1)]


def _bits(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1).view(f"u{values.itemsize}")


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@settings(max_examples=50)
@given(data=st.data())
def test_bits_tell_padding_from_entries(fmt, data):
    packed = fmt.pack(data.draw(random_tensors(2)))
    expected = np.zeros(packed.values.size, bool)
    expected[packed.storage.slots] = True
    np.testing.assert_array_equal(_bits(packed.values) != 0, expected)
    packed.update_values(
        np.zeros(packed.places.size if packed.places is not None else expected.sum())
    )
    np.testing.assert_array_equal(_bits(packed.values) != 0, expected)
    assert (packed.values == 0).all()


def test_zeros_among_integers_are_entries_as_well():
    packed = BSR(2, 2).pack(sp.coo_array(([0, 5], ([0, 1], [1, 0])), (2, 2)))
    assert packed.values.tolist() == [[[0, 0], [5, 0]]]
    assert packed.unpack().nnz == 2


@settings(max_examples=60)
@given(data=st.data(), rows=st.integers(1, 4), columns=st.integers(1, 4))
def test_bsr_is_that_of_scipy_where_blocks_divide_the_matrix(data, rows, columns):
    found = reference(data.draw(random_tensors(2, (1.0, -2.0, 3.0))), False)
    shape = (max(1, found.shape[0]) * rows, max(1, found.shape[1]) * columns)
    matrix = sp.csr_array((found.values.astype("f8"), found.coordinates), shape=shape)
    expected = matrix.tobsr((rows, columns))
    expected.sort_indices()
    packed = BSR(rows, columns).pack(matrix)
    np.testing.assert_array_equal(packed.storage.arrays["indptr"], expected.indptr)
    np.testing.assert_array_equal(packed.storage.arrays["indices"], expected.indices)
    np.testing.assert_array_equal(packed.values, expected.data)
    assert packed.storage.sizes == {
        "block_rows": shape[0] // rows,
        "block_columns": shape[1] // columns,
        "nnz": expected.indices.size,
    }


def test_blocks_stick_out_of_the_matrix():
    packed = BSR(2, 4).pack(sp.csr_array(np.ones((3, 5))))
    assert packed.values.shape == (4, 2, 4)
    assert packed.values.sum() == 15
    assert packed.padding == 17 / 32
    assert packed.storage.sizes == {"block_rows": 2, "block_columns": 2, "nnz": 4}


def test_dbsr_stores_no_empty_block_rows():
    matrix = sp.coo_array(([1.0, 2.0, 3.0], ([6, 7, 90], [1, 5, 2])), (100, 8))
    packed = DBSR(4, 4).pack(matrix)
    assert packed.storage.arrays["block_row_indices"].tolist() == [[1], [22]]
    assert packed.storage.arrays["indptr"].tolist() == [0, 2, 3]
    assert packed.storage.arrays["indices"].tolist() == [0, 1, 0]
    assert packed.storage.sizes["stored_block_rows"] == 2


def test_hypersparse_matrices_larger_than_any_array_fit_in_dbsr():
    size = 2**40
    tensor = Entries((np.array([5, size - 1]), np.array([size - 1, 0])), np.ones(2), (size, size))
    packed = DBSR(2, 2).pack(tensor, "int64")
    found = packed.entries()
    assert [c.tolist() for c in found.coordinates] == [[5, size - 1], [size - 1, 0]]


@settings(max_examples=60)
@given(data=st.data(), t=st.integers(1, 4), g=st.integers(1, 4))
def test_sr_bcrs_groups_the_columns_of_a_strip(data, t, g):
    tensor = data.draw(random_tensors(2, (1.0, 2.0)))
    packed = SRBCRS(t, g).pack(tensor)
    indptr, indices = packed.storage.arrays["indptr"], packed.storage.arrays["indices"]
    rows, columns = tensor.coordinates
    assert indptr.size == -(-tensor.shape[0] // t) + 1
    for strip in range(indptr.size - 1):
        expected = np.unique(columns[rows // t == strip])
        groups = -(-expected.size // g)
        assert indptr[strip + 1] - indptr[strip] == groups
        found = indices[indptr[strip] : indptr[strip + 1]].ravel()
        assert found[: expected.size].tolist() == expected.tolist()
        assert (found[expected.size :] == tensor.shape[1]).all()


def test_a_bsr_part_takes_blocks_that_are_filled_enough():
    dense = np.zeros((4, 6))
    dense[:2, :2] = 1  # a full block
    dense[:2, 2:4] = [[1, 0], [0, 1]]  # a half
    dense[3, 5] = 1  # a quarter
    entries = reference(Entries(np.nonzero(dense), np.ones(7), dense.shape), False)
    for min_fill, count in ((0, 7), (0.25, 7), (0.26, 6), (0.5, 6), (0.51, 4), (1, 4)):
        assert BSR(2, 2, min_fill).takes(entries).sum() == count
        assert DBSR(2, 2, min_fill).takes(entries).sum() == count


@pytest.mark.parametrize("name", [name for name in FILES if "bsr" in name])
def test_blocks_of_pruned_weights_have_no_padding(name):
    size = {"16": 16, "32": 32}.get(name.partition("blk")[2][:2], 4)
    packed = BSR(size, size).pack(load(name))
    assert packed.padding == 0
    assert packed.values.shape[1:] == (size, size)


@pytest.mark.parametrize("make", [BSR, DBSR, SRBCRS])
def test_sizes_of_blocks_are_positive_integers(make):
    for sizes in ((0, 2), (2, -1), (1.5, 2), (2, "3")):
        with pytest.raises(ValueError, match="expected an integer of at least 1, found"):
            make(*sizes)


def test_min_fill_is_a_share():
    with pytest.raises(ValueError, match=r"min_fill: expected a share between 0 and 1, found 16"):
        BSR(4, 4, min_fill=16)


def test_values_beyond_int32_are_refused_before_memory_is_asked_for():
    matrix = sp.coo_array((np.ones(3), ([0, 70_000, 0], [0, 70_000, 70_000])), (70_001, 70_001))
    with pytest.raises(
        ValueError, match=r"does not fit index_dtype int32; pass index_dtype='int64'"
    ):
        BSR(50_000, 50_000).pack(matrix)
    with pytest.raises(
        ValueError, match=r"does not fit index_dtype int32; pass index_dtype='int64'"
    ):
        SRBCRS(70_000, 70_000).pack(matrix)

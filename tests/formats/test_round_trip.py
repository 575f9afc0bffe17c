"""Whatever is packed comes out again: the same entries, the same values, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.formats.cases import CASES, Case
from tests.formats.tensors import FILES, assert_same, load, random_tensors, reference

#: Real data that would take more slots than this in a format is not packed in it.
MOST_SLOTS = 4_000_000


@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=60)
@given(data=st.data())
def test_random_tensors_come_back(case: Case, data):
    tensor = case.arrange(data.draw(random_tensors(case.format.rank)))
    index_dtype = data.draw(st.sampled_from(("int32", "int64")))
    packed = case.format.pack(tensor, index_dtype)
    expected = reference(tensor, case.format.keeps_duplicates)
    assert_same(packed.entries().sorted(), expected, signed_zeros=not case.format.marks_padding)
    _check_storage(packed, expected.count, index_dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=30)
@given(data=st.data())
def test_scipy_holds_the_same_entries(case: Case, data):
    tensor = case.arrange(data.draw(random_tensors(case.format.rank, (1.0, -2.0, 3.0, 0.0))))
    unpacked = case.format.pack(tensor).unpack()
    expected = reference(tensor, case.format.keeps_duplicates)
    assert unpacked.shape == tensor.shape
    assert unpacked.nnz == expected.count
    dense = np.zeros(tensor.shape)
    np.add.at(dense, expected.coordinates, expected.values.astype(np.float64))
    np.testing.assert_array_equal(unpacked.toarray(), dense)


@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=30)
@given(data=st.data())
def test_new_values_take_the_places_of_the_old(case: Case, data):
    tensor = case.arrange(data.draw(random_tensors(case.format.rank)))
    values = np.arange(1, tensor.count + 1).astype(tensor.values.dtype)
    packed = case.format.pack(tensor)
    packed.update_values(values)
    again = case.format.pack((tensor.coordinates, values, tensor.shape))
    np.testing.assert_array_equal(packed.values.astype(np.float64), again.values.astype(np.float64))


@pytest.mark.parametrize("name", FILES)
def test_real_data_come_back(name: str):
    tensor = load(name)
    sorted_tensor = tensor.sorted()
    for case in CASES:
        if case.format.rank != len(tensor.shape):
            continue
        arranged = case.arrange(sorted_tensor)
        if case.slots(arranged) > MOST_SLOTS:
            continue
        packed = case.format.pack(arranged)
        signed = not case.format.marks_padding
        assert_same(packed.entries().sorted(), arranged, f"{name} as {case}", signed)


def _check_storage(packed, count: int, index_dtype: str) -> None:
    """What every format promises: zeros in padding, the index dtype, one slot for each entry."""
    slots = packed.storage.slots
    assert slots.size == count
    assert np.unique(slots).size == count
    padding = np.delete(packed.values.reshape(-1), slots).astype(np.float64)
    np.testing.assert_array_equal(padding, 0)
    assert not np.signbit(padding).any()
    if packed.format.marks_padding:
        stored = packed.values.reshape(-1)[slots].astype(np.float64)
        assert np.signbit(stored[stored == 0]).all()
    assert packed.padding == pytest.approx(padding.size / max(1, packed.values.size))
    assert all(array.dtype == index_dtype for array in packed.storage.arrays.values())
    assert packed.values.flags.c_contiguous

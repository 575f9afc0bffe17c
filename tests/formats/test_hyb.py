"""Rows go into the buckets that fit them, whatever the tensor; widths are chosen from its rows."""

from __future__ import annotations

import itertools
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.formats.tensors import FILES, load, random_tensors, reference
from tvm_sparse.cli.matrices import power_law
from tvm_sparse.formats import (
    BSR,
    CSR,
    Bucket,
    ColumnParts,
    Composition,
    Entries,
    Hyb,
    LongBucket,
    RelationalHyb,
)
from tvm_sparse.formats.hyb import choose_widths

COMPOSITIONS = {
    "one_part": Hyb(1, [1, 2, 4]),
    "parts": Hyb(3, [1, 3]),
    "more_parts_than_columns": Hyb(20, [1]),
    "relational": RelationalHyb(9, [1, 2]),
    "relational_each": RelationalHyb(9, [[1], [2, 3], [1], [4], [1, 2], [1], [1], [1], [2, 4]]),
}


def _lengths(lengths: list[int], columns: int | None = None) -> sp.csr_array:
    """Return a matrix with rows of these lengths."""
    columns = max([1, *lengths]) if columns is None else columns
    indices = np.concatenate([[0][:0], *(np.arange(length) for length in lengths)])
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    shape = (len(lengths), columns)
    return sp.csr_array((np.ones(indices.size), indices, indptr), shape=shape)


def _rows(packed, name: str) -> list[int]:
    return packed.parts[name].storage.arrays["row_indices"].ravel().tolist()


@pytest.mark.parametrize("name", COMPOSITIONS)
@settings(max_examples=80)
@given(data=st.data())
def test_entries_go_where_the_buckets_one_after_another_take_them(name: str, data):
    composition = COMPOSITIONS[name]
    entries = reference(data.draw(random_tensors(composition.rank)), keeps_duplicates=False)
    one_by_one = Composition(composition.parts).assign(entries)
    np.testing.assert_array_equal(composition.assign(entries), one_by_one)


def test_a_row_goes_into_the_narrowest_bucket_that_holds_it():
    packed = Hyb(buckets=[1, 2, 4]).pack(_lengths([2, 0, 1, 3, 9, 4, 1]))
    assert _rows(packed, "w1") == [2, 6]
    assert _rows(packed, "w2") == [0]
    assert _rows(packed, "w4") == [3, 4, 5]
    longest = packed.parts["w4"].storage
    assert longest.arrays["indptr"].tolist() == [0, 1, 4, 5]
    assert longest.sizes == {"rows": 3, "pieces": 5}
    assert longest.arrays["indices"].tolist() == [
        [0, 1, 2, 9],
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 9, 9],
        [0, 1, 2, 3],
    ]
    assert longest.values.tolist()[0] == [1, 1, 1, 0]


def test_ranges_of_columns_have_rows_of_their_own():
    dense = np.array([[1.0, 1, 1, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0, 1]])
    packed = Hyb(column_parts=3, buckets=[1, 2]).pack(sp.csr_array(dense))
    assert list(packed.parts) == ["w1", "w2"]
    narrow, wide = (packed.parts[name].storage for name in packed.parts)
    assert narrow.arrays["part_indptr"].tolist() == [0, 0, 2, 3]
    assert narrow.arrays["row_indices"].tolist() == [0, 1, 1]
    # Columns are those of the matrix.
    assert narrow.arrays["indices"].tolist() == [[5], [3], [6]]
    assert wide.arrays["part_indptr"].tolist() == [0, 1, 1, 1]
    assert wide.arrays["row_indices"].tolist() == [0]
    assert wide.arrays["indices"].tolist() == [[0, 1], [2, 7]]


@settings(max_examples=60)
@given(data=st.data())
def test_the_parts_visit_every_row_once(data):
    packed = Hyb(1, [1, 2]).pack(data.draw(random_tensors(2)))
    visited = [row for name in packed.composition.covering_parts for row in _rows(packed, name)]
    assert sorted(visited) == list(range(packed.shape[0]))


@settings(max_examples=60)
@given(data=st.data(), order=st.sampled_from((None, "rcm", "degree")))
def test_the_first_range_lists_every_row_once(data, order):
    arrays = ColumnParts(3, order).pack(data.draw(random_tensors(2))).storage.arrays
    pointers, rows = arrays["part_indptr"], arrays["row_indices"]
    ranges = [rows[begin:end].tolist() for begin, end in pairwise(pointers)]
    assert len(ranges) == 3
    assert sorted(ranges[0]) == list(range(len(ranges[0])))
    assert all(len(set(found)) == len(found) for found in ranges)
    lengths = np.diff(arrays["indptr"])
    assert (lengths[pointers[1] :] > 0).all()


@settings(max_examples=60)
@given(data=st.data(), column_parts=st.integers(1, 4))
def test_rows_of_a_bucket_are_distinct_and_sorted(data, column_parts):
    packed = Hyb(column_parts, [1, 2]).pack(data.draw(random_tensors(2)))
    for name, part in packed.parts.items():
        rows = _rows(packed, name)
        for begin, end in pairwise(part.storage.arrays.get("part_indptr", [0, len(rows)])):
            assert rows[begin:end] == sorted(set(rows[begin:end]))


def test_one_description_serves_every_matrix():
    hyb = Hyb(2, [1, 4])
    names = ["w1", "w4"]
    for matrix in (
        _lengths([]),
        _lengths([0, 0]),
        sp.csr_array((0, 5)),
        sp.csr_array((5, 0)),
        _lengths([1000]),
        sp.csr_array(np.ones((100, 1))),
        _lengths([5, 1, 0], columns=1_000_000),
    ):
        packed = hyb.pack(matrix)
        packed.check()
        assert list(packed.parts) == names == list(hyb.parts)
        assert packed.count == matrix.nnz


def test_the_relation_is_a_constant_of_the_part():
    hyb = RelationalHyb(3, [[1], [1, 2], [1]])
    assert list(hyb.parts) == ["r0_w1", "r1_w1", "r1_w2", "r2_w1"]
    tensor = ([1, 1, 0, 1], [4, 4, 2, 0], [3, 0, 1, 1]), np.arange(1.0, 5), (3, 5, 4)
    packed = hyb.pack(tensor)
    assert _rows(packed, "r0_w1") == [2]
    assert _rows(packed, "r1_w1") == [0]
    assert _rows(packed, "r1_w2") == [4]
    assert packed.parts["r1_w2"].values.tolist() == [[2, 1]]
    assert packed.parts["r1_w2"].entries().coordinates[0].tolist() == [1, 1]
    assert hyb.pack(([], [], []) and (([[]] * 3), np.empty(0), (3, 0, 0))).count == 0


def test_buckets_refuse_what_their_kernels_could_not_read():
    matrix = _lengths([1, 3])
    with pytest.raises(
        ValueError, match=r"w2: expected rows of at most 2 entries \(width\), found 3"
    ):
        Bucket(2).pack(matrix)
    with pytest.raises(ValueError, match=r"r1_w3: expected relation 1, found others"):
        LongBucket(3, relation=1).pack(([[1, 0], [0, 0], [0, 0]], [1.0, 2.0], (2, 1, 1)))


def test_parameters_that_make_no_sense_are_refused():
    for buckets in ([], [2, 2], [4, 1]):
        with pytest.raises(ValueError, match="buckets: expected one or more rising widths, found"):
            Hyb(buckets=buckets)
    with pytest.raises(
        ValueError, match=r"buckets\[1\]: expected an integer of at least 1, found 1\.5"
    ):
        Hyb(buckets=[1, 1.5])
    with pytest.raises(
        ValueError, match="column_parts: expected an integer of at least 1, found 0"
    ):
        Hyb(0)
    with pytest.raises(ValueError, match="column_parts: expected 1 for the bucket of a relation"):
        Bucket(1, 2, relation=0)
    with pytest.raises(ValueError, match="buckets: expected widths for 3 relations, found 2"):
        RelationalHyb(3, [[1], [1]])


@pytest.mark.parametrize(
    "composition",
    [Hyb(), Hyb(8), Composition({"b": BSR(4, 4, min_fill=0.5), "rest": CSR()})],
    ids=["hyb", "hyb_parts", "blocks"],
)
def test_packing_needs_at_most_three_times_the_memory_of_input_and_output(composition):
    matrix = power_law(20_000, 200_000, 3_000)
    given = matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes
    composition.pack(matrix)
    tracemalloc.start()
    packed = composition.pack(matrix)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 3 * (given + packed.nbytes)


# --- widths ----------------------------------------------------------------------------------------


def test_widths_are_open_until_there_is_a_tensor():
    for open_hyb, tensor in (
        (Hyb(), _lengths([1, 1, 7])),
        (
            RelationalHyb(1),
            ([[0] * 9, [0] + [1] + [2] * 7, [0, 0, *range(7)]], np.ones(9), (1, 3, 7)),
        ),
    ):
        with pytest.raises(
            ValueError, match=r"widths are open; give buckets, or let fitted\(tensor\)"
        ):
            _ = open_hyb.parts
        fitted = open_hyb.fitted(tensor)
        assert [part.width for part in fitted.parts.values() if part.width] == [1, 7]
        assert fitted.fitted(tensor) is fitted
        packed = open_hyb.pack(tensor)
        assert list(packed.parts) == list(fitted.parts) == list(packed.composition.parts)
        assert packed.padding == 0
    assert Hyb().fitted(_lengths([0, 0])).buckets == (1,)


@pytest.mark.parametrize("name", [n for n in FILES if n != "spconv_pc_vox005"])
def test_padding_is_at_most_30_percent_on_real_data_with_at_most_8_buckets(name: str):
    tensor = load(name)
    if len(tensor.shape) == 3:
        source, relation, target = tensor.coordinates
        extents = tensor.shape[1], tensor.shape[2], tensor.shape[0]
        packed = RelationalHyb(extents[0]).pack(
            Entries((relation, target, source), tensor.values, extents)
        )
        assert max(map(len, packed.composition.buckets)) <= 4
        assert packed.padding <= 0.3
        return
    for column_parts in (1, 4, 16):
        packed = Hyb(column_parts).pack(tensor)
        assert len(packed.composition.buckets) <= 8
        assert packed.padding <= 0.3, column_parts


@settings(max_examples=30)
@given(lengths=st.lists(st.sampled_from([1, 2, 3, 5, 9, 11]), min_size=1, max_size=9))
def test_the_choice_of_widths_is_the_cheapest_but_for_a_twentieth(lengths):
    def cost(widths) -> int:
        slots = 0
        for length in lengths:
            width = min((w for w in widths if w >= length), default=widths[-1])
            slots += -(-length // width) * (width + 1)
        return slots

    candidates = sorted({1, 2, 3, 4, 5, 6, 7, 8, 10, 12, *lengths})
    chosen = choose_widths(np.array(lengths), most=3)
    assert len(chosen) <= 3
    assert chosen[-1] >= np.mean(lengths)
    least = {
        count: min(
            cost(widths)
            for widths in itertools.combinations(candidates, count)
            if widths[-1] >= np.mean(lengths)
        )
        for count in (1, 2, 3)
    }
    cheapest = min(least.values())
    assert cost(chosen) <= 1.05 * cheapest
    fewer = range(1, len(chosen))
    assert all(least[count] > 1.05 * cheapest for count in fewer)


def test_lengths_that_many_rows_have_are_widths():
    assert choose_widths(np.full(1000, 33)) == (33,)
    assert choose_widths(np.array([17] * 900 + [13] * 100)) == (17,)


def test_one_row_of_any_length_is_no_problem():
    assert choose_widths(np.array([1_000_000])) == (1_000_000,)
    hub = choose_widths(np.array([8] * 10_000 + [5_000]))
    assert hub[0] == 8
    packed = Hyb().pack(_lengths([0, 0, 5_000, 0]))
    assert packed.padding == 0

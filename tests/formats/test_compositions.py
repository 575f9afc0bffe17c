"""Parts of a composition are disjoint, hold the whole tensor, and are each what their layout says."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.execution import build
from tests.formats.densify import densify_program, densify_with
from tests.formats.tensors import assert_same, random_tensors, reference
from tvm_sparse.formats import (
    BSR,
    COO,
    CSC,
    CSR,
    DBSR,
    DCSR,
    SRBCRS,
    ColumnParts,
    Composition,
    Entries,
    Format,
    Hyb,
    RelationalHyb,
    Storage,
)


class Diagonal(DCSR):
    """A user's format: entries on the diagonal."""

    def takes(self, entries: Entries) -> np.ndarray:
        rows, columns = entries.coordinates
        return rows == columns


MATRICES = {
    "one": Composition({"all": CSR()}),
    "blocks": Composition({"blocks": BSR(2, 2, min_fill=0.5), "rest": CSR()}),
    "three": Composition({"d": Diagonal(), "b": DBSR(3, 2, min_fill=0.4), "s": SRBCRS(2, 2)}),
    "second_takes_none": Composition({"all": COO(), "none": CSC()}),
    "hyb": Hyb(buckets=[1, 2]),
    "hyb_parts": Hyb(3, buckets=[1, 3]),
    "hyb_many_parts": Hyb(11, buckets=[2]),
    "hyb_rcm": Hyb(2, buckets=[1, 3], order="rcm"),
    "column_parts": Composition({"b": BSR(2, 2, min_fill=0.6), "rest": ColumnParts(3, "rcm")}),
    "hyb_fitted": Hyb(),
    "hyb_parts_fitted": Hyb(2),
}
TENSORS = {
    "relational": RelationalHyb(9, buckets=[1, 2]),
    "relational_each": RelationalHyb(
        9, buckets=[[1], [1, 4], [2], [3], [1], [1, 2], [1], [1], [5]]
    ),
    "relational_fitted": RelationalHyb(9),
}
COMPOSITIONS = [*MATRICES.items(), *TENSORS.items()]
every_composition = pytest.mark.parametrize(
    "composition", [pytest.param(c, id=name) for name, c in COMPOSITIONS]
)


@every_composition
@settings(max_examples=60)
@given(data=st.data())
def test_random_tensors_come_back(composition: Composition, data):
    tensor = data.draw(random_tensors(composition.rank))
    index_dtype = data.draw(st.sampled_from(("int32", "int64")))
    packed = composition.pack(tensor, index_dtype)
    expected = reference(tensor, keeps_duplicates=False)
    assert_same(packed.entries(), expected, signed_zeros=False)
    packed.check()
    assert packed.count == expected.count
    parts = packed.parts.values()
    assert packed.nbytes == sum(part.nbytes for part in parts)
    slots = sum(part.values.size for part in parts)
    assert packed.padding == ((slots - expected.count) / slots if slots else 0)
    for part in parts:
        assert part.shape == tensor.shape
        assert part.values.dtype == tensor.values.dtype
        assert all(array.dtype == index_dtype for array in part.storage.arrays.values())
        padding = np.delete(part.values.reshape(-1), part.storage.slots)
        assert not padding.view(f"u{padding.itemsize}").any()


@every_composition
@settings(max_examples=30)
@given(data=st.data())
def test_new_values_take_the_places_of_the_old(composition: Composition, data):
    tensor = data.draw(random_tensors(composition.rank))
    values = np.arange(1, tensor.count + 1).astype(tensor.values.dtype)
    packed = composition.pack(tensor)
    packed.update_values(values)
    again = composition.pack((tensor.coordinates, values, tensor.shape))
    for name, part in packed.parts.items():
        found, expected = part.values, again.parts[name].values
        np.testing.assert_array_equal(found.astype(float), expected.astype(float))


@pytest.mark.parametrize("name", MATRICES)
@settings(max_examples=20)
@given(data=st.data())
def test_scipy_holds_the_same_entries(name: str, data):
    tensor = data.draw(random_tensors(2, (1.0, -2.0, 3.0, 0.0)))
    unpacked = MATRICES[name].pack(tensor).unpack()
    expected = reference(tensor, keeps_duplicates=False)
    assert unpacked.nnz == expected.count
    dense = np.zeros(tensor.shape)
    dense[expected.coordinates] = expected.values
    np.testing.assert_array_equal(unpacked.toarray(), dense)


SHAPES = {2: [((6, 5), 14), ((9, 4), 30), ((0, 4), 0), ((3, 3), 0), ((1, 9), 12)]}
SHAPES[3] = [((9, 4, 5), 40), ((3, 2, 2), 9), ((9, 0, 2), 0), ((0, 1, 1), 0)]


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", ["blocks", "three", "hyb", "hyb_parts", "relational"])
def test_iterating_the_layouts_of_all_parts_visits_every_entry(name: str, index_dtype: str):
    composition = {**MATRICES, **TENSORS}[name]
    kernels = {}
    for part_name, part in composition.parts.items():
        # Buckets of one kind and relation differ in width alone.
        kernels[part_name] = build(densify_program(part, index_dtype))
        if len(kernels) == 6:
            break
    for shape, count in SHAPES[composition.rank]:
        rng = np.random.default_rng(count)
        arrays = tuple(rng.integers(0, extent, count) for extent in shape)
        values = rng.integers(1, 9, count).astype(np.float32)
        packed = composition.pack((arrays, values, shape), index_dtype)
        for part_name, kernel in kernels.items():
            part = packed.parts[part_name]
            expected = np.zeros(shape, np.float32)
            entries = part.entries()
            expected[entries.coordinates] = entries.values
            found = densify_with(kernel, part)
            np.testing.assert_array_equal(found, expected, f"{part_name} of {shape}")


def test_parts_take_in_order_what_is_left():
    matrix = sp.csr_array(np.array([[1.0, 2, 0], [3, 4, 0], [0, 0, 5]]))
    entries = {
        name: part.entries().values.tolist()
        for name, part in Composition({"d": Diagonal(), "b": BSR(2, 2, 0.5), "r": CSR()})
        .pack(matrix)
        .parts.items()
    }
    assert entries == {"d": [1, 4, 5], "b": [2, 3], "r": []}


def test_entries_that_no_part_takes_are_counted():
    composition = Composition({"blocks": BSR(2, 2, min_fill=1), "diagonal": Diagonal()})
    matrix = sp.csr_array(np.array([[1.0, 1, 9], [1, 1, 9], [0, 0, 1]]))
    with pytest.raises(ValueError, match=r"2 of 7 entries are left after the last part; add one"):
        composition.pack(matrix)
    with pytest.raises(ValueError, match=r"1 of 1 entries are left"):
        RelationalHyb(2, [1]).pack(([[2], [0], [0]], [1.0], (3, 1, 1)))


def test_repeated_entries_are_summed_before_they_are_divided():
    composition = Composition({"blocks": BSR(1, 2, min_fill=1), "rest": CSR(keeps_duplicates=True)})
    tensor = ([0, 0, 1, 1], [0, 0, 0, 1]), np.array([1.0, 2, 3, 4]), (2, 2)
    packed = composition.pack(tensor)
    assert packed.parts["blocks"].values.tolist() == [[[3, 4]]]
    assert packed.parts["rest"].values.tolist() == [3]
    packed.update_values(np.array([5.0, 6, 7, 8]))
    assert packed.unpack().toarray().tolist() == [[11, 0], [7, 8]]


def test_repeated_entries_may_be_kept_where_all_parts_keep_them():
    parts = {"a": CSR(keeps_duplicates=True), "b": COO(keeps_duplicates=True)}
    packed = Composition(parts, keeps_duplicates=True).pack(([[0, 0], [1, 1]], [1.0, 2.0], (1, 2)))
    assert packed.entries().values.tolist() == [1, 2]
    packed.check()
    with pytest.raises(ValueError, match=r"parts: b \(csc\) sums repeated coordinates"):
        Composition({"a": CSR(keeps_duplicates=True), "b": CSC()}, keeps_duplicates=True)


def test_unsorted_sources_are_updated_in_their_own_order():
    rng = np.random.default_rng(0)
    matrix = sp.random(40, 30, 0.2, "coo", rng=rng)
    order = rng.permutation(matrix.nnz)
    shuffled = sp.coo_array((matrix.data[order], (matrix.row[order], matrix.col[order])), (40, 30))
    packed = MATRICES["blocks"].pack(shuffled)
    packed.update_values(shuffled.data * 2)
    np.testing.assert_array_equal(packed.unpack().toarray(), 2 * matrix.toarray())
    with pytest.raises(ValueError, match=rf"values: expected shape \({matrix.nnz},\)"):
        packed.update_values(shuffled.data[1:])
    with pytest.raises(TypeError, match=r"values: expected float64, found complex128"):
        packed.update_values(shuffled.data * 1j)


def test_packed_compositions_are_sources():
    matrix = sp.random(20, 20, 0.3, "csr", rng=np.random.default_rng(0))
    packed = CSR().pack(MATRICES["three"].pack(matrix))
    np.testing.assert_array_equal(packed.unpack().toarray(), matrix.toarray())


def test_arguments_are_those_of_all_parts():
    packed = MATRICES["blocks"].pack(sp.eye_array(4, format="csr"))
    assert list(packed.arguments("a")) == [
        "a_blocks",
        "a_blocks_indptr",
        "a_blocks_indices",
        "a_blocks_block_rows",
        "a_blocks_block_columns",
        "a_blocks_nnz",
        "a_rest",
        "a_rest_indptr",
        "a_rest_indices",
        "a_rest_nnz",
    ]


def test_parts_without_names_go_by_those_of_their_formats():
    assert list(Composition([BSR(2, 2, min_fill=0.5), CSR()]).parts) == ["bsr2x2", "csr"]


def test_descriptions_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"parts: expected one format or more, found none"):
        Composition({})
    with pytest.raises(TypeError, match=r"formats by name or a sequence of them, found <CSR csr>"):
        Composition(CSR())
    with pytest.raises(TypeError, match=r"each part, found Hyb\(.*; name its parts, as in \*\*hyb"):
        Composition({"blocks": BSR(2, 2), "rest": Hyb()})
    with pytest.raises(ValueError, match=r"two have the same name; pass a dict"):
        Composition([CSR(), CSR()])
    with pytest.raises(ValueError, match=r"one rank, found a of 2, b of 3"):
        Composition({"a": CSR(), "b": COO(rank=3)})
    with pytest.raises(ValueError, match=r"names that are identifiers, found 'a b'"):
        Composition({"a b": CSR()})


def test_formats_that_answer_wrongly_are_named():
    class Careless(CSR):
        def takes(self, entries: Entries) -> np.ndarray:
            return np.zeros(entries.count)

    composition = Composition({"first": Careless()})
    with pytest.raises(ValueError, match=r"first \(csr\): expected takes\(\) to return 1 booleans"):
        composition.pack(sp.eye_array(1))


def test_the_text_of_a_packed_tensor_is_short(packed):
    assert repr(packed) == (
        f"<PackedComposition 4x4, 6 entries, {packed.nbytes} bytes, 0 % padding "
        "(b: bsr2x2 of 4, h: csr of 2)>"
    )
    assert repr(packed.parts["b"]) == "<Packed bsr2x2: 4x4, 4 entries, 48 bytes, 0 % padding>"


# --- check ---------------------------------------------------------------------------------------


@pytest.fixture
def packed():
    dense = np.array([[1.0, 2, 0, 0], [3, 4, 0, 0], [0, 0, 5, 0], [0, 6, 0, 0]])
    found = Composition({"b": BSR(2, 2, min_fill=0.75), "h": CSR()}).pack(sp.csr_array(dense))
    found.check()
    return found


def test_check_finds_an_entry_in_two_parts(packed):
    packed.parts["h"].storage.arrays["indptr"][:] = [0, 1, 2, 2, 2]
    packed.parts["h"].storage.arrays["indices"][:] = [0, 2]
    with pytest.raises(ValueError, match=r"entry \(0, 0\) is stored twice"):
        packed.check()


def test_check_of_a_single_format_finds_values_in_padding():
    part = BSR(2, 2).pack(sp.eye_array(3, format="csr"))
    part.check()
    part.values[0, 0, 1] = 1
    with pytest.raises(ValueError, match="bsr2x2: expected zeros in padding, found other values"):
        part.check()


def test_check_finds_coordinates_outside_of_the_tensor(packed):
    packed.parts["h"].storage.arrays["indices"][1] = 4
    with pytest.raises(ValueError, match=r"h: expected coordinates of dimension 1 in 0\.\.3"):
        packed.check()


def test_check_finds_values_in_padding():
    found = Composition({"b": BSR(2, 2)}).pack(sp.eye_array(2, format="csr"))
    found.parts["b"].values[0, 0, 1] = 1
    with pytest.raises(ValueError, match=r"b: expected zeros in padding, found other values"):
        found.check()


def test_check_finds_entries_that_look_like_padding(packed):
    packed.parts["b"].values[0, 0, 0] = 0.0
    with pytest.raises(ValueError, match=r"b: expected -0\.0 for an entry that is zero"):
        packed.check()
    packed.parts["b"].values[0, 0, 0] = -0.0
    packed.check()


def test_check_finds_entries_that_are_missing(packed):
    packed.chosen["h"][0] = packed.chosen["b"][0]
    with pytest.raises(ValueError, match=r"expected every entry in one part"):
        packed.check()
    packed.chosen["h"] = packed.chosen["h"][1:]
    with pytest.raises(ValueError, match=r"h: expected 1 slots in 0\.\.1, found 2 others"):
        packed.check()


def test_check_finds_a_slot_of_two_entries():
    class Overwriting(CSR):
        def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
            storage = super().store(entries, index_dtype)
            storage.slots[:] = 0
            return storage

    found = Composition({"a": Overwriting()}).pack(sp.eye_array(2, format="csr"))
    with pytest.raises(
        ValueError, match=r"a: expected one entry in each slot, found one with several"
    ):
        found.check()


# --- drawings ------------------------------------------------------------------------------------


def test_a_drawing_has_a_colour_for_each_part(packed):
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    assert packed.plot(axes) is axes
    cells = axes.get_images()[0].get_array().filled(-1)
    expected = [[0, 0, -1, -1], [0, 0, -1, -1], [-1, -1, 1, -1], [-1, 1, -1, -1]]
    np.testing.assert_array_equal(cells, expected)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["b", "h"]
    assert axes.get_title() == f"2 of 2 parts: {packed.nbytes} bytes, 0 % padding"


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 2)])
def test_compositions_without_entries_are_drawn(shape):
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    Hyb().pack(sp.coo_array(shape)).plot(axes)
    axes.figure.canvas.draw()


def test_formats_take_all_unless_they_say_otherwise():
    entries = Entries((np.array([0, 1]), np.array([1, 0])), np.ones(2), (2, 2))
    assert Format.takes(CSR(), entries).tolist() == [True, True]

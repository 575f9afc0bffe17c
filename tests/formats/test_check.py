"""check_format accepts the formats of the package, and finds what a new one gets wrong."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp

from tests.formats.cases import CASES, Case
from tvm_sparse import schedules
from tvm_sparse.formats import (
    BSR,
    CSR,
    DCSR,
    DIA,
    ColumnParts,
    Entries,
    Format,
    Hyb,
    LayoutBuilder,
    Packed,
    RowList,
    Storage,
    check_format,
)
from tvm_sparse.formats.description import describe_format, difference

STRUCTURES = {
    1: [(7,), (0,)],
    2: [(5, 7), (7, 5), (1, 9), (6, 1), (0, 3), (3, 0)],
    3: [(3, 4, 5), (1, 2, 0)],
    4: [(2, 3, 2, 3)],
}
MATRIX = sp.csr_matrix(np.array([[1, 0, 2, 0], [0, 0, 0, 0], [0, 3, 4, 5], [0, 0, 0, 6]], "f4"))


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_formats_of_the_package_agree_with_themselves(case: Case, index_dtype: str):
    for shape in STRUCTURES[case.format.rank]:
        count = min(8, int(np.prod(shape)))
        rng = np.random.default_rng([count, *shape])
        arrays = tuple(rng.integers(0, extent, count) for extent in shape)
        tensor = case.arrange(Entries(arrays, np.ones(count, np.float32), shape))
        assert check_format(case.format, tensor, index_dtype).format is case.format


class SwappedMap(CSR):
    def coordinates(self, storage: Storage, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        return super().coordinates(storage, slots)[::-1]


class ShiftedLayout(DIA):
    def layout(self, prefix, shape, index_dtype="int32"):
        found = super().layout(prefix, shape, index_dtype)
        build = LayoutBuilder(prefix, index_dtype)
        build.params, build.axes = found.params, list(found.axes)
        return build.finish(lambda at: [at[1], found.to_tensor(at)[1] + 1])


class UnmarkedPadding(BSR):
    marks_padding = False


class DistinctDiagonals(DIA):
    def layout(self, prefix, shape, index_dtype="int32"):
        found = super().layout(prefix, shape, index_dtype)
        axes = [dataclasses.replace(stored, distinct=True) for stored in found.axes]
        return dataclasses.replace(found, axes=tuple(axes))


class LaterRangesListAll(ColumnParts):
    def store(self, entries, index_dtype):
        storage = super().store(entries, index_dtype)
        flipped = storage.arrays["part_indptr"].max() - storage.arrays["part_indptr"][::-1]
        return dataclasses.replace(storage, arrays={**storage.arrays, "part_indptr": flipped})


class CoversNothing(DCSR):
    covers = (0,)


class CoversTwice(CSR):
    def layout(self, prefix, shape, index_dtype="int32"):
        found = super().layout(prefix, shape, index_dtype)
        build = LayoutBuilder(prefix, index_dtype)
        build.params, build.axes = found.params, list(found.axes)
        build.dense("Z", 2, dims=[0])
        return build.finish(lambda at: list(at[:2]))

    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        storage = super().store(entries, index_dtype)
        values = np.stack([storage.values, np.zeros_like(storage.values)], axis=1)
        return Storage(values, storage.arrays, storage.sizes, storage.slots * 2)

    def coordinates(self, storage: Storage, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        return super().coordinates(storage, slots // 2)

    marks_padding = True


class ForgottenArray(CSR):
    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        storage = super().store(entries, index_dtype)
        del storage.arrays["indptr"]
        return storage

    def coordinates(self, storage: Storage, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        return np.zeros_like(slots), slots


class TooManyValues(CSR):
    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        storage = super().store(entries, index_dtype)
        values = np.append(storage.values, np.float32(0))
        return Storage(values, storage.arrays, storage.sizes, storage.slots)


@pytest.mark.parametrize(
    "fmt, message",
    [
        (
            SwappedMap(),
            r"slot 1 lies at \(2, 0\) by coordinates\(\), and at \(0, 2\) by the layout",
        ),
        (ShiftedLayout(), r"slot 4 lies at \(0, 0\) by coordinates\(\), and at \(0, 1\) by"),
        (UnmarkedPadding(2, 2), r"slot 1 is padding at \(0, 1\) in the tensor; set marks_padding"),
        (CoversNothing(), r"covers names dimensions \(0,\); the axes visit \(1,\) of them 0 times"),
        (CoversTwice(), r"the axes visit \(0,\) of them 2 times, not once"),
        (LaterRangesListAll(2), r"covers_at_start names dimensions \(0,\); the axes visit \(\d,\)"),
        (
            DistinctDiagonals(),
            r"axis D is distinct, but 2 of its entries are at coordinates of dim",
        ),
        (ForgottenArray(), r"layout\(\) declares \(indices, indptr, nnz\), found indices, nnz"),
        (TooManyValues(), "expected a value for each of the 6 slots of the axes, found 7"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Format) else "",
)
def test_what_does_not_agree_is_named(fmt: Format, message: str):
    with pytest.raises(ValueError, match=message):
        check_format(fmt, MATRIX)


def without_last_row(packed: Packed) -> Packed:
    """Return a list of rows that lacks one, as hand-made arrays may."""
    arrays, kept = packed.storage.arrays, packed.storage.arrays["indptr"][-2]
    storage = Storage(
        packed.values[:kept],
        {
            "row_indices": arrays["row_indices"][:-1],
            "indptr": arrays["indptr"][:-1],
            "indices": arrays["indices"][:kept],
        },
        {"rows": packed.storage.sizes["rows"] - 1, "nnz": int(kept)},
        packed.storage.slots[:kept],
    )
    return dataclasses.replace(packed, storage=storage)


def test_a_list_that_lacks_a_row_initialises_no_result():
    packed = without_last_row(RowList(None).pack(sp.eye(4, format="csr", dtype="f4")))
    message = r"rows: covers names dimensions \(0,\); the axes visit \(3,\) of them 0 times"
    with pytest.raises(ValueError, match=message):
        packed.check()
    kernel = schedules.spmm.build(formats=RowList(None))
    with pytest.raises(ValueError, match=message):
        kernel(a=packed, b=np.ones((4, 2), "f4"), validate="full")


def test_ranges_whose_first_one_lacks_a_row_initialise_no_result():
    packed = ColumnParts(2).pack(sp.eye(4, format="csr", dtype="f4"))
    packed.storage.arrays["part_indptr"][1] -= 1
    with pytest.raises(
        ValueError, match=r"columns: covers_at_start .* visit \(3,\) of them 0 times"
    ):
        packed.check()


def test_parts_that_lack_a_row_together_initialise_no_result():
    packed = Hyb(buckets=[1, 2]).pack(sp.csr_matrix(np.diag([1.0, 2, 0, 3]).astype("f4")))
    packed.parts["w0"].storage.arrays["row_indices"][0] = 1
    with pytest.raises(ValueError, match=r"covers of w0, w1, w2 .* visit \(1,\) of them 2 times"):
        packed.check()


def test_a_kernel_that_relies_on_covering_refuses_a_format_that_does_not():
    covering, other = (describe_format(fmt) for fmt in (RowList(None), DCSR()))
    assert "not known to visit all of dimension 0" in difference(
        {**covering, "covers": other["covers"]}, covering
    )
    assert difference(covering, {**covering, "covers": []}) is None

"""check_format accepts the formats of the package, and finds what a new one gets wrong."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp

from tests.formats.cases import CASES, Case
from tvm_sparse.formats import (
    BSR,
    CSR,
    DCSR,
    DIA,
    ColumnParts,
    Entries,
    Format,
    LayoutBuilder,
    Storage,
    check_format,
)

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

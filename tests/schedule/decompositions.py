"""Formats and compositions of matrices, matrices to pack in them, and what products with them are."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.formats.cases import at_most, packed_left
from tests.formats.tensors import reference
from tests.schedule.user_format import Band, EvenRowsBlocks, EvenRowsDiagonals
from tvm_sparse import SparseSchedule
from tvm_sparse.formats import (
    BSR,
    COO,
    CSC,
    CSF,
    CSR,
    DBSR,
    DCSR,
    DIA,
    ELL,
    SRBCRS,
    Bucket,
    ColumnParts,
    Composition,
    Entries,
    Format,
    FurtherPieces,
    Hyb,
    LongBucket,
    Pieces,
    Ragged,
    RowList,
)
from tvm_sparse.ir import SparseFunc
from tvm_sparse.runtime import Executable

__all__ = [
    "EMPTY",
    "EXAMPLES",
    "FORMATS",
    "LONG_ROW",
    "SHAPES",
    "SOME",
    "SPECIAL",
    "TYPES",
    "VALUES",
    "Case",
    "assert_padding_is_marked",
    "assert_result",
    "check_product",
    "decomposed",
    "dense_rows",
    "entries_of",
    "every_format",
    "matrices",
    "numpy_dtype",
    "poisoned_rows",
    "some_formats",
    "sums",
]

SHAPES = ((4, 5), (9, 7), (1, 6), (6, 1), (0, 3), (3, 0), (0, 0))
VALUES = (1.0, -2.0, 3.0, 0.0, -0.0)
SPECIAL = (*VALUES, np.inf, -np.inf, np.nan)
EMPTY = Entries((np.zeros(0, np.int32), np.zeros(0, np.int32)), np.zeros(0), (4, 5))
LONG_ROW = Entries((np.full(7, 2, np.int32), np.arange(7, dtype=np.int32)), np.arange(7.0), (9, 7))
EXAMPLES = settings(max_examples=12)
TYPES = [("float32", "int32"), ("float64", "int64"), ("float16", "int32"), ("bfloat16", "int64")]


@dataclass(frozen=True)
class Case:
    """One format or composition of matrices.

    Attributes
    ----------
    formats : object
        What :meth:`SparseSchedule.decompose_format` takes.
    packs : Format or Composition
        What packs matrices for it.
    arrange : callable
        Makes of any matrix one that it can hold.
    """

    formats: object
    packs: Format | Composition
    arrange: Callable[[Entries], Entries]

    @property
    def keeps_duplicates(self) -> bool:
        """Whether repeated coordinates stay."""
        return self.packs.keeps_duplicates

    @property
    def marks_padding(self) -> bool:
        """Whether some part has padding inside of the matrix."""
        parts = self.packs.parts.values() if hasattr(self.packs, "parts") else [self.packs]
        return any(part.marks_padding for part in parts)


def _case(formats, arrange=lambda tensor: tensor) -> Case:
    if isinstance(formats, list):
        packs = Composition({fmt.name: fmt for fmt in formats})
    else:
        packs = Composition(formats) if isinstance(formats, dict) else formats
    return Case(formats, packs, arrange)


FORMATS = {
    "csr": _case(CSR()),
    "csr_duplicates": _case(CSR(keeps_duplicates=True)),
    "csc": _case(CSC()),
    "csc_duplicates": _case(CSC(keeps_duplicates=True)),
    "coo": _case(COO()),
    "coo_duplicates": _case(COO(keeps_duplicates=True)),
    "dcsr": _case(DCSR()),
    "ell": _case(ELL()),
    "ell3": _case(ELL(3), at_most(3)),
    "dia": _case(DIA()),
    "bsr2x3": _case(BSR(2, 3)),
    "bsr4x4": _case(BSR(4, 4)),
    "dbsr3x2": _case(DBSR(3, 2)),
    "sr_bcrs2x3": _case(SRBCRS(2, 3)),
    "bucket3": _case(Bucket(3), at_most(3)),
    "bucket3_parts": _case(Bucket(3, 2), at_most(3)),
    "long_bucket2": _case(LongBucket(2)),
    "long_bucket2_parts": _case(LongBucket(2, 9)),
    "row_list": _case(RowList("degree")),
    "columns": _case(ColumnParts(3)),
    "csf": _case(CSF(2)),
    "csf_columns": _case(CSF(2, order=(1, 0), compressed_root=True)),
    "ragged": _case(Ragged(), packed_left),
    "further_pieces": _case(FurtherPieces(2)),
    "pieces": _case(Pieces(2)),
    "hyb": _case(Hyb(buckets=[1, 3])),
    "hyb_parts": _case(Hyb(3, buckets=[1, 2])),
    "blocks_and_rest": _case([BSR(2, 2, min_fill=0.5), CSR()]),
    "rest_first": _case({"c": Band(2), "b": BSR(2, 2)}),
    "entries_and_columns": _case({"x": Band(1), "e": COO(), "c": CSC()}),
    "user_diagonals": _case({"even": EvenRowsDiagonals(), "odd": DIA()}),
    "user_blocks": _case({"even": EvenRowsBlocks(), "rest": CSR()}),
}


#: One format of each kind: where every format takes too long.
SOME = ("csr", "coo", "bsr2x3", "pieces", "hyb_parts", "user_diagonals")
every_format = pytest.mark.parametrize("name", FORMATS)
some_formats = pytest.mark.parametrize("name", SOME)


@st.composite
def matrices(draw, values: tuple[float, ...] = (1.0, -2.0, 3.0, 0.0, -0.0)) -> Entries:
    """Draw a matrix: empty rows, a long one, repeated coordinates, explicit zeros, in any order."""
    rows, columns = draw(st.sampled_from(SHAPES))
    coordinate = st.tuples(st.integers(0, max(0, rows - 1)), st.integers(0, max(0, columns - 1)))
    found = draw(st.lists(coordinate, max_size=12 if rows and columns else 0))
    if rows and columns and draw(st.booleans()):
        found += [(rows // 2, column) for column in range(columns)]
    chosen = draw(st.lists(st.sampled_from(values), min_size=len(found), max_size=len(found)))
    pairs = np.array(found, np.int32).reshape(len(found), 2).T
    return Entries(
        tuple(np.ascontiguousarray(pair) for pair in pairs), np.array(chosen), (rows, columns)
    )


def entries_of(case: Case, tensor: Entries, dtype: str) -> tuple[Entries, Entries]:
    """Return a matrix as it is packed in a case, and the entries that it then stores, in float64."""
    given = case.arrange(tensor)
    given = Entries(given.coordinates, given.values.astype(dtype), given.shape)
    stored = reference(given, case.keeps_duplicates)
    return given, Entries(stored.coordinates, stored.values.astype(np.float64), stored.shape)


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def decomposed(func: SparseFunc, operand, name: str) -> SparseSchedule:
    sch = SparseSchedule(func)
    sch.decompose_format(func.name, operand, FORMATS[name].formats)
    return sch


def sums(entries: Entries, operand: np.ndarray, combine: Callable, init: float) -> np.ndarray:
    """Combine ``value * operand[column]`` over the entries of each row, in float64."""
    result = np.full((entries.shape[0], *operand.shape[1:]), init, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        for row, column, value in zip(*entries.coordinates, entries.values):
            result[row] = combine(result[row], value * operand[column].astype(np.float64))
    return result


def poisoned_rows(rows: int, shape: tuple[int, ...], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return an array of NaN with a row more before and after, and the rows between."""
    whole = np.full((rows + 2, *shape), np.nan, numpy_dtype(dtype))
    return whole, whole[1:-1]


def assert_result(whole: np.ndarray, expected: np.ndarray) -> None:
    """The rows between are as expected to the bit, those around as they were."""
    found = whole.astype(np.float64)
    np.testing.assert_array_equal(found[1:-1], expected)
    assert np.isnan(found[[0, -1]]).all()


def check_product(kernel: Executable, name: str, tensor: Entries, b: np.ndarray, dtype, index):
    given, stored = entries_of(FORMATS[name], tensor, numpy_dtype(dtype))
    packed = FORMATS[name].packs.pack(given, index)
    b = b.astype(numpy_dtype(dtype))
    whole, inner = poisoned_rows(tensor.shape[0], b.shape[1:], dtype)
    vector = b.ndim == 1
    kernel(a=packed, **({"x": b, "y": inner} if vector else {"b": b, "c": inner}))
    assert_result(whole, sums(stored, b, operator.add, 0))


def dense_rows(draw, rows: int, width: tuple[int, ...], values: tuple[float, ...]) -> np.ndarray:
    size = rows * int(np.prod(width, dtype=int))
    chosen = draw(st.lists(st.sampled_from(values), min_size=size, max_size=size))
    return np.array(chosen, np.float64).reshape(rows, *width)


def assert_padding_is_marked(packed) -> None:
    for part in packed.parts.values() if hasattr(packed, "parts") else [packed]:
        flat, slots = part.values.reshape(-1), part.storage.slots
        bits = np.dtype(f"u{flat.itemsize}")
        assert not np.delete(flat, slots).view(bits).any()
        if part.format.marks_padding:
            assert flat[slots].view(bits).all()

"""The formats that every test of this folder runs on: a new format is one more line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

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
    Entries,
    Format,
    FurtherPieces,
    LongBucket,
    Ragged,
    RowList,
)
from tvm_sparse.formats.entries import linear_key

__all__ = ["CASES", "Case", "at_most", "packed_left"]


def _as_it_is(tensor: Entries) -> Entries:
    return tensor


def packed_left(tensor: Entries) -> Entries:
    """Move entries along the last dimension so that no row has gaps; repeated ones stay together."""
    *outer, _ = tensor.coordinates
    groups = _numbered(outer, tensor.shape[:-1])
    whole = _numbered(tensor.coordinates, tensor.shape)
    if not whole.size:
        return tensor
    first = np.full(groups.max() + 1, whole.size)
    np.minimum.at(first, groups, whole)
    last = (whole - first[groups]).astype(tensor.coordinates[-1].dtype)
    return Entries((*outer, last), tensor.values, tensor.shape)


def _numbered(coordinates: Sequence[np.ndarray], shape: Sequence[int]) -> np.ndarray:
    """Number the distinct places among coordinates in sorted order, for each entry."""
    return np.unique(linear_key(coordinates, shape), return_inverse=True)[1]


def at_most(width: int) -> Callable[[Entries], Entries]:
    """Drop the entries of a row beyond its first ``width`` distinct columns."""

    def shorten(tensor: Entries) -> Entries:
        within = packed_left(tensor).coordinates[-1]
        return tensor.take(within < width)

    return shorten


def _one_each(tensor: Entries) -> int:
    return tensor.count


def _ell_slots(tensor: Entries) -> int:
    lengths = np.bincount(tensor.coordinates[0], minlength=1)
    return tensor.shape[0] * int(lengths.max())


def _dia_slots(tensor: Entries) -> int:
    rows, columns = tensor.coordinates
    return np.unique(columns.astype(np.int64) - rows).size * tensor.shape[0]


def _block_slots(rows: int, columns: int) -> Callable[[Entries], int]:
    def count(tensor: Entries) -> int:
        blocks = (tensor.coordinates[0] // rows, tensor.coordinates[1] // columns)
        return np.unique(linear_key(blocks, tensor.shape)).size * rows * columns

    return count


@dataclass(frozen=True)
class Case:
    """One format under test.

    Attributes
    ----------
    label : str
        Name of the case.
    format : Format
        The format.
    arrange : callable
        Makes of any tensor of the rank one that the format can hold.
    slots : callable
        About how many slots a tensor takes, so that real data that takes too many is left out.
    """

    label: str
    format: Format
    arrange: Callable[[Entries], Entries] = _as_it_is
    slots: Callable[[Entries], int] = _one_each

    def __str__(self) -> str:
        return self.label


CASES = (
    Case("csr", CSR()),
    Case("csr_duplicates", CSR(keeps_duplicates=True)),
    Case("csc", CSC()),
    Case("csc_duplicates", CSC(keeps_duplicates=True)),
    Case("coo", COO()),
    Case("coo_duplicates", COO(keeps_duplicates=True)),
    Case("coo1", COO(rank=1)),
    Case("coo3", COO(rank=3)),
    Case("dcsr", DCSR()),
    Case("rows", RowList(None)),
    Case("rows_rcm", RowList("rcm")),
    Case("rows_degree", RowList("degree")),
    Case("rows_called", RowList(lambda pattern: np.arange(pattern.shape[0])[::-1])),
    Case("ell", ELL(), slots=_ell_slots),
    Case("ell3", ELL(width=3), arrange=at_most(3)),
    Case("dia", DIA(), slots=_dia_slots),
    Case("bsr2x3", BSR(2, 3)),
    Case("bsr16x16", BSR(16, 16), slots=_block_slots(16, 16)),
    Case("dbsr3x2", DBSR(3, 2)),
    Case("sr_bcrs2x3", SRBCRS(2, 3)),
    Case("sr_bcrs8x1", SRBCRS(8, 1)),
    Case("bucket3", Bucket(3), arrange=at_most(3)),
    Case("long_bucket2", LongBucket(2)),
    Case("bucket3_rcm", Bucket(3, order="rcm"), arrange=at_most(3)),
    Case("long_bucket2_degree", LongBucket(2, order="degree")),
    Case("columns3_degree", ColumnParts(3, "degree")),
    Case("bucket2_columns3", Bucket(2, 3, order="degree"), arrange=at_most(2)),
    Case("long_bucket2_columns2", LongBucket(2, 2)),
    Case("further_pieces2", FurtherPieces(2)),
    Case("csf1", CSF(1)),
    Case("csf1_compressed", CSF(1, compressed_root=True)),
    Case("csf2_columns", CSF(2, order=(1, 0), compressed_root=True)),
    Case("csf3", CSF(3)),
    Case("csf3_middle_first", CSF(3, order=(1, 2, 0), compressed_root=True)),
    Case("csf4", CSF(4, order=(3, 0, 2, 1))),
    Case("ragged", Ragged(), arrange=packed_left),
    Case("ragged3", Ragged(rank=3), arrange=packed_left),
)

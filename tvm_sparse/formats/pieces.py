"""Pieces: rows cut into pieces of at most so many entries, so that no unit of work is larger."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm.ir import Expr

from .composition import Composition
from .csr import CSR
from .entries import Entries
from .format import Format, Storage, as_size, check_positive
from .layout import Layout, LayoutBuilder

__all__ = ["FurtherPieces", "Pieces"]


class Pieces(Composition):
    """CSR whose long rows are cut: part ``head`` is the first piece of each row, ``tail`` the others.

    A parallel loop over the rows of ``head`` and one over the pieces of ``tail`` have units of at most
    ``entries`` stored entries, however skewed the rows are. What pieces of ``tail`` contribute is added
    to the result afterwards, see :attr:`Format.combines`.

    Parameters
    ----------
    entries : int
        Most entries of a piece.

    Notes
    -----
    Row splitting, as "row-split with long rows cut" of Yang, Buluç and Owens, "Design principles for
    sparse matrix multiplication on the GPU", Euro-Par 2018.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import Pieces
    >>> packed = Pieces(entries=2).pack(sp.coo_matrix([[1.0, 2, 3, 4, 5], [6, 0, 0, 0, 0]]))
    >>> packed.parts["head"].values.tolist(), packed.parts["tail"].values.tolist()
    ([1.0, 2.0, 6.0], [3.0, 4.0, 5.0])
    >>> packed.parts["tail"].storage.arrays["indptr"].tolist()
    [0, 2, 3]
    """

    covers = (0,)
    covering_parts = ("head",)

    def __init__(self, entries: int) -> None:
        check_positive(entries=entries)
        self.entries = as_size(entries)
        super().__init__({"head": FirstPieces(self.entries), "tail": FurtherPieces(self.entries)})

    @property
    def disjoint_rows(self) -> dict[str, str]:
        """Both parts: pieces of ``tail`` write what they contribute to a place of their own."""
        return dict.fromkeys(self.parts, "pieces")

    def __repr__(self) -> str:
        return f"Pieces(entries={self.entries})"


class FirstPieces(CSR):
    """CSR that takes at most the first ``entries`` entries of each row."""

    def __init__(self, entries: int) -> None:
        super().__init__()
        self.name, self.entries = "head", entries

    def takes(self, entries: Entries) -> np.ndarray:
        return _place_in_row(entries) < self.entries


class FurtherPieces(Format):
    """Pieces of rows: ``T`` dense over pieces, ``I`` their row numbers, ``J`` columns.

    Row numbers repeat where a row has several pieces.

    Parameters
    ----------
    entries : int
        Most entries of a piece.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import FurtherPieces
    >>> packed = FurtherPieces(entries=2).pack(sp.coo_matrix([[1.0, 2, 3], [0, 0, 0]]))
    >>> packed.storage.arrays["row_indices"].ravel().tolist()
    [0, 0]
    """

    combines = True

    def __init__(self, entries: int) -> None:
        check_positive(entries=entries)
        self.name, self.entries = "tail", as_size(entries)

    def layout(self, prefix: str, shape: Sequence[Expr], index_dtype: str = "int32") -> Layout:
        rows, columns = shape
        build = LayoutBuilder(prefix, index_dtype)
        piece = build.dense("T", build.size("pieces"), dims=[0], distinct=False)
        row = build.padded("I", piece, rows, 1, dims=[0], indices="row_indices", distinct=False)
        build.compressed("J", row, columns, dims=[1])
        return build.finish(lambda coordinates: list(coordinates[1:]))

    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        rows, columns = entries.coordinates
        begins = np.flatnonzero(_place_in_row(entries) % self.entries == 0)
        arrays = {
            "row_indices": rows[begins].astype(index_dtype).reshape(-1, 1),
            "indptr": np.append(begins, entries.count).astype(index_dtype),
            "indices": columns.astype(index_dtype),
        }
        sizes = {"pieces": begins.size, "nnz": entries.count}
        return Storage(entries.values.copy(), arrays, sizes, np.arange(entries.count))

    def coordinates(self, storage: Storage, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        piece = np.searchsorted(storage.arrays["indptr"], slots, side="right") - 1
        return storage.arrays["row_indices"][piece, 0], storage.arrays["indices"][slots]


def _place_in_row(entries: Entries) -> np.ndarray:
    """Return the place of each entry among those of its row."""
    begins = entries.row_pointers
    return np.arange(entries.count) - np.repeat(begins[:-1], np.diff(begins))

"""A user's formats in a module of their own, as a trace names them."""

from __future__ import annotations

import numpy as np

from tvm_sparse.formats import BSR, CSR, DIA, Composition, Entries

__all__ = ["Band", "BandAndRest", "EvenRowsBlocks", "EvenRowsDiagonals", "Hidden"]


class Band(CSR):
    """Entries near the diagonal, in CSR."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.name, self.width = "band", width

    def takes(self, entries: Entries) -> np.ndarray:
        rows, columns = entries.coordinates
        return abs(rows.astype(np.int64) - columns) < self.width


class BandAndRest(Composition):
    """A band and the rest."""

    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__({"band": Band(width), "rest": CSR()})


class EvenRowsDiagonals(DIA):
    """Entries of even rows, by diagonals: the padding between them is where other parts have entries."""

    def takes(self, entries: Entries) -> np.ndarray:
        return entries.coordinates[0] % 2 == 0


class EvenRowsBlocks(BSR):
    """Entries of even rows, in blocks whose other rows are padding."""

    def __init__(self) -> None:
        super().__init__(2, 2)

    def takes(self, entries: Entries) -> np.ndarray:
        return entries.coordinates[0] % 2 == 0


class Hidden(CSR):
    """A format that does not tell what it was made of."""

    def __init__(self, secret: int) -> None:
        super().__init__()
        self.name = f"hidden{secret}"

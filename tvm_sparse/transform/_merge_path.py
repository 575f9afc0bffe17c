"""Shares of a merge path: equal numbers of entries and ends of rows, and the search for where one begins.

See Merrill and Garland, "Merge-based parallel sparse matrix-vector multiplication", SC 2016.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr, Var

from ..ir.statements import as_int64

__all__ = ["FoundRow", "MergePath"]


@dataclass(frozen=True)
class FoundRow:
    """Statements that search a row, and the expression that reads it afterwards."""

    statements: list[tirx.Stmt]
    row: Expr


class MergePath:
    """Rows, of which each share has the same number of entries and ends.

    Parameters
    ----------
    indptr : Var
        The row pointers.
    index_dtype : str
        Type of a row where it is an index.
    rows, entries : Expr
        How many there are, in 64 bits.
    work : int
        Entries and ends of rows of a share.
    """

    def __init__(self, indptr: Var, index_dtype: str, rows: Expr, entries: Expr, work: int) -> None:
        self.indptr, self._index_dtype = indptr, index_dtype
        self.rows, self._entries, self.work = rows, entries, as_int64(work)
        self.total = rows + entries
        self.shares = tirx.truncdiv(self.total + (self.work - 1), self.work)

    def place(self, row: Expr) -> Expr:
        """Return a row as an index."""
        return row.astype(self._index_dtype)

    def pointer(self, row: Expr) -> Expr:
        """Return where the entries of a row begin, as stored, in 64 bits."""
        return as_int64(self.indptr[self.place(row)])

    @property
    def base(self) -> Expr:
        """Where the entries of the first row begin."""
        return self.pointer(as_int64(0))

    def row_at(self, item: Var) -> FoundRow:
        """Search how many rows end among the first `item` entries and ends of rows."""
        zero = tirx.const(0, "int32")
        low = tirx.decl_buffer((1,), "int64", name="share_low", scope="local")
        high = tirx.decl_buffer((1,), "int64", name="share_high", scope="local")
        read_low, read_high = tirx.BufferLoad(low, [zero]), tirx.BufferLoad(high, [zero])
        middle = Var("share_middle", "int64")
        base = self.base
        until = self.pointer(middle + 1) - base
        step = tirx.SeqStmt(
            [
                tirx.Bind(middle, tirx.truncdiv(read_low + read_high, as_int64(2))),
                tirx.IfThenElse(
                    until + middle < item,
                    tirx.BufferStore(low, middle + 1, [zero]),
                    tirx.BufferStore(high, middle, [zero]),
                ),
            ]
        )
        statements = [
            tirx.AllocBuffer(low),
            tirx.AllocBuffer(high),
            tirx.BufferStore(low, tirx.max(item - self._entries, as_int64(0)), [zero]),
            tirx.BufferStore(high, tirx.min(item, self.rows), [zero]),
            tirx.While(read_low < read_high, step),
        ]
        return FoundRow(statements, read_low)

"""SDDMM with blocks of entries, as tile programs see it: which loop is which, and where operands lie."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var

from .block_nests import Factor, Nest, stride, uses
from .staging import cast

__all__ = ["BlockDots", "StagedRows"]


@dataclass(frozen=True)
class BlockDots:
    """SDDMM of one part: ``C[b, i, j] += X[i, k] * Y[column(b, j), k]``, perhaps times ``A[b, i, j]``.

    Attributes
    ----------
    nest : Nest
        Where it comes from.
    block, feature, row, column : Var
        Variables of its loops ``b``, ``k``, ``i`` and ``j``.
    pointers : Var
        Buffer of the row pointers: blocks ``pointers[r] .. pointers[r + 1] - 1`` lie under row ``r``.
    features : Expr
        Feature width.
    rows, columns : int
        Size of a block.
    first, second : Factor
        ``X`` and ``Y``.
    scale : tuple of Factor
        ``A``, or nothing.
    """

    nest: Nest
    block: Var
    feature: Var
    row: Var
    column: Var
    pointers: Var
    features: Expr
    rows: int
    columns: int
    first: Factor
    second: Factor
    scale: tuple[Factor, ...]

    @staticmethod
    def of(nest: Nest | None) -> BlockDots | None:
        """Return what a nest computes, or None where it is no such."""
        if nest is None or nest.kinds[-4:] != "SRSS" or len(nest.factors) not in (2, 3):
            return None
        *_, (block, count), (feature, features), (row, rows), (column, columns) = nest.variables
        dense = [factor for factor in nest.factors if uses(factor.load, feature)]
        scale = tuple(factor for factor in nest.factors if not uses(factor.load, feature))
        sizes = isinstance(columns, tirx.IntImm) and isinstance(rows, tirx.IntImm)
        pointers = _pointers(nest, count)
        if not sizes or len(dense) != 2 or pointers is None:
            return None
        first, second = dense if uses(dense[0].load, row) else dense[::-1]
        if uses(first.load, column) or uses(second.load, row):
            return None
        if any(stride(factor.index, feature) != 1 for factor in dense):
            return None
        return BlockDots(
            nest,
            block,
            feature,
            row,
            column,
            pointers,
            features,
            int(rows),
            int(columns),
            first,
            second,
            scale,
        )

    @property
    def dtype(self) -> str:
        """Of the first dense operand."""
        return str(self.first.buffer.ty.dtype)

    @property
    def has_one_dtype(self) -> bool:
        """Whether both dense operands have the same dtype."""
        return str(self.second.buffer.ty.dtype) == self.dtype

    @property
    def sum_dtype(self) -> str:
        """In which the program adds up."""
        return str(self.nest.init.ty.dtype)

    @property
    def known_features(self) -> int | None:
        """Feature width, if it is a constant."""
        return int(self.features) if isinstance(self.features, tirx.IntImm) else None

    @property
    def total(self) -> Expr:
        """Number of stored blocks."""
        size = self.nest.result.ty.shape[0]
        return tirx.floordiv(size, cast(self.rows * self.columns, str(size.ty.dtype)))


def _pointers(nest: Nest, count: Expr) -> Var | None:
    """Return the row pointers that a number of blocks is a difference of."""
    (row, _), *others = nest.variables[:-4]
    if "R" in nest.kinds[:-4] or any(
        not (isinstance(extent, tirx.IntImm) and int(extent) == 1) for _, extent in others
    ):
        return None
    if not isinstance(count, tirx.Sub) or not all(
        isinstance(x, TensorLoad) for x in (count.a, count.b)
    ):
        return None
    steps = stride(count.b.indices[0], row)
    same = count.a.source.same_as(count.b.source)
    return count.b.source if same and steps == 1 else None


@dataclass(frozen=True)
class StagedRows:
    """A dense operand: which rows of it parts need, and where they are staged.

    Attributes
    ----------
    side : int
        0 for rows of blocks, 1 for columns.
    factor : Factor
        The operand.
    var : Var
        The variable of the rows or columns of a block.
    extent, length : int
        Of a block, and of a part.
    pieces : int
        Copies of a step.
    staged : Var
        Buffer in shared memory.
    begin, exists : Var
        For every copy of a thread, where its row begins, and whether there is such a row.
    """

    side: int
    factor: Factor
    var: Var
    extent: int
    length: int
    pieces: int
    staged: Var
    begin: Var
    exists: Var

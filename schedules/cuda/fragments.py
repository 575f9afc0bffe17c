"""Shapes of the matrices that tensor cores multiply: fragments of an instruction, tiles of a warp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["WARP", "FragmentShape", "WarpProduct", "fragment_shape"]

#: Lanes of a warp.
WARP = 32


@dataclass(frozen=True)
class FragmentShape:
    """What one instruction multiplies: ``rows x depth`` by ``depth x columns``."""

    rows: int
    columns: int
    depth: int


def fragment_shape(dtype: str, rows: int) -> FragmentShape:
    """Return the fragments for a tile.

    Parameters
    ----------
    dtype : str
        Of the operands: ``"float16"``, ``"bfloat16"`` or ``"float32"``.
    rows : int
        Rows of the tile.

    Raises
    ------
    ValueError
        If tensor cores do not multiply this dtype.

    Examples
    --------
    >>> from tvm_sparse.schedules.cuda.fragments import fragment_shape
    >>> fragment_shape("float16", 8), fragment_shape("float32", 8).rows
    (FragmentShape(rows=8, columns=32, depth=16), 16)
    """
    if dtype == "float32":
        return FragmentShape(16, 16, 8)
    if dtype in ("float16", "bfloat16"):
        return FragmentShape(8, 32, 16) if rows <= 8 else FragmentShape(16, 16, 16)
    raise ValueError(
        f"dtype: expected float16, bfloat16 or float32 for tensor cores, found {dtype}"
    )


@dataclass(frozen=True)
class WarpProduct:
    """The product that a warp adds to its tile of the result.

    Parameters
    ----------
    rows, columns : int
        The tile, multiples of the fragments' sizes.
    dtype : str
        Of the operands, which lie in dynamic shared memory.
    a_by_columns, b_by_columns : bool
        Whether an operand is stored transposed: ``A[k, i]``, ``B[j, k]``.

    Examples
    --------
    >>> from tvm_sparse.schedules.cuda.fragments import WarpProduct
    >>> WarpProduct(16, 32, "bfloat16").counts
    (1, 2)
    """

    rows: int
    columns: int
    dtype: str
    a_by_columns: bool = False
    b_by_columns: bool = False

    @property
    def shape(self) -> FragmentShape:
        """The fragments that the tile consists of."""
        return fragment_shape(self.dtype, self.rows)

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of fragments along rows and columns."""
        return self.rows // self.shape.rows, self.columns // self.shape.columns

    @property
    def a_shape(self) -> tuple[int, int]:
        """Shape of one fragment's depth of the first operand, as it is stored."""
        shape = (self.rows, self.shape.depth)
        return shape[::-1] if self.a_by_columns else shape

    @property
    def b_shape(self) -> tuple[int, int]:
        """Shape of one fragment's depth of the second operand, as it is stored."""
        shape = (self.shape.depth, self.columns)
        return shape[::-1] if self.b_by_columns else shape

    @property
    def layouts(
        self,
    ) -> tuple[Literal["row_major", "col_major"], Literal["row_major", "col_major"]]:
        """How the operands are stored, as CUDA calls it."""
        a, b = (
            "col_major" if by_columns else "row_major"
            for by_columns in (self.a_by_columns, self.b_by_columns)
        )
        return a, b

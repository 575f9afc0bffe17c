"""Shapes of the matrices that tensor cores multiply: fragments, and tiles of a warp."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WARP", "FragmentShape", "WarpProduct", "fragment_shape"]

#: Lanes of a warp.
WARP = 32


@dataclass(frozen=True)
class FragmentShape:
    """The least tile: ``rows x depth`` by ``depth x columns``."""

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
        Rows of the tile. Instructions multiply 16 rows by 8 columns; eight rows or fewer take the place of
        the columns.

    Raises
    ------
    ValueError
        If tensor cores do not multiply this dtype.

    Examples
    --------
    >>> from tvm_sparse.schedules.cuda.fragments import fragment_shape
    >>> fragment_shape("float16", 8), fragment_shape("float32", 64).depth
    (FragmentShape(rows=8, columns=16, depth=16), 8)
    """
    if dtype not in ("float16", "bfloat16", "float32"):
        raise ValueError(
            f"dtype: expected float16, bfloat16 or float32 for tensor cores, found {dtype}"
        )
    return FragmentShape(8 if rows <= 8 else 16, 16, 8 if dtype == "float32" else 16)


@dataclass(frozen=True)
class WarpProduct:
    """The product that a warp adds to its tile of the result.

    Parameters
    ----------
    rows, columns : int
        The tile, multiples of the fragments' sizes.
    dtype : str
        Of the operands, which lie in shared memory.
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
    def is_swapped(self) -> bool:
        """Whether columns take the place of rows in instructions."""
        return self.shape.rows == 8

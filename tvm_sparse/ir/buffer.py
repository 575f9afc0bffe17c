"""Sparse buffers: a stock buffer of coordinate shape, together with the axes that store it."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.ir import Expr, Var
from tvm_ffi import Object
from tvm_ffi.dataclasses import field, py_class

from .axis import Axis, multiply_sizes

__all__ = ["SparseBuffer", "ancestors", "declare_buffer"]


@py_class("tvm_sparse.SparseBuffer", frozen=True)
class SparseBuffer(Object):
    """A buffer indexed by coordinates whose storage follows ``axes``.

    Attributes
    ----------
    buffer : tvm.ir.Var
        Buffer variable of coordinate shape (one dimension per axis); loads and stores use it.
    axes : list of Axis
        One axis per dimension; a parent comes before its children.
    default : tvm.ir.Expr
        Value of an absent entry.
    """

    buffer: Var = field(structural_eq="def")
    axes: list[Axis]
    default: Expr

    @property
    def name(self) -> str:
        """Name of the buffer."""
        return self.buffer.name

    @property
    def dtype(self) -> str:
        """Element type."""
        return str(self.buffer.ty.dtype)

    @property
    def leaves(self) -> list[int]:
        """Positions, in ``axes``, of the axes that no later axis of the buffer descends from."""
        inner = {ancestor for axis in self.axes for ancestor in ancestors(axis)}
        return [k for k, axis in enumerate(self.axes) if axis not in inner]

    @property
    def slots(self) -> Expr:
        """Number of stored elements."""
        total = None
        for k in self.leaves:
            size = self.axes[k].slots
            total = size if total is None else multiply_sizes(total, size)
        return total

    @property
    def storage_shape(self) -> list[Expr]:
        """Natural shape of the array that holds the buffer, e.g. ``(nnz, f)`` or ``(m, width)``."""
        return [size for k in self.leaves for size in storage_sizes(self.axes[k])]


def ancestors(axis: Axis) -> list[Axis]:
    """Return the parents of an axis, nearest first; of a merged axis, those of its members."""
    return [found for owner in axis.owners for found in (owner, *ancestors(owner))]


def storage_sizes(axis: Axis) -> list[Expr]:
    """Return the natural shape of an array with one element per slot of an axis."""
    if axis.kind == "sparse_fixed":
        return [*storage_sizes(axis.parent), axis.nnz_cols]
    return [axis.slots]


def declare_buffer(shape: Sequence[Expr], dtype: str, name: str, scope: str = "global") -> Var:
    """Declare a buffer that may lie at any address its elements may lie at."""
    itemsize = max(1, _bits(dtype) // 8)
    return tirx.decl_buffer(list(shape), dtype, name, scope=scope, data_alignment=itemsize)


def _bits(dtype: str) -> int:
    if dtype == "bool":
        return 8
    if dtype == "bfloat16":
        return 16
    return int("".join(ch for ch in dtype if ch.isdigit()) or 32)

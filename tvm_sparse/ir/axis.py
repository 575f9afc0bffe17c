"""Axes: one level of coordinates each, and how its entries are stored.

An axis says which coordinates an iteration visits and which a buffer stores. Its *slots* are the
stored positions, counted from the root of its tree; the runtime arrays that describe them
(``indptr``, ``indices``) are one-dimensional buffer variables of the function that owns the axis.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr, Var
from tvm_ffi import Object
from tvm_ffi.dataclasses import field, py_class

__all__ = [
    "AttachedAxis",
    "Axis",
    "DenseFixedAxis",
    "DenseVariableAxis",
    "FusedAxis",
    "IntersectionAxis",
    "MergedAxis",
    "SparseFixedAxis",
    "SparseOutputAxis",
    "SparseVariableAxis",
    "UnionAxis",
    "stored_axis",
]


@py_class("tvm_sparse.Axis", structural_eq="dag", frozen=True)
class Axis(Object):
    """Base of all axes.

    Attributes
    ----------
    name : str
        Name in the source; ignored by structural equality.
    length : tvm.ir.Expr
        Upper bound of the coordinates, exclusive.
    dtype : str
        ``"int32"`` or ``"int64"``: type of coordinates and of positions.
    """

    name: str = field(structural_eq="ignore")
    length: Expr
    dtype: str

    #: Kind as it is written in the dialect, e.g. ``"sparse_variable"``.
    kind = "axis"
    #: Whether the coordinate of an entry is read from an ``indices`` array.
    is_sparse = False
    #: Whether the number of entries differs from parent entry to parent entry.
    is_variable = False

    @property
    def parent_axis(self) -> Axis | None:
        """The axis whose entries own this axis' entries, ``None`` for a root."""
        return getattr(self, "parent", None)

    @property
    def owners(self) -> list[Axis]:
        """The axes that must be iterated outside of this one."""
        return [] if self.parent_axis is None else [self.parent_axis]

    @property
    def slots(self) -> Expr:
        """Number of stored positions, counted from the root of the tree."""
        raise NotImplementedError

    @property
    def extent_bound(self) -> Expr:
        """Upper bound of the number of entries under one parent entry."""
        return self.length


@py_class("tvm_sparse.DenseFixedAxis", structural_eq="dag", frozen=True)
class DenseFixedAxis(Axis):
    """All coordinates ``0 .. length - 1``; a root. Position and coordinate are the same."""

    kind = "dense_fixed"

    @property
    def slots(self) -> Expr:
        return self.length


@py_class("tvm_sparse.DenseVariableAxis", structural_eq="dag", frozen=True)
class DenseVariableAxis(Axis):
    """Ragged: parent entry ``p`` owns coordinates ``0 .. indptr[p + 1] - indptr[p] - 1``."""

    parent: Axis
    nnz: Expr
    indptr: Var

    kind = "dense_variable"
    is_variable = True

    @property
    def slots(self) -> Expr:
        return self.nnz


@py_class("tvm_sparse.SparseFixedAxis", structural_eq="dag", frozen=True)
class SparseFixedAxis(Axis):
    """ELL-like: every parent entry owns ``nnz_cols`` slots, coordinates in ``indices``.

    A slot whose index lies outside ``0 .. length - 1`` is padding and is not an entry. In a sorted
    axis padding uses indices ``>= length``, after the entries.
    """

    parent: Axis
    nnz_cols: Expr
    indices: Var
    sorted: bool = True
    unique: bool = True
    #: Whether no coordinate stands under two parent entries, as in a list of rows; it has no padding.
    distinct: bool = False

    kind = "sparse_fixed"
    is_sparse = True

    @property
    def slots(self) -> Expr:
        return multiply_sizes(self.parent.slots, self.nnz_cols)

    @property
    def extent_bound(self) -> Expr:
        return self.nnz_cols


@py_class("tvm_sparse.SparseVariableAxis", structural_eq="dag", frozen=True)
class SparseVariableAxis(Axis):
    """CSR-like: parent entry ``p`` owns slots ``indptr[p] .. indptr[p + 1] - 1``."""

    parent: Axis
    nnz: Expr
    indptr: Var
    indices: Var
    sorted: bool = True
    unique: bool = True

    kind = "sparse_variable"
    is_sparse = True
    is_variable = True

    @property
    def slots(self) -> Expr:
        return self.nnz

    @property
    def extent_bound(self) -> Expr:
        return self.length if self.unique else self.nnz


@py_class("tvm_sparse.SparseOutputAxis", structural_eq="dag", frozen=True)
class SparseOutputAxis(Axis):
    """Compressed, of a result: the kernel finds out which coordinates each parent entry has.

    They come out sorted and unique; the arrays are allocated by the kernel.
    """

    parent: Axis

    kind = "sparse_output"
    is_sparse = True
    is_variable = True
    sorted = True
    unique = True

    @property
    def slots(self) -> Expr:
        """Upper bound of the number of entries."""
        return multiply_sizes(self.parent.slots, self.length)


@py_class("tvm_sparse.FusedAxis", structural_eq="dag", frozen=True)
class FusedAxis(Axis):
    """One loop over the stored entries of the last member of a parent-to-child chain.

    The coordinates of the outer members are recovered by a search on ``indptr``.
    """

    members: list[Axis]

    kind = "fuse"

    @property
    def parent_axis(self) -> Axis | None:
        return self.members[0].parent_axis

    @property
    def slots(self) -> Expr:
        return self.members[-1].slots


@py_class("tvm_sparse.AttachedAxis", structural_eq="dag", frozen=True)
class AttachedAxis(Axis):
    """``base`` iterated under the entry whose position is the *coordinate* of axis ``parent``."""

    base: Axis
    parent: Axis

    kind = "attach"

    @property
    def slots(self) -> Expr:
        return self.base.slots


@py_class("tvm_sparse.MergedAxis", structural_eq="dag", frozen=True)
class MergedAxis(Axis):
    """One loop over several sorted axes side by side; its iterator is the coordinate they share."""

    members: list[Axis]

    @property
    def owners(self) -> list[Axis]:
        return [owner for member in self.members for owner in member.owners]


@py_class("tvm_sparse.UnionAxis", structural_eq="dag", frozen=True)
class UnionAxis(MergedAxis):
    """Every coordinate that a member stores, in order; the others read their default there."""

    kind = "union"

    @property
    def slots(self) -> Expr:
        """Upper bound of the number of entries, over all parent entries."""
        total = self.members[0].slots.astype("int64")
        for member in self.members[1:]:
            total = total + member.slots.astype("int64")
        return total


@py_class("tvm_sparse.IntersectionAxis", structural_eq="dag", frozen=True)
class IntersectionAxis(MergedAxis):
    """Every coordinate that all members store, in order."""

    kind = "intersect"

    @property
    def slots(self) -> Expr:
        """Upper bound of the number of entries, over all parent entries."""
        return self.members[0].slots


def stored_axis(axis: Axis) -> Axis:
    """Return the axis whose entries a loop visits: the base of an attached one."""
    return axis.base if isinstance(axis, AttachedAxis) else axis


def multiply_sizes(left: Expr, right: Expr) -> Expr:
    """Multiply two sizes, in 64 bits unless the product is known to fit in 32."""
    if isinstance(left, tirx.IntImm) and isinstance(right, tirx.IntImm):
        value = int(left.value) * int(right.value)
        return tirx.IntImm("int32" if value < 2**31 else "int64", value)
    if isinstance(left, tirx.IntImm) and int(left.value) == 1:
        return right
    if isinstance(right, tirx.IntImm) and int(right.value) == 1:
        return left
    return left.astype("int64") * right.astype("int64")

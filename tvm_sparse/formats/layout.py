"""What a format looks like to the compiler: axes over symbolic sizes, and the maps between coordinates.

A :class:`Layout` is made for one tensor of one program by :meth:`Format.layout`, with the help of a
:class:`LayoutBuilder`, which names and collects the parameters (index arrays and sizes) on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral

from tvm import tirx
from tvm.ir import Expr, Var

from ..ir import Axis, DenseFixedAxis, DenseVariableAxis, SparseFixedAxis, SparseVariableAxis
from ..ir.axis import multiply_sizes

__all__ = ["Layout", "LayoutBuilder", "StoredAxis"]


@dataclass(frozen=True)
class StoredAxis:
    """One axis of a format.

    Attributes
    ----------
    axis : Axis
        The axis; the values are a sparse buffer over all of them, in order.
    dims : tuple of int
        Dimensions of the tensor that its coordinate takes part in.
    distinct : bool
        Whether two entries of the axis under the same parent entry always belong to different
        coordinates of those dimensions. A loop over one that is not is no spatial loop of a result
        over these dimensions.
    """

    axis: Axis
    dims: tuple[int, ...]
    distinct: bool = True


@dataclass(frozen=True)
class Layout:
    """A format on symbolic sizes.

    Attributes
    ----------
    axes : tuple of StoredAxis
        Parents before children.
    params : dict of str to Var
        Index arrays and sizes by their names in :attr:`Packed.arrays` and :attr:`Packed.sizes`, in the
        order of a signature.
    to_tensor : callable
        From the coordinates on the stored axes to those of the tensor.
    from_tensor : callable or None
        The inverse; None where it is no formula, for example where rows are permuted.
    """

    axes: tuple[StoredAxis, ...]
    params: dict[str, Var]
    to_tensor: Callable[[Sequence[Expr]], list[Expr]]
    from_tensor: Callable[[Sequence[Expr]], list[Expr]] | None = None


class LayoutBuilder:
    """Declares the axes of a layout, and with them its parameters.

    Parameters
    ----------
    prefix : str
        Before the names of axes and parameters.
    index_dtype : str
        ``"int32"`` or ``"int64"``, of index arrays, coordinates and sizes.
    """

    def __init__(self, prefix: str, index_dtype: str = "int32") -> None:
        self.prefix = prefix
        self.index_dtype = index_dtype
        self.params: dict[str, Var] = {}
        self.axes: list[StoredAxis] = []

    def size(self, name: str) -> Var:
        """Declare a size, a scalar parameter; the same one for the same name."""
        if name not in self.params:
            self.params[name] = Var(f"{self.prefix}_{name}", self.index_dtype)
        return self.params[name]

    def dense(self, name: str, length: Expr | int, dims: Sequence[int], *, distinct=True) -> Axis:
        """Declare a dense axis of its own tree."""
        axis = DenseFixedAxis(self._axis_name(name), self._expr(length), self.index_dtype)
        return self._add(axis, dims, distinct)

    def ragged(
        self,
        name: str,
        parent: Axis,
        length: Expr | int,
        dims: Sequence[int],
        *,
        indptr: str = "indptr",
        nnz: str = "nnz",
        distinct: bool = True,
    ) -> Axis:
        """Declare a dense axis of variable length under ``parent``."""
        axis = DenseVariableAxis(
            self._axis_name(name),
            self._expr(length),
            self.index_dtype,
            parent,
            self.size(nnz),
            self._array(indptr, parent.slots + 1),
        )
        return self._add(axis, dims, distinct)

    def padded(
        self,
        name: str,
        parent: Axis,
        length: Expr | int,
        width: Expr | int,
        dims: Sequence[int],
        *,
        indices: str = "indices",
        sorted: bool = True,
        unique: bool = True,
        distinct: bool = True,
    ) -> Axis:
        """Declare a sparse axis of ``width`` slots under each entry of ``parent``, as in ELL."""
        width = self._expr(width)
        axis = SparseFixedAxis(
            self._axis_name(name),
            self._expr(length),
            self.index_dtype,
            parent,
            width,
            self._array(indices, multiply_sizes(parent.slots, width)),
            sorted,
            unique,
            distinct and self._is_distinct(parent, dims),
        )
        return self._add(axis, dims, distinct)

    def compressed(
        self,
        name: str,
        parent: Axis,
        length: Expr | int,
        dims: Sequence[int],
        *,
        indptr: str = "indptr",
        indices: str = "indices",
        nnz: str = "nnz",
        sorted: bool = True,
        unique: bool = True,
        distinct: bool = True,
    ) -> Axis:
        """Declare a sparse axis of variable length under ``parent``, as in CSR."""
        stored = self.size(nnz)
        axis = SparseVariableAxis(
            self._axis_name(name),
            self._expr(length),
            self.index_dtype,
            parent,
            stored,
            self._array(indptr, parent.slots + 1),
            self._array(indices, stored),
            sorted,
            unique,
        )
        return self._add(axis, dims, distinct)

    def array(self, name: str, length: Expr | int) -> Var:
        """Declare an index array that no axis holds, for the coordinate maps."""
        return self._array(name, self._expr(length))

    def finish(
        self,
        to_tensor: Callable[[Sequence[Expr]], list[Expr]],
        from_tensor: Callable[[Sequence[Expr]], list[Expr]] | None = None,
    ) -> Layout:
        """Return the layout of the axes declared so far."""
        return Layout(tuple(self.axes), dict(self.params), to_tensor, from_tensor)

    def _is_distinct(self, parent: Axis, dims: Sequence[int]) -> bool:
        """Whether the entries of a root differ in these dimensions, and those under it with them."""
        return parent.parent_axis is None and any(
            stored.axis == parent and stored.dims == tuple(dims) and stored.distinct
            for stored in self.axes
            if parent.parent_axis is None  # else distinct under the same parent entry only
        )

    def _add(self, axis: Axis, dims: Sequence[int], distinct: bool) -> Axis:
        self.axes.append(StoredAxis(axis, tuple(dims), distinct))
        return axis

    def _axis_name(self, name: str) -> str:
        return f"{self.prefix}_{name}"

    def _array(self, name: str, length: Expr) -> Var:
        if name in self.params:
            raise ValueError(
                f"{self.prefix}: expected a new name for an array, found {name!r} again"
            )
        itemsize = 4 if self.index_dtype == "int32" else 8
        self.params[name] = tirx.decl_buffer(
            [length], self.index_dtype, f"{self.prefix}_{name}", data_alignment=itemsize
        )
        return self.params[name]

    def _expr(self, size: Expr | int) -> Expr:
        return tirx.const(int(size), self.index_dtype) if isinstance(size, Integral) else size


def dimension_name(dim: int) -> str:
    """Return the name of the axis that holds the coordinates of one dimension: ``I``, ``J``, ..."""
    return "IJKLMN"[dim] if dim < 6 else f"D{dim}"


def check_rank(rank: int, smallest: int) -> None:
    """Refuse a number of dimensions that a format cannot have."""
    if not isinstance(rank, Integral) or rank < smallest:
        raise ValueError(f"rank: expected an integer of at least {smallest}, found {rank!r}")

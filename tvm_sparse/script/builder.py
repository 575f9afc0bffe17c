"""The functions of the dialect: what ``S.<name>`` means while a program is parsed.

They act on the function under construction (:class:`FunctionState`), which the parser pushes before
it visits a body.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Expr, Span, Var
from tvm.tirx.script import builder as T

from ..errors import SparseProgramError
from ..ir import (
    AttachedAxis,
    Axis,
    DenseFixedAxis,
    DenseVariableAxis,
    FusedAxis,
    IntersectionAxis,
    MergedAxis,
    SparseBuffer,
    SparseFixedAxis,
    SparseOutputAxis,
    SparseVariableAxis,
    UnionAxis,
)
from ..ir.buffer import declare_buffer

__all__ = [
    "alloc_sparse_buffer",
    "attach",
    "dense_fixed",
    "dense_variable",
    "fuse",
    "intersect",
    "iter",
    "iter_attr",
    "match_sparse_buffer",
    "sp_iter",
    "sp_iter_attr",
    "sparse_fixed",
    "sparse_output",
    "sparse_variable",
    "union",
]

#: Annotation that marks the blocks standing for sparse iterations while a function is built.
ITERATION_MARK = "tvm_sparse.iteration"

_INDEX_DTYPES = ("int32", "int64")

#: Axes that exist as loops alone.
_DERIVED = (FusedAxis, AttachedAxis, MergedAxis)


class FunctionState:
    """What has been declared so far in the function under construction."""

    stack: list[FunctionState] = []

    def __init__(self, name: str) -> None:
        self.name = name
        self.axes: list[Axis] = []
        self.buffers: list[SparseBuffer] = []
        self.temporaries: list[SparseBuffer] = []
        #: Buffer variables by the handle parameter they were matched with.
        self.matched: dict[Var, Var] = {}
        self.iterations: list[IterationScope] = []
        #: Attached axes by (axis, parent), so that others may be attached to them in turn.
        self.attached: dict[tuple[Axis, Axis], AttachedAxis] = {}
        #: Merged axes by what they are and their members.
        self.merged: dict[tuple, MergedAxis] = {}
        self.span: Span | None = None
        self.target_name: str | None = None

    def __enter__(self) -> FunctionState:
        FunctionState.stack.append(self)
        return self

    def __exit__(self, *_exc: object) -> None:
        FunctionState.stack.pop()

    @staticmethod
    def current(what: str) -> FunctionState:
        """Return the innermost state; refuse use outside of a sparse function."""
        if not FunctionState.stack:
            raise SparseProgramError(f"S.{what} may only be used inside an @S.prim_func")
        return FunctionState.stack[-1]

    @staticmethod
    def iteration_of(iter_vars: Any) -> IterationScope | None:
        """Return the latest iteration of the function, if these are its iterators."""
        made = FunctionState.stack[-1].iterations if FunctionState.stack else []
        return made[-1] if made and made[-1].iter_vars is iter_vars else None

    def declare_index_array(self, handle: Any, size: Expr, dtype: str, name: str, of: str) -> Var:
        """Return the one-dimensional index buffer matched with a handle parameter."""
        if isinstance(handle, Var) and tirx.is_buffer_var(handle):
            if str(handle.ty.dtype) != dtype:
                raise SparseProgramError(
                    f"axis {of}: expected an index array of dtype {dtype}, found "
                    f"{handle.name} of dtype {handle.ty.dtype}"
                )
            return handle
        if not isinstance(handle, Var):
            raise SparseProgramError(
                f"axis {of}: expected a handle parameter for {name}, found {handle!r}"
            )
        if handle in self.matched:
            known = self.matched[handle]
            if str(known.ty.dtype) != dtype:
                raise SparseProgramError(
                    f"axis {of}: index array {known.name} has dtype {known.ty.dtype}, "
                    f"expected {dtype}"
                )
            return known
        return self._match(handle, [size], dtype, name)

    def _match(self, handle: Var, shape: Sequence[Expr], dtype: str, name: str) -> Var:
        if handle in self.matched:
            raise SparseProgramError(
                f"parameter {handle.name} is already matched with {self.matched[handle].name}"
            )
        self.matched[handle] = declare_buffer(shape, dtype, name)
        return self.matched[handle]


def _definition(function):
    """Mark a function whose result is named by the assignment it stands in; check its arguments' number."""
    signature = inspect.signature(function)
    parameters = ", ".join(str(each).split(":")[0] for each in signature.parameters.values())

    @functools.wraps(function)
    def checked(*args, **kwargs):
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise SparseProgramError(
                f"S.{function.__name__}: expected ({parameters}), found a call with {error}"
            ) from None
        return function(*args, **kwargs)

    checked.is_sparse_definition = True
    return checked


def _index_dtype(dtype: str, axis: str) -> str:
    if dtype not in _INDEX_DTYPES:
        raise SparseProgramError(
            f"axis {axis}: expected index dtype int32 or int64, found {dtype!r}"
        )
    return dtype


def _size(value: Any, what: str, axis: str) -> Expr:
    if isinstance(value, bool) or not isinstance(value, int | Expr):
        raise SparseProgramError(f"axis {axis}: expected an integer {what}, found {value!r}")
    if isinstance(value, int):
        if value < 0:
            raise SparseProgramError(f"axis {axis}: {what} must not be negative, found {value}")
        return tirx.IntImm("int32" if value < 2**31 else "int64", value)
    if str(value.ty.dtype) not in _INDEX_DTYPES:
        raise SparseProgramError(
            f"axis {axis}: expected {what} of dtype int32 or int64, found {value.ty.dtype}"
        )
    return value


def _pair(value: Any, what: str, axis: str) -> tuple:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise SparseProgramError(f"axis {axis}: expected a pair {what}, found {value!r}")
    return tuple(value)


def _parent(value: Any, axis: str) -> Axis:
    if not isinstance(value, Axis) or isinstance(value, _DERIVED):
        raise SparseProgramError(f"axis {axis}: expected an axis as parent, found {value!r}")
    return value


def _new_axis(state: FunctionState, axis: Axis) -> Axis:
    state.axes.append(axis)
    return axis


@_definition
def dense_fixed(length: Expr | int, idtype: str | None = None) -> Axis:
    """Declare an axis of all coordinates ``0 .. length - 1``."""
    state = FunctionState.current("dense_fixed")
    name = state.target_name or "axis"
    size = _size(length, "length", name)
    dtype = _index_dtype(idtype or str(size.ty.dtype), name)
    return _new_axis(state, DenseFixedAxis(name=name, length=size, dtype=dtype))


@_definition
def dense_variable(
    parent: Axis, sizes: tuple[Expr | int, Expr | int], indptr: Var, idtype: str = "int32"
) -> Axis:
    """Declare a ragged axis: parent entry ``p`` owns ``indptr[p + 1] - indptr[p]`` coordinates."""
    state = FunctionState.current("dense_variable")
    name = state.target_name or "axis"
    length, nnz = (_size(s, "(length, nnz)", name) for s in _pair(sizes, "(length, nnz)", name))
    dtype, owner = _index_dtype(idtype, name), _parent(parent, name)
    return _new_axis(
        state,
        DenseVariableAxis(
            name=name,
            length=length,
            dtype=dtype,
            parent=owner,
            nnz=nnz,
            indptr=state.declare_index_array(
                indptr, owner.slots + 1, dtype, f"{name}_indptr", name
            ),
        ),
    )


@_definition
def sparse_fixed(
    parent: Axis,
    sizes: tuple[Expr | int, Expr | int],
    indices: Var,
    idtype: str = "int32",
    sorted: bool = True,
    unique: bool = True,
    distinct: bool = False,
) -> Axis:
    """Declare an ELL-like axis: ``nnz_cols`` slots per parent entry, coordinates in ``indices``.

    ``distinct`` says that no coordinate stands under two parent entries, as in a list of rows, and
    that no slot is padding.
    """
    state = FunctionState.current("sparse_fixed")
    name = state.target_name or "axis"
    length, nnz_cols = (
        _size(s, "(length, nnz_cols)", name) for s in _pair(sizes, "(length, nnz_cols)", name)
    )
    dtype, owner = _index_dtype(idtype, name), _parent(parent, name)
    axis = {"name": name, "length": length, "dtype": dtype, "parent": owner, "nnz_cols": nnz_cols}
    slots = SparseFixedAxis(**axis, indices=Var("unused", "handle")).slots
    array = state.declare_index_array(indices, slots, dtype, f"{name}_indices", name)
    flags = {"sorted": bool(sorted), "unique": bool(unique), "distinct": bool(distinct)}
    return _new_axis(state, SparseFixedAxis(**axis, indices=array, **flags))


@_definition
def sparse_variable(
    parent: Axis,
    sizes: tuple[Expr | int, Expr | int],
    arrays: tuple[Var, Var],
    idtype: str = "int32",
    sorted: bool = True,
    unique: bool = True,
) -> Axis:
    """Declare a CSR-like axis: slots ``indptr[p] .. indptr[p + 1] - 1`` per parent entry ``p``."""
    state = FunctionState.current("sparse_variable")
    name = state.target_name or "axis"
    length, nnz = (_size(s, "(length, nnz)", name) for s in _pair(sizes, "(length, nnz)", name))
    indptr, indices = _pair(arrays, "(indptr, indices)", name)
    dtype, owner = _index_dtype(idtype, name), _parent(parent, name)
    return _new_axis(
        state,
        SparseVariableAxis(
            name=name,
            length=length,
            dtype=dtype,
            parent=owner,
            nnz=nnz,
            indptr=state.declare_index_array(
                indptr, owner.slots + 1, dtype, f"{name}_indptr", name
            ),
            indices=state.declare_index_array(indices, nnz, dtype, f"{name}_indices", name),
            sorted=bool(sorted),
            unique=bool(unique),
        ),
    )


@_definition
def sparse_output(parent: Axis, length: Expr | int, idtype: str = "int32") -> Axis:
    """Declare a compressed axis of a result whose coordinates the kernel itself finds."""
    state = FunctionState.current("sparse_output")
    name = state.target_name or "axis"
    return _new_axis(
        state,
        SparseOutputAxis(
            name=name,
            length=_size(length, "length", name),
            dtype=_index_dtype(idtype, name),
            parent=_parent(parent, name),
        ),
    )


def fuse(*axes: Axis) -> Axis:
    """Iterate a parent-to-child chain of axes as one loop over the entries of the last one."""
    FunctionState.current("fuse")
    if len(axes) < 2 or not all(isinstance(a, Axis) for a in axes):
        raise SparseProgramError(f"S.fuse: expected two or more axes, found {axes!r}")
    return FusedAxis(
        name="_".join(a.name for a in axes),
        length=axes[-1].slots,
        dtype=axes[-1].dtype,
        members=list(axes),
    )


def attach(axis: Axis, parent: Axis) -> Axis:
    """Iterate ``axis`` under the entry whose position is the coordinate of ``parent``."""
    state = FunctionState.current("attach")
    if not isinstance(axis, Axis) or not isinstance(parent, Axis):
        raise SparseProgramError(f"S.attach: expected two axes, found {axis!r} and {parent!r}")
    made = AttachedAxis(
        name=f"{axis.name}_{parent.name}",
        length=axis.length,
        dtype=axis.dtype,
        base=axis,
        parent=parent,
    )
    return state.attached.setdefault((axis, parent), made)


def union(*axes: Axis) -> Axis:
    """Iterate sorted axes side by side, over every coordinate that one of them stores.

    A buffer that stores nothing at a coordinate reads its default there.
    """
    return _merged("union", UnionAxis, axes)


def intersect(*axes: Axis) -> Axis:
    """Iterate sorted axes side by side, over the coordinates that all of them store."""
    return _merged("intersect", IntersectionAxis, axes)


def _merged(what: str, kind: type[MergedAxis], axes: Sequence[Axis]) -> Axis:
    state = FunctionState.current(what)
    if len(axes) < 2 or not all(isinstance(axis, Axis) for axis in axes):
        raise SparseProgramError(f"S.{what}: expected two or more axes, found {axes!r}")
    wide = any(axis.dtype == "int64" for axis in axes)
    made = kind(
        name="_".join(axis.name for axis in axes),
        length=axes[0].length,
        dtype="int64" if wide else "int32",
        members=list(axes),
    )
    return state.merged.setdefault((what, *axes), made)


def _sparse_buffer(
    state: FunctionState, axes: Sequence[Axis], dtype: str, default: Any, what: str
) -> tuple[list[Axis], Expr]:
    chosen = list(axes) if isinstance(axes, list | tuple) else [axes]
    if not all(isinstance(a, Axis) for a in chosen):
        raise SparseProgramError(f"{what}: expected one or more axes, found {axes!r}")
    derived = [a.name for a in chosen if isinstance(a, _DERIVED)]
    if derived:
        raise SparseProgramError(f"{what}: axes {derived} exist only inside S.sp_iter")
    if default is None:
        return chosen, tirx.const(0, dtype)
    if isinstance(default, Expr):
        if str(default.ty.dtype) != dtype:
            raise SparseProgramError(
                f"{what}: expected a default of dtype {dtype}, found {default.ty.dtype}"
            )
        return chosen, default
    return chosen, tirx.const(default, dtype)


@_definition
def match_sparse_buffer(
    param: Var,
    axes: Sequence[Axis],
    dtype: str = "float32",
    extra_storage: Any = None,  # accepted for SparseTIR programs, has no meaning here
    default_value: Any = None,
    *,
    default: Any = None,
) -> Var:
    """Match a handle parameter with a buffer stored over ``axes``.

    ``default`` (``default_value`` in SparseTIR) is the value of an absent entry.
    """
    state = FunctionState.current("match_sparse_buffer")
    name = state.target_name or "buffer"
    if not isinstance(param, Var):
        raise SparseProgramError(
            f"buffer {name}: expected a handle parameter of the function, found {param!r}"
        )
    chosen, absent = _sparse_buffer(
        state, axes, dtype, default if default is not None else default_value, f"buffer {name}"
    )
    buffer = state._match(param, [a.length for a in chosen], dtype, name)
    state.buffers.append(SparseBuffer(buffer=buffer, axes=chosen, default=absent))
    return buffer


@_definition
def alloc_sparse_buffer(
    axes: Sequence[Axis],
    dtype: str = "float32",
    scope: str = "global",
    default_value: Any = None,
    *,
    default: Any = None,
) -> Var:
    """Allocate a temporary buffer stored over ``axes``."""
    state = FunctionState.current("alloc_sparse_buffer")
    name = state.target_name or "buffer"
    chosen, absent = _sparse_buffer(
        state, axes, dtype, default if default is not None else default_value, f"buffer {name}"
    )
    buffer = declare_buffer([a.length for a in chosen], dtype, name, scope)
    state.temporaries.append(SparseBuffer(buffer=buffer, axes=chosen, default=absent))
    return buffer


class IterationScope:
    """The ``with`` item of ``S.sp_iter``: builds a marked block that the parser converts."""

    def __init__(self, state: FunctionState, axes: list[Axis], kinds: str, name: str) -> None:
        self.axes, self.kinds, self.name, self.span = axes, kinds, name, state.span
        members = [m for a in axes for m in (a.members if isinstance(a, FusedAxis) else [a])]
        self.iter_vars = [Var(m.name.lower(), m.dtype) for m in members]
        self._mark = len(state.iterations)
        state.iterations.append(self)
        self._frame = T.sblock(name)

    def __enter__(self) -> list[Var]:
        self._frame.__enter__()
        T.sblock_attr({ITERATION_MARK: self._mark})
        return self.iter_vars

    def __exit__(self, *exc: object) -> None:
        self._frame.__exit__(*exc)


def sp_iter(axes: Sequence[Axis], kinds: str, name: str = "sp_iter") -> IterationScope:
    """Iterate over the entries of ``axes``: ``with S.sp_iter([I, J], "SR", "name") as [i, j]:``.

    Without axes, the body runs once.
    """
    state = FunctionState.current("sp_iter")
    chosen = list(axes) if isinstance(axes, list | tuple) else [axes]
    if not all(isinstance(a, Axis) for a in chosen):
        raise SparseProgramError(f"S.sp_iter {name}: expected a list of axes, found {axes!r}")
    count = sum(len(a.members) if isinstance(a, FusedAxis) else 1 for a in chosen)
    if not isinstance(kinds, str) or len(kinds) != count or set(kinds) - set("SR"):
        raise SparseProgramError(
            f"S.sp_iter {name}: expected {count} characters S (spatial) or R (reduction), one per "
            f"iterator, found {kinds!r}"
        )
    return IterationScope(state, chosen, kinds, str(name))


def sp_iter_attr(annotations: dict[str, Any]) -> None:
    """Annotate the enclosing iteration."""
    FunctionState.current("sp_iter_attr")
    T.sblock_attr(annotations)


#: SparseTIR's older names.
iter = sp_iter
iter_attr = sp_iter_attr

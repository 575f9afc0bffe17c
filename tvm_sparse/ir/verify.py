"""The verifier of stage I: says what is wrong with a program, where, and how to write it.

Every rule is one function that yields problems; :func:`verify` collects them all and raises one error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Span, TensorLoad, Var

from ..errors import SparseProgramError, describe_span
from .axis import AttachedAxis, Axis, DenseFixedAxis, FusedAxis, MergedAxis, stored_axis
from .buffer import SparseBuffer, ancestors
from .contents import stores_to
from .function import SparseFunc
from .iteration import SparseIteration

__all__ = ["unseparated_axes", "verify"]

_INTEGERS = ("int", "uint", "bool")


@dataclass
class _Problem:
    message: str
    span: Span | None = None


@dataclass
class _Scope:
    """Iterators in scope, by coordinate variable."""

    iterators: dict[Var, tuple[Axis, str]] = field(default_factory=dict)

    @property
    def axes(self) -> set[Axis]:
        return {own for axis, _ in self.iterators.values() for own in _entered(axis)}

    def entered(self, iteration: SparseIteration) -> _Scope:
        inner = {var: (axis, kind) for axis, kind, var in iteration.iterators}
        return _Scope({**self.iterators, **inner})


def verify(func: SparseFunc) -> None:
    """Check that a program has a meaning that the compiler can honour.

    Parameters
    ----------
    func : SparseFunc
        The program.

    Raises
    ------
    SparseProgramError
        Lists every problem with the names involved and, for programs parsed from source, the line.
        Its ``span`` is that of the first problem.

    Examples
    --------
    >>> from tvm_sparse import ir, schedules
    >>> ir.verify(schedules.spmm.program())
    """
    problems = [
        *_check_axes(func),
        *_check_buffers(func),
        *_check_statement(func.body, func, _Scope()),
    ]
    if not problems:
        return
    lines = [f"{describe_span(p.span)}function {func.name}: {p.message}" for p in problems]
    error = SparseProgramError("\n".join(lines))
    error.span = next((p.span for p in problems if p.span is not None), None)
    raise error


# --- axes --------------------------------------------------------------------------------------


def _check_axes(func: SparseFunc) -> Iterator[_Problem]:
    """Sizes that are known must fit the index dtype."""
    for axis in func.axes:
        if axis.dtype != "int32":
            continue
        for what in ("length", "nnz", "nnz_cols"):
            size = getattr(axis, what, None)
            if isinstance(size, tirx.IntImm) and int(size.value) >= 2**31:
                yield _Problem(
                    f"axis {axis.name}: {what} {int(size.value)} does not fit index dtype int32; "
                    "declare the axis, and pass its arrays, as int64"
                )


# --- buffers -----------------------------------------------------------------------------------


def _check_buffers(func: SparseFunc) -> Iterator[_Problem]:
    for buffer in [*func.buffers, *func.temporaries]:
        seen: list[Axis] = []
        for axis in buffer.axes:
            parent = axis.parent_axis
            if axis in seen and axis.kind != "dense_fixed":
                yield _Problem(f"buffer {buffer.name}: axis {axis.name} appears twice")
            if parent is not None and parent not in seen:
                yield _Problem(
                    f"buffer {buffer.name}: axis {axis.name} needs its parent {parent.name} before "
                    f"it; write ({', '.join(_with_parents(buffer))})"
                )
            sibling = next(
                (other for other in seen if parent is not None and other.parent_axis == parent),
                None,
            )
            if sibling is not None:
                yield _Problem(
                    f"buffer {buffer.name}: axes {sibling.name} and {axis.name} are both children "
                    f"of {parent.name}, so no position of {axis.name} is known inside an entry of "
                    f"{sibling.name}; declare {axis.name} with parent {sibling.name} (its indptr "
                    f"then has one element per entry of {sibling.name}, plus one)"
                )
            seen.append(axis)


def _with_parents(buffer: SparseBuffer) -> list[str]:
    names: list[str] = []
    for axis in buffer.axes:
        for needed in [*reversed(ancestors(axis)), axis]:
            if needed.name not in names:
                names.append(needed.name)
    return names


# --- statements --------------------------------------------------------------------------------


def _check_statement(stmt, func: SparseFunc, scope: _Scope) -> Iterator[_Problem]:
    if isinstance(stmt, SparseIteration):
        yield from _check_iteration(stmt, func, scope)
    elif isinstance(stmt, tirx.SeqStmt):
        for part in stmt.seq:
            yield from _check_statement(part, func, scope)
    elif isinstance(stmt, tirx.BufferStore):
        yield from _check_indices(stmt.buffer, stmt.indices, func, stmt.span)
        yield from _check_expression(stmt.value, func, stmt.span)
        for index in stmt.indices:
            yield from _check_expression(index, func, stmt.span)
    elif isinstance(stmt, tirx.IfThenElse):
        yield from _check_expression(stmt.condition, func, stmt.span)
        yield from _check_statement(stmt.then_case, func, scope)
        if stmt.else_case is not None:
            yield from _check_statement(stmt.else_case, func, scope)
    elif isinstance(stmt, tirx.For | tirx.While):
        yield from _check_statement(stmt.body, func, scope)


def _check_iteration(node: SparseIteration, func: SparseFunc, scope: _Scope) -> Iterator[_Problem]:
    yield from _check_order(node, scope)
    yield from _check_groups(node)
    yield from _check_init(node)
    yield from _check_kinds(node)
    inner = scope.entered(node)
    yield from _check_variables(node, func, inner)
    if node.init is not None:
        yield from _check_statement(node.init, func, inner)
    yield from _check_statement(node.body, func, inner)


def _check_order(node: SparseIteration, scope: _Scope) -> Iterator[_Problem]:
    where = f"iteration {node.name}"
    known = scope.axes
    own: set[Axis] = set()
    entered: set[Axis] = set()
    for axis, _, _ in node.iterators:
        if axis in own:
            yield _Problem(f"{where}: axis {axis.name} is iterated twice", node.span)
        if stored_axis(axis).kind == "sparse_output":
            yield _Problem(
                f"{where}: axis {axis.name} is one of the result, whose entries the kernel finds; iterate "
                "the axes of operands",
                node.span,
            )
        for parent in axis.owners:
            if parent in known or parent in entered:
                continue
            later = parent in {a for a, _, _ in node.iterators}
            wrong = "before its parent" if later else "without its parent"
            yield _Problem(
                f"{where}: axis {axis.name} is iterated {wrong} {parent.name}; put {parent.name} "
                f"before {axis.name}",
                node.span,
            )
        own.add(axis)
        entered |= _entered(axis)


def _entered(axis: Axis) -> set[Axis]:
    """An axis, those merged in it, and the bases of attached ones: whose entries a loop visits."""
    members = axis.members if isinstance(axis, MergedAxis) else []
    return {own for walked in (axis, *members) for own in (walked, stored_axis(walked))}


def _check_groups(node: SparseIteration) -> Iterator[_Problem]:
    where = f"iteration {node.name}"
    for group in node.axes:
        if isinstance(group, FusedAxis):
            for parent, child in zip(group.members, group.members[1:]):
                if child.parent_axis != parent or isinstance(child, AttachedAxis):
                    yield _Problem(
                        f"{where}: cannot fuse {parent.name} and {child.name}: {child.name} is not "
                        f"a child of {parent.name}; fuse a parent-to-child chain",
                        node.span,
                    )
        elif isinstance(group, MergedAxis):
            yield from _check_merged(group, where, node.span)
            for member in group.members:
                if isinstance(member, AttachedAxis):
                    yield from _check_attached(member, where, node.span)
        elif isinstance(group, AttachedAxis):
            yield from _check_attached(group, where, node.span)


def _check_merged(group: MergedAxis, where: str, span: Span | None) -> Iterator[_Problem]:
    """Members must be walked side by side: sorted, no coordinate twice, of one length."""
    what = f"{where}: S.{group.kind}"
    first = group.members[0]
    for place, member in enumerate(group.members):
        stored = stored_axis(member)
        if isinstance(member, FusedAxis | MergedAxis) or stored.kind == "sparse_output":
            yield _Problem(
                f"{what}: expected stored axes, found {member.name} ({member.kind})", span
            )
            continue
        if not (getattr(stored, "sorted", True) and getattr(stored, "unique", True)):
            yield _Problem(
                f"{what}: expected axes that are sorted and store no coordinate twice, found "
                f"{stored.name}, which is declared otherwise",
                span,
            )
        if not _same_size(member.length, first.length):
            yield _Problem(
                f"{what}: expected axes of one length, found {first.name} ({first.length}) and "
                f"{member.name} ({member.length})",
                span,
            )
        if member in list(group.members)[:place]:
            yield _Problem(f"{what}: axis {member.name} appears twice", span)


def _check_attached(group: AttachedAxis, where: str, span: Span | None) -> Iterator[_Problem]:
    owner = group.base.parent_axis
    if not isinstance(owner, DenseFixedAxis):
        found = "no parent" if owner is None else f"parent {owner.name} ({owner.kind})"
        yield _Problem(
            f"{where}: cannot attach {group.base.name}, which has {found}; expected a "
            "child of a dense_fixed axis, whose positions are coordinates",
            span,
        )
    elif not _same_size(owner.length, group.parent.length):
        yield _Problem(
            f"{where}: cannot attach {group.base.name} to {group.parent.name}: coordinates "
            f"of {group.parent.name} go up to {group.parent.length}, but {owner.name}, the "
            f"parent of {group.base.name}, has length {owner.length}",
            span,
        )


def _same_size(left: Expr, right: Expr) -> bool:
    if isinstance(left, tirx.IntImm) and isinstance(right, tirx.IntImm):
        return int(left.value) == int(right.value)
    return tvm_ffi.structural_equal(left, right)


def _check_init(node: SparseIteration) -> Iterator[_Problem]:
    if node.init is None:
        return
    where = f"iteration {node.name}"
    if "R" not in node.kinds:
        yield _Problem(
            f"{where}: has init, but no axis is marked R (reduction) in {node.kinds!r}", node.span
        )
    reductions = {var: axis for axis, kind, var in node.iterators if kind == "R"}
    for var in _used_variables(node.init):
        if var in reductions:
            yield _Problem(
                f"{where}: init depends on reduction axis {reductions[var].name}", node.span
            )


def _check_kinds(node: SparseIteration) -> Iterator[_Problem]:
    """A spatial iterator must tell the results of different entries apart."""
    where = f"iteration {node.name}"
    reduction = {var: axis for axis, kind, var in node.iterators if kind == "R"}
    for store, axis in unseparated_axes(node):
        yield _Problem(
            f"{where}: axis {axis.name} is marked S (spatial), but {store.buffer.name} is "
            f"stored at the same place for all of its entries; mark {axis.name} R "
            "(reduction) and give an init",
            store.span or node.span,
        )
    for store in _own_stores(node):
        if node.init is None:
            continue
        for index in store.indices:
            wrong = _used_variables(index) & set(reduction)
            if wrong and stores_to(node.init, store.buffer):
                names = ", ".join(sorted(reduction[v].name for v in wrong))
                yield _Problem(
                    f"{where}: {store.buffer.name} is reduced, but stored at an index that depends "
                    f"on reduction axis {names}",
                    store.span or node.span,
                )


def unseparated_axes(node: SparseIteration) -> list[tuple[tirx.BufferStore, Axis]]:
    """Return the spatial axes whose entries share a place in a result, each with the store."""
    spatial = {var: axis for axis, kind, var in node.iterators if kind == "S"}
    found = []
    for store in _own_stores(node):
        used = set().union(*(_used_variables(index) for index in store.indices), set())
        found += [
            (store, axis)
            for var, axis in spatial.items()
            if var not in used and not _is_told_apart(axis, used, spatial)
        ]
    return found


def _is_told_apart(axis: Axis, used: set[Var], spatial: dict[Var, Axis]) -> bool:
    """Whether an index holds the coordinates of an axis below, each of which has one parent entry."""
    return any(
        inner.parent_axis == axis
        and getattr(inner, "distinct", False)
        and (var in used or _is_told_apart(inner, used, spatial))
        for var, inner in spatial.items()
    )


def _own_stores(node: SparseIteration) -> list[tirx.BufferStore]:
    """Stores of the iteration itself into buffers that outlive it; not of iterations inside."""
    stores: list[tirx.BufferStore] = []

    def visit(stmt) -> None:
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                visit(part)
        elif isinstance(stmt, tirx.BufferStore):
            if stmt.buffer.ty.storage_scope == "global":
                stores.append(stmt)
        elif isinstance(stmt, tirx.IfThenElse):
            visit(stmt.then_case)
            if stmt.else_case is not None:
                visit(stmt.else_case)
        elif isinstance(stmt, tirx.For | tirx.While):
            visit(stmt.body)

    visit(node.body)
    return stores


# --- expressions -------------------------------------------------------------------------------


def _check_variables(node: SparseIteration, func: SparseFunc, scope: _Scope) -> Iterator[_Problem]:
    """Iterators of other iterations are unknown here."""
    known = set(scope.iterators) | set(func.params)
    foreign = _all_iterators(func.body) - known - _all_iterators(node.body)
    for var in _used_variables(node.body) & foreign:
        yield _Problem(
            f"iteration {node.name}: {var.name} is the iterator of another iteration", node.span
        )


def _check_expression(expr: Expr, func: SparseFunc, span: Span | None) -> Iterator[_Problem]:
    problems: list[_Problem] = []

    def load(node: TensorLoad) -> None:
        problems.extend(_check_indices(node.source, node.indices, func, span))

    tvm_ffi.structural_walk(expr, [(TensorLoad, load)])
    yield from problems


def _check_indices(buffer: Var, indices, func: SparseFunc, span: Span | None) -> Iterator[_Problem]:
    if len(indices) != len(buffer.ty.shape):
        yield _Problem(
            f"buffer {buffer.name}: expected {len(buffer.ty.shape)} indices, found {len(indices)}",
            span,
        )
    for index in indices:
        dtype = str(index.ty.dtype)
        if not dtype.startswith(_INTEGERS):
            yield _Problem(
                f"buffer {buffer.name}: expected an integer index, found {index} of dtype {dtype}",
                span,
            )


def _used_variables(node) -> set[Var]:
    used: set[Var] = set()
    tvm_ffi.structural_walk(node, [(Var, used.add)])
    return used


def _all_iterators(node) -> set[Var]:
    found: set[Var] = set()
    tvm_ffi.structural_walk(node, [(SparseIteration, lambda it: found.update(it.iter_vars))])
    return found

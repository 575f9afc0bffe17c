"""Give every output a value everywhere: results never depend on what the output held before.

An output that the program does not provably overwrite as a whole (a scatter, padding slots, a store
under a condition) is filled with its default value first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var

from ..ir import Axis, SparseBuffer, SparseFunc, SparseIteration
from ..ir.axis import DenseFixedAxis
from ..ir.buffer import ancestors
from ..ir.contents import stores_in

__all__ = ["COVER_MARK", "FILL_MARK", "START_MARK", "buffer_roles", "fill_outputs", "inits_all"]

#: Annotation of the iterations that fill; they visit padding slots too.
FILL_MARK = "tvm_sparse.fill"
#: Annotation of iterations that, together, initialise all of a result: what was packed for them says so.
COVER_MARK = "tvm_sparse.covers"
#: Annotation beside it, with the name of the iterator whose first entry does so; later ones add.
START_MARK = "tvm_sparse.covers_at_start"


@dataclass
class _Use:
    """First uses of a buffer, in program order."""

    read_first: bool = False
    written: bool = False
    covered: bool = False
    #: Where the covering store stands: its indices, and the outermost iteration around it.
    place: list[Expr] = field(default_factory=list)
    region: int = 0


@dataclass
class _Scope:
    iterators: dict[Var, tuple[Axis, str, SparseIteration]] = field(default_factory=dict)
    conditional: bool = False


def fill_outputs(func: SparseFunc) -> SparseFunc:
    """Prepend a fill for every output or temporary that is not overwritten as a whole.

    Before::

        with S.sp_iter([I, J], "SS", "csr2bsr") as [i, j]:
            B[i // b, j // b, i % b, j % b] = A[i, j]

    After::

        with S.sp_iter([BI, BJ, II, JJ], "SSSS", "B_fill") as [bi, bj, ii, jj]:
            B[bi, bj, ii, jj] = T.float32(0)
        with S.sp_iter([I, J], "SS", "csr2bsr") as [i, j]:
            B[i // b, j // b, i % b, j % b] = A[i, j]
    """
    uses = _first_uses(func)
    fills = []
    for buffer in func.buffers:
        use = uses.get(buffer.buffer)
        if use is not None and use.written and not use.read_first and not use.covered:
            fills.append(_fill(buffer))
    for param in func.params:
        use = uses.get(param)
        if param in func.sparse_buffers or use is None:
            continue
        if use.written and not use.read_first and not use.covered:
            fills.append(_fill(_as_dense(param)))
    for buffer in func.temporaries:
        use = uses.get(buffer.buffer)
        if use is not None and not use.covered:
            fills.append(_fill(buffer))
    if not fills:
        return func
    return func.with_body(tirx.SeqStmt([*fills, func.body]))


def buffer_roles(func: SparseFunc) -> dict[Var, str]:
    """Return ``"input"``, ``"output"`` or ``"inout"`` for every buffer that the function uses."""
    roles = {}
    for buffer, use in _first_uses(func).items():
        if not use.written:
            roles[buffer] = "input"
        else:
            roles[buffer] = "inout" if use.read_first else "output"
    return roles


def inits_all(func: SparseFunc, iteration: SparseIteration) -> bool:
    """Whether an iteration, not one inside of another, initialises all of what its init stores to."""
    scope = _Scope({var: (axis, kind, iteration) for axis, kind, var in iteration.iterators})
    stmts = [iteration.init] if not isinstance(iteration.init, tirx.SeqStmt) else iteration.init.seq
    body = [func.body] if not isinstance(func.body, tirx.SeqStmt) else func.body.seq
    return any(stmt.same_as(iteration) for stmt in body) and all(
        isinstance(stmt, tirx.BufferStore)
        and _covers(
            func.sparse_buffers.get(stmt.buffer) or _as_dense(stmt.buffer), stmt, scope, True
        )
        for stmt in stmts
    )


def _fill(buffer: SparseBuffer) -> SparseIteration:
    variables = [Var(axis.name.lower(), axis.dtype) for axis in buffer.axes]
    return SparseIteration(
        axes=list(buffer.axes),
        kinds="S" * len(variables),
        iter_vars=variables,
        body=tirx.BufferStore(buffer.buffer, buffer.default, variables),
        init=None,
        name=f"{buffer.name}_fill",
        annotations={FILL_MARK: True},
        span=None,
    )


def _as_dense(buffer: Var) -> SparseBuffer:
    """A stock buffer as one over dense axes, zero where nothing is stored."""
    axes = [
        DenseFixedAxis(name=f"{buffer.name}_{k}", length=size, dtype=str(size.ty.dtype))
        for k, size in enumerate(buffer.ty.shape)
    ]
    return SparseBuffer(buffer=buffer, axes=axes, default=tirx.const(0, str(buffer.ty.dtype)))


def _first_uses(func: SparseFunc) -> dict[Var, _Use]:
    uses: dict[Var, _Use] = {}
    sparse = func.sparse_buffers
    region = 0

    def read(expression, scope: _Scope) -> None:
        def load(node: TensorLoad) -> None:
            use = uses.setdefault(node.source, _Use())
            if not use.written:
                use.read_first = True
            elif use.region == region and not _same_place(use.place, node.indices, scope):
                use.covered = False  # read while it is being written

        tvm_ffi.structural_walk(expression, [(TensorLoad, load)])

    def store(node: tirx.BufferStore, scope: _Scope, initial: bool) -> None:
        read(node.value, scope)
        for index in node.indices:
            read(index, scope)
        use = uses.setdefault(node.buffer, _Use())
        if not use.written and not use.read_first:
            buffer = sparse.get(node.buffer) or _as_dense(node.buffer)
            use.covered = _covers(buffer, node, scope, initial) or (
                initial
                and any(COVER_MARK in it.annotations for _, _, it in scope.iterators.values())
            )
            use.place, use.region = list(node.indices), region
        use.written = True

    def visit(stmt: tirx.Stmt, scope: _Scope, initial: bool = False) -> None:
        nonlocal region
        if not scope.iterators:
            region += 1
        if isinstance(stmt, SparseIteration):
            inner = _Scope(dict(scope.iterators), scope.conditional)
            for axis, kind, var in stmt.iterators:
                inner.iterators[var] = (axis, kind, stmt)
            if stmt.init is not None:
                visit(stmt.init, inner, True)
            visit(stmt.body, inner)
        elif isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                visit(part, scope, initial)
        elif isinstance(stmt, tirx.AttrStmt):
            visit(stmt.body, scope, initial)
        elif isinstance(stmt, tirx.BufferStore):
            store(stmt, scope, initial)
        elif isinstance(stmt, tirx.IfThenElse):
            read(stmt.condition, scope)
            inner = _Scope(scope.iterators, True)
            visit(stmt.then_case, inner, initial)
            if stmt.else_case is not None:
                visit(stmt.else_case, inner, initial)
        elif isinstance(stmt, tirx.For | tirx.While):
            for bound in ("min", "extent", "condition"):
                if hasattr(stmt, bound):
                    read(getattr(stmt, bound), scope)
            visit(stmt.body, _Scope(scope.iterators, True), initial)
        else:
            read(stmt, scope)

    visit(func.body, _Scope())
    return uses


def _same_place(stored: list[Expr], loaded: list[Expr], scope: _Scope) -> bool:
    """Whether a load reads what a store before it, in the same iteration, has written.

    It does at the same indices, and at the iterator of a later iteration over the same axis.
    """
    for left, right in zip(stored, loaded):
        if tvm_ffi.structural_equal(left, right):
            continue
        if left in scope.iterators or right not in scope.iterators:
            return False
    return True


def _covers(buffer: SparseBuffer, node: tirx.BufferStore, scope: _Scope, initial: bool) -> bool:
    """Whether the store, over its whole iteration, writes every slot of the buffer."""
    if scope.conditional:
        return False
    used: set[Var] = set()
    for axis, index in zip(buffer.axes, node.indices):
        if not isinstance(index, Var) or index not in scope.iterators or index in used:
            return False
        used.add(index)
        own, kind, iteration = scope.iterators[index]
        if axis.kind == "sparse_fixed":
            return False
        under_reduction = not iteration.reduced.isdisjoint(ancestors(own))
        if initial and under_reduction:
            covers = isinstance(axis, DenseFixedAxis) and _equal(axis.length, own.length)
        else:
            covers = own == axis and not under_reduction
            covers |= (
                isinstance(axis, DenseFixedAxis)
                and isinstance(own, DenseFixedAxis)
                and _equal(axis.length, own.length)
            )
        if not covers:
            return False
    # Every enclosing iterator must not restrict the store: it is an index, or a reduction of the
    # iteration whose init this is.
    for var, (_, kind, iteration) in scope.iterators.items():
        if var in used:
            continue
        inits_over_it = initial and kind == "R" and _owns(iteration, node)
        if not inits_over_it:
            return False
    return True


def _owns(iteration: SparseIteration, node: tirx.BufferStore) -> bool:
    if iteration.init is None:
        return False
    return any(store.same_as(node) for store in stores_in(iteration.init))


def _equal(left, right) -> bool:
    return tvm_ffi.structural_equal(left, right)

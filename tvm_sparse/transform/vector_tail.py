"""Peel the last, partial tile of a vectorised loop into narrower tiles and one masked vector.

A tile loop over a symbolic extent carries a predicate that would turn every vector of the tile
into scalar code. This pass takes loops that a schedule annotated with ``"tvm_sparse.tail"`` (its
value is the number of vector lanes), after blocks became loops and before TVM vectorises, and
gives back full tiles without a predicate, then tiles of half the width, a quarter and so on, each
at most once, and one masked vector for what is left.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

TAIL = "tvm_sparse.tail"


def PeelVectorTail() -> tvm.transform.Pass:
    """Build the pass that peels annotated tile loops.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs whose blocks are already lowered to loops.

    Notes
    -----
    With a tile of 32 and 16 lanes, before::

        for k_0 in T.serial((f + 31) // 32, annotations={"tvm_sparse.tail": 16}):
            for k_1 in T.unroll(2):
                for k_2 in T.vectorized(16):
                    if k_0 * 32 + k_1 * 16 + k_2 < f:
                        C[k_0 * 32 + k_1 * 16 + k_2] = B[k_0 * 32 + k_1 * 16 + k_2]

    and after::

        for k_0 in range(f // 32):                      # whole tiles, no predicate
            for k_1 in T.unroll(2):
                for k_2 in T.vectorized(16):
                    C[k_0 * 32 + k_1 * 16 + k_2] = B[k_0 * 32 + k_1 * 16 + k_2]
        if f % 32 // 16 > 0:                            # one tile of 16
            for k_2 in T.vectorized(16):
                C[f // 32 * 32 + k_2] = B[f // 32 * 32 + k_2]
        if f % 16 > 0:                                  # one masked vector
            T.masked_store(C, T.masked_load(B, ...), ...)

    Examples
    --------
    >>> from tvm_sparse.transform import PeelVectorTail
    >>> PeelVectorTail().info.name
    'tvm_sparse.PeelVectorTail'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        peeled = []

        def rewrite(loop: tirx.For) -> tirx.Stmt:
            if TAIL not in loop.annotations:
                return loop
            peeled.append(loop)
            return _peel(loop, int(loop.annotations[TAIL]), allocated)

        allocated = []
        tvm_ffi.structural_walk(
            func.body, (tirx.AllocBuffer, lambda stmt: allocated.append(stmt.buffer))
        )
        body = tvm_ffi.structural_map(func.body, (tirx.For, rewrite))
        return func.with_body(body) if peeled else func

    peel = tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.PeelVectorTail")
    return tvm.transform.Sequential(
        [peel, tirx.transform.ConvertSSA()], name="tvm_sparse.PeelVectorTail"
    )


def _peel(loop: tirx.For, lanes: int, allocated: list[tirx.Buffer]) -> tirx.Stmt:
    """Split a tile loop into whole tiles, halved tiles and a masked vector."""
    annotations = {key: value for key, value in loop.annotations.items() if key != TAIL}
    plain = _with_loop(loop, loop.extent, loop.body, annotations)
    guard = tile_guard(loop)
    if guard is None:
        return plain
    width, extent = guard
    if width % lanes or (width // lanes) & (width // lanes - 1):
        return plain

    analyzer = Analyzer()
    allocations, loop = _split_allocations(loop)
    bare = _drop_guard(loop.body, loop.loop_var)
    pieces: list[tuple] = []  # condition, statement

    tiles = analyzer.simplify(extent // width)
    if not _is_constant(tiles, 0):
        pieces.append((None, _with_loop(loop, tiles, bare, annotations)))
    piece = width // 2
    while piece >= lanes:
        needed = analyzer.simplify(extent % (2 * piece) >= piece)
        if not _is_constant(needed, 0):
            base = extent // (2 * piece) * (2 * piece)
            body = _rebase(_narrow(bare, loop, width, piece), loop.loop_var, width, base)
            pieces.append((needed, body))
        piece //= 2
    needed = analyzer.simplify(extent % lanes > 0)
    if not _is_constant(needed, 0):
        body = _narrow(loop.body, loop, width, lanes)
        body = _rebase(body, loop.loop_var, width, extent // lanes * lanes)
        if body is not None:
            body = tvm_ffi.structural_map(body, (tirx.For, lambda inner: _mask(inner, allocated)))
        pieces.append((needed, body))

    if any(body is None for _, body in pieces):
        return plain
    statements = list(allocations)
    for condition, body in pieces:
        always = condition is None or _is_constant(condition, 1)
        statements.append(body if always else tirx.IfThenElse(condition, body, None))
    if not statements:
        return tirx.Evaluate(0)
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)


def _is_constant(expr, value: int) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr) == value


def _with_loop(loop: tirx.For, extent, body: tirx.Stmt, annotations: dict) -> tirx.For:
    return tirx.For(loop.loop_var, loop.min, extent, loop.kind, body, annotations=annotations)


def _with_kind(loop: tirx.For, extent, kind: tirx.ForKind, body: tirx.Stmt) -> tirx.For:
    return tirx.For(loop.loop_var, loop.min, extent, kind, body, annotations=loop.annotations)


def _split_allocations(loop: tirx.For) -> tuple[list[tirx.Stmt], tirx.For]:
    """Take the buffers allocated by the body out of the loop, so that all pieces share them."""
    if not isinstance(loop.body, tirx.SeqStmt):
        return [], loop
    kept = [stmt for stmt in loop.body.seq if not isinstance(stmt, tirx.AllocBuffer)]
    allocations = [stmt for stmt in loop.body.seq if isinstance(stmt, tirx.AllocBuffer)]
    body = tirx.SeqStmt(kept) if len(kept) > 1 else kept[0]
    return allocations, _with_loop(loop, loop.extent, body, loop.annotations)


def _guards(body: tirx.Stmt, var: tirx.Var) -> list[tirx.LT]:
    """Conditions of the form ``position < extent`` that depend on a loop variable."""
    found = []

    def visit(stmt: tirx.IfThenElse) -> None:
        if _is_guard(stmt, var):
            found.append(stmt.condition)

    tvm_ffi.structural_walk(body, (tirx.IfThenElse, visit))
    return found


def _is_guard(stmt: tirx.IfThenElse, var: tirx.Var) -> bool:
    return (
        isinstance(stmt.condition, tirx.LT)
        and stmt.else_case is None
        and _uses(stmt.condition.a, var)
    )


def tile_guard(loop: tirx.For):
    """Return the width of a tile and the extent that its predicate tests, or None."""
    width, extent = None, None
    for guard in _guards(loop.body, loop.loop_var):
        stride = _stride(guard.a, loop.loop_var)
        if stride is None:
            return None
        if width is None:
            width, extent = stride, guard.b
        if stride != width or not tvm_ffi.structural_equal(guard.b, extent):
            return None
    return None if width is None else (width, extent)


def _drop_guard(body: tirx.Stmt, var: tirx.Var) -> tirx.Stmt:
    def rewrite(stmt: tirx.IfThenElse) -> tirx.Stmt:
        return stmt.then_case if _is_guard(stmt, var) else stmt

    return tvm_ffi.structural_map(body, (tirx.IfThenElse, rewrite))


def _narrow(body: tirx.Stmt, loop: tirx.For, width: int, piece: int) -> tirx.Stmt:
    """Shorten the loop that cuts a tile of ``width`` into groups, so that it covers ``piece``."""
    strides = {}
    for guard in _guards(loop.body, loop.loop_var):
        for variable in _variables(guard.a):
            strides[variable] = _stride(guard.a, variable)

    def rewrite(stmt: tirx.For) -> tirx.Stmt:
        stride = strides.get(stmt.loop_var)
        if stride is None or not isinstance(stmt.extent, tirx.IntImm):
            return stmt
        if stride * int(stmt.extent) != width:
            return stmt
        extent = tirx.IntImm(_dtype(stmt.extent), max(1, piece // stride))
        return tirx.For(
            stmt.loop_var, stmt.min, extent, stmt.kind, stmt.body, annotations=stmt.annotations
        )

    return tvm_ffi.structural_map(body, (tirx.For, rewrite))


def _rebase(body: tirx.Stmt, var: tirx.Var, width: int, base) -> tirx.Stmt | None:
    """Move a tile to ``base``: indices linear in ``var * width`` get it; None where one is not."""
    refused = []

    def moved(expr):
        if not _uses(expr, var):
            return expr
        stride = _stride(expr, var)
        if stride is None or stride % width:
            refused.append(expr)
            return expr
        return _at(expr, var, 0) + (base * (stride // width)).astype(_dtype(expr))

    def load(expr: tvm.ir.TensorLoad):
        if not any(_uses(index, var) for index in expr.indices):
            return expr
        return tirx.BufferLoad(expr.source, [moved(index) for index in expr.indices])

    def store(stmt: tirx.BufferStore) -> tirx.BufferStore:
        if not any(_uses(index, var) for index in stmt.indices):
            return stmt
        return tirx.BufferStore(stmt.buffer, stmt.value, [moved(index) for index in stmt.indices])

    def guard(expr: tirx.LT) -> tirx.LT:
        return tirx.LT(moved(expr.a), expr.b)

    rules = [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store), (tirx.LT, guard)]
    body = tvm_ffi.structural_map(body, rules)
    return None if refused or _uses(body, var) else body


def _stride(expr, var: tirx.Var) -> int | None:
    """The constant by which an integer expression grows with ``var``, or None."""
    analyzer = Analyzer()
    values = [_at(expr, var, value) for value in range(3)]
    steps = [analyzer.simplify(values[1] - values[0]), analyzer.simplify(values[2] - values[1])]
    if not all(isinstance(step, tirx.IntImm) for step in steps) or int(steps[0]) != int(steps[1]):
        return None
    return int(steps[0])


def _at(expr, var: tirx.Var, value: int):
    """The expression with ``var`` replaced by a constant."""
    constant = tirx.IntImm(_dtype(var), value)
    replaced = tvm_ffi.structural_map(
        expr, (tirx.Var, lambda found: constant if found.same_as(var) else found)
    )
    return Analyzer().simplify(replaced)


def _variables(node) -> list[tirx.Var]:
    found: list[tirx.Var] = []

    def visit(var: tirx.Var) -> None:
        if not tirx.is_buffer_var(var) and not any(var.same_as(other) for other in found):
            found.append(var)

    tvm_ffi.structural_walk(node, (tirx.Var, visit))
    return found


def _uses(node, var: tirx.Var) -> bool:
    return any(var.same_as(other) for other in _variables(node))


class _Unmaskable(Exception):
    """A statement that has no masked vector form."""


def _mask(loop: tirx.For, allocated: list[tirx.Buffer]) -> tirx.Stmt:
    """Turn a predicated vector loop into one masked vector statement."""
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.body, tirx.IfThenElse):
        return loop
    if not _is_guard(loop.body, loop.loop_var):
        return loop
    store = loop.body.then_case
    if not isinstance(store, tirx.BufferStore):
        return loop
    try:
        return _masked_store(loop, loop.body.condition, store, allocated)
    except _Unmaskable:
        return _with_kind(loop, loop.extent, tirx.ForKind.UNROLLED, loop.body)


def _masked_store(
    loop: tirx.For, guard: tirx.LT, store: tirx.BufferStore, allocated: list[tirx.Buffer]
) -> tirx.Stmt:
    """Write the store of a predicated vector loop as one vector statement; lane 0 is always on."""
    var, lanes = loop.loop_var, int(loop.extent)
    zero, one = tirx.IntImm(_dtype(var), 0), tirx.IntImm(_dtype(var), 1)
    rest = (guard.b - _at(guard.a, var, 0)).astype("int32")
    mask = tirx.Ramp(tirx.IntImm("int32", 0), tirx.IntImm("int32", 1), lanes) < tirx.Broadcast(
        rest, lanes
    )

    bindings: list[tirx.Stmt] = []

    def bind(expr):
        """Name a value: TVM makes a branch of each selection between expressions that load."""
        name = tirx.Var(f"masked_{len(bindings)}", _dtype(expr))
        bindings.append(tirx.Bind(name, expr))
        return name

    def load(expr):
        *outer, index = expr.indices
        if any(_uses(position, var) for position in outer):
            raise _Unmaskable
        if _stride(index, var) != 1:
            # Lanes that are off repeat the first one: their own index may be anything.
            first = tirx.Broadcast(_at(index, var, 0), lanes)
            gathered = tirx.Select(mask, bind(vector(index)), first)
            return tirx.BufferLoad(expr.source, [*outer, gathered])
        ramp = tirx.Ramp(_at(index, var, 0), one, lanes)
        if _contains(allocated, expr.source):
            return tirx.BufferLoad(expr.source, [*outer, ramp])
        dtype = f"{expr.source.dtype}x{lanes}"
        return tirx.op.masked_load(dtype, expr.source, *outer, ramp, mask)

    def vector(expr):
        if not _uses(expr, var):
            return tirx.Broadcast(expr, lanes)
        if expr.same_as(var):
            return tirx.Ramp(zero, one, lanes)
        if isinstance(expr, tvm.ir.TensorLoad):
            return load(expr)
        if isinstance(expr, (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)):
            return type(expr)(vector(expr.a), vector(expr.b))
        if isinstance(expr, tirx.Cast):
            return tirx.Cast(f"{_dtype(expr)}x{lanes}", vector(expr.value))
        raise _Unmaskable

    *outer, index = store.indices
    if _stride(index, var) != 1 or any(_uses(position, var) for position in outer):
        raise _Unmaskable
    indices = [*outer, tirx.Ramp(_at(index, var, 0), one, lanes)]
    value = vector(store.value)
    if _contains(allocated, store.buffer):
        kept = bind(tirx.BufferLoad(store.buffer, indices))
        kept = tirx.Select(mask, bind(value), kept)
        return tirx.SeqStmt([*bindings, tirx.BufferStore(store.buffer, kept, indices)])
    masked = tirx.op.masked_store(store.buffer, value, *indices, mask)
    statements = [*bindings, tirx.Evaluate(masked)]
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)


def _contains(buffers: list[tirx.Buffer], buffer: tirx.Buffer) -> bool:
    return any(buffer.same_as(other) for other in buffers)


def _dtype(expr) -> str:
    return str(expr.ty.dtype)

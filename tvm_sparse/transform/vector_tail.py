"""Peel the last, partial tile of a vectorised loop into narrower tiles and one masked vector.

A tile loop over a symbolic extent carries a predicate that would turn every vector of the tile
into scalar code. This pass takes loops that a schedule annotated with ``"tvm_sparse.tail"`` (its
value is the number of vector lanes), after blocks became loops and before TVM vectorises, and
gives back full tiles without a predicate, then tiles of half the width, a quarter and so on, each
at most once, and one masked vector for what is left. With ``"tvm_sparse.lean"`` beside it, all that
is left goes through one loop over masked vectors, which is less code.
"""

from __future__ import annotations

from functools import partial

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from ..ir.contents import has_loads
from ..ir.statements import in_sequence
from ._masked_vectors import mask_vector_loop
from ._tile_loops import (
    LEAN,
    TAIL,
    at_value,
    dtype_of,
    guards,
    is_guard,
    stride_of,
    tile_guard,
    uses,
    variables,
)
from .versions import VersionWidths


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
        if f % 32 >= 16:                                # one tile of 16
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

        allocated = _buffers_of_loops(func.body)
        body = tvm_ffi.structural_map(func.body, (tirx.For, rewrite))
        return func.with_body(body) if peeled else func

    peel = tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.PeelVectorTail")
    return tvm.transform.Sequential(
        [VersionWidths(), peel, tirx.transform.ConvertSSA()], name="tvm_sparse.PeelVectorTail"
    )


def _buffers_of_loops(body: tirx.Stmt) -> list[tirx.Buffer]:
    """Buffers that loops allocate for themselves: what lies beside the lanes in use is nobody else's."""
    found: list[tirx.Buffer] = []

    def inside(loop: tirx.For) -> None:
        tvm_ffi.structural_walk(
            loop.body, (tirx.AllocBuffer, lambda stmt: found.append(stmt.buffer))
        )

    tvm_ffi.structural_walk(body, (tirx.For, inside))
    return found


def _peel(loop: tirx.For, lanes: int, allocated: list[tirx.Buffer]) -> tirx.Stmt:
    """Split a tile loop into whole tiles, halved tiles and a masked vector."""
    annotations = {k: v for k, v in loop.annotations.items() if k not in (TAIL, LEAN)}
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
    if LEAN in loop.annotations:
        return _with_masked_rest(loop, allocations, pieces, (width, lanes, extent), allocated)
    for condition, piece, masked in _parts(extent, width, lanes, _walks_entries(loop.body)):
        needed = analyzer.simplify(condition)
        if _is_constant(needed, 0):
            continue
        base = extent // piece * piece if masked else extent // (2 * piece) * (2 * piece)
        body = _narrow(loop.body if masked else bare, loop, width, piece)
        body = _rebase(body, loop.loop_var, width, base)
        if masked and body is not None:
            needs: list = []
            most_lanes = lanes - 1 if piece == lanes else lanes
            mask = partial(
                mask_vector_loop, allocated=allocated, most_lanes=most_lanes, needs=needs
            )
            body = tvm_ffi.structural_map(body, (tirx.For, mask))
            if has_loads(extent) and all(need is not None for need in needs):
                # Rows differ: running with all lanes off costs less than a wrong guess whether any is on.
                pieces.insert(0, (analyzer.simplify(tirx.all(*needs)) if needs else None, body))
                continue
        pieces.append((needed, body))

    if any(body is None for _, body in pieces):
        return plain
    statements = list(allocations)
    for condition, body in pieces:
        always = condition is None or _is_constant(condition, 1)
        statements.append(body if always else tirx.IfThenElse(condition, body, None))
    if not statements:
        return tirx.Evaluate(0)
    return in_sequence(statements)


def _with_masked_rest(
    loop: tirx.For, allocations: list[tirx.Stmt], whole: list[tuple], sizes, allocated: list
) -> tirx.Stmt:
    """Whole tiles, then masked vectors one after another: the least code."""
    width, lanes, extent = sizes
    vector = tirx.Var(f"{loop.loop_var.name}_rest", dtype_of(loop.loop_var))
    base = extent // width * width + vector.astype(dtype_of(extent)) * lanes
    body = _rebase(_narrow(loop.body, loop, width, lanes), loop.loop_var, width, base)
    if body is None:
        return loop
    mask = partial(mask_vector_loop, allocated=allocated, most_lanes=lanes, needs=[])
    body = tvm_ffi.structural_map(body, (tirx.For, mask))
    vectors = Analyzer().simplify((extent % width + lanes - 1) // lanes)
    statements = [*allocations, *(body for _, body in whole)]
    if not _is_constant(vectors, 0):
        zero = tirx.IntImm(dtype_of(vector), 0)
        count = vectors.astype(dtype_of(vector))
        statements.append(tirx.For(vector, zero, count, tirx.ForKind.SERIAL, body))
    return in_sequence(statements)


def _parts(extent, width: int, lanes: int, walks_entries: bool) -> list[tuple]:
    """Condition, width and whether it is masked, of each part of the last tile.

    Where a part goes through all entries of a row again, one and a half vectors are one part.
    """
    parts = []
    piece = width // 2
    while piece > lanes or (piece == lanes and not walks_entries):
        parts.append((extent % (2 * piece) >= piece, piece, False))
        piece //= 2
    if width == lanes or not walks_entries:
        return [*parts, (extent % lanes > 0, lanes, True)]
    rest = extent % (2 * lanes)
    return [
        *parts,
        (rest > lanes, 2 * lanes, True),
        (tirx.EQ(rest, tirx.IntImm(dtype_of(rest), lanes)), lanes, False),
        (tirx.And(rest > 0, rest < lanes), lanes, True),
    ]


def _walks_entries(body: tirx.Stmt) -> bool:
    """Whether a tile holds a loop whose extent is read from memory."""
    found: list[tirx.For] = []
    tvm_ffi.structural_walk(body, (tirx.For, found.append))
    return any(has_loads(loop.extent) for loop in found)


def _is_constant(expr, value: int) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr) == value


def _with_loop(loop: tirx.For, extent, body: tirx.Stmt, annotations: dict) -> tirx.For:
    return tirx.For(loop.loop_var, loop.min, extent, loop.kind, body, annotations=annotations)


def _split_allocations(loop: tirx.For) -> tuple[list[tirx.Stmt], tirx.For]:
    """Take the buffers allocated by the body out of the loop, so that all pieces share them."""
    if not isinstance(loop.body, tirx.SeqStmt):
        return [], loop
    kept = [stmt for stmt in loop.body.seq if not isinstance(stmt, tirx.AllocBuffer)]
    allocations = [stmt for stmt in loop.body.seq if isinstance(stmt, tirx.AllocBuffer)]
    body = tirx.SeqStmt(kept) if len(kept) > 1 else kept[0]
    return allocations, _with_loop(loop, loop.extent, body, loop.annotations)


def _drop_guard(body: tirx.Stmt, var: tirx.Var) -> tirx.Stmt:
    def rewrite(stmt: tirx.IfThenElse) -> tirx.Stmt:
        return stmt.then_case if is_guard(stmt, var) else stmt

    return tvm_ffi.structural_map(body, (tirx.IfThenElse, rewrite))


def _narrow(body: tirx.Stmt, loop: tirx.For, width: int, piece: int) -> tirx.Stmt:
    """Shorten the loop that cuts a tile of ``width`` into groups, so that it covers ``piece``."""
    strides = {}
    for guard in guards(loop.body, loop.loop_var):
        for variable in variables(guard.a):
            strides[variable] = stride_of(guard.a, variable)

    def rewrite(stmt: tirx.For) -> tirx.Stmt:
        stride = strides.get(stmt.loop_var)
        if stride is None or not isinstance(stmt.extent, tirx.IntImm):
            return stmt
        if stride * int(stmt.extent) != width:
            return stmt
        extent = tirx.IntImm(dtype_of(stmt.extent), max(1, piece // stride))
        return tirx.For(
            stmt.loop_var, stmt.min, extent, stmt.kind, stmt.body, annotations=stmt.annotations
        )

    return tvm_ffi.structural_map(body, (tirx.For, rewrite))


def _rebase(body: tirx.Stmt, var: tirx.Var, width: int, base) -> tirx.Stmt | None:
    """Move a tile to ``base``: indices linear in ``var * width`` get it; None where one is not."""
    refused = []

    def moved(expr):
        if not uses(expr, var):
            return expr
        stride = stride_of(expr, var)
        if stride is None or stride % width:
            refused.append(expr)
            return expr
        return at_value(expr, var, 0) + (base * (stride // width)).astype(dtype_of(expr))

    def load(expr: tvm.ir.TensorLoad):
        if not any(uses(index, var) for index in expr.indices):
            return expr
        return tirx.BufferLoad(expr.source, [moved(index) for index in expr.indices])

    def store(stmt: tirx.BufferStore) -> tirx.BufferStore:
        if not any(uses(index, var) for index in stmt.indices):
            return stmt
        return tirx.BufferStore(stmt.buffer, stmt.value, [moved(index) for index in stmt.indices])

    def guard(expr: tirx.LT) -> tirx.LT:
        return tirx.LT(moved(expr.a), expr.b)

    rules = [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store), (tirx.LT, guard)]
    body = tvm_ffi.structural_map(body, rules)
    return None if refused or uses(body, var) else body

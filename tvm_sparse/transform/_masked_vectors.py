"""Masked vector form of a predicated vector loop."""

from __future__ import annotations

import tvm
from tvm import tirx

from ..ir.contents import buffers_loaded
from ..ir.statements import in_sequence
from ._tile_loops import at_value, dtype_of, is_guard, stride_of, uses


class _Unmaskable(Exception):
    """A statement that has no masked vector form."""


def mask_vector_loop(
    loop: tirx.For,
    allocated: list[tirx.Buffer],
    most_lanes: int,
    needs: list[tvm.ir.Expr | None],
) -> tirx.Stmt:
    """Turn a predicated vector loop into one masked vector statement.

    Parameters
    ----------
    loop : For
        The loop.
    allocated : list of Buffer
        Buffers that loops allocate for themselves. Those of whole vectors are loaded and stored as a
        whole: no other thread uses the lanes that are off, and they are inside of the buffer.
    most_lanes : int
        The lanes from this one on are always off.
    needs : list
        What must hold for the statement to run with all lanes off is added; None where nothing
        allows it.
    """
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.body, tirx.IfThenElse):
        return loop
    if not is_guard(loop.body, loop.loop_var):
        return loop
    store = loop.body.then_case
    if not isinstance(store, tirx.BufferStore):
        return loop
    try:
        return _masked_store(loop, loop.body.condition, store, allocated, most_lanes, needs)
    except _Unmaskable:
        return _with_kind(loop, loop.extent, tirx.ForKind.UNROLLED, loop.body)


def _masked_store(
    loop: tirx.For,
    guard: tirx.LT,
    store: tirx.BufferStore,
    allocated: list[tirx.Buffer],
    most_lanes: int,
    needs: list[tvm.ir.Expr | None],
) -> tirx.Stmt:
    """Write the store of a predicated vector loop as one vector statement."""
    _check_maskable(store)
    var, lanes = loop.loop_var, int(loop.extent)
    zero, one = tirx.IntImm(dtype_of(var), 0), tirx.IntImm(dtype_of(var), 1)
    rest = (guard.b - at_value(guard.a, var, 0)).astype("int32")
    mask = tirx.Ramp(tirx.IntImm("int32", 0), tirx.IntImm("int32", 1), lanes) < tirx.Broadcast(
        rest, lanes
    )

    bindings: list[tirx.Stmt] = []

    def bind(expr):
        """Name a value: TVM makes a branch of each selection between expressions that load."""
        name = tirx.Var(f"masked_{len(bindings)}", dtype_of(expr))
        bindings.append(tirx.Bind(name, expr))
        return name

    def gather(expr):
        """Load lane by lane; lanes that are off must not use their own index, it may be anything."""
        column = stored_index(expr.indices[-1]) if len(expr.indices) == 1 else None
        if column is not None:
            # They load element 0, which must exist.
            needs.append(tirx.all(*(size > 0 for size in expr.source.ty.shape)))
            values = [
                tirx.BufferLoad(expr.source, [lane_of(column, lane)]) for lane in range(most_lanes)
            ]
            return together(values)
        # They repeat the first lane, which is on.
        needs.append(None)
        positions = [zero]
        for lane in range(1, most_lanes):
            here = tirx.IntImm(dtype_of(var), lane)
            positions.append(tirx.Select(tirx.IntImm("int32", lane) < rest, here, zero))
        return together([at_value(expr, var, position) for position in positions])

    def together(values):
        """A vector of one value for each lane; of zeros in lanes that are always off."""
        values = values + [tirx.const(0, dtype_of(values[0]))] * (lanes - len(values))
        return tirx.Shuffle(values, [tirx.IntImm("int32", lane) for lane in range(lanes)])

    def lane_of(vector, lane):
        """An index as 64 bits: it is never negative, and to widen it so costs nothing."""
        index = tirx.Shuffle([vector], [tirx.IntImm("int32", lane)])
        return index.astype(dtype_of(index).replace("int", "uint")).astype("int64")

    def stored_index(index):
        """The vector of indices, 0 where a lane is off; None unless ``index`` is just stored ones."""
        while isinstance(index, tirx.Cast):
            index = index.value
        if not isinstance(index, tvm.ir.TensorLoad) or len(index.indices) != 1:
            return None
        if stride_of(index.indices[0], var) != 1 or _contains(allocated, index.source):
            return None
        dtype = dtype_of(index)
        off = tirx.Broadcast(tirx.IntImm(dtype, 0), lanes)
        return bind(tirx.Select(mask, bind(load(index)), off))

    def load(expr):
        *outer, index = expr.indices
        if any(uses(position, var) for position in outer):
            raise _Unmaskable
        if stride_of(index, var) != 1:
            return gather(expr)
        ramp = tirx.Ramp(at_value(index, var, 0), one, lanes)
        if _is_own_tile(allocated, expr.source, lanes):
            return tirx.BufferLoad(expr.source, [*outer, ramp])
        dtype = f"{expr.source.dtype}x{lanes}"
        return tirx.op.masked_load(dtype, expr.source, *outer, ramp, mask)

    def vector(expr):
        if not uses(expr, var):
            return tirx.Broadcast(expr, lanes)
        if expr.same_as(var):
            return tirx.Ramp(zero, one, lanes)
        if isinstance(expr, tvm.ir.TensorLoad):
            return load(expr)
        if isinstance(expr, (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)):
            return type(expr)(vector(expr.a), vector(expr.b))
        if isinstance(expr, tirx.Cast):
            return tirx.Cast(f"{dtype_of(expr)}x{lanes}", vector(expr.value))
        raise _Unmaskable

    *outer, index = store.indices
    if stride_of(index, var) != 1 or any(uses(position, var) for position in outer):
        raise _Unmaskable
    indices = [*outer, tirx.Ramp(at_value(index, var, 0), one, lanes)]
    value = vector(store.value)
    if _is_own_tile(allocated, store.buffer, lanes):
        kept = bind(tirx.BufferLoad(store.buffer, indices))
        kept = tirx.Select(mask, bind(value), kept)
        return tirx.SeqStmt([*bindings, tirx.BufferStore(store.buffer, kept, indices)])
    masked = tirx.op.masked_store(store.buffer, value, *indices, mask)
    statements = [*bindings, tirx.Evaluate(masked)]
    return in_sequence(statements)


def _check_maskable(store: tirx.BufferStore) -> None:
    """Refuse bfloat16 and float8: the passes that give them their meaning pass masked code by."""
    buffers = [store.buffer, *buffers_loaded(store.value)]
    if any(str(buffer.dtype).startswith(("bfloat", "float8")) for buffer in buffers):
        raise _Unmaskable


def _with_kind(loop: tirx.For, extent, kind: tirx.ForKind, body: tirx.Stmt) -> tirx.For:
    return tirx.For(loop.loop_var, loop.min, extent, kind, body, annotations=loop.annotations)


def _contains(buffers: list[tirx.Buffer], buffer: tirx.Buffer) -> bool:
    return any(buffer.same_as(other) for other in buffers)


def _is_own_tile(allocated: list[tirx.Buffer], buffer: tirx.Buffer, lanes: int) -> bool:
    """Whether a buffer is one loop's own, and made of whole vectors."""
    shape = list(buffer.ty.shape)
    is_constant = all(isinstance(size, tirx.IntImm) for size in shape)
    return is_constant and int(shape[-1]) % lanes == 0 and _contains(allocated, buffer)

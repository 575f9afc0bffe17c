"""Cut local buffers that are too large for the stack into pieces that LLVM keeps in registers.

TVM puts local buffers of fewer than 1024 bytes on the stack and takes memory from the runtime for others.
Sixteen vectors of 64 bytes, a usual tile of accumulators, are just too many.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var

__all__ = ["FitStack"]

#: TVM's ``runtime::kMaxStackAlloca``.
_STACK_BYTES = 1024


def FitStack() -> tvm.transform.Pass:
    """Build the pass that cuts large local buffers.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs of plain loops, after unrolling.

    Notes
    -----
    Before::

        held = T.alloc_buffer((256,), "float32")
        held[0:16] = held[0:16] + ...
        held[240:256] = held[240:256] + ...

    and after::

        held_0 = T.alloc_buffer((16,), "float32")
        held_15 = T.alloc_buffer((16,), "float32")
        held_0[0:16] = held_0[0:16] + ...
        held_15[0:16] = held_15[0:16] + ...

    Only buffers of one dimension whose elements are all used at constant places are cut.

    Examples
    --------
    >>> from tvm_sparse.transform import FitStack
    >>> FitStack().info.name
    'tvm_sparse.FitStack'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        large: list[Var] = []

        def note(stmt: tirx.AllocBuffer) -> None:
            if _is_large(stmt.buffer):
                large.append(stmt.buffer)

        tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, note))
        pieces = {buffer: found for buffer in large if (found := _pieces(func.body, buffer))}
        return func.with_body(_cut(func.body, pieces)) if pieces else func

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.FitStack")


def _bytes(buffer: Var) -> int:
    dtype = tvm.DataType(str(buffer.ty.dtype))
    return int(buffer.ty.shape[0]) * ((dtype.bits * dtype.lanes + 7) // 8)


def _is_large(buffer: Var) -> bool:
    shape = buffer.ty.shape
    return len(shape) == 1 and isinstance(shape[0], tirx.IntImm) and _bytes(buffer) >= _STACK_BYTES


def _pieces(body: tirx.Stmt, buffer: Var) -> dict[int, tuple[int, Var]] | None:
    """Return, for each place that is used, where its piece begins, and the piece."""
    accesses: list[tuple[int, int] | None] = []
    uses: list[Var] = []

    def access(used: Var, indices: list[Expr]) -> None:
        if used.same_as(buffer):
            accesses.append(_interval(indices[0]))

    tvm_ffi.structural_walk(
        body,
        [
            (TensorLoad, lambda load: access(load.source, load.indices)),
            (tirx.BufferStore, lambda store: access(store.buffer, store.indices)),
            (Var, lambda var: uses.append(var) if var.same_as(buffer) else None),
        ],
    )
    # Any other use, such as its address, could reach all of it; the allocation is one more.
    if any(interval is None for interval in accesses) or len(uses) > len(accesses) + 1:
        return None
    merged: list[list[int]] = []
    for start, end in sorted(set(accesses)):
        if merged and start < merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    found = {}
    for number, (start, end) in enumerate(merged):
        dtype = str(buffer.ty.dtype)
        piece = tirx.decl_buffer((end - start,), dtype, f"{buffer.name}_{number}")
        if _bytes(piece) >= _STACK_BYTES:
            return None
        found |= {place: (start, piece) for place in range(start, end)}
    return found


def _interval(index: Expr) -> tuple[int, int] | None:
    """Return the first place of an index and the one after its last, None where they are not known."""
    if isinstance(index, tirx.IntImm):
        return int(index), int(index) + 1
    constant = isinstance(index, tirx.Ramp) and isinstance(index.base, tirx.IntImm)
    if constant and isinstance(index.stride, tirx.IntImm) and int(index.stride) == 1:
        return int(index.base), int(index.base) + int(index.lanes)
    return None


def _cut(body: tirx.Stmt, pieces: dict[Var, dict[int, tuple[int, Var]]]) -> tirx.Stmt:
    def moved(buffer: Var, index: Expr) -> tuple[Var, Expr]:
        start, piece = pieces[buffer][_interval(index)[0]]
        if isinstance(index, tirx.Ramp):
            return piece, tirx.Ramp(index.base - start, index.stride, index.lanes)
        return piece, index - start

    def load(node: TensorLoad, mutator) -> Expr:
        if node.source not in pieces:
            return mutator.default_mutate(node)
        piece, index = moved(node.source, node.indices[0])
        return tirx.BufferLoad(piece, [index])

    def store(node: tirx.BufferStore, mutator) -> tirx.Stmt:
        if node.buffer not in pieces:
            return mutator.default_mutate(node)
        piece, index = moved(node.buffer, node.indices[0])
        return tirx.BufferStore(piece, mutator.mutate(node.value), [index])

    def allocate(node: tirx.AllocBuffer, mutator) -> tirx.Stmt:
        if node.buffer not in pieces:
            return mutator.default_mutate(node)
        different = {piece for _, piece in pieces[node.buffer].values()}
        ordered = sorted(different, key=lambda piece: int(piece.name.rpartition("_")[2]))
        return tirx.SeqStmt([tirx.AllocBuffer(piece) for piece in ordered])

    rules = [(TensorLoad, load), (tirx.BufferStore, store), (tirx.AllocBuffer, allocate)]
    return tvm_ffi.structural_mutate(body, rules)

"""Cut local buffers that are too large for the stack into pieces that LLVM keeps in registers.

TVM puts local buffers of fewer than 1024 bytes on the stack and takes memory from the runtime for others.
Sixteen vectors of 64 bytes, a usual tile of accumulators, are just too many.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var

from ..ir.contents import variables_of

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
        body = func.body
        for buffer in large:
            names = _names_of(body, buffer)
            pieces = _pieces(body, names)
            if pieces is not None:
                cut = _cut(body, names, pieces)
                # Any other use, such as its address, could reach all of it.
                body = body if variables_of(cut) & names else cut
        return func.with_body(body) if not body.same_as(func.body) else func

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.FitStack")


def _element(buffer: Var) -> tuple[str, int]:
    """Return the scalar type and the lanes of an element."""
    scalar, _, lanes = str(buffer.ty.dtype).partition("x")
    return scalar, int(lanes or 1)


def _is_large(buffer: Var) -> bool:
    shape = buffer.ty.shape
    if len(shape) != 1 or not isinstance(shape[0], tirx.IntImm):
        return False
    scalar, lanes = _element(buffer)
    return int(shape[0]) * lanes * _bytes(scalar) >= _STACK_BYTES


def _bytes(scalar: str) -> int:
    return (tvm.DataType(scalar).bits + 7) // 8


def _names_of(body: tirx.Stmt, buffer: Var) -> set[Var]:
    """Return a buffer and those that StorageRewrite put into its place."""
    names = {buffer}

    def note(stmt: tirx.DeclBuffer) -> None:
        if variables_of(stmt.data) & names:
            names.add(stmt.buffer)

    tvm_ffi.structural_walk(body, (tirx.DeclBuffer, note))
    return names


def _pieces(body: tirx.Stmt, names: set[Var]) -> dict[int, tuple[int, Var]] | None:
    """Return, for each scalar that is used, where its piece begins, and the piece."""
    accesses: set[tuple[int, int] | None] = set()

    def access(used: Var, indices: list[Expr]) -> None:
        if used in names:
            accesses.add(_interval(used, indices))

    tvm_ffi.structural_walk(
        body,
        [
            (TensorLoad, lambda load: access(load.source, load.indices)),
            (tirx.BufferStore, lambda store: access(store.buffer, store.indices)),
        ],
    )
    scalars = {_element(buffer)[0] for buffer in names}
    if None in accesses or len(scalars) != 1:
        return None
    (scalar,) = scalars
    merged: list[list[int]] = []
    for start, end in sorted(accesses):
        if merged and start < merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    name = min(buffer.name for buffer in names)
    found = {}
    for number, (start, end) in enumerate(merged):
        if (end - start) * _bytes(scalar) >= _STACK_BYTES:
            return None
        piece = tirx.decl_buffer((end - start,), scalar, f"{name}_{number}")
        found |= {place: (start, piece) for place in range(start, end)}
    return found


def _interval(buffer: Var, indices: list[Expr]) -> tuple[int, int] | None:
    """Return the first scalar of an access and the one after its last, None where they are not known."""
    if len(indices) != 1:
        return None
    (index,), lanes = indices, _element(buffer)[1]
    if isinstance(index, tirx.IntImm):
        return int(index) * lanes, (int(index) + 1) * lanes
    constant = isinstance(index, tirx.Ramp) and isinstance(index.base, tirx.IntImm) and lanes == 1
    if constant and isinstance(index.stride, tirx.IntImm) and int(index.stride) == 1:
        return int(index.base), int(index.base) + int(index.lanes)
    return None


def _cut(body: tirx.Stmt, names: set[Var], pieces: dict[int, tuple[int, Var]]) -> tirx.Stmt:
    def moved(buffer: Var, indices: list[Expr]) -> tuple[Var, Expr]:
        begin, end = _interval(buffer, indices)
        start, piece = pieces[begin]
        first = tirx.const(begin - start, "int64")
        one = tirx.const(1, "int64")
        return piece, first if end - begin == 1 else tirx.Ramp(first, one, end - begin)

    def load(node: TensorLoad, mutator) -> Expr:
        if node.source not in names:
            return mutator.default_mutate(node)
        piece, index = moved(node.source, node.indices)
        return tirx.BufferLoad(piece, [index])

    def store(node: tirx.BufferStore, mutator) -> tirx.Stmt:
        if node.buffer not in names:
            return mutator.default_mutate(node)
        piece, index = moved(node.buffer, node.indices)
        return tirx.BufferStore(piece, mutator.mutate(node.value), [index])

    def allocate(node: tirx.AllocBuffer, mutator) -> tirx.Stmt:
        if node.buffer not in names:
            return mutator.default_mutate(node)
        ordered = dict.fromkeys(piece for _, piece in pieces.values())
        allocations = [tirx.AllocBuffer(piece) for piece in ordered]
        return tirx.SeqStmt(allocations) if allocations else tirx.Evaluate(0)  # never used

    def declare(node: tirx.DeclBuffer, mutator) -> tirx.Stmt:
        return tirx.Evaluate(0) if node.buffer in names else mutator.default_mutate(node)

    rules = [
        (TensorLoad, load),
        (tirx.BufferStore, store),
        (tirx.AllocBuffer, allocate),
        (tirx.DeclBuffer, declare),
    ]
    return tvm_ffi.structural_mutate(body, rules)

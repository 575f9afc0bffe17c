"""Run loops over stored blocks without tests where a block has no padding.

Formats that mark padding (:attr:`Format.marks_padding`) store it as values of which all bits are zero,
and a kernel tests every value before it uses it. Most blocks are full, and one look at the values tells.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, TensorLoad, Var
from tvm.tirx import For

from ..ir.contents import variables_of
from ._tile_loops import at_value, stride_of

__all__ = ["FULL_BLOCKS", "SkipPaddingTests"]

#: Annotation of loops over blocks that get a version for full ones.
FULL_BLOCKS = "tvm_sparse.full_blocks"

#: Values that are looked at together.
_LANES = 16


def SkipPaddingTests() -> tvm.transform.Pass:
    """Build the pass that gives annotated loops over blocks a version without tests.

    The annotation promises that other comparisons of an entry's coordinates only keep padding out of
    the tensor: they go wherever padding is tested for.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs whose blocks are already lowered to loops.

    Notes
    -----
    Before::

        for b in T.serial(n, annotations={"tvm_sparse.full_blocks": True}):
            for j, i in T.grid(4, 4):
                if T.reinterpret("uint32", A[b * 16 + i * 4 + j]) != T.uint32(0):
                    if first_row + i < m:
                        for k in range(16):
                            c[i * 16 + k] = c[i * 16 + k] + A[b * 16 + i * 4 + j] * T.if_then_else(
                                column[b] + j < n, B[(column[b] + j) * f + k], T.float32(0))

    and after::

        for b in range(n):
            least[0:16] = T.max_value("uint32")
            for chunk in range(1):
                values = A[b * 16 + chunk * 16 : b * 16 + chunk * 16 + 16]
                least[0:16] = T.min(least[0:16], T.reinterpret("uint32x16", values))
            if T.call_llvm_pure_intrin("bool", "llvm.vector.reduce.and", least[0:16] != 0):
                for j, i, k in T.grid(4, 4, 16):
                    c[i * 16 + k] = c[i * 16 + k] + A[...] * B[(column[b] + j) * f + k]
            else:
                for j, i in T.grid(4, 4):
                    if T.reinterpret("uint32", A[b * 16 + i * 4 + j]) != T.uint32(0):
                        for k in range(16):
                            c[i * 16 + k] = c[i * 16 + k] + A[...] * B[(column[b] + j) * f + k]

    Examples
    --------
    >>> from tvm_sparse.transform import SkipPaddingTests
    >>> SkipPaddingTests().info.name
    'tvm_sparse.SkipPaddingTests'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        marked = []

        def rewrite(loop: For) -> tirx.Stmt:
            if FULL_BLOCKS not in loop.annotations:
                return loop
            marked.append(loop)
            return _with_version_for_full(loop)

        body = tvm_ffi.structural_map(func.body, (For, rewrite))
        return func.with_body(body) if marked else func

    skip = tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.SkipPaddingTests")
    return tvm.transform.Sequential(
        [skip, tirx.transform.ConvertSSA()], name="tvm_sparse.SkipPaddingTests"
    )


def _with_version_for_full(loop: For) -> tirx.Stmt:
    annotations = {key: value for key, value in loop.annotations.items() if key != FULL_BLOCKS}
    tests = _padding_tests(loop.body)
    body = loop.body
    if len(tests) == 1:
        body = _both_versions(body, tests[0])
    return For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=annotations)


def _padding_tests(body: tirx.Stmt) -> list[tirx.NE]:
    """Conditions that the bits of a stored value differ from zero."""
    found: list[tirx.NE] = []

    def visit(stmt: tirx.IfThenElse) -> None:
        if _is_padding_test(stmt.condition) and stmt.else_case is None:
            found.append(stmt.condition)

    tvm_ffi.structural_walk(body, (tirx.IfThenElse, visit))
    return found


def _is_padding_test(condition: Expr) -> bool:
    return (
        isinstance(condition, tirx.NE)
        and _is_call(condition.a, "reinterpret")
        and isinstance(condition.a.args[0], TensorLoad)
        and isinstance(condition.b, tirx.IntImm)
        and int(condition.b) == 0
    )


def _is_call(expr: Expr, name: str) -> bool:
    return isinstance(expr, Call) and getattr(expr.op, "name", "").endswith(f".{name}")


def _both_versions(body: tirx.Stmt, test: tirx.NE) -> tirx.Stmt:
    """Look at all values of a block first, then run the version that they allow."""
    bits = test.a
    coordinates = variables_of(bits.args[0].indices[0])
    loops: list[For] = []
    tvm_ffi.structural_walk(body, (For, loops.append))
    over_block = [loop for loop in loops if loop.loop_var in coordinates]
    look, is_full = _look(bits, over_block)
    full = _without_conditions(body, coordinates, keep=None)
    checked = _without_conditions(body, coordinates, keep=test)
    return tirx.SeqStmt([*look, tirx.IfThenElse(is_full, full, checked)])


def _look(bits: Expr, loops: list[For]) -> tuple[list[tirx.Stmt], Expr]:
    """Statements that find the least value over loops, and whether it then is above zero."""
    dtype = str(bits.ty.dtype)
    (index,) = bits.args[0].indices
    strides = {loop.loop_var: stride_of(index, loop.loop_var) for loop in loops}
    loops = sorted(loops, key=lambda loop: strides[loop.loop_var] or 0)
    together, rest = 1, list(loops)  # values that lie next to each other
    while rest and strides[rest[0].loop_var] == together:
        together *= int(rest.pop(0).extent)
    lanes = next(size for size in (_LANES, 8, 4, 2, 1) if together % size == 0)
    start = index
    for loop in loops[: len(loops) - len(rest)]:
        start = at_value(start, loop.loop_var, 0)
    chunk, lane, first = (tirx.Var(name, "int64") for name in ("chunk", "lane", "lane"))
    zero = tirx.const(0, "int64")
    least = tirx.decl_buffer((lanes,), dtype, "least")
    value = tirx.BufferLoad(bits.args[0].source, [start + (chunk * lanes + lane)])
    lower = tirx.min(tirx.BufferLoad(least, [lane]), tirx.reinterpret(dtype, value))

    def over_lanes(var: Var, statement: tirx.Stmt) -> For:
        kind = tirx.ForKind.VECTORIZED if lanes > 1 else tirx.ForKind.SERIAL
        return For(var, zero, tirx.const(lanes, "int64"), kind, statement)

    look: tirx.Stmt = over_lanes(lane, tirx.BufferStore(least, lower, [lane]))
    count = tirx.const(together // lanes, "int64")
    look = For(chunk, zero, count, tirx.ForKind.SERIAL, look)
    for loop in rest:
        look = For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, look)
    statements = [
        tirx.AllocBuffer(least),
        over_lanes(first, tirx.BufferStore(least, tirx.max_value(dtype), [first])),
        look,
    ]
    if lanes == 1:
        return statements, tirx.BufferLoad(least, [zero]) > tirx.const(0, dtype)
    all_of_them = tirx.BufferLoad(least, [tirx.Ramp(zero, tirx.const(1, "int64"), lanes)])
    above = tirx.NE(all_of_them, tirx.Broadcast(tirx.const(0, dtype), lanes))
    return statements, tirx.call_llvm_pure_intrin("bool", "llvm.vector.reduce.and", above)


def _without_conditions(body: tirx.Stmt, coordinates: set[Var], keep: tirx.NE | None) -> tirx.Stmt:
    """Drop the conditions on the coordinates of an entry, but for the test for padding."""
    loop_vars: set[Var] = set()
    tvm_ffi.structural_walk(body, (For, lambda loop: loop_vars.add(loop.loop_var)))

    def is_known(condition: Expr) -> bool:
        if _is_padding_test(condition):
            return keep is None
        return isinstance(condition, tirx.LT) and not (
            variables_of(condition) & loop_vars - coordinates
        )

    def branch(stmt: tirx.IfThenElse) -> tirx.Stmt:
        return stmt.then_case if stmt.else_case is None and is_known(stmt.condition) else stmt

    def choice(call: Call) -> Expr:
        return call.args[1] if _is_call(call, "if_then_else") and is_known(call.args[0]) else call

    return tvm_ffi.structural_map(body, [(tirx.IfThenElse, branch), (Call, choice)])

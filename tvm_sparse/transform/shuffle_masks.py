"""Name the lanes that take part in reductions by shuffles, and let all of them have the sum.

TVM asks which lanes are active when the first value is exchanged. On cards since Volta, lanes of a warp
that have left a loop with different numbers of steps need not have met again by then, so that lanes of one
sum may be missing from the mask, and their values from the sum. The lanes of a sum are known: they are
named here, and wait for each other.
"""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, IRModule, TensorLoad, Var

from ..ir.contents import has_loads, variables_of

__all__ = ["NameShuffleMasks"]

_WARP = 32
_DOWN = "tvm_warp_shuffle_down"


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.NameShuffleMasks")
class NameShuffleMasks:
    """Replace the masks of active lanes by those of the lanes that sum together.

    Before, for sums of 8 lanes each::

        mask[0] = T.tvm_warp_activemask()
        t[0] = T.tvm_warp_shuffle_down(mask[0], sum[0], 4, 32, 32)
        ...
        sum[0] = T.tvm_warp_shuffle(mask[0], sum[0], first, 32, 32)

    and after::

        mask[0] = T.uint32(255) << (lane & 24)
        t[0] = T.tvm_warp_shuffle_xor(mask[0], sum[0], 4, 8, 32)
        ...

    where ``lane`` is the number of the thread in its warp; the mask names all lanes where all threads of a
    block come by. Runs after TVM's lowering of reductions over
    threads.
    """

    def transform_module(self, module: IRModule, _context) -> IRModule:
        """Rewrite the functions of ``module``."""
        rewritten = IRModule(attrs=module.attrs)
        for var, func in module.functions.items():
            rewritten[var] = _name_masks(func) if isinstance(func, tirx.PrimFunc) else func
        return rewritten


def _name_masks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    widths = _widths(func.body)
    if not widths:
        return func
    varying = _varying(func.body)

    def visit(stmt: tirx.Stmt, threads: dict[str, tuple[Var, Expr]], together: bool) -> tirx.Stmt:
        """Rewrite a statement that all threads of a block reach, if they do so `together`."""

        def attribute(node: tirx.AttrStmt, mutator) -> tirx.Stmt:
            if node.attr_key != "thread_extent":
                return mutator.default_mutate(node)
            known = {**threads, str(node.node.thread_tag): (node.node.var, node.value)}
            body = visit(node.body, known, together)
            return tirx.AttrStmt(node.node, node.attr_key, node.value, body, node.span)

        def branch(node: tirx.IfThenElse, _mutator) -> tirx.Stmt:
            alike = together and _is_uniform(node.condition, varying)
            parts = [
                None if part is None else visit(part, threads, alike)
                for part in (node.then_case, node.else_case)
            ]
            return tirx.IfThenElse(node.condition, *parts, node.span)

        def loop(node: tirx.For, _mutator) -> tirx.Stmt:
            body = visit(node.body, threads, together and isinstance(node.extent, tirx.IntImm))
            return tirx.For(
                node.loop_var,
                node.min,
                node.extent,
                node.kind,
                body,
                node.thread_binding,
                node.annotations,
                node.step,
                node.span,
            )

        def repeat(node: tirx.While, _mutator) -> tirx.Stmt:
            return tirx.While(node.condition, visit(node.body, threads, False), node.span)

        def store(node: tirx.BufferStore, mutator) -> tirx.Stmt:
            if node.buffer in widths and _calls(node.value, "activemask") is not None:
                dtype = str(node.buffer.ty.dtype)
                width = _WARP if together and _fill_warps(threads) else widths[node.buffer]
                return tirx.BufferStore(
                    node.buffer, _mask(width, threads, dtype), node.indices, span=node.span
                )
            if _sends_back(node) and _mask_buffer(node.value) in widths:
                return tirx.Evaluate(tirx.const(0, "int32"))
            return mutator.default_mutate(node)

        def call(node: Call, mutator) -> Expr:
            if _name(node) != _DOWN or _mask_buffer(node) not in widths:
                return mutator.default_mutate(node)
            mask, value, distance, _, warp = node.args
            width = tirx.const(widths[_mask_buffer(node)], "int32")
            args = [mask, value, distance, width, warp]
            return Call("tirx.tvm_warp_shuffle_xor", args, span=node.span, ret_ty=node.ty)

        handlers = [
            (tirx.AttrStmt, attribute),
            (tirx.IfThenElse, branch),
            (tirx.For, loop),
            (tirx.While, repeat),
            (tirx.BufferStore, store),
            (Call, call),
        ]
        return tvm_ffi.structural_mutate(stmt, handlers)

    return func.with_body(visit(func.body, {}, True))


def _widths(body: tirx.Stmt) -> dict[Var, int]:
    """Lanes that sum together, by the buffer of their mask: twice the first distance of an exchange."""
    found: dict[Var, int] = {}

    def note(node: Call) -> None:
        if _name(node) == _DOWN and _mask_buffer(node) is not None:
            buffer = _mask_buffer(node)
            found[buffer] = max(found.get(buffer, 1), 2 * int(node.args[2]))

    tvm_ffi.structural_walk(body, (Call, note))
    return found


def _sends_back(store: tirx.BufferStore) -> bool:
    """Whether the first lane sends the sum to the others."""
    value = store.value
    if not isinstance(value, Call) or _name(value) != "tvm_warp_shuffle":
        return False
    sent = value.args[1]
    return isinstance(sent, TensorLoad) and sent.source.same_as(store.buffer)


def _name(node: Call) -> str:
    return str(getattr(node.op, "name", "")).rpartition(".")[2]


def _mask_buffer(node: Call) -> Var | None:
    return getattr(node.args[0], "source", None)


def _calls(value: Expr, what: str) -> Expr | None:
    found: list[Call] = []
    tvm_ffi.structural_walk(
        value, (Call, lambda node: found.append(node) if what in _name(node) else None)
    )
    return found[0] if found else None


def _varying(body: tirx.Stmt) -> set[Var]:
    """Variables that may differ from thread to thread of a block."""
    found: set[Var] = set()

    def note(node: tirx.AttrStmt | tirx.Bind) -> None:
        if isinstance(node, tirx.Bind):
            if not _is_uniform(node.value, found):
                found.add(node.var)
        elif node.attr_key == "thread_extent" and str(node.node.thread_tag).startswith("threadIdx"):
            found.add(node.node.var)

    tvm_ffi.structural_walk(body, ((tirx.AttrStmt, tirx.Bind), note), order="pre")
    return found


def _is_uniform(value: Expr, varying: set[Var]) -> bool:
    """Whether a value is the same in all threads of a block."""
    return not has_loads(value) and not variables_of(value) & varying


def _fill_warps(threads: dict[str, tuple[Var, Expr]]) -> bool:
    """Whether the threads of a block are whole warps."""
    extents = [extent for tag, (_, extent) in threads.items() if tag.startswith("threadIdx")]
    known = [int(extent) for extent in extents if isinstance(extent, tirx.IntImm)]
    return len(known) == len(extents) and math.prod(known) % _WARP == 0


def _mask(width: int, threads: dict[str, tuple[Var, Expr]], dtype: str) -> Expr:
    """The lanes of the calling thread's sum: `width` bits from the first of them."""
    if width >= _WARP:
        return tirx.const(0xFFFFFFFF, dtype)
    number: Expr = tirx.const(0, "int32")
    for tag in ("threadIdx.z", "threadIdx.y", "threadIdx.x"):
        if tag in threads:
            var, extent = threads[tag]
            number = number * extent.astype("int32") + var.astype("int32")
    first = tirx.bitwise_and(number, tirx.const(_WARP - width, "int32"))
    return tirx.const((1 << width) - 1, dtype) << first.astype(dtype)

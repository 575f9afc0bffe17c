"""Read ``indptr`` and ``indices`` once, outside of the loops that don't change the element read.

Runs on loops, after blocks are gone. A load moves in front of the outermost serial loop where all
variables of its index are known, but never out of a condition, which may be what makes the index
valid, and never out of a parallel or thread loop.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, IRModule, TensorLoad, Var
from tvm.tirx import For, ForKind

from ..ir.contents import loads_from, variables_of
from ._layout import read_layout

__all__ = ["HoistIndexLoads"]

_SEQUENTIAL = (ForKind.SERIAL, ForKind.UNROLLED, ForKind.VECTORIZED)


@tvm.transform.module_pass(opt_level=0, name="HoistIndexLoads")
class HoistIndexLoads:
    """Bind loads of index arrays before the loops that they do not depend on.

    Before::

        for j in range(J_indptr[i + 1] - J_indptr[i]):
            for k in range(f):
                C[i * f + k] += A[J_indptr[i] + j] * B[J_indices[J_indptr[i] + j] * f + k]

    After::

        begin = J_indptr[i]
        for j in range(J_indptr[i + 1] - begin):
            column = J_indices[begin + j]
            for k in range(f):
                C[i * f + k] += A[begin + j] * B[column * f + k]
    """

    def transform_module(self, module: IRModule, _context) -> IRModule:
        """Rewrite the functions of ``module`` that carry a layout."""
        rewritten = IRModule(attrs=module.attrs)
        for var, func in module.functions.items():
            layout = read_layout(func) if isinstance(func, tirx.PrimFunc) else None
            if layout is not None:
                arrays = {
                    param
                    for arg, param in zip(layout["args"], func.params)
                    if arg.get("index_of") is not None
                }
                arrays = _with_aliases(func.body, arrays)
                func = func.with_body(_keep_for_searches(_hoist(func.body, arrays), arrays))
            rewritten[var] = func
        return rewritten


def _with_aliases(body: tirx.Stmt, arrays: set[Var]) -> set[Var]:
    """Add the flat buffers that stand for index arrays of several dimensions."""
    aliases: set[Var] = set()

    def collect(node: tirx.DeclBuffer) -> None:
        if variables_of(node.data) & arrays:
            aliases.add(node.buffer)

    tvm_ffi.structural_walk(body, [(tirx.DeclBuffer, collect)])
    return arrays | aliases


def _hoist(stmt: tirx.Stmt, arrays: set[Var]) -> tirx.Stmt:
    def loop(node: For, mutator) -> tirx.Stmt:
        if node.kind not in _SEQUENTIAL:
            return mutator.default_mutate(node)
        bindings = _invariant_loads(node, arrays)
        binds = []
        body, extent = node.body, node.extent
        for load, var in bindings:
            known = [(b.value, b.var) for b in binds]
            value = _replace(load, known) if known else load
            binds.append(tirx.Bind(var, value))
            body, extent = (_replace(part, [(value, var), (load, var)]) for part in (body, extent))
        rebuilt = For(
            node.loop_var,
            node.min,
            extent,
            node.kind,
            _hoist(body, arrays),
            node.thread_binding,
            node.annotations,
            node.step,
            node.span,
        )
        return tirx.SeqStmt([*binds, rebuilt]) if binds else rebuilt

    return tvm_ffi.structural_mutate(stmt, [(For, loop)])


def _keep_for_searches(stmt: tirx.Stmt, arrays: set[Var]) -> tirx.Stmt:
    """Bind what statements load before a ``while`` loop that loads it again."""

    def sequence(node: tirx.SeqStmt, mutator) -> tirx.Stmt:
        stmts = list(node.seq)
        kept: list[tirx.Stmt] = []
        known: list[tuple[Expr, Expr]] = []
        for place, own in enumerate(stmts):
            own = _replace(own, known) if known else own
            if isinstance(own, tirx.BufferStore | tirx.Bind):
                later = stmts[place + 1 :]
                for load, var in _loads_of(own, arrays):
                    if any(_repeats(other, load) for other in later):
                        kept.append(tirx.Bind(var, load))
                        known.append((load, var))
                        own = _replace(own, [(load, var)])
            kept.append(
                own if isinstance(own, tirx.BufferStore | tirx.Bind) else mutator.mutate(own)
            )
        return tirx.SeqStmt(kept)

    return tvm_ffi.structural_mutate(stmt, [(tirx.SeqStmt, sequence)])


def _loads_of(stmt: tirx.Stmt, arrays: set[Var]) -> list[tuple[TensorLoad, Var]]:
    """The loads of index arrays that a statement makes in any case, whose indices load nothing."""
    found: list[tuple[TensorLoad, Var]] = []

    def visit(node, visitor) -> None:
        if isinstance(node, tirx.Select) or _is_conditional(node):
            return
        if isinstance(node, TensorLoad) and node.source in arrays:
            if not any(tirx.is_buffer_var(var) for i in node.indices for var in variables_of(i)):
                name = f"{node.source.name}_kept_{len(found)}"
                found.append((node, Var(name, str(node.ty.dtype))))
            return
        visitor.default_visit(node)

    tvm_ffi.structural_visit(stmt.value, [((tirx.Select, Call, TensorLoad), visit)])
    return found


def _repeats(stmt: tirx.Stmt, load: TensorLoad) -> bool:
    """Whether a ``while`` loop in a statement makes a load."""
    loops: list[tirx.While] = []
    tvm_ffi.structural_walk(stmt, (tirx.While, loops.append))
    return any(
        tvm_ffi.structural_equal(own, load)
        for loop in loops
        for own in loads_from(loop, load.source)
    )


def _invariant_loads(loop: For, arrays: set[Var]) -> list[tuple[TensorLoad, Var]]:
    """Return the loads in a loop, inner ones first, that could stand in front of it."""
    inner = _defined_in(loop)
    found: list[tuple[TensorLoad, Var]] = []

    def visit(node, visitor) -> None:
        if isinstance(node, tirx.IfThenElse):
            visitor.visit(node.condition)
        elif isinstance(node, tirx.While | tirx.Select) or _is_conditional(node):
            return
        elif isinstance(node, TensorLoad):
            visitor.default_visit(node)
            if node.source in arrays and not variables_of(node) & inner:
                known = any(tvm_ffi.structural_equal(node, load) for load, _ in found)
                if not known:
                    name = f"{node.source.name}_{len(found)}"
                    found.append((node, Var(name, str(node.ty.dtype))))
        else:
            visitor.default_visit(node)

    tvm_ffi.structural_visit(
        loop,
        [((tirx.IfThenElse, tirx.While, tirx.Select, Call, TensorLoad), visit)],
    )
    return found


def _is_conditional(node) -> bool:
    return isinstance(node, Call) and getattr(node.op, "name", "").endswith("if_then_else")


def _defined_in(loop: For) -> set[Var]:
    """Variables and buffers that a loop defines or writes."""
    inner = {loop.loop_var}
    tvm_ffi.structural_walk(
        loop.body,
        [
            (For, lambda node: inner.add(node.loop_var)),
            (tirx.Bind, lambda node: inner.add(node.var)),
            (tirx.AllocBuffer, lambda node: inner.add(node.buffer)),
            (tirx.BufferStore, lambda node: inner.add(node.buffer)),
        ],
    )
    return inner


def _replace(node: tirx.Stmt | Expr, replacements: list[tuple[Expr, Expr]]):
    def visit(load: TensorLoad, mutator):
        for old, new in replacements:
            if tvm_ffi.structural_equal(load, old):
                return new
        return mutator.default_mutate(load)

    return tvm_ffi.structural_mutate(node, [(TensorLoad, visit)])

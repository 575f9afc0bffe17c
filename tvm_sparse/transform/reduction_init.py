"""Initialise reductions whose range may be empty.

Stock TensorIR runs the ``init`` of a block in its first reduction step, so a row without entries would
keep whatever the output held before. Here ``init`` moves in front of the outermost reduction loop,
whatever was done to the loops before; the same exists as a MetaSchedule postprocessor.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, IRModule, TensorLoad, Var
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.tirx import For, ForKind, IterVar

from ._access import variables_of

__all__ = ["HoistReductionInit", "outermost_reduction_loop"]


@tvm.transform.module_pass(opt_level=0, name="HoistReductionInit")
class HoistReductionInit:
    """Move ``init`` of reductions over possibly empty ranges before their outermost loop.

    Before::

        for j, k in T.grid(J_indptr[vi + 1] - J_indptr[vi], f):
            with T.sblock("spmm_1"):
                vj, vk = T.axis.remap("RS", [j, k])
                with T.init():
                    C[vi * f + vk] = T.float32(0)
                C[vi * f + vk] = C[vi * f + vk] + ...

    After::

        for k in range(f):
            with T.sblock("spmm_1_init"):
                vk = T.axis.spatial(f, k)
                C[vi * f + vk] = T.float32(0)
        for j, k in T.grid(J_indptr[vi + 1] - J_indptr[vi], f):
            with T.sblock("spmm_1"):
                vj, vk = T.axis.remap("RS", [j, k])
                C[vi * f + vk] = C[vi * f + vk] + ...

    Reductions across threads are left alone: their lowering initialises every thread by itself.
    """

    def transform_module(self, module: IRModule, _context) -> IRModule:
        """Rewrite the functions of ``module`` that hold such reductions."""
        rewritten = IRModule(attrs=module.attrs)
        for var, func in module.functions.items():
            if isinstance(func, tirx.PrimFunc):
                func = func.with_body(_Hoister().visit(func.body, []))
            rewritten[var] = func
        return rewritten


class _Hoister:
    def __init__(self) -> None:
        self._waiting: dict[Var, list[tirx.Stmt]] = {}

    def visit(self, stmt: tirx.Stmt, loops: list[For]) -> tirx.Stmt:
        """Rewrite a statement nested in ``loops``, which belong to the same block."""

        def loop(node: For, _mutator) -> tirx.Stmt:
            body = self.visit(node.body, [*loops, node])
            rebuilt = _with_body(node, node.loop_var, body)
            inits = self._waiting.pop(node.loop_var, [])
            return tirx.SeqStmt([*inits, rebuilt]) if inits else rebuilt

        def realize(node: SBlockRealize, _mutator) -> tirx.Stmt:
            block = node.block
            first = outermost_reduction_loop(node, loops)
            init = block.init
            if first is not None:
                self._waiting.setdefault(first.loop_var, []).append(
                    _init_nest(node, loops[loops.index(first) :])
                )
                init = None
            body = self.visit(block.body, [])
            return SBlockRealize(node.iter_values, node.predicate, _rebuild(block, body, init))

        return tvm_ffi.structural_mutate(stmt, [(For, loop), (SBlockRealize, realize)])


def outermost_reduction_loop(realize: SBlockRealize, loops: list[For]) -> For | None:
    """Return the loop that ``init`` must precede, ``None`` where it may stay in its block."""
    if realize.block.init is None:
        return None
    used: set[Var] = set()
    for iter_var, value in zip(realize.block.iter_vars, realize.iter_values):
        if iter_var.iter_type == IterVar.CommReduce:
            used |= variables_of(value)
    reductions = [loop for loop in loops if loop.loop_var in used]
    if not reductions or any(loop.kind == ForKind.THREAD_BINDING for loop in reductions):
        return None
    always_runs = all(
        isinstance(loop.extent, tirx.IntImm) and int(loop.extent.value) > 0 for loop in reductions
    )
    unconditional = tvm_ffi.structural_equal(realize.predicate, tirx.const(True, "bool"))
    if always_runs and unconditional and not _allocates(realize.block):
        return None
    return reductions[0]


def _allocates(block: SBlock) -> bool:
    """Whether a block, or one inside, has buffers of its own: TVM then takes no init in it."""
    found = []
    tvm_ffi.structural_walk(block, [(SBlock, lambda inner: found.extend(inner.alloc_buffers))])
    return bool(found)


def _init_nest(realize: SBlockRealize, inner: list[For]) -> tirx.Stmt:
    """Init for every value of the spatial iterators, in place of the loops ``inner``."""
    block = realize.block
    spatial = [
        (iter_var, value)
        for iter_var, value in zip(block.iter_vars, realize.iter_values)
        if iter_var.iter_type != IterVar.CommReduce
    ]
    shared = _shared_loops(realize, inner)
    whole = {
        iter_var.var: Var(f"{iter_var.var.name}_all", str(iter_var.var.ty.dtype))
        for iter_var, value in spatial
        if variables_of(value) & shared
    }
    spatial = [(iter_var, whole.get(iter_var.var, value)) for iter_var, value in spatial]
    needed: set[Var] = set()
    for _, value in spatial:
        needed |= variables_of(value)
    kept = [loop for loop in inner if loop.loop_var in needed]
    dropped = {loop.loop_var for loop in inner} - {loop.loop_var for loop in kept}
    fresh: dict[Var, Var] = {}
    for var in [loop.loop_var for loop in kept] + [iter_var.var for iter_var, _ in spatial]:
        fresh[var] = Var(f"{var.name}_init", str(var.ty.dtype))
    rename = lambda node: tvm_ffi.structural_map(  # noqa: E731
        node, [(Var, lambda v: fresh.get(v, v))]
    )
    init_block = SBlock(
        [IterVar(iv.dom, fresh[iv.var], iv.iter_type) for iv, _ in spatial],
        [],
        block.writes and [rename(region) for region in block.writes],
        f"{block.name_hint}_init",
        rename(block.init),
    )
    predicate = _without(realize.predicate, dropped)
    nest = SBlockRealize([rename(value) for _, value in spatial], rename(predicate), init_block)
    for iter_var, value in spatial:
        if iter_var.var in whole:
            nest = For(value, iter_var.dom.min, iter_var.dom.extent, ForKind.SERIAL, nest)
    for loop in reversed(kept):
        nest = _with_body(loop, fresh[loop.loop_var], nest)
    return nest


def _shared_loops(realize: SBlockRealize, inner: list[For]) -> set[Var]:
    """Loops that a schedule fused from spatial and reduction axes; they may run not even once.

    An iterator that takes its values from such loops is initialised over its whole domain, which is
    what dense axes range over. There is no such domain where the loops depend on stored structure.
    """
    uses = {IterVar.CommReduce: set(), IterVar.DataPar: set()}
    for iter_var, value in zip(realize.block.iter_vars, realize.iter_values):
        uses.setdefault(iter_var.iter_type, set()).update(variables_of(value))
    both = uses[IterVar.CommReduce] & uses[IterVar.DataPar]
    shared = {loop.loop_var for loop in inner} & both
    for loop in inner:
        if loop.loop_var in shared and _reads_memory(loop.extent):
            raise ValueError(
                f"block {realize.block.name_hint}: loop {loop.loop_var.name} is fused from spatial "
                "and reduction loops and may be empty, so nothing would be initialised; call "
                "decompose_reduction before the loops are fused"
            )
    known = {loop.loop_var for loop in inner}
    for iter_var, value in zip(realize.block.iter_vars, realize.iter_values):
        used = variables_of(value)
        if iter_var.iter_type == IterVar.DataPar and used & shared and not used <= known:
            return set()  # a tile of the axis: its loops tell which values it takes
    return shared


def _reads_memory(expr: Expr) -> bool:
    found = []
    tvm_ffi.structural_walk(expr, [(TensorLoad, found.append)])
    return bool(found)


def _without(predicate: Expr, dropped: set[Var]) -> Expr:
    """Drop the terms of a conjunction that mention a reduction loop."""
    if isinstance(predicate, tirx.And):
        left, right = _without(predicate.a, dropped), _without(predicate.b, dropped)
        return tirx.And(left, right)
    return tirx.const(True, "bool") if variables_of(predicate) & dropped else predicate


def _with_body(loop: For, loop_var: Var, body: tirx.Stmt) -> For:
    return For(
        loop_var,
        loop.min,
        loop.extent,
        loop.kind,
        body,
        loop.thread_binding,
        loop.annotations,
        loop.step,
        loop.span,
    )


def _rebuild(block: SBlock, body: tirx.Stmt, init: tirx.Stmt | None) -> SBlock:
    return SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
        block.span,
    )

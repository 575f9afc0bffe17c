"""Initialise reductions whose range may be empty.

Stock TensorIR runs the ``init`` of a block in its first reduction step, so a row without entries would
keep whatever the output held before. Here ``init`` moves in front of the outermost reduction loop,
whatever was done to the loops before; the same exists as a MetaSchedule postprocessor.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule, Var
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.tirx import For, ForKind, IterVar

from ..ir.contents import buffers_stored, variables_of
from ._init_domain import InitDomain, init_domain, may_be_empty
from .accumulations import aliases_of, is_without_effect
from .partial_copies import copies_of

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
                func = func.with_body(_Hoister(aliases_of(func.body)).visit(func.body, []))
            rewritten[var] = func
        return rewritten


class _Hoister:
    def __init__(self, aliases: dict[Var, Var]) -> None:
        self._aliases = aliases
        self._waiting: dict[Var, list[tirx.Stmt]] = {}

    def visit(self, stmt: tirx.Stmt, loops: list[For]) -> tirx.Stmt:
        """Rewrite a statement nested in ``loops``, which belong to the same block."""

        def loop(node: For, _mutator) -> tirx.Stmt:
            body = self.visit(node.body, [*loops, node])
            rebuilt = _with_body(node, node.loop_var, body)
            inits = self._waiting.pop(node.loop_var, [])
            _check_copies(node, inits)
            return tirx.SeqStmt([*inits, rebuilt]) if inits else rebuilt

        def sequence(node: tirx.SeqStmt, _mutator) -> tirx.Stmt:
            return tirx.SeqStmt([self.visit(part, loops) for part in _repair_decomposed(node.seq)])

        def realize(node: SBlockRealize, _mutator) -> tirx.Stmt:
            block = node.block
            init = block.init
            first = outermost_reduction_loop(node, loops)
            if init is not None and is_without_effect(init, self._aliases):
                first = init = None
            if first is not None:
                self._waiting.setdefault(first.loop_var, []).append(
                    _init_nest(node, loops[loops.index(first) :])
                )
                init = None
            body = self.visit(block.body, [])
            return SBlockRealize(node.iter_values, node.predicate, _rebuild(block, body, init))

        handlers = [(For, loop), (tirx.SeqStmt, sequence), (SBlockRealize, realize)]
        return tvm_ffi.structural_mutate(stmt, handlers)


def _check_copies(loop: For, inits: Sequence[tirx.Stmt]) -> None:
    """Refuse a loop that copies what was initialised before it: where it is empty, nothing would."""
    made = set().union(*map(buffers_stored, inits))
    copied = next(((source, to) for source, to in copies_of(loop.body) if source in made), None)
    if copied is not None and _any_may_be_empty(loop):
        source, target = copied
        raise ValueError(
            f"loop {loop.loop_var.name}: {source.name} is copied to {target.name} inside of the reduction "
            f"over it, which may be empty, so {target.name} would not be initialised; move the copy out of "
            "the loop (reverse_compute_at)"
        )


def _any_may_be_empty(loop: For) -> bool:
    loops = [loop]
    tvm_ffi.structural_walk(loop.body, [(For, loops.append)])
    return any(map(may_be_empty, loops))


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
    always_runs = not any(map(may_be_empty, reductions))
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
    domain = init_domain(block.name_hint, spatial, realize.predicate, inner)
    init_block = SBlock(
        [iter_var for iter_var, _ in spatial],
        [],
        block.writes,
        f"{block.name_hint}_init",
        block.init,
    )
    return _nest(domain, init_block)


def _nest(domain: InitDomain, block: SBlock) -> tirx.Stmt:
    """Loops of ``domain`` around a block, with variables of their own."""
    names = [loop.loop_var for loop in domain.kept] + [iv.var for iv in block.iter_vars]
    fresh = {var: Var(f"{var.name}_init", str(var.ty.dtype)) for var in names}

    def rename(node):
        return tvm_ffi.structural_map(node, [(Var, lambda var: fresh.get(var, var))])

    renamed = SBlock(
        [IterVar(iv.dom, fresh[iv.var], iv.iter_type) for iv in block.iter_vars],
        [rename(region) for region in block.reads],
        [rename(region) for region in block.writes],
        block.name_hint,
        rename(block.body),
    )
    values = [rename(value) for value in domain.values]
    nest = SBlockRealize(values, rename(domain.predicate), renamed)
    for var, dom in reversed(domain.added):
        nest = For(var, dom.min, dom.extent, ForKind.SERIAL, nest)
    for loop in reversed(domain.kept):
        nest = _with_body(loop, fresh[loop.loop_var], nest)
    return nest


def _repair_decomposed(parts: Sequence[tirx.Stmt]) -> list[tirx.Stmt]:
    """Correct the inits that ``decompose_reduction`` put in front of loops fused before it.

    The primitive copies such a loop for the init, with the reduction in it; it names what it makes
    ``*_init`` and ``*_update``.
    """
    names = {realize.block.name_hint for part in parts for _, realize in _blocks_of(part)}
    repaired = []
    for part in parts:
        found = _blocks_of(part)
        for loops, realize in found:
            block = realize.block
            name = block.name_hint.removesuffix("_init")
            if name == block.name_hint or f"{name}_update" not in names:
                continue
            spatial = list(zip(block.iter_vars, realize.iter_values))
            domain = init_domain(name, spatial, realize.predicate, loops)
            if domain.added:
                if len(found) > 1:
                    raise ValueError(
                        f"block {block.name_hint}: it shares loops that may be empty with other "
                        "blocks; call decompose_reduction before the loops are fused"
                    )
                part = _nest(domain, block)
        repaired.append(part)
    return repaired


def _blocks_of(stmt: tirx.Stmt) -> list[tuple[list[For], SBlockRealize]]:
    """Blocks of a statement, not those inside them, with the loops around each."""
    found = []

    def visit(node: tirx.Stmt, loops: list[For]) -> None:
        if isinstance(node, For):
            visit(node.body, [*loops, node])
        elif isinstance(node, tirx.SeqStmt):
            for part in node.seq:
                visit(part, loops)
        elif isinstance(node, SBlockRealize):
            found.append((loops, node))

    visit(stmt, [])
    return found


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

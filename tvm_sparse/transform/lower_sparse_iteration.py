"""Stage I to stage II: sparse iterations become loops and nested blocks over positions.

Comes in: ``SparseFunc`` s. Goes out: ``PrimFunc`` s of stock TensorIR whose sparse buffers still have
one dimension per axis, indexed by the entry within its parent entry. Per iteration the pass opens its
loops (:mod:`._axis_loops`), decides where init stands (:mod:`._init_places`), lowers the body
(:mod:`._expressions`), and puts the blocks together from the inside out (:mod:`._blocks`).
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule, Var

from ..errors import SparseProgramError, describe_span
from ..ir import FusedAxis, SparseFunc, SparseIteration
from ..ir.contents import buffers_stored, stores_in, stores_to
from ._access import Prologue
from ._axis_loops import AxisLoops
from ._blocks import REDUCE, Loop, assemble_blocks, realize
from ._expressions import ExpressionLowering
from ._init_places import (
    descends_from_reduction,
    fuses_reductions,
    init_axes,
    inits_apart,
    opens_block,
    reduces_innermost,
    separate_init,
    start_of,
)
from ._inner_loops import InnerLoops, split_at_merged_axis
from ._layout import LAYOUT_ATTR, describe_layout
from ._merge_loops import without_step_marks
from ._regions import complete_regions
from ._scope import FunctionScope, has_merged_axes
from .fill_outputs import COVER_MARK, FILL_MARK, START_MARK, fill_outputs
from .promote_accumulators import promote_accumulators

__all__ = ["LowerSparseIteration"]


@tvm.transform.module_pass(opt_level=0, name="LowerSparseIteration")
class LowerSparseIteration:
    """Lower every ``SparseFunc`` of a module to a ``PrimFunc`` over positions (stage II).

    Before::

        with S.sp_iter([I, J, F], "SRS", "spmm") as [i, j, k]:
            with T.init():
                C[i, k] = T.float32(0)
            C[i, k] = C[i, k] + A[i, j] * B[j, k]

    After::

        for i in range(m):
            with T.sblock("spmm_0"):
                vi = T.axis.spatial(m, i)
                for j, k in T.grid(J_indptr[vi + 1] - J_indptr[vi], f):
                    with T.sblock("spmm_1"):
                        vj, vk = T.axis.remap("RS", [j, k])
                        with T.init():
                            C[vi, vk] = T.float32(0)
                        C[vi, vk] = C[vi, vk] + A[vi, vj] * B[J_indices[J_indptr[vi] + vj], vk]

    Raises
    ------
    SparseProgramError
        If a program cannot be honoured.
    """

    def transform_module(self, module: IRModule, _context) -> IRModule:
        """Lower the functions of ``module``; stock functions are left alone."""
        lowered = IRModule(attrs=module.attrs)
        for var, func in module.functions.items():
            if isinstance(func, SparseFunc):
                func = lower_function(func)
                func = func.with_body(without_step_marks(func.body))
            lowered[var] = func
        return lowered


def lower_function(func: SparseFunc) -> tirx.PrimFunc:
    """Lower one stage-I function to stage II; merged loops are marked with how often they run."""
    func = promote_accumulators(func)
    return _FunctionLowering(fill_outputs(func)).run()


class _FunctionLowering:
    """Lowers the statements of one function."""

    def __init__(self, func: SparseFunc) -> None:
        self.scope = FunctionScope(func)
        self.expressions = ExpressionLowering(self.scope)
        self.loops = AxisLoops(self.scope)
        self.inner = InnerLoops(self.scope, self.loops, self.statement)
        self._block_names: dict[str, int] = {}

    def run(self) -> tirx.PrimFunc:
        body = self.statement(self.scope.func.body)
        root = self.scope.placer.prologues[0]
        temporaries = [self.scope.stage2[t.buffer] for t in self.scope.func.temporaries]
        if root.statements or root.buffers:
            body = tirx.SeqStmt([*root.statements, body]) if root.statements else body
            body = realize("root", [], body, buffers=[*temporaries, *root.buffers])
            temporaries = []
        params = [self.scope.stage2.get(p, p) for p in self.scope.func.params]
        attrs = {str(k): v for k, v in dict(self.scope.func.attrs or {}).items()}
        attrs |= {
            "tirx.noalias": True,
            "s_tir": True,
            LAYOUT_ATTR: describe_layout(self.scope.func),
        }
        prim = tirx.PrimFunc(params, body).with_attr(attrs)
        return complete_regions(prim, temporaries)

    # --- statements ----------------------------------------------------------------------------

    def statement(self, stmt: tirx.Stmt) -> tirx.Stmt:
        """Lower a statement that may hold iterations."""
        return tvm_ffi.structural_mutate(
            stmt,
            [
                (SparseIteration, lambda node, _m: self.iteration(node)),
                (tirx.BufferStore, lambda node, _m: self._leaf(node, self.expressions.store)),
                (tirx.Bind, lambda node, _m: self._leaf(node, self._bind)),
                (tirx.IfThenElse, lambda node, _m: self._leaf(node, self._branch)),
                (tirx.For, lambda node, _m: self._leaf(node, self._local_loop)),
                (tvm.ir.Expr, lambda node, _m: self.expressions.value(node)),
            ],
        )

    def _leaf(self, node: tirx.Stmt, lower: Callable[[tirx.Stmt], tirx.Stmt]) -> tirx.Stmt:
        """Lower one statement, preceded by the searches that only it can use."""
        own = Prologue([])
        self.scope.placer.push(own)
        try:
            stmt = lower(node)
        except SparseProgramError as err:
            where = f"function {self.scope.func.name}: "
            if where in str(err):  # a statement inside has said so already
                raise
            raise SparseProgramError(f"{describe_span(node.span)}{where}{err}") from None
        self.scope.placer.pop()
        self.scope.placer.prologues[-1].buffers.extend(own.buffers)
        return tirx.SeqStmt([*own.statements, stmt]) if own.statements else stmt

    def _bind(self, stmt: tirx.Bind) -> tirx.Stmt:
        return tirx.Bind(stmt.var, self.expressions.value(stmt.value))

    def _branch(self, stmt: tirx.IfThenElse) -> tirx.Stmt:
        condition = self.expressions.value(stmt.condition)
        otherwise = self.statement(stmt.else_case) if stmt.else_case is not None else None
        return tirx.IfThenElse(condition, self.statement(stmt.then_case), otherwise)

    def _local_loop(self, loop: tirx.For) -> tirx.Stmt:
        begin, extent = self.expressions.value(loop.min), self.expressions.value(loop.extent)
        self.scope.placer.push(Prologue([loop.loop_var]))
        body = self.statement(loop.body)
        prologue = self.scope.placer.pop()
        if prologue.statements or prologue.buffers:
            body = tirx.SeqStmt([*prologue.statements, body]) if prologue.statements else body
            body = realize("searches", [], body, buffers=prologue.buffers)
        return tirx.For(loop.loop_var, begin, extent, loop.kind, body, annotations=loop.annotations)

    # --- iterations ----------------------------------------------------------------------------

    def iteration(self, node: SparseIteration) -> tirx.Stmt:
        """Lower one iteration to its loop nest."""
        if has_merged_axes(node) or self.inner.is_inside:
            return self._merged_iteration(node)
        if node.init is not None and not self._init_fits_block(node):
            return self._with_separate_init(node)
        outer = dict(self.scope.iterators)
        filling = FILL_MARK in node.annotations
        clean = init_axes(node) is None
        loops = self._open_loops(node, filling, clean)
        body = self.statement(node.body)
        init = self.statement(node.init) if node.init is not None else None
        for _ in loops:
            self.scope.placer.pop()
        lowered = assemble_blocks(
            loops,
            body,
            init,
            node.annotations,
            lambda number: self._unique(f"{node.name}_{number}"),
            shares_result=self._shares_result(node),
            start=start_of(node, loops),
        )
        self.scope.iterators = outer
        return lowered

    def _merged_iteration(self, node: SparseIteration) -> tirx.Stmt:
        """Lower an iteration whose inner loops are plain ones."""
        if node.init is not None and not (reduces_innermost(node) and inits_apart(node)):
            return self._with_separate_init(node)
        if not self.inner.is_inside:
            nested = split_at_merged_axis(node)
            if nested is not None:
                return self.iteration(nested)
        return self._leaf(node, self.inner.lower)

    def _shares_result(self, node: SparseIteration) -> bool:
        """Whether other statements store, or may have stored, to what an iteration stores to."""
        if node.init is None or COVER_MARK in node.annotations:
            return True
        return any(
            len(stores_to(self.scope.func.body, buffer)) > len(stores_to(node, buffer))
            for buffer in buffers_stored(node.body)
        )

    def _open_loops(self, node: SparseIteration, filling: bool, clean: bool) -> list[Loop]:
        loops: list[Loop] = []
        kinds, variables = list(node.kinds), list(node.iter_vars)
        for axis in node.axes:
            members = axis.members if isinstance(axis, FusedAxis) else [axis]
            own = [(m, kinds.pop(0), variables.pop(0)) for m in members]
            loop = self.loops.open(axis, own)
            reduced_under = descends_from_reduction(node, axis)
            if not clean and reduced_under and not opens_block(axis):
                loop.kind = REDUCE
            if filling:
                loop.guards = []
            loops.append(loop)
        return loops

    def _init_fits_block(self, node: SparseIteration) -> bool:
        """Whether ``init`` can stand in the block of the first reduction iterator."""
        if START_MARK in node.annotations:
            # Its spatial loops visit each place once in the first step, if that is a step of a loop.
            return not fuses_reductions(node)
        if init_axes(node) is not None:
            return False
        if COVER_MARK in node.annotations:
            return True  # its spatial loops visit each place of the result once
        own = {var: axis for axis, _, var in node.iterators}
        known = {**{v: it.stored_axis for v, it in self.scope.iterators.items()}, **own}

        def is_direct(store: tirx.BufferStore) -> bool:
            buffer = self.scope.stage1.get(store.buffer)
            if buffer is None:
                return inits_apart(node)
            return all(
                isinstance(index, Var) and known.get(index) == axis
                for index, axis in zip(store.indices, buffer.axes)
            )

        return all(map(is_direct, stores_in(node.init)))

    def _with_separate_init(self, node: SparseIteration) -> tirx.Stmt:
        """Write the init values first, then accumulate."""
        init, update = separate_init(node)
        return tirx.SeqStmt([self.statement(init), self.iteration(update)])

    def _unique(self, name: str) -> str:
        count = self._block_names.get(name, 0)
        self._block_names[name] = count + 1
        return name if count == 0 else f"{name}_{count}"

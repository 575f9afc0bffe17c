"""MetaSchedule postprocessors that sparse kernels need."""

from __future__ import annotations

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.stmt import SBlock
from tvm.tirx import ForKind, IterVar
from tvm_ffi import structural_walk

__all__ = ["RewriteReductionInit"]


@derived_object
class RewriteReductionInit(ms.postproc.PyPostproc):
    """Decompose reductions before their outermost loop, so that empty ranges are initialised.

    The same rule as :class:`tvm_sparse.transform.HoistReductionInit`, as schedule primitives: the trace of
    a tuned kernel says what happened. Blocks that the primitive refuses are left to the pass.
    """

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        pass

    def apply(self, sch: tvm.s_tir.Schedule) -> bool:
        """Rewrite every block that still holds an init."""
        for global_var, func in sch.mod.functions_items():
            names: list[str] = []

            def collect(block: SBlock, names: list[str] = names) -> None:
                if block.init is not None:
                    names.append(block.name_hint)

            structural_walk(func, [(SBlock, collect)])
            for name in names:
                _decompose(sch, sch.get_sblock(name, func_name=global_var.name_hint))
        return True

    def clone(self) -> RewriteReductionInit:
        return RewriteReductionInit()


def _decompose(sch: tvm.s_tir.Schedule, block) -> None:
    node = sch.get(block)
    realize_loops = sch.get_loops(block)
    reductions = {iv.var for iv in node.iter_vars if iv.iter_type == IterVar.CommReduce}
    if not reductions or any(sch.get(lp).kind == ForKind.THREAD_BINDING for lp in realize_loops):
        return
    for loop in realize_loops:
        try:
            sch.decompose_reduction(block, loop)
            return
        except tvm.s_tir.ScheduleError:
            continue  # the primitive takes loops at or outside the outermost reduction loop only

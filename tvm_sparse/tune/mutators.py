"""MetaSchedule mutators that sparse spaces need."""

from __future__ import annotations

import random

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace

__all__ = ["MutateCategorical"]


@derived_object
class MutateCategorical(ms.mutator.PyMutator):
    """Change one decision of ``sample_categorical``; TVM's own mutators know a few uses of it only."""

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        pass

    def apply(self, trace: Trace, rand_state: int = 0) -> Trace | None:
        """Return the trace with another decision, ``None`` where there is nothing to change."""
        sampled = [inst for inst in trace.insts if inst.kind.name == "SampleCategorical"]
        if not sampled:
            return None
        generator = random.Random(rand_state)
        inst = generator.choice(sampled)
        candidates = len(inst.attrs[0])
        current = int(trace.decisions[inst])
        others = [k for k in range(candidates) if k != current]
        if not others:
            return None
        return trace.with_decision(inst, generator.choice(others), remove_postproc=True)

    def clone(self) -> MutateCategorical:
        return MutateCategorical()

"""What a plan runs, in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .program import compiled

if TYPE_CHECKING:
    from .factors import Factor
    from .nests import Nest
    from .plan import EinsumPlan
    from .step import Step

__all__ = ["describe"]


def describe(plan: EinsumPlan) -> str:
    """Return what a plan runs: rewritings, loops, conversions, workspaces and phases of each kernel.

    Parameters
    ----------
    plan : EinsumPlan
        The plan.
    """
    lines = [f"{plan.expression}: {len(plan._steps)} kernel(s)"]
    for number, step in enumerate(plan._steps):
        names = {v: f"{letter} ({v})" for v, letter in step.program.letters.items()}
        inner = step.problem
        lines.append(f"kernel {number}: result over {', '.join(names[v] for v in inner.result)}")
        lines += [f"  rewritten: {note}" for note in step.restoration.notes]
        if step.expansion is not None:
            lines.append("  runs for the real part and for the imaginary one")
        titled = [(f"term {place}", term) for place, term in enumerate(inner.terms)]
        if len(step.nests) < len(inner.terms):
            together = [factor for term in inner.terms for factor in term]
            titled = [(f"{len(inner.terms)} terms side by side", together)]
        for (title, term), nest in zip(titled, step.nests):
            order = ", ".join(names[v] for v in nest.order)
            lines.append(f"  {title}: loops {order}; about {nest.steps:.3g} steps")
            lines += [
                f"    {_factor_text(plan, step, factor, nest, k)}" for k, factor in enumerate(term)
            ]
            if not step.is_dense:
                lines.append(f"    {_workspace_text(step, nest)}")
        if step.is_dense:
            lines.append("  dense result, added to in place")
            continue
        kernel = compiled(step.program.text, step.workspace).description
        lines.append(f"  workspace policy {kernel['policy']}; phases {', '.join(kernel['phases'])}")
    return "\n".join(lines)


def _factor_text(plan: EinsumPlan, step: Step, factor: Factor, nest: Nest, place: int) -> str:
    known, source = plan._labels, factor.source
    if step.expansion is not None:
        source = step.expansion.origins[source]
    label = known[source] if source < len(known) else f"result of kernel {source - len(known)}"
    if factor.is_dense:
        return f"{label}: dense, read at coordinates"
    levels = [v for v in nest.order if v in factor.variables]
    is_kept = levels == list(factor.variables)
    stored = "as stored" if is_kept else "brought to this order"
    use = (
        "excludes" if factor.excludes else "searched" if place in nest.searched else "drives loops"
    )
    return f"{label}: levels {', '.join(levels)} ({stored}), {factor.count} entries, {use}"


def _workspace_text(step: Step, nest: Nest) -> str:
    found = nest.detection(step.problem.result)
    if found.strategy != "workspace":
        return f"entries come in order ({found.strategy})"
    span = math.prod(step.problem.sizes[v] for v in step.problem.result[1:])
    return (
        f"workspace of {found.order} dimension(s) over {', '.join(found.workspace)}; a row has {span} "
        "places"
    )

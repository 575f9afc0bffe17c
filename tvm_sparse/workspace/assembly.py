"""From a function with a sparse result to the functions that assemble it, and what a runtime must know."""

from __future__ import annotations

import json

from tvm import tirx
from tvm.ir import IRModule

from ..errors import SparseProgramError
from ..ir import SparseFunc
from ..transform._layout import LAYOUT_ATTR, size_text
from .checks import check_function
from .deciding import deciding_parameters
from .policy import Policy, find_policy, known_policies
from .producer import Producer, produce, sparse_result
from .refill import TRACE_SCRATCH, refill_function, replay_function, trace_function
from .tasks import Generated
from .template import append_function, count_function, fill_function, work_function

__all__ = ["assemble", "automatic_policies"]


def assemble(func: SparseFunc, policy: Policy, windowed: bool = False) -> tuple[IRModule, dict]:
    """Generate the phases of a function with a sparse result.

    Parameters
    ----------
    func : SparseFunc
        The function.
    policy : Policy
        How the entries of a row are held.
    windowed : bool
        Whether the workspace holds windows of a row's places one after another, for less memory.

    Returns
    -------
    tvm.IRModule
        Functions ``<name>_check``, ``<name>_work``, ``<name>_<policy>_count``, ``<name>_<policy>_fill``
        and, where there is one, ``<name>_<policy>_append`` and ``<name>_<policy>_refill``.
    dict
        What the runtime needs, as plain data.
    """
    result = sparse_result(func)
    if result is None:
        raise SparseProgramError(f"function {func.name}: expected a result over S.sparse_output")
    producer = produce(func, result)
    _check_policy(func, producer, policy)
    index_dtype = result.axes[-1].dtype if len(producer.spans) == 1 else "int64"
    made = {
        "check": check_function(producer, func.axes),
        "work": work_function(producer),
        "count": count_function(producer, policy, windowed),
        "fill": fill_function(producer, policy, result.dtype, index_dtype, windowed),
    }
    if not (windowed or policy.is_bounded):
        made["append"] = append_function(producer, policy, result.dtype, index_dtype)
    if not windowed:
        made["refill"] = refill_function(producer, policy, result.dtype, index_dtype)
        if not policy.streams:
            made["trace"] = trace_function(producer, index_dtype)
            made["replay"] = replay_function(producer, result.dtype)
    made = {phase: own for phase, own in made.items() if own is not None}
    name = func.arg_names[func.params.index(result.buffer)]
    texts = dict(zip(func.params, func.arg_names))
    sizes = [size_text(axis.length, texts) for axis in result.axes]
    depth = len(producer.lengths)
    rows = " * ".join(f"({text})" for text in sizes[:depth]) or "1"
    prefix = f"{func.name}_{policy.name}" + ("_windowed" if windowed else "")
    shared = ("check", "work", "trace", "replay")
    symbols = {phase: f"{func.name if phase in shared else prefix}_{phase}" for phase in made}
    module = IRModule(
        {
            symbols[phase]: _function(func, producer, own, name, symbols[phase], rows)
            for phase, own in made.items()
        }
    )
    plan = {
        "name": func.name,
        "result": name,
        "shape": sizes,
        "levels": [axis.kind for axis in result.axes],
        "hoisted": depth,
        "is_exact": producer.is_exact,
        "deciding": deciding_parameters(producer),
        "dtype": result.dtype,
        "index_dtype": result.axes[-1].dtype,
        "place_dtype": index_dtype,
        "policy": policy.name,
        "windowed": windowed,
        "is_bounded": policy.is_bounded,
        "streams": policy.streams,
        "symbols": symbols,
        "phases": list(made),
        "scratch": {
            own.name: {"dtype": own.dtype, "size": own.size, "fill": own.fill}
            for own in policy.scratch
        },
        "trace_scratch": {
            TRACE_SCRATCH.name: {
                "dtype": TRACE_SCRATCH.dtype,
                "size": TRACE_SCRATCH.size,
                "fill": 0,
            }
        },
        "neutral": producer.neutral.value,
    }
    return module, plan


def automatic_policies(func: SparseFunc) -> list[Policy]:
    """Return the policies that ``workspace="auto"`` chooses from, the likeliest first."""
    producer = produce(func, sparse_result(func))
    if producer.streams is not None:
        return [find_policy(producer.streams)]
    mixed = len({own.combine is None for own in producer.rows}) > 1
    found = [
        own
        for own in known_policies()
        if own.has_cost and not own.streams and not (mixed and own.combines_late)
    ]
    first = "dense" if len(producer.spans) == 1 else "sort"
    return sorted(found, key=lambda own: own.name != first)


def _check_policy(func: SparseFunc, producer: Producer, policy: Policy) -> None:
    if not policy.name.isidentifier():
        raise ValueError(f"policy: expected a name that is an identifier, found {policy.name!r}")
    if policy.streams and producer.streams not in ("append", policy.name):
        needed = producer.streams or "a workspace such as 'dense'"
        raise SparseProgramError(
            f"function {func.name}: workspace {policy.name!r} holds no entries, but the loops of "
            f"{func.name} produce them out of order or several times; it needs {needed}"
        )
    if policy.combines_late and len({own.combine is None for own in producer.rows}) > 1:
        raise SparseProgramError(
            f"function {func.name}: workspace {policy.name!r} combines entries by one operation, found "
            "iterations that replace and others that combine; choose another one, such as 'dense'"
        )


def _function(
    func: SparseFunc, producer: Producer, own: Generated, result: str, symbol: str, rows: str
) -> tirx.PrimFunc:
    operands = [p for p in producer.params if not p.same_as(producer.marker)]
    layout = dict(producer.layout)
    args = [arg for arg in layout["args"] if arg["name"] != result]
    for argument in own.arguments:
        entry = {"name": argument.var.name, "dtype": str(argument.var.ty.dtype)}
        if argument.role == "scalar":
            args.append({**entry, "kind": "scalar"})
            continue
        shape = [text.replace("rows", f"({rows})") for text in argument.shape]
        args.append(
            {
                **entry,
                "kind": "buffer",
                "buffer": entry["name"],
                "role": argument.role,
                "shape": shape,
            }
        )
    layout["args"] = args
    params = [*operands, *(argument.var for argument in own.arguments)]
    attrs = {"tirx.noalias": True, "global_symbol": symbol, LAYOUT_ATTR: json.dumps(layout)}
    prim = tirx.PrimFunc(params, own.body)
    return prim.with_attr({**attrs, "s_tir": True})

"""Count loops of kernels in 32 bits where their extents are known and small.

Loops over the slots of a row count in 64 bits where places in memory do, and a GPU takes two instructions
for each step and comparison of such a counter.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import For, ForKind

__all__ = ["NarrowCounters"]

_MOST = 2**31 - 1


def NarrowCounters() -> tvm.transform.Pass:
    """Build the pass that gives loops of known extents in kernels variables of 32 bits.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs whose loops over threads are attributes.

    Notes
    -----
    Before::

        with T.launch_thread("threadIdx.x", 32):
            for j in range(T.int64(16)):
                body(j)

    and after::

        with T.launch_thread("threadIdx.x", 32):
            for j in range(16):
                body(T.Cast("int64", j))

    Examples
    --------
    >>> from tvm_sparse.transform import NarrowCounters
    >>> NarrowCounters().info.name
    'tvm_sparse.NarrowCounters'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        narrowed = []

        def narrow(loop: For) -> For:
            if not _is_wide(loop):
                return loop
            narrowed.append(loop)
            return _narrowed(loop)

        def attribute(node: tirx.AttrStmt, mutator) -> tirx.Stmt:
            if node.attr_key != "thread_extent":
                return mutator.default_mutate(node)
            body = tvm_ffi.structural_map(node.body, (For, narrow))
            return tirx.AttrStmt(node.node, node.attr_key, node.value, body, node.span)

        body = tvm_ffi.structural_mutate(func.body, [(tirx.AttrStmt, attribute)])
        return func.with_body(body) if narrowed else func

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.NarrowCounters")


def _is_wide(loop: For) -> bool:
    """Whether a loop counts in 64 bits what 32 bits can count."""
    limits = (loop.min, loop.extent)
    return (
        loop.kind in (ForKind.SERIAL, ForKind.UNROLLED)
        and loop.step is None
        and str(loop.loop_var.ty.dtype) == "int64"
        and all(isinstance(limit, tirx.IntImm) for limit in limits)
        and int(loop.min) >= 0
        and sum(map(int, limits)) <= _MOST
    )


def _narrowed(loop: For) -> For:
    variable = tirx.Var(loop.loop_var.name, "int32")
    wide = variable.astype("int64")
    body = tvm_ffi.structural_map(
        loop.body, (tirx.Var, lambda var: wide if var.same_as(loop.loop_var) else var)
    )
    begin, extent = (tirx.const(int(limit), "int32") for limit in (loop.min, loop.extent))
    return For(variable, begin, extent, loop.kind, body, None, loop.annotations, span=loop.span)

"""Count threads in 32 bits, whatever the loops that become threads counted in.

``threadIdx`` is 32 bits wide, and TVM's lowering of reductions over threads compares it with the loop
variable as it is. Loops over features are 64 bits wide, as offsets into rows must be.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule, Range
from tvm.tirx import For, ForKind, IterVar

__all__ = ["NarrowThreads"]


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.NarrowThreads")
class NarrowThreads:
    """Give loops over ``threadIdx`` variables of 32 bits.

    Before::

        for k in T.thread_binding(T.int64(8), "threadIdx.x"):
            body(k)

    and after::

        for k in T.thread_binding(8, "threadIdx.x"):
            body(T.Cast("int64", k))
    """

    def transform_module(self, module: IRModule, _context) -> IRModule:
        """Rewrite the functions of ``module``."""
        rewritten = IRModule(attrs=module.attrs)
        for var, func in module.functions.items():
            if isinstance(func, tirx.PrimFunc):
                func = func.with_body(tvm_ffi.structural_map(func.body, (For, _narrow)))
            rewritten[var] = func
        return rewritten


def _narrow(loop: For) -> For:
    if loop.kind != ForKind.THREAD_BINDING or str(loop.loop_var.ty.dtype) != "int64":
        return loop
    tag = str(loop.thread_binding.thread_tag)
    if not tag.startswith("threadIdx") or not isinstance(loop.extent, tirx.IntImm):
        return loop
    variable = tirx.Var(loop.loop_var.name, "int32")
    zero, extent = tirx.const(0, "int32"), tirx.const(int(loop.extent), "int32")
    wide = variable.astype("int64")
    body = tvm_ffi.structural_map(
        loop.body, (tirx.Var, lambda var: wide if var.same_as(loop.loop_var) else var)
    )
    axis = IterVar(Range.from_min_extent(zero, extent), tag, IterVar.ThreadIndex, tag)
    return For(
        variable, zero, extent, ForKind.THREAD_BINDING, body, axis, loop.annotations, span=loop.span
    )

"""Drop loops that are known to run no step.

TVM's later passes do not expect them: a loop over nothing, of a size that was bound to 0, may keep memory
that nothing declares any more, or indices below zero.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule

__all__ = ["DropEmptyLoops"]


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.DropEmptyLoops")
class DropEmptyLoops:
    """Replace loops of constant extent 0 by nothing, once the inits of reductions stand before their loops.

    Before::

        for i in range(0):
            with T.sblock("row"):
                ...

    and after, nothing. Loops over the threads of a thread block stay.
    """

    def transform_module(self, module: IRModule, _context) -> IRModule:
        """Rewrite the functions of ``module``."""
        rewritten = IRModule(attrs=module.attrs)
        for var, func in module.functions.items():
            if isinstance(func, tirx.PrimFunc):
                func = func.with_body(tvm_ffi.structural_mutate(func.body, [(tirx.For, _drop)]))
            rewritten[var] = func
        return rewritten


def _drop(loop: tirx.For, mutator) -> tirx.Stmt:
    is_empty = isinstance(loop.extent, tirx.IntImm) and int(loop.extent) <= 0
    is_thread = loop.kind == tirx.ForKind.THREAD_BINDING
    is_grid = is_thread and str(loop.thread_binding.thread_tag).startswith("blockIdx")
    if is_empty and (is_grid or not is_thread):
        return tirx.Evaluate(tirx.const(0, "int32"))
    return mutator.default_mutate(loop)

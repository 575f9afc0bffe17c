"""Keep local variables of CPU code on the stack, where LLVM finds registers for them.

TVM puts buffers of scope ``global`` and of less than 1024 bytes on the stack of a CPU, but asks the
runtime for memory for those of scope ``local``, which other devices need for registers.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.target import Target

from ..ir.renaming import renamed

__all__ = ["StackLocals"]


def StackLocals() -> tvm.transform.Pass:
    """Build the pass that moves local buffers to the stack.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs of plain loops; other targets than CPUs are left alone.

    Notes
    -----
    Before::

        low = T.alloc_buffer((1,), "int32", scope="local")

    and after::

        low = T.alloc_buffer((1,), "int32")

    Examples
    --------
    >>> from tvm_sparse.transform import StackLocals
    >>> StackLocals().info.name
    'tvm_sparse.StackLocals'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        target = (func.attrs or {}).get("target") or Target.current(allow_none=True)
        if target is None or target.kind.name != "llvm":
            return func
        moved: dict[Var, Var] = {}

        def note(stmt: tirx.AllocBuffer) -> None:
            buffer = stmt.buffer
            if buffer.ty.storage_scope == "local":
                moved[buffer] = tirx.decl_buffer(
                    buffer.ty.shape, str(buffer.ty.dtype), buffer.name, scope="global"
                )

        tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, note))
        return func.with_body(renamed(func.body, moved)) if moved else func

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.StackLocals")

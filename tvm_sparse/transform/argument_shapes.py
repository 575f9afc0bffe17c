"""Give compiled functions the natural shapes of their arguments.

Loops use flat buffers; callers hold a dense operand as ``(n, f)`` and ELL values as ``(m, width)``.
With the natural shape in the signature, TVM's own entry code checks rank, shape and dtype of every
argument, at no cost to the caller's language.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import IRModule, Var
from tvm.tirx.buffer import buffer_data

from ._layout import evaluate_size, read_layout

__all__ = ["RestoreArgumentShapes"]


@tvm.transform.module_pass(opt_level=0, name="RestoreArgumentShapes")
class RestoreArgumentShapes:
    """Replace flat parameters by parameters of natural shape that the flat buffers alias.

    Before::

        def spmm(..., B: T.Buffer((n * f,), "float32"), ...): ...

    After::

        def spmm(..., B: T.Buffer((n, f), "float32"), ...):
            B_flat = T.decl_buffer((n * f,), "float32", data=B.data)
            ...
    """

    def transform_module(self, module: IRModule, _context) -> IRModule:
        """Rewrite the signatures of the functions that carry a layout."""
        rewritten = IRModule(attrs=module.attrs)
        for var, func in module.functions.items():
            rewritten[var] = _restore(func) if isinstance(func, tirx.PrimFunc) else func
        return rewritten


def _restore(func: tirx.PrimFunc) -> tirx.PrimFunc:
    layout = read_layout(func)
    if layout is None:
        return func
    scalars = {arg["name"]: p for arg, p in zip(layout["args"], func.params)}
    params: list[Var] = []
    aliases = []
    for arg, flat in zip(layout["args"], func.params):
        if len(arg.get("shape", ())) < 2 or len(flat.ty.shape) != 1:
            params.append(flat)
            continue
        shaped = tirx.decl_buffer(
            [evaluate_size(size, scalars) for size in arg["shape"]],
            str(flat.ty.dtype),
            flat.name,
            data_alignment=flat.ty.data_alignment,
        )
        params.append(shaped)
        aliases.append(tirx.DeclBuffer(flat, data=buffer_data(shaped)))
    body = tirx.SeqStmt([*aliases, func.body]) if aliases else func.body
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs, func.span)

"""Let compiled functions take arguments as callers hold them: naturally shaped and aligned.

Loops use flat buffers; callers hold a dense operand as ``(n, f)`` and ELL values as ``(m, width)``.
With the natural shape in the signature, TVM's own entry code checks rank, shape and dtype of every
argument, at no cost to the caller's language. No argument need be aligned beyond its elements: TVM
assumes 64 bytes where a program does not say, does not check, and NumPy guarantees 16.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import IRModule, Var
from tvm.tirx.buffer import BufferType, buffer_data

from ._layout import evaluate_size, read_layout

__all__ = ["AcceptNaturalArguments"]


@tvm.transform.module_pass(opt_level=0, name="AcceptNaturalArguments")
class AcceptNaturalArguments:
    """Replace parameters by those of natural shape and alignment, which the old ones alias.

    Before::

        def spmm(..., B: T.Buffer((n * f,), "float32"), ...): ...

    After::

        def spmm(..., B: T.Buffer((n, f), "float32", align=4), ...):
            B_flat = T.decl_buffer((n * f,), "float32", data=B.data)
            ...
    """

    def transform_module(self, module: IRModule, _context) -> IRModule:
        """Rewrite the signatures of all functions; only those with a layout change shape."""
        rewritten = IRModule(attrs=module.attrs)
        for var, func in module.functions.items():
            rewritten[var] = _accept_natural(func) if isinstance(func, tirx.PrimFunc) else func
        return rewritten


def _accept_natural(func: tirx.PrimFunc) -> tirx.PrimFunc:
    layout = read_layout(func) or {"args": [{}] * len(func.params)}
    scalars = {arg.get("name"): p for arg, p in zip(layout["args"], func.params)}
    params: list[Var] = []
    aliases = []
    for arg, flat in zip(layout["args"], func.params):
        if not isinstance(flat.ty, BufferType):
            params.append(flat)
            continue
        shape = list(flat.ty.shape)
        if len(arg.get("shape", ())) > 1 and len(shape) == 1:
            shape = [evaluate_size(size, scalars) for size in arg["shape"]]
        alignment = min(flat.ty.data_alignment, tvm.DataType(str(flat.ty.dtype)).itemsize)
        if len(shape) == len(flat.ty.shape) and flat.ty.data_alignment == alignment:
            params.append(flat)
            continue
        shaped = tirx.decl_buffer(
            shape,
            str(flat.ty.dtype),
            flat.name,
            scope=flat.ty.storage_scope,
            strides=list(flat.ty.strides) or None,
            elem_offset=flat.ty.elem_offset,
            data_alignment=alignment,
            offset_factor=flat.ty.offset_factor,
        )
        params.append(shaped)
        aliases.append(tirx.DeclBuffer(flat, data=buffer_data(shaped)))
    body = tirx.SeqStmt([*aliases, func.body]) if aliases else func.body
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs, func.span)

"""Exchange the parameters of a decomposed operand for those of its parts."""

from __future__ import annotations

import json
from collections.abc import Sequence

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var

from ..formats.description import describe_format
from ..ir import Axis, SparseBuffer, SparseFunc
from ..ir.buffer import ancestors
from ..ir.function import FORMATS_ATTR, TENSORS_ATTR
from ..transform._layout import size_text
from .iterations import iterations_of
from .parts import Part
from .uses import count_uses, param_index

__all__ = ["with_parameters", "with_tensors"]


def with_parameters(
    func: SparseFunc, operands: Sequence[SparseBuffer], parts: Sequence[Part]
) -> SparseFunc:
    """Exchange the operands' parameters for those of the parts, where nothing uses them any more."""
    gone_buffers = [o for o in operands if not count_uses(func.body, o.buffer)]
    kept_buffers = [b for b in func.buffers if not any(b.same_as(gone) for gone in gone_buffers)]
    buffers = [*kept_buffers, *(buffer for part in parts for buffer in part.buffers)]
    in_use = _axes_in_use(func, buffers)
    gone_axes = [axis for axis in func.axes if axis not in in_use and axis in set(operands[0].axes)]
    axes = [a for a in func.axes if a not in gone_axes] + [a for p in parts for a in p.axes]
    structure: set[Var] = set()
    for axis in gone_axes:
        for name in ("indptr", "indices", "nnz", "nnz_cols", "length"):
            found = getattr(axis, name, None)
            if isinstance(found, Var):
                structure.add(found)
    structure |= {buffer.buffer for buffer in gone_buffers}
    still_used = _variables_in_use(func, buffers, axes)
    params: list[Var] = []
    arg_names: list[str] = []
    for param, name in zip(func.params, func.arg_names):
        if param.same_as(operands[0].buffer):
            for part in parts:
                params += [buffer.buffer for buffer in part.buffers]
                arg_names += part.arg_names
                params += list(part.layout.params.values())
                arg_names += [var.name for var in part.layout.params.values()]
        if param not in structure or param in still_used:
            params.append(param)
            arg_names.append(name)
    return SparseFunc(
        params=params,
        axes=axes,
        buffers=buffers,
        temporaries=func.temporaries,
        body=func.body,
        arg_names=arg_names,
        attrs=func.attrs,
        span=func.span,
    )


def with_tensors(
    func: SparseFunc,
    before: SparseFunc,
    operands: Sequence[SparseBuffer],
    parts: Sequence[Part],
    covering: Sequence[str],
) -> SparseFunc:
    """Note what a packed tensor must be: its shape, which tells the sizes of the program, and formats."""
    names = dict(zip(func.params, func.arg_names))
    shape = [size_text(axis.length, names) for axis in operands[0].axes]
    shapes, formats = (
        json.loads(str((func.attrs or {}).get(attr, "{}"))) for attr in (TENSORS_ATTR, FORMATS_ATTR)
    )
    for k, operand in enumerate(operands):
        whole = before.arg_names[param_index(before, operand)]
        shapes[whole] = shape
        if len(covering) > 1:
            formats[whole] = {"covering": list(covering)}
        for part in parts:
            name = part.arg_names[k]
            shapes[name] = shape
            formats[name] = {**formats.get(name, {}), **describe_format(part.format)}
            if k > 0:
                formats[name]["arrays_of"] = part.arg_names[0]
    func = func.with_attr(TENSORS_ATTR, json.dumps(shapes))
    return func.with_attr(FORMATS_ATTR, json.dumps(formats))


def _axes_in_use(func: SparseFunc, buffers: Sequence[SparseBuffer]) -> set[Axis]:
    direct: list[Axis] = [a for b in [*buffers, *func.temporaries] for a in b.axes]
    for iteration in iterations_of(func):
        for axis, _, _ in iteration.iterators:
            direct += [axis, *([axis.base] if hasattr(axis, "base") else [])]
    return {found for axis in direct for found in (axis, *ancestors(axis))}


def _variables_in_use(
    func: SparseFunc, buffers: Sequence[SparseBuffer], axes: Sequence[Axis]
) -> set[Var]:
    used: set[Var] = set()
    expressions: list[Expr] = []
    for axis in axes:
        expressions += [getattr(axis, n) for n in ("length", "nnz", "nnz_cols") if hasattr(axis, n)]
        used |= {getattr(axis, n) for n in ("indptr", "indices") if hasattr(axis, n)}
    for buffer in [*buffers, *func.temporaries]:
        expressions += list(buffer.buffer.ty.shape)
        used.add(buffer.buffer)
    for node in [*expressions, func.body]:
        tvm_ffi.structural_walk(
            node,
            [
                (Var, used.add),
                (TensorLoad, lambda load: used.add(load.source)),
                (tirx.BufferStore, lambda store: used.add(store.buffer)),
            ],
        )
    return used

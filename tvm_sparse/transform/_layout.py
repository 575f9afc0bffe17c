"""The layout attribute: how the buffers of a lowered function are stored, as JSON.

Stage II and III functions carry it so that :class:`LowerSparseBuffer` can flatten buffers and the
runtime can check and infer arguments. Everything in it is a name or an integer expression over names
of scalar parameters, so that it survives any schedule.
"""

from __future__ import annotations

import ast
import json
import operator

from tvm import tirx
from tvm.ir import Expr, Var

from ..errors import SparseProgramError
from ..ir import Axis, SparseFunc
from ..ir.buffer import storage_sizes
from ..ir.function import FORMATS_ATTR, TENSORS_ATTR
from .fill_outputs import buffer_roles

__all__ = ["LAYOUT_ATTR", "count_of_entries", "describe_layout", "evaluate_size", "read_layout"]

LAYOUT_ATTR = "tvm_sparse.layout"


def describe_layout(func: SparseFunc) -> str:
    """Return the layout of a stage-I function as JSON text."""
    names = dict(zip(func.params, func.arg_names))
    roles = buffer_roles(func)
    sparse = func.sparse_buffers
    index_of = {}
    for axis in func.axes:
        for what in ("indptr", "indices"):
            array = getattr(axis, what, None)
            if array is not None:
                index_of.setdefault(array, (axis, what))
    args = []
    for param, name in names.items():
        if not tirx.is_buffer_var(param):
            args.append({"name": name, "kind": "scalar", "dtype": str(param.ty.dtype)})
            continue
        entry = {
            "name": name,
            "kind": "buffer",
            "buffer": param.name,
            "dtype": str(param.ty.dtype),
            "role": roles.get(param, "input"),
        }
        shape = param.ty.shape
        if param in sparse:
            shape = sparse[param].storage_shape
            entry["axes"] = [a.name for a in sparse[param].axes]
        elif param in index_of:
            axis, what = index_of[param]
            entry["index_of"], entry["index_kind"] = axis.name, what
            if what == "indices":
                shape = storage_sizes(axis)
        entry["shape"] = [size_text(s, names) for s in shape]
        args.append(entry)
    return json.dumps(
        {
            "args": args,
            "axes": [_axis_entry(axis, names) for axis in func.axes],
            "tensors": json.loads(str((func.attrs or {}).get(TENSORS_ATTR, "{}"))),
            "formats": json.loads(str((func.attrs or {}).get(FORMATS_ATTR, "{}"))),
            "temporaries": [
                {"buffer": t.name, "axes": [a.name for a in t.axes], "dtype": t.dtype}
                for t in func.temporaries
            ],
        }
    )


def read_layout(func: tirx.PrimFunc) -> dict | None:
    """Return the layout of a stage-II or stage-III function, ``None`` where it has none."""
    text = func.attrs.get(LAYOUT_ATTR) if func.attrs else None
    return json.loads(str(text)) if text is not None else None


def count_of_entries(func: tirx.PrimFunc, indptr: str) -> Expr:
    """Return how many entries the axis of a lowered function stores whose pointers have this name."""
    layout = read_layout(func)
    scalars = {arg.get("name"): param for arg, param in zip(layout["args"], func.params)}
    names = {arg["name"] for arg in layout["args"] if arg.get("buffer") == indptr} | {indptr}
    for axis in layout["axes"]:
        if axis.get("indptr") in names:
            return evaluate_size(axis["nnz"], scalars)
    raise SparseProgramError(f"expected an axis with the row pointers {indptr}")


def _axis_entry(axis: Axis, names: dict[Var, str]) -> dict:
    entry = {
        "name": axis.name,
        "kind": axis.kind,
        "length": size_text(axis.length, names),
        "dtype": axis.dtype,
    }
    if axis.parent_axis is not None:
        entry["parent"] = axis.parent_axis.name
    for what in ("indptr", "indices"):
        array = getattr(axis, what, None)
        if array is not None:
            entry[what] = names[array]
    for what in ("nnz", "nnz_cols"):
        size = getattr(axis, what, None)
        if size is not None:
            entry[what] = size_text(size, names)
    for what in ("sorted", "unique", "distinct"):
        if hasattr(axis, what):
            entry[what] = bool(getattr(axis, what))
    return entry


def size_text(size: Expr, names: dict[Var, str]) -> str:
    """Write a size as an integer expression over parameter names."""
    if isinstance(size, tirx.IntImm):
        return str(int(size.value))
    if isinstance(size, Var):
        return names.get(size, size.name)
    if isinstance(size, tirx.Cast):
        return size_text(size.value, names)
    for kind, sign in _WRITTEN.items():
        if isinstance(size, kind):
            return f"({size_text(size.a, names)} {sign} {size_text(size.b, names)})"
    raise ValueError(f"size {size}: expected sums, products and quotients of parameters")


def evaluate_size(text: str, scalars: dict[str, Expr]) -> Expr:
    """Read a size back as an expression over the parameters of a function."""

    def visit(node: ast.AST) -> Expr:
        if isinstance(node, ast.Constant):
            value = int(node.value)
            return tirx.IntImm("int32" if value < 2**31 else "int64", value)
        if isinstance(node, ast.Name):
            if node.id not in scalars:
                raise ValueError(
                    f"size {text!r}: parameter {node.id} is gone; specialize at stage I, before "
                    "lowering"
                )
            return scalars[node.id]
        left, right = visit(node.left), visit(node.right)
        if isinstance(node.op, ast.Mult):
            left, right = left.astype("int64"), right.astype("int64")
        return _READ[type(node.op)](left, right)

    return visit(ast.parse(text, mode="eval").body)


_WRITTEN = {tirx.Add: "+", tirx.Sub: "-", tirx.Mul: "*", tirx.FloorDiv: "//"}
_READ = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}

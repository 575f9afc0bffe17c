"""Stage II to stage III: every sparse buffer becomes one-dimensional.

Comes in: ``PrimFunc`` s of stage II, scheduled or not. Goes out: the same loops and blocks over flat
buffers; an access ``A[vi, vj]`` of a CSR matrix becomes ``A[J_indptr[vi] + vj]``.
"""

from __future__ import annotations

import operator

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, IRModule, TensorLoad, Var
from tvm.s_tir.stmt import SBlock

from ._access import multiply
from ._layout import evaluate_size, read_layout
from ._regions import complete_regions
from .accumulations import give_init

__all__ = ["LowerSparseBuffer"]

_DETECT_ACCESS = {"tirx.script_parsing_detect_access": tirx.IntImm("int64", 3)}


@tvm.transform.module_pass(opt_level=0, name="LowerSparseBuffer")
class LowerSparseBuffer:
    """Flatten the sparse buffers of every stage-II function (stage III).

    Before::

        C[vi, vk] = C[vi, vk] + A[vi, vj] * B[J_indices[J_indptr[vi] + vj], vk]

    After::

        C[vi * f + vk] = C[vi * f + vk] + A[J_indptr[vi] + vj] * B[J_indices[...] * f + vk]

    Offsets are computed in 64 bits unless every size is a constant and fits in 32.
    """

    def transform_module(self, module: IRModule, _context) -> IRModule:
        """Flatten the functions of ``module`` that carry a layout; others are left alone."""
        lowered = IRModule(attrs=module.attrs)
        for var, func in module.functions.items():
            lowered[var] = flatten_function(func) if isinstance(func, tirx.PrimFunc) else func
        return lowered


class _FlatBuffer:
    """One sparse buffer: its flat variable and how an access is flattened."""

    def __init__(self, buffer: Var, axes: list[dict], sizes: dict[str, Expr], arrays: dict) -> None:
        self.axes = axes
        self._arrays = arrays
        self._sizes = sizes
        names = [axis["name"] for axis in axes]
        by_name = {axis["name"]: axis for axis in axes}
        inner = {p for axis in axes for p in _ancestor_names(axis, by_name)}
        self._leaves = [k for k, name in enumerate(names) if name not in inner]
        total = None
        for k in self._leaves:
            slots = sizes[names[k]]
            total = slots if total is None else multiply(total, slots)
        fits = isinstance(total, tirx.IntImm) and int(total.value) < 2**31
        self._multiply = operator.mul if fits else multiply
        ty = buffer.ty
        self.flat = tirx.decl_buffer(
            [total],
            str(ty.dtype),
            buffer.name,
            scope=ty.storage_scope,
            data_alignment=ty.data_alignment,
        )

    def offset(self, indices: list[Expr]) -> Expr:
        by_name: dict[str, Expr] = {}
        positions: list[Expr] = []  # an axis may stand in a buffer twice
        for axis, local in zip(self.axes, indices):
            parent = by_name.get(axis.get("parent"))
            if "indptr" in axis:
                position = _add(self._arrays[axis["indptr"]][parent], local)
            elif axis["kind"] == "sparse_fixed":
                width = self._sizes[f"{axis['name']}.nnz_cols"]
                position = _add(self._multiply(parent, width), local)
            else:
                position = local
            by_name[axis["name"]] = position
            positions.append(position)
        flat = None
        for k in self._leaves:
            name = self.axes[k]["name"]
            position = positions[k]
            if flat is None:
                flat = position
            else:
                flat = _add(self._multiply(flat, self._sizes[name]), position)
        return flat


def flatten_function(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Flatten the sparse buffers of one function; a function without any is returned as it is."""
    layout = read_layout(func)
    if layout is None:
        return func
    flats = _flat_buffers(func, layout)
    if not flats:
        return func
    analyzer = tvm.sym.Analyzer()

    def load(node: TensorLoad, mutator) -> Expr:
        indices = [mutator.mutate(e) for e in node.indices]
        if node.source not in flats:
            return tirx.BufferLoad(node.source, indices)
        flat = flats[node.source]
        return tirx.BufferLoad(flat.flat, [analyzer.simplify(flat.offset(indices))])

    def store(node: tirx.BufferStore, mutator) -> tirx.Stmt:
        indices = [mutator.mutate(e) for e in node.indices]
        value = mutator.mutate(node.value)
        if node.buffer not in flats:
            return tirx.BufferStore(node.buffer, value, indices)
        flat = flats[node.buffer]
        return tirx.BufferStore(flat.flat, value, [analyzer.simplify(flat.offset(indices))])

    def block(node: SBlock, mutator) -> SBlock:
        return SBlock(
            [mutator.mutate(v) for v in node.iter_vars],
            [],
            [],
            node.name_hint,
            mutator.mutate(node.body),
            mutator.mutate(node.init) if node.init is not None else None,
            [flats[b].flat if b in flats else b for b in node.alloc_buffers],
            node.match_buffers,
            {**dict(node.annotations), **_DETECT_ACCESS},
        )

    body = tvm_ffi.structural_mutate(
        func.body, [(TensorLoad, load), (tirx.BufferStore, store), (SBlock, block)]
    )
    body, aliases = give_init(body)
    params = [flats[p].flat if p in flats else p for p in func.params]
    flattened = tirx.PrimFunc(params, body, func.ret_type, func.attrs, func.span)
    return complete_regions(flattened, [], aliases)


def _flat_buffers(func: tirx.PrimFunc, layout: dict) -> dict[Var, _FlatBuffer]:
    """Return the buffers of the function that still have one dimension per axis."""
    scalars = {arg["name"]: p for arg, p in zip(layout["args"], func.params)}
    axes = {axis["name"]: axis for axis in layout["axes"]}
    sizes: dict[str, Expr] = {}
    for axis in layout["axes"]:
        name = axis["name"]
        if axis["kind"] == "sparse_fixed":
            sizes[f"{name}.nnz_cols"] = evaluate_size(axis["nnz_cols"], scalars)
            sizes[name] = multiply(sizes[axis["parent"]], sizes[f"{name}.nnz_cols"])
        else:
            sizes[name] = evaluate_size(axis.get("nnz", axis["length"]), scalars)
    flats: dict[Var, _FlatBuffer] = {}

    def add(buffer: Var, names: list[str]) -> None:
        if len(names) > 1 and len(buffer.ty.shape) == len(names):
            flats[buffer] = _FlatBuffer(buffer, [axes[n] for n in names], sizes, scalars)

    for arg, param in zip(layout["args"], func.params):
        if "axes" in arg:
            if len(arg["axes"]) == 1 and _needs_resize(axes[arg["axes"][0]]):
                flats[param] = _FlatBuffer(param, [axes[arg["axes"][0]]], sizes, scalars)
            add(param, arg["axes"])
    temporaries = {t["buffer"]: t["axes"] for t in layout["temporaries"]}

    def collect(block: SBlock) -> None:
        for buffer in block.alloc_buffers:
            if buffer.name in temporaries:
                add(buffer, temporaries[buffer.name])

    tvm_ffi.structural_walk(func.body, [(SBlock, collect)])
    return flats


def _needs_resize(axis: dict) -> bool:
    return axis["kind"] != "dense_fixed"


def _ancestor_names(axis: dict, by_name: dict[str, dict]) -> list[str]:
    chain = []
    while axis.get("parent") in by_name:
        axis = by_name[axis["parent"]]
        chain.append(axis["name"])
    return chain


def _add(left: Expr, right: Expr) -> Expr:
    if str(left.ty.dtype) != str(right.ty.dtype):
        return left.astype("int64") + right.astype("int64")
    return left + right

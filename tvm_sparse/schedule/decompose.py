"""Hold a sparse operand as a sum of parts, each in its own format.

The iteration that uses the operand becomes one iteration for each part, over the axes of the part's
format. Where the operand is reduced over, the result is initialised once, by a part that visits all of
it or by an iteration of its own before them, and every other part adds to it; otherwise each part
computes entries of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var

from ..errors import SparseProgramError
from ..formats import Format, Layout
from ..ir import Axis, SparseBuffer, SparseFunc, SparseIteration
from ..ir.accumulation import accumulation_of
from ..ir.buffer import ancestors, declare_buffer
from ..ir.function import FORMATS_ATTR, TENSORS_ATTR
from ..transform._layout import size_text
from ..transform.fill_outputs import COVER_MARK
from ..transform.promote_accumulators import promote_accumulators
from .iterations import (
    find_iteration,
    iterations_of,
    position_of_iterator,
    replace_iteration,
    with_fields,
)

__all__ = ["decompose_operands", "operand_over"]


#: Unsigned integers as wide as a float.
_BITS = {"float16": "uint16", "bfloat16": "uint16", "float32": "uint32", "float64": "uint64"}


@dataclass(frozen=True)
class _Part:
    """One format of the operands, on the sizes of the program."""

    name: str
    format: Format
    layout: Layout
    buffers: list[SparseBuffer]  # one for each operand
    arg_names: list[str]

    @property
    def axes(self) -> list[Axis]:
        return [stored.axis for stored in self.layout.axes]


def decompose_operands(
    func: SparseFunc,
    iteration_name: str,
    operand_names: Sequence[str],
    formats: Mapping[str, Format],
    covering: Mapping[tuple[str, ...], tuple[int, ...]] | None = None,
) -> tuple[SparseFunc, list[str]]:
    """Rewrite an iteration for operands that are sums of parts.

    Parameters
    ----------
    func : SparseFunc
        The function.
    iteration_name : str
        The iteration; the operands are indexed there by its very iterators.
    operand_names : sequence of str
        Buffers stored over the same axes; they get common index arrays.
    formats : dict of str to Format
        The parts, by name. A single one may have the empty name: it takes the operand's.
    covering : dict of tuple to tuple, optional
        Groups of parts that together visit all of some dimensions, as :attr:`Format.covers` says of
        one part.

    Returns
    -------
    SparseFunc
        The function; the parts' values, arrays and sizes are parameters in place of the operands'.
    list of str
        Names of the new iterations, that of the initialisation first if there is one.
    """
    label = f"decompose_format: iteration {iteration_name}"
    func = promote_accumulators(func)  # the parts add to a result that must not be rounded between
    iteration = find_iteration(func, iteration_name)
    operands = [_operand(func, name, label) for name in operand_names]
    places = _places_of_axes(iteration, operands, label)
    _check_accesses(func, iteration, operands, places, label)
    prefix = func.arg_names[_param_index(func, operands[0])]
    parts = [_part(func, operands, prefix, name, fmt, label) for name, fmt in formats.items()]

    reduced = any(iteration.kinds[place] == "R" for place in places)
    first: tuple[str, ...] = ()
    if reduced:
        _check_accumulates(iteration, label)
        groups = {**(covering or {}), **{(p.name,): p.format.covers for p in parts}}
        first = _covering_parts(iteration, places, groups)
        parts = sorted(parts, key=lambda part: part.name not in first)
    new: list[SparseIteration] = []
    temporaries: list[SparseBuffer] = []
    for part in parts:
        made = _part_iteration(
            iteration, operands, places, part, with_init=not reduced or part.name in first
        )
        if reduced and part.format.combines:
            contributions, *pair = _contribution_iterations(made, label)
            temporaries.append(contributions)
            new += pair
        else:
            new.append(made)
    if reduced and iteration.init is not None and not first:
        new.insert(0, _init_iteration(func, iteration))
    changed = replace_iteration(func, iteration, new)
    changed = changed.with_body(changed.body, [*changed.temporaries, *temporaries])
    changed = _with_parameters(changed, operands, parts)
    return _with_tensors(changed, func, operands, parts), [it.name for it in new]


def operand_over(func: SparseFunc, iteration_name: str, iterator: str) -> str:
    """Return the one parameter that is stored over the axis of an iterator.

    Raises
    ------
    SparseProgramError
        If there is none, or several.
    """
    label = f"sparse_split: iteration {iteration_name}"
    iteration = find_iteration(func, iteration_name)
    place = position_of_iterator(iteration, iterator, label)
    axis = iteration.iterators[place][0]
    names = [buffer.name for buffer in func.buffers if axis in list(buffer.axes)]
    if not axis.is_variable or len(names) != 1:
        found = ", ".join(names) or "none"
        raise SparseProgramError(
            f"{label}: expected iterator {iterator} over the stored entries of one operand, found axis "
            f"{axis.name} ({axis.kind}) of {found}"
        )
    return names[0]


# --- what may be decomposed --------------------------------------------------------------------


def _operand(func: SparseFunc, name: str, label: str) -> SparseBuffer:
    for buffer, arg in ((b, func.arg_names[_param_index(func, b)]) for b in func.buffers):
        if name in (buffer.name, arg):
            return buffer
    found = ", ".join(buffer.name for buffer in func.buffers)
    raise SparseProgramError(f"{label}: expected one of the sparse buffers {found}, found {name!r}")


def _param_index(func: SparseFunc, buffer: SparseBuffer) -> int:
    return next(k for k, param in enumerate(func.params) if param.same_as(buffer.buffer))


def _places_of_axes(
    iteration: SparseIteration, operands: Sequence[SparseBuffer], label: str
) -> list[int]:
    """Which iterators go over the operands' axes."""
    axes = list(operands[0].axes)
    for other in operands[1:]:
        if list(other.axes) != axes:
            raise SparseProgramError(
                f"{label}: operands {operands[0].name} and {other.name} are stored over different "
                f"axes ({_names(axes)} and {_names(other.axes)}); decompose them one after the other"
            )
    loops = list(iteration.axes)
    if len(loops) != len(iteration.iter_vars):
        raise SparseProgramError(f"{label}: decompose operands before loops are fused")
    places = []
    for axis in axes:
        if axis not in loops:
            raise SparseProgramError(
                f"{label}: axis {axis.name} of operand {operands[0].name} is not iterated there; it "
                f"iterates {_names(loops)}"
            )
        places.append(loops.index(axis))
    return places


def _check_accesses(
    func: SparseFunc,
    iteration: SparseIteration,
    operands: Sequence[SparseBuffer],
    places: Sequence[int],
    label: str,
) -> None:
    """An operand is indexed by the iterators of its axes, and by nothing else."""
    variables = [iteration.iter_vars[place] for place in places]
    buffers = {operand.buffer: operand for operand in operands}

    def check(buffer: Var, indices: Sequence[Expr]) -> None:
        operand = buffers.get(buffer)
        if operand is None:
            return
        same = all(
            isinstance(index, Var) and index.same_as(var) for index, var in zip(indices, variables)
        )
        if not same:
            written = ", ".join(str(index) for index in indices)
            raise SparseProgramError(
                f"{label}: expected {operand.name}[{', '.join(v.name for v in variables)}], found "
                f"{operand.name}[{written}], which may be an entry of another part"
            )

    for stmt in [iteration.body, *([] if iteration.init is None else [iteration.init])]:
        tvm_ffi.structural_walk(
            stmt,
            [
                (TensorLoad, lambda load: check(load.source, load.indices)),
                (tirx.BufferStore, lambda store: check(store.buffer, store.indices)),
            ],
        )
        if any(True for _ in iterations_of(stmt)):
            raise SparseProgramError(f"{label}: it holds iterations; decompose those inside")
    stored = _stored_buffers(iteration)
    for operand in operands:
        if operand.buffer in stored and _used_outside(func, iteration, operand.buffer):
            raise SparseProgramError(
                f"{label}: operand {operand.name} is a result that other statements use as well, and "
                "they would not see its parts"
            )


def _stored_buffers(node: tvm_ffi.Object) -> set[Var]:
    found: set[Var] = set()
    tvm_ffi.structural_walk(node, [(tirx.BufferStore, lambda store: found.add(store.buffer))])
    return found


def _used_outside(func: SparseFunc, iteration: SparseIteration, buffer: Var) -> bool:
    return _count_uses(func.body, buffer) > _count_uses(iteration, buffer)


def _count_uses(node: tvm_ffi.Object, buffer: Var) -> int:
    uses: list[int] = []

    def note(used: Var) -> None:
        if used.same_as(buffer):
            uses.append(1)

    tvm_ffi.structural_walk(
        node,
        [
            (TensorLoad, lambda load: note(load.source)),
            (tirx.BufferStore, lambda store: note(store.buffer)),
        ],
    )
    return len(uses)


def _check_accumulates(iteration: SparseIteration, label: str) -> None:
    """Every statement accumulates, so that the parts may add to the same result one after another."""
    stores: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(iteration.body, [(tirx.BufferStore, stores.append)])
    for store in stores:
        accumulation_of(store, label)


def _names(axes: Sequence[Axis]) -> str:
    return ", ".join(axis.name for axis in axes)


# --- the parts ---------------------------------------------------------------------------------


def _part(
    func: SparseFunc,
    operands: Sequence[SparseBuffer],
    prefix: str,
    name: str,
    fmt: Format,
    label: str,
) -> _Part:
    axes = operands[0].axes
    if fmt.rank != len(axes):
        raise SparseProgramError(
            f"{label}: operand {operands[0].name} has {len(axes)} dimensions, and format {fmt.name} "
            f"stores {fmt.rank}"
        )
    index_dtype = str(axes[-1].dtype)
    shape = [axis.length for axis in axes]
    suffix = f"_{name}" if name else ""
    layout = fmt.layout(f"{prefix}{suffix}", shape, index_dtype)
    old = [func.arg_names[_param_index(func, operand)] for operand in operands]
    arg_names = [f"{arg}{suffix}" for arg in old]
    needed = {*arg_names, *(var.name for var in layout.params.values())}
    taken = ({*func.arg_names} - {*old}) & needed
    if taken:
        raise SparseProgramError(
            f"{label}: part {name!r} needs parameters that exist already ({', '.join(sorted(taken))}); "
            "give it another name"
        )
    lengths = [stored.axis.length for stored in layout.axes]
    buffers = [
        SparseBuffer(
            buffer=declare_buffer(lengths, operand.dtype, f"{operand.name}{suffix}"),
            axes=[stored.axis for stored in layout.axes],
            default=operand.default,
        )
        for operand in operands
    ]
    return _Part(name, fmt, layout, buffers, arg_names)


def _covering_parts(
    iteration: SparseIteration,
    places: Sequence[int],
    groups: Mapping[tuple[str, ...], tuple[int, ...]],
) -> tuple[str, ...]:
    """The parts that may initialise the result: they visit each point of the spatial axes once."""
    spatial = {dim for dim, place in enumerate(places) if iteration.kinds[place] == "S"}
    if iteration.init is None or not spatial:
        return ()
    return next((names for names, covers in groups.items() if spatial <= set(covers)), ())


def _part_iteration(
    iteration: SparseIteration,
    operands: Sequence[SparseBuffer],
    places: Sequence[int],
    part: _Part,
    with_init: bool,
) -> SparseIteration:
    """The iteration over the axes of one part, in place of those of the operand."""
    stored_vars = [
        Var(_iterator_name(iteration, places, stored.dims, axis), axis.dtype)
        for stored, axis in zip(part.layout.axes, part.axes)
    ]
    stored_vars = _distinct_names(stored_vars, iteration)
    loops = _order_loops(iteration, places, part, stored_vars)
    coordinates = part.layout.to_tensor(stored_vars)
    values = {
        iteration.iter_vars[place]: expr.astype(str(iteration.iter_vars[place].ty.dtype))
        for place, expr in zip(places, coordinates)
    }
    for place, var in enumerate(iteration.iter_vars):
        if place not in places:
            values[var] = Var(var.name, str(var.ty.dtype))
    loops = [(axis, kind, values.get(var, var)) for axis, kind, var in loops]
    by_operand = {o.buffer: b.buffer for o, b in zip(operands, part.buffers)}

    def rewrite(stmt: tirx.Stmt) -> tirx.Stmt:
        def load(node: TensorLoad, mutator) -> Expr:
            if node.source in by_operand:
                return tirx.BufferLoad(by_operand[node.source], stored_vars)
            return tirx.BufferLoad(node.source, [mutator.mutate(index) for index in node.indices])

        def store(node: tirx.BufferStore, mutator) -> tirx.Stmt:
            value = mutator.mutate(node.value)
            if node.buffer in by_operand:
                return tirx.BufferStore(by_operand[node.buffer], value, stored_vars, node.span)
            indices = [mutator.mutate(index) for index in node.indices]
            return tirx.BufferStore(node.buffer, value, indices, node.span)

        def variable(node: Var, _mutator) -> Expr:
            return values.get(node, node)

        return tvm_ffi.structural_mutate(
            stmt, [(TensorLoad, load), (tirx.BufferStore, store), (Var, variable)]
        )

    init = rewrite(iteration.init) if with_init and iteration.init is not None else None
    annotations = dict(iteration.annotations)
    if init is not None and any(iteration.kinds[place] == "R" for place in places):
        annotations[COVER_MARK] = True
    body = rewrite(iteration.body)
    if part.format.marks_padding:
        body = _without_padding(body, part, stored_vars)
    return SparseIteration(
        axes=[axis for axis, _, _ in loops],
        kinds="".join(kind for _, kind, _ in loops),
        iter_vars=[var for _, _, var in loops],
        body=body,
        init=init,
        name=f"{iteration.name}_{part.name or part.format.name}",
        annotations=annotations,
        span=iteration.span,
    )


def _contribution_iterations(
    iteration: SparseIteration, label: str
) -> tuple[SparseBuffer, SparseIteration, SparseIteration]:
    """Let each stored row compute its contribution on its own; then add them one after another."""
    store = iteration.body
    if not isinstance(store, tirx.BufferStore):
        raise SparseProgramError(
            f"{label}: expected one statement, to combine what pieces contribute"
        )
    update = accumulation_of(store, label)
    spatial = [(axis, var) for axis, kind, var in iteration.iterators if kind == "S"]
    dtype = str(store.value.ty.dtype)
    buffer = declare_buffer([axis.length for axis, _ in spatial], dtype, f"{iteration.name}_own")
    contributions = SparseBuffer(
        buffer=buffer, axes=[axis for axis, _ in spatial], default=tirx.const(0, dtype)
    )
    own = [var for _, var in spatial]
    compute = with_fields(
        iteration,
        annotations={**dict(iteration.annotations), COVER_MARK: True},
        init=tirx.BufferStore(buffer, update.neutral(dtype), own),
        body=tirx.BufferStore(
            buffer, update.combine(tirx.BufferLoad(buffer, own), update.term), own
        ),
    )
    fresh = {var: Var(var.name, str(var.ty.dtype)) for var in own}
    rename = [(Var, lambda var: fresh.get(var, var))]
    indices = [tvm_ffi.structural_map(index, rename) for index in store.indices]
    used = set().union(*(_variables(index) for index in indices))
    own_load = tirx.BufferLoad(buffer, list(fresh.values()))
    add = with_fields(
        iteration,
        axes=contributions.axes,
        kinds="".join("S" if var in used else "R" for var in fresh.values()),
        iter_vars=list(fresh.values()),
        body=tirx.BufferStore(
            store.buffer, update.combine(tirx.BufferLoad(store.buffer, indices), own_load), indices
        ),
        init=None,
        name=f"{iteration.name}_add",
    )
    return contributions, compute, add


def _variables(expr: Expr) -> set[Var]:
    found: set[Var] = set()
    tvm_ffi.structural_walk(expr, [(Var, found.add)])
    return found


def _without_padding(body: tirx.Stmt, part: _Part, stored_vars: Sequence[Var]) -> tirx.Stmt:
    """Run a body for entries alone: all bits of a padding slot are zero, and those of no entry are."""
    stored = _stored_buffers(body)
    for buffer in part.buffers:
        bits = _BITS.get(buffer.dtype)
        if bits is not None and buffer.buffer not in stored:
            value = tirx.reinterpret(bits, tirx.BufferLoad(buffer.buffer, stored_vars))
            return tirx.IfThenElse(tirx.NE(value, tirx.const(0, bits)), body, None)
    return body


def _iterator_name(
    iteration: SparseIteration, places: Sequence[int], dims: Sequence[int], axis: Axis
) -> str:
    """An axis of one dimension goes on with the name of its iterator, others are named by the axis."""
    if len(dims) == 1:
        return iteration.iter_vars[places[dims[0]]].name
    return axis.name.rpartition("_")[2].lower()


def _distinct_names(variables: Sequence[Var], iteration: SparseIteration) -> list[Var]:
    """Number iterators of the same name: ``i_0, i_1`` for block and row within the block."""
    names = [var.name for var in variables]
    taken = {var.name for var in iteration.iter_vars}
    renamed = []
    for var in variables:
        name = var.name
        if names.count(name) > 1:
            name = next(f"{name}_{n}" for n in count() if f"{name}_{n}" not in taken)
            taken.add(name)
        renamed.append(Var(name, str(var.ty.dtype)))
    return renamed


def _order_loops(
    iteration: SparseIteration, places: Sequence[int], part: _Part, stored_vars: Sequence[Var]
) -> list[tuple[Axis, str, Var]]:
    """Loops of a part: each stored axis where its last dimension was, and never before its parent."""
    slots: list[list[tuple[Axis, str, Var]]] = [[] for _ in iteration.iter_vars]
    where: dict[Axis, int] = {}
    for stored, var in zip(part.layout.axes, stored_vars):
        axis = stored.axis
        place = min(places[dim] for dim in stored.dims)
        for ancestor in ancestors(axis):
            place = max(place, where.get(ancestor, 0))
        where[axis] = place
        kinds = {iteration.kinds[places[dim]] for dim in stored.dims}
        kind = "S" if kinds == {"S"} and (stored.distinct or part.format.combines) else "R"
        slots[place].append((axis, kind, var))
    loops = []
    for place, (axis, kind, var) in enumerate(iteration.iterators):
        loops += slots[place] if place in places else [(axis, kind, var)]
    return loops


def _init_iteration(func: SparseFunc, iteration: SparseIteration) -> SparseIteration:
    """The initialisation of the result, over the spatial iterators that it uses.

    They range over the axes that the result is stored over: those of the operand may be stored under an
    axis that is reduced.
    """
    result_axes: dict[Var, Axis] = {}

    def note(store: tirx.BufferStore) -> None:
        buffer = func.sparse_buffers.get(store.buffer)
        for index, axis in zip(store.indices, buffer.axes if buffer is not None else ()):
            if isinstance(index, Var) and axis.parent_axis is None:
                result_axes[index] = axis

    tvm_ffi.structural_walk(iteration.init, [(tirx.BufferStore, note)])
    used: set[Var] = set()
    tvm_ffi.structural_walk(iteration.init, [(Var, used.add)])
    spatial = [
        (result_axes.get(var, axis), var) for axis, kind, var in iteration.iterators if kind == "S"
    ]
    needed = {axis for axis, var in spatial if var in used}
    for axis in list(needed):
        needed |= set(ancestors(axis))
    chosen = [(axis, var) for axis, var in spatial if axis in needed]
    fresh = {var: Var(var.name, str(var.ty.dtype)) for _, var in chosen}
    return with_fields(
        iteration,
        axes=[axis for axis, _ in chosen],
        kinds="S" * len(chosen),
        iter_vars=list(fresh.values()),
        body=tvm_ffi.structural_map(iteration.init, [(Var, lambda var: fresh.get(var, var))]),
        init=None,
        name=f"{iteration.name}_init",
    )


# --- the signature -----------------------------------------------------------------------------


def _with_parameters(
    func: SparseFunc, operands: Sequence[SparseBuffer], parts: Sequence[_Part]
) -> SparseFunc:
    """Exchange the operands' parameters for those of the parts, where nothing uses them any more."""
    gone_buffers = [o for o in operands if not _count_uses(func.body, o.buffer)]
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


def _with_tensors(
    func: SparseFunc, before: SparseFunc, operands: Sequence[SparseBuffer], parts: Sequence[_Part]
) -> SparseFunc:
    """Note shapes of tensors, which tell the sizes of the program, and the format of each part."""
    names = dict(zip(func.params, func.arg_names))
    shape = [size_text(axis.length, names) for axis in operands[0].axes]
    shapes, formats = (
        json.loads(str((func.attrs or {}).get(attr, "{}"))) for attr in (TENSORS_ATTR, FORMATS_ATTR)
    )
    for k, operand in enumerate(operands):
        shapes[before.arg_names[_param_index(before, operand)]] = shape
        for part in parts:
            shapes[part.arg_names[k]] = shape
            formats[part.arg_names[k]] = part.format.name
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

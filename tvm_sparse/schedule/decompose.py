"""Hold a sparse operand as a sum of parts, each in its own format.

The iteration that uses the operand becomes one iteration for each part, over the axes of the part's
format. Where the operand is reduced over, the result is initialised once, by a part that visits all of
it or by an iteration of its own before them, and every other part adds to it; otherwise each part
computes entries of its own.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var

from ..errors import SparseProgramError
from ..formats import Format, Layout
from ..ir import Axis, SparseBuffer, SparseFunc, SparseIteration
from ..ir.buffer import ancestors, declare_buffer
from ..ir.function import TENSORS_ATTR
from ..ir.verify import unseparated_axes
from ..transform._layout import size_text
from ..transform.fill_outputs import COVER_MARK
from ..transform.promote_accumulators import promote_accumulators
from .dependences import check_accumulates, check_reads, stored_buffers
from .iterations import (
    axis_title,
    find_iteration,
    iterations_of,
    replace_iteration,
    with_fields,
)
from .padding import check_padding, holds_entry, marking_operand

__all__ = ["decompose_operands"]


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

    @property
    def parameters(self) -> list[str]:
        return [*self.arg_names, *(var.name for var in self.layout.params.values())]


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
    iteration = find_iteration(func, iteration_name)
    operands = [_operand(func, name, label) for name in operand_names]
    places = _places_of_axes(iteration, operands, label)
    reduced = any(iteration.kinds[place] == "R" for place in places)
    _check_accesses(func, iteration, operands, places, label)
    _check_neighbours(func, iteration, operands, label)
    check_reads(iteration, label)
    if reduced:
        check_accumulates(iteration, label)
    parts = _parts(func, iteration, operands, formats, label)

    first: tuple[str, ...] = ()
    if reduced:
        groups = {**(covering or {}), **{(p.name,): p.format.covers for p in parts}}
        first = _covering_parts(iteration, places, groups)
        parts = sorted(parts, key=lambda part: part.name not in first)
    # The parts add to a result that must not be rounded between them.
    func = promote_accumulators(func, keep={operand.buffer for operand in operands})
    iteration = find_iteration(func, iteration_name)
    new: list[SparseIteration] = []
    for part in parts:
        keeps_init = iteration.init is not None and (not reduced or part.name in first)
        new += _part_iterations(iteration, operands, places, part, keeps_init, label)
    if reduced and iteration.init is not None and not first:
        new.insert(0, _init_iteration(iteration))
    changed = replace_iteration(func, iteration, new)
    changed = _with_parameters(changed, operands, parts)
    _check_names(changed, label)
    return _with_shapes(changed, func, operands, parts), [it.name for it in new]


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
    for operand in operands:
        _check_operand_elsewhere(func, iteration, operand, label)


def _check_operand_elsewhere(
    func: SparseFunc, iteration: SparseIteration, operand: SparseBuffer, label: str
) -> None:
    """A result that is held in parts exists nowhere else, and parts are not computed elsewhere."""
    if not _used_outside(func, iteration, operand.buffer):
        return
    if operand.buffer in stored_buffers(iteration):
        raise SparseProgramError(
            f"{label}: operand {operand.name} is a result that other statements use as well, and "
            "they would not see its parts"
        )
    if operand.buffer in stored_buffers(func.body):
        raise SparseProgramError(
            f"{label}: operand {operand.name} is computed by other statements, which would not fill "
            "its parts"
        )


def _check_neighbours(
    func: SparseFunc, iteration: SparseIteration, operands: Sequence[SparseBuffer], label: str
) -> None:
    """What shares axes with an operand is searched by coordinates, once the operand's are gone."""
    axes = set(operands[0].axes)
    for axis, _, var in iteration.iterators:
        if axis not in axes and set(ancestors(axis)) & axes:
            parent = next(found for found in ancestors(axis) if found in axes)
            raise SparseProgramError(
                f"{label}: axis {axis_title(axis, [var])} is stored under axis {parent.name} of operand "
                f"{operands[0].name}, which would not be iterated any more"
            )
    for other in [*func.buffers, *func.temporaries]:
        shared = [axis for axis in other.axes if axis in axes and not getattr(axis, "unique", True)]
        used = _count_uses(iteration, other.buffer)
        if shared and used and not any(other.same_as(operand) for operand in operands):
            names = ", ".join(repr(buffer.name) for buffer in [*operands, other])
            raise SparseProgramError(
                f"{label}: {other.name} is stored over axis {shared[0].name} too, which may repeat "
                f"coordinates, so that it cannot be searched for them; decompose [{names}] together"
            )


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


def _names(axes: Sequence[Axis]) -> str:
    return ", ".join(axis.name for axis in axes)


# --- the parts ---------------------------------------------------------------------------------


def _parts(
    func: SparseFunc,
    iteration: SparseIteration,
    operands: Sequence[SparseBuffer],
    formats: Mapping[str, Format],
    label: str,
) -> list[_Part]:
    """Declare the parts, whose parameters must not have names of others."""
    prefix = func.arg_names[_param_index(func, operands[0])]
    parts = [_part(func, operands, prefix, name, fmt, label) for name, fmt in formats.items()]
    replaced = {
        func.arg_names[_param_index(func, operand)]
        for operand in operands
        if not _used_outside(func, iteration, operand.buffer)
    }
    taken = {*func.arg_names} - replaced
    for part in parts:
        clash = sorted(taken & {*part.parameters})
        if clash:
            hint = "give it another name" if part.name else "pass a dict with a name for the format"
            raise SparseProgramError(
                f"{label}: part {part.name!r} needs parameters that exist already "
                f"({', '.join(clash)}); {hint}"
            )
        taken |= {*part.parameters}
    return parts


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
    lengths = [stored.axis.length for stored in layout.axes]
    buffers = [
        SparseBuffer(
            buffer=declare_buffer(lengths, operand.dtype, f"{operand.name}{suffix}"),
            axes=[stored.axis for stored in layout.axes],
            default=operand.default,
        )
        for operand in operands
    ]
    return _Part(name, fmt, layout, buffers, [f"{arg}{suffix}" for arg in old])


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


def _part_iterations(
    iteration: SparseIteration,
    operands: Sequence[SparseBuffer],
    places: Sequence[int],
    part: _Part,
    keeps_init: bool,
    label: str,
) -> list[SparseIteration]:
    """The iteration over the axes of one part, in place of those of the operand.

    A part that initialises no more than the places of its entries does so in an iteration of its own
    first, if its loops visit other places too (padding), or some of them several entries of one place.
    """
    inits_entries = keeps_init and all(iteration.kinds[place] == "S" for place in places)
    marking = None
    if part.format.marks_padding:
        marking = marking_operand(iteration, operands)
        if marking is None:
            check_padding(iteration, operands, part.format, inits_entries, label)
    whole = _part_iteration(iteration, operands, places, part, keeps_init, marking)
    is_own = stored_buffers(iteration) <= {operand.buffer for operand in operands}
    if not inits_entries or is_own:
        return [whole]
    stored = set(part.axes)
    repeats = any(kind == "R" and axis in stored for axis, kind, _ in whole.iterators)
    if marking is None and not repeats:
        return [whole]
    check_accumulates(iteration, label)
    return [_init_of_part(whole, part, marking), with_fields(whole, init=None)]


def _part_iteration(
    iteration: SparseIteration,
    operands: Sequence[SparseBuffer],
    places: Sequence[int],
    part: _Part,
    keeps_init: bool,
    marking: int | None,
) -> SparseIteration:
    names = [
        _iterator_name(iteration, places, stored.dims, axis)
        for stored, axis in zip(part.layout.axes, part.axes)
    ]
    others = [v.name for place, v in enumerate(iteration.iter_vars) if place not in places]
    stored_vars = [
        Var(name, axis.dtype) for name, axis in zip(_distinct_names(names, others), part.axes)
    ]
    by_operand = {o.buffer: b.buffer for o, b in zip(operands, part.buffers)}
    is_own = stored_buffers(iteration) <= set(by_operand)
    loops = _order_loops(iteration, places, part, stored_vars, is_own)
    coordinates = part.layout.to_tensor(stored_vars)
    values = {
        iteration.iter_vars[place]: expr.astype(str(iteration.iter_vars[place].ty.dtype))
        for place, expr in zip(places, coordinates)
    }
    for place, var in enumerate(iteration.iter_vars):
        if place not in places:
            values[var] = Var(var.name, str(var.ty.dtype))
    loops = [(axis, kind, values.get(var, var)) for axis, kind, var in loops]

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

    init = rewrite(iteration.init) if keeps_init else None
    annotations = dict(iteration.annotations)
    if init is not None and any(iteration.kinds[place] == "R" for place in places):
        annotations[COVER_MARK] = True
    body = rewrite(iteration.body)
    if marking is not None:
        body = tirx.IfThenElse(holds_entry(part.buffers[marking], stored_vars), body, None)
    node = SparseIteration(
        axes=[axis for axis, _, _ in loops],
        kinds="".join(kind for _, kind, _ in loops),
        iter_vars=[var for _, _, var in loops],
        body=body,
        init=init,
        name=f"{iteration.name}_{part.name or part.format.name}",
        annotations=annotations,
        span=iteration.span,
    )
    shared = {axis for _, axis in unseparated_axes(node)} & set(part.axes)
    kinds = ("R" if axis in shared else kind for axis, kind, _ in node.iterators)
    return with_fields(node, kinds="".join(kinds))


def _init_of_part(whole: SparseIteration, part: _Part, marking: int | None) -> SparseIteration:
    """The initialisation of the places of a part's entries: no loop over reductions."""
    stored = set(part.axes)
    kept = {axis for axis, kind, _ in whole.iterators if kind == "S"} | stored
    for axis in list(kept):
        kept |= set(ancestors(axis))
    chosen = [(axis, kind, var) for axis, kind, var in whole.iterators if axis in kept]
    body = whole.init
    if marking is not None:
        variables = {axis: var for axis, _, var in chosen}
        slot = [variables[axis] for axis in part.axes]
        body = tirx.IfThenElse(holds_entry(part.buffers[marking], slot), body, None)
    fresh = {var: Var(var.name, str(var.ty.dtype)) for _, _, var in chosen}
    return with_fields(
        whole,
        axes=[axis for axis, _, _ in chosen],
        kinds="".join(kind for _, kind, _ in chosen),
        iter_vars=list(fresh.values()),
        body=tvm_ffi.structural_map(body, [(Var, lambda var: fresh.get(var, var))]),
        init=None,
        name=f"{whole.name}_init",
        annotations={},
    )


def _iterator_name(
    iteration: SparseIteration, places: Sequence[int], dims: Sequence[int], axis: Axis
) -> str:
    """An axis of one dimension goes on with the name of its iterator, others are named by the axis."""
    if len(dims) == 1:
        return iteration.iter_vars[places[dims[0]]].name
    return axis.name.rpartition("_")[2].lower()


def _distinct_names(names: Sequence[str], others: Sequence[str]) -> list[str]:
    """Number iterators of the same name: ``i_0, i_1`` for block and row within the block."""
    taken = set(others)
    distinct: list[str] = []
    for name in names:
        numbers = itertools.count()
        is_repeated = names.count(name) > 1
        chosen = f"{name}_{next(numbers)}" if is_repeated else name
        while chosen in taken:
            chosen = f"{name}_{next(numbers)}"
        taken.add(chosen)
        distinct.append(chosen)
    return distinct


def _order_loops(
    iteration: SparseIteration,
    places: Sequence[int],
    part: _Part,
    stored_vars: Sequence[Var],
    is_own: bool,
) -> list[tuple[Axis, str, Var]]:
    """Loops of a part: each stored axis where its first dimension was, and never before its parent.

    All results are the operands' ``is_own``: then every entry has a place of its own.
    """
    slots: list[list[tuple[Axis, str, Var]]] = [[] for _ in iteration.iter_vars]
    where: dict[Axis, int] = {}
    for stored, var in zip(part.layout.axes, stored_vars):
        axis = stored.axis
        place = min(places[dim] for dim in stored.dims)
        for ancestor in ancestors(axis):
            place = max(place, where.get(ancestor, 0))
        where[axis] = place
        kinds = {iteration.kinds[places[dim]] for dim in stored.dims}
        kind = "S" if kinds == {"S"} and (stored.distinct or is_own) else "R"
        slots[place].append((axis, kind, var))
    loops = []
    for place, (axis, kind, var) in enumerate(iteration.iterators):
        loops += slots[place] if place in places else [(axis, kind, var)]
    return loops


def _init_iteration(iteration: SparseIteration) -> SparseIteration:
    """The initialisation of the result, over the spatial iterators that it uses."""
    used: set[Var] = set()
    tvm_ffi.structural_walk(iteration.init, [(Var, used.add)])
    spatial = [(axis, var) for axis, kind, var in iteration.iterators if kind == "S"]
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


def _with_shapes(
    func: SparseFunc, before: SparseFunc, operands: Sequence[SparseBuffer], parts: Sequence[_Part]
) -> SparseFunc:
    """Note the shapes of the tensors, so that a packed one tells the sizes of the program."""
    names = dict(zip(func.params, func.arg_names))
    shape = [size_text(axis.length, names) for axis in operands[0].axes]
    known = json.loads(str((func.attrs or {}).get(TENSORS_ATTR, "{}")))
    for k, operand in enumerate(operands):
        known[before.arg_names[_param_index(before, operand)]] = shape
        known |= {part.arg_names[k]: shape for part in parts}
    return func.with_attr(TENSORS_ATTR, json.dumps(known))


def _check_names(func: SparseFunc, label: str) -> None:
    """Iterations are known by their names."""
    names = [iteration.name for iteration in iterations_of(func)]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SparseProgramError(
            f"{label}: two iterations would be called {repeated[0]}; give the part another name"
        )


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

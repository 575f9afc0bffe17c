"""The iterations over the parts of a decomposed operand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var

from ..errors import SparseProgramError
from ..ir import Axis, SparseBuffer, SparseFunc, SparseIteration
from ..ir.accumulation import accumulation_of
from ..ir.buffer import ancestors, declare_buffer
from ..ir.contents import buffers_stored, variables_of
from ..ir.verify import unseparated_axes
from ..transform.fill_outputs import COVER_MARK, START_MARK
from .dependences import check_accumulates
from .iterations import with_fields
from .padding import check_padding, holds_entry, marking_operand
from .parts import Part

__all__ = ["init_iteration", "part_iterations"]


def part_iterations(
    iteration: SparseIteration,
    operands: Sequence[SparseBuffer],
    places: Sequence[int],
    part: Part,
    keeps_init: bool,
    label: str,
) -> tuple[list[SparseIteration], list[SparseBuffer]]:
    """The iterations over the axes of one part in place of those of the operand, and temporaries.

    A part that initialises no more than the places of its entries does so in an iteration of its own
    first, if its loops visit other places too (padding), or some of them several entries of one place.
    """
    is_reduced = any(iteration.kinds[place] == "R" for place in places)
    inits_entries = keeps_init and not is_reduced
    marking = None
    if part.format.marks_padding:
        marking = marking_operand(iteration, operands)
        if marking is None:
            check_padding(iteration, operands, part.format, inits_entries, label)
    whole = _part_iteration(iteration, operands, places, part, keeps_init, marking)
    if _combines(iteration, places, part):
        contributions, *pair = _contribution_iterations(whole, label)
        return pair, [contributions]
    is_own = buffers_stored(iteration) <= {operand.buffer for operand in operands}
    if not inits_entries or is_own:
        return [whole], []
    stored = set(part.axes)
    repeats = any(kind == "R" and axis in stored for axis, kind, _ in whole.iterators)
    if marking is None and not repeats:
        return [whole], []
    check_accumulates(iteration, label)
    return [_init_of_part(whole, part, marking), with_fields(whole, init=None)], []


def _combines(iteration: SparseIteration, places: Sequence[int], part: Part) -> bool:
    """Whether stored rows compute contributions of their own: the rows are spatial, entries reduced."""
    rows = part.layout.axes[0].dims
    return (
        part.format.combines
        and any(iteration.kinds[place] == "R" for place in places)
        and all(iteration.kinds[places[dim]] == "S" for dim in rows)
    )


def _part_iteration(
    iteration: SparseIteration,
    operands: Sequence[SparseBuffer],
    places: Sequence[int],
    part: Part,
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
    is_reduced = any(iteration.kinds[place] == "R" for place in places)
    is_separate = (
        _combines(iteration, places, part)
        if is_reduced
        else buffers_stored(iteration) <= set(by_operand)
    )
    loops = _order_loops(iteration, places, part, stored_vars, is_separate)
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
        own = _fresh_definitions(stmt)
        renamed = {**values, **own}

        def load(node: TensorLoad, mutator) -> Expr:
            if node.source in by_operand:
                return tirx.BufferLoad(by_operand[node.source], stored_vars)
            indices = [mutator.mutate(index) for index in node.indices]
            return tirx.BufferLoad(own.get(node.source, node.source), indices)

        def store(node: tirx.BufferStore, mutator) -> tirx.Stmt:
            value = mutator.mutate(node.value)
            if node.buffer in by_operand:
                return tirx.BufferStore(by_operand[node.buffer], value, stored_vars, node.span)
            indices = [mutator.mutate(index) for index in node.indices]
            return tirx.BufferStore(own.get(node.buffer, node.buffer), value, indices, node.span)

        def variable(node: Var, _mutator) -> Expr:
            return renamed.get(node, node)

        return tvm_ffi.structural_mutate(
            stmt,
            [
                (TensorLoad, load),
                (tirx.BufferStore, store),
                (tirx.AllocBuffer, lambda node, _m: tirx.AllocBuffer(own[node.buffer])),
                (tirx.Bind, lambda node, m: tirx.Bind(own[node.var], m.mutate(node.value))),
                (tirx.For, lambda node, m: _with_loop_var(node, own[node.loop_var], m)),
                (Var, variable),
            ],
        )

    init = rewrite(iteration.init) if keeps_init else None
    annotations = dict(iteration.annotations)
    if init is not None and is_reduced:
        annotations[COVER_MARK] = True
        if part.format.covers_at_start:
            annotations[START_MARK] = stored_vars[0].name
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
    if is_separate:
        return node
    shared = {axis for _, axis in unseparated_axes(node)} & set(part.axes)
    kinds = ("R" if axis in shared else kind for axis, kind, _ in node.iterators)
    return with_fields(node, kinds="".join(kinds))


def _fresh_definitions(stmt: tirx.Stmt) -> dict[Var, Var]:
    """New variables for those that a body defines, which every part defines for itself."""
    fresh: dict[Var, Var] = {}

    def rename(var: Var) -> None:
        fresh[var] = Var(var.name, str(var.ty.dtype))

    def allocate(node: tirx.AllocBuffer) -> None:
        ty = node.buffer.ty
        fresh[node.buffer] = declare_buffer(
            ty.shape, str(ty.dtype), node.buffer.name, ty.storage_scope
        )

    tvm_ffi.structural_walk(
        stmt,
        [
            (tirx.AllocBuffer, allocate),
            (tirx.Bind, lambda node: rename(node.var)),
            (tirx.For, lambda node: rename(node.loop_var)),
        ],
    )
    return fresh


def _with_loop_var(loop: tirx.For, var: Var, mutator) -> tirx.For:
    begin, extent, body = (mutator.mutate(part) for part in (loop.min, loop.extent, loop.body))
    return tirx.For(var, begin, extent, loop.kind, body, annotations=loop.annotations)


def _init_of_part(whole: SparseIteration, part: Part, marking: int | None) -> SparseIteration:
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
    used = set().union(*(variables_of(index) for index in indices))
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
    part: Part,
    stored_vars: Sequence[Var],
    is_separate: bool,
) -> list[tuple[Axis, str, Var]]:
    """Loops of a part: each stored axis where its first dimension was, and never before its parent.

    Entries that are spatial have places of their own in all results if ``is_separate``; else the format
    says whether they have.
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
        separate = stored.distinct or is_separate
        kind = "S" if kinds == {"S"} and separate else "R"
        slots[place].append((axis, kind, var))
    loops = []
    for place, (axis, kind, var) in enumerate(iteration.iterators):
        loops += slots[place] if place in places else [(axis, kind, var)]
    return loops


def init_iteration(func: SparseFunc, iteration: SparseIteration) -> SparseIteration:
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

"""Hold a sparse operand as a sum of parts, each in its own format.

The iteration that uses the operand becomes one iteration for each part, over the axes of the part's
format. Where the operand is reduced over, the result is initialised once, by a part that visits all of
it or by an iteration of its own before them, and every other part adds to it; otherwise each part
computes entries of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var

from ..errors import SparseProgramError
from ..formats import Format
from ..ir import Axis, MergedAxis, SparseBuffer, SparseFunc, SparseIteration
from ..ir.buffer import ancestors
from ..ir.contents import buffers_stored
from ..transform.fill_outputs import inits_all
from ..transform.promote_accumulators import promote_accumulators
from .dependences import check_accumulates, check_reads
from .iterations import (
    axis_title,
    find_iteration,
    iterations_of,
    position_of_iterator,
    replace_iteration,
)
from .part_iterations import init_iteration, part_iterations
from .part_parameters import with_parameters, with_tensors
from .parts import declare_parts
from .uses import count_uses, is_used_outside, param_index

__all__ = ["decompose_operands", "operand_over"]


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
    parts = declare_parts(func, iteration, operands, formats, label)

    # The parts add to a result that must not be rounded between them.
    func = promote_accumulators(func, keep={operand.buffer for operand in operands})
    iteration = find_iteration(func, iteration_name)
    first: tuple[str, ...] = ()
    if reduced and iteration.init is not None and inits_all(func, iteration):
        groups = {(p.name,): p.format.covers or p.format.covers_at_start for p in parts}
        first = _covering_parts(iteration, places, {**(covering or {}), **groups})
        parts = sorted(parts, key=lambda part: part.name not in first)
    new: list[SparseIteration] = []
    temporaries: list[SparseBuffer] = []
    for part in parts:
        keeps_init = iteration.init is not None and (not reduced or part.name in first)
        made, contributions = part_iterations(iteration, operands, places, part, keeps_init, label)
        new += made
        temporaries += contributions
    if reduced and iteration.init is not None and not first:
        new.insert(0, init_iteration(func, iteration))
    changed = replace_iteration(func, iteration, new)
    changed = changed.with_body(changed.body, [*changed.temporaries, *temporaries])
    changed = with_parameters(changed, operands, parts)
    _check_names(changed, label)
    changed = with_tensors(changed, func, operands, parts, first)
    return changed, [it.name for it in new]


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


# --- what may be decomposed --------------------------------------------------------------------


def _operand(func: SparseFunc, name: str, label: str) -> SparseBuffer:
    for buffer, arg in ((b, func.arg_names[param_index(func, b)]) for b in func.buffers):
        if name in (buffer.name, arg):
            return buffer
    found = ", ".join(buffer.name for buffer in func.buffers)
    raise SparseProgramError(f"{label}: expected one of the sparse buffers {found}, found {name!r}")


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
        merged = [loop for loop in loops if isinstance(loop, MergedAxis) and axis in loop.members]
        if merged:
            raise SparseProgramError(
                f"{label}: axis {axis.name} of operand {operands[0].name} is merged with others in "
                f"{merged[0].name}; decompose operands whose axes are loops of their own"
            )
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
    if not is_used_outside(func, iteration, operand.buffer):
        return
    if operand.buffer in buffers_stored(iteration):
        raise SparseProgramError(
            f"{label}: operand {operand.name} is a result that other statements use as well, and "
            "they would not see its parts"
        )
    if operand.buffer in buffers_stored(func.body):
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
        used = count_uses(iteration, other.buffer)
        if shared and used and not any(other.same_as(operand) for operand in operands):
            names = ", ".join(repr(buffer.name) for buffer in [*operands, other])
            raise SparseProgramError(
                f"{label}: {other.name} is stored over axis {shared[0].name} too, which may repeat "
                f"coordinates, so that it cannot be searched for them; decompose [{names}] together"
            )


def _check_names(func: SparseFunc, label: str) -> None:
    """Iterations are known by their names."""
    names = [iteration.name for iteration in iterations_of(func)]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SparseProgramError(
            f"{label}: two iterations would be called {repeated[0]}; give the part another name"
        )


def _names(axes: Sequence[Axis]) -> str:
    return ", ".join(axis.name for axis in axes)

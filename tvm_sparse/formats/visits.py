"""Walk the axes of a format as a kernel walks them, in NumPy, and count what they visit.

In: a packed tensor. Out: coordinates of every slot of some axes, or an error where a format says that its
axes visit all of a dimension (:attr:`Format.covers`), and for this tensor they do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import tirx
from tvm.ir import TensorLoad, Var

from ..ir import Axis
from ..ir.buffer import ancestors

if TYPE_CHECKING:
    from .format import Packed
    from .layout import Layout

__all__ = [
    "Known",
    "bind_layout",
    "check_covered_together",
    "check_covers",
    "places_of",
    "positions_of",
]

#: What the sizes and coordinate maps of layouts are made of.
_OPERATIONS = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
}

Known = Mapping[Var, Any]


def check_covers(packed: Packed) -> None:
    """Check that the axes visit every coordinate of the dimensions that a format covers, once.

    Raises
    ------
    ValueError
        If they do not; names the first coordinate.
    """
    for attribute in ("covers", "covers_at_start"):
        dims = tuple(getattr(packed.format, attribute))
        if dims:
            times = _times_visited(packed, dims, attribute == "covers_at_start")
            _check_once(times, f"{packed.format.name}: {attribute}", dims)


def check_covered_together(parts: Iterable[Packed], dims: tuple[int, ...], label: str) -> None:
    """Check that the axes of several parts together visit every coordinate of dimensions once.

    Raises
    ------
    ValueError
        If they do not; names the first coordinate.
    """
    _check_once(sum(_times_visited(part, dims, False) for part in parts), label, dims)


def _check_once(times: np.ndarray, label: str, dims: tuple[int, ...]) -> None:
    if (times != 1).any():
        place = tuple(int(found[0]) for found in np.nonzero(times != 1))
        raise ValueError(
            f"{label} names dimensions {dims}; the axes visit {place} of them {times[place]} times, not "
            "once"
        )


def _times_visited(packed: Packed, dims: tuple[int, ...], at_start: bool) -> np.ndarray:
    """Return how often each coordinate is visited, under the first entry of the first axis alone or not."""
    layout, known = bind_layout(packed)
    first = layout.axes[0].axis if at_start else None
    needed: set[Axis] = set()
    for stored in layout.axes:
        if stored.axis != first and set(stored.dims) & set(dims):
            needed |= {stored.axis, *ancestors(stored.axis)}
    axes = [stored.axis for stored in layout.axes if stored.axis in needed]
    places, inside = places_of(layout, axes, packed, known, dims)
    if first in needed:
        inside &= _walk(axes, known)[0][first] == 0
    shape = [packed.shape[dim] for dim in dims]
    visited = np.ravel_multi_index([found[inside] for found in places], shape)
    return np.bincount(visited, minlength=int(np.prod(shape))).reshape(shape)


def bind_layout(packed: Packed) -> tuple[Layout, Known]:
    """Return the layout of a packed tensor's format, and what its parameters are for the tensor.

    Raises
    ------
    ValueError
        If the layout declares other parameters than the tensor has.
    """
    storage, name = packed.storage, packed.format.name
    index_dtype = next((array.dtype.name for array in storage.arrays.values()), "int32")
    sizes = [Var(f"n{dim}", index_dtype) for dim in range(packed.format.rank)]
    layout = packed.format.layout("a", sizes, index_dtype)
    made = {**storage.arrays, **storage.sizes}
    if set(made) != set(layout.params):
        raise ValueError(
            f"{name}: expected store() to make what layout() declares ({_listed(layout.params)}), "
            f"found {_listed(made)}"
        )
    known: dict[Var, Any] = dict(zip(sizes, packed.shape))
    known |= {param: made[key] for key, param in layout.params.items()}
    return layout, known


def places_of(
    layout: Layout,
    axes: Sequence[Axis],
    packed: Packed,
    known: Known,
    dims: Sequence[int],
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return coordinates in the tensor of every slot of some axes, and whether they lie inside."""
    walked, inside = _walk(axes, known)
    count = inside.size
    variables = [Var(stored.axis.name, stored.axis.dtype) for stored in layout.axes]
    known = {**known}
    for stored, var in zip(layout.axes, variables):
        known[var] = walked.get(stored.axis, np.zeros(count, np.int64))
    maps = layout.to_tensor(variables)
    places = [np.broadcast_to(_evaluate(maps[dim], known), count) for dim in dims]
    for dim, found in zip(dims, places):
        inside &= (found >= 0) & (found < packed.shape[dim])
    return places, inside


def _walk(axes: Sequence[Axis], known: Known) -> tuple[dict[Axis, np.ndarray], np.ndarray]:
    """Return each axis' coordinate in every slot, and whether all indices are in range."""
    positions = positions_of(axes, known)
    inside = np.ones(next(iter(positions.values())).size, bool)
    walked = {}
    for axis, position in positions.items():
        if axis.parent_axis is None:
            walked[axis] = position
        elif axis.is_sparse:
            walked[axis] = np.asarray(known[axis.indices], np.int64).reshape(-1)[position]
            inside &= (walked[axis] >= 0) & (walked[axis] < _evaluate(axis.length, known))
        else:
            begins = _begins(axis, positions[axis.parent_axis].max(initial=-1) + 1, known)
            walked[axis] = position - begins[positions[axis.parent_axis]]
    return walked, inside


def positions_of(axes: Sequence[Axis], known: Known) -> dict[Axis, np.ndarray]:
    """Return the position of each axis' entry in every slot."""
    trees: list[dict[Axis, np.ndarray]] = []
    for axis in axes:
        if axis.parent_axis is None:
            trees.append({axis: np.arange(_evaluate(axis.length, known))})
            continue
        tree = next(tree for tree in trees if axis.parent_axis in tree)
        counts = np.diff(_begins(axis, tree[axis.parent_axis].size, known))
        for outer in tree:
            tree[outer] = np.repeat(tree[outer], counts)
        tree[axis] = np.arange(counts.sum())
    grids = np.indices([next(iter(tree.values())).size for tree in trees]).reshape(len(trees), -1)
    return {axis: p[grid] for tree, grid in zip(trees, grids) for axis, p in tree.items()}


def _begins(axis: Any, parents: int, known: Known) -> np.ndarray:
    """Return at which position the entries under each of so many parent entries begin, and all end."""
    if axis.is_variable:
        return np.asarray(known[axis.indptr], np.int64)
    return np.arange(parents + 1) * _evaluate(axis.nnz_cols, known)


def _evaluate(expr: Any, known: Known) -> Any:
    """Return an expression of a layout as an integer, or as one for each slot."""
    if isinstance(expr, int):
        return expr
    if isinstance(expr, tirx.IntImm):
        return int(expr.value)
    if isinstance(expr, Var):
        return known[expr]
    if isinstance(expr, tirx.Cast):
        return _evaluate(expr.value, known)
    if isinstance(expr, TensorLoad):
        (index,) = expr.indices
        return np.asarray(known[expr.source], np.int64).reshape(-1)[_evaluate(index, known)]
    for kind, operation in _OPERATIONS.items():
        if isinstance(expr, kind):
            return operation(_evaluate(expr.a, known), _evaluate(expr.b, known))
    raise ValueError(
        f"layout: expected sums, products and quotients of coordinates and arrays, found {expr}"
    )


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "nothing"

"""Try a format on a tensor: what its three methods say of storage must agree.

For authors of formats. A kernel trusts the layout, `unpack` trusts the index map; a fault in one of
them is a wrong result, seldom an error. Here the axes are walked as a kernel walks them, in NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import TensorLoad, Var

from ..ir import Axis
from ..ir.buffer import ancestors
from .format import Format, Packed
from .layout import Layout

__all__ = ["check_format"]

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


def check_format(format: Format, tensor: Any, index_dtype: str = "int32") -> Packed:
    """Pack a tensor and check that layout, arrays and index map belong together.

    Parameters
    ----------
    format : Format
        The format to try.
    tensor : scipy.sparse matrix or array, torch.Tensor, Packed or tuple
        See :func:`as_entries`. Take some with empty rows, and with sizes that fit the format badly.
    index_dtype : str
        ``"int32"`` or ``"int64"``.

    Returns
    -------
    Packed
        The packed tensor.

    Raises
    ------
    ValueError
        If the layout declares other parameters than :meth:`Format.store` makes, a slot belongs to
        another place by the layout than by :meth:`Format.coordinates`, padding lies at a place of the
        tensor and nothing marks it, or :attr:`Format.covers` or :attr:`Format.covers_at_start` names
        dimensions that the axes do not visit once each, or entries of an axis that is said to be distinct
        (:attr:`StoredAxis.distinct`) share coordinates.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import DCSR, check_format
    >>> class Covering(DCSR):
    ...     covers = (0,)
    >>> check_format(Covering(), sp.coo_matrix([[0, 0], [7.0, 8.0]]))
    Traceback (most recent call last):
    ValueError: dcsr: covers names dimensions (0,); the axes visit (0,) of them 0 times, not once
    """
    packed = format.pack(tensor, index_dtype)
    sizes = [Var(f"n{dim}", index_dtype) for dim in range(format.rank)]
    layout = format.layout("a", sizes, index_dtype)
    known = _bind(layout, sizes, packed)
    packed.check()
    _check_places(layout, packed, known)
    _check_distinct(layout, packed, known)
    _check_covers(layout, packed, known)
    return packed


def _bind(layout: Layout, sizes: Sequence[Var], packed: Packed) -> Known:
    """Return what the parameters of a layout are for a packed tensor."""
    storage, name = packed.storage, packed.format.name
    made = {**storage.arrays, **storage.sizes}
    if set(made) != set(layout.params):
        raise ValueError(
            f"{name}: expected store() to make what layout() declares ({_listed(layout.params)}), "
            f"found {_listed(made)}"
        )
    known: dict[Var, Any] = dict(zip(sizes, packed.shape))
    known |= {param: made[key] for key, param in layout.params.items()}
    return known


def _check_places(layout: Layout, packed: Packed, known: Known) -> None:
    """Every entry lies where the index map says, and padding outside unless it is marked."""
    fmt, slots = packed.format, packed.storage.slots
    axes = [stored.axis for stored in layout.axes]
    places, inside = _places(layout, axes, packed, known, range(packed.format.rank))
    if inside.size != packed.values.size:
        raise ValueError(
            f"{fmt.name}: expected a value for each of the {inside.size} slots of the axes, found "
            f"{packed.values.size}"
        )
    mapped = fmt.coordinates(packed.storage, slots)
    right = inside[slots]
    for found, expected in zip(places, mapped):
        right &= found[slots] == expected
    if not right.all():
        first = int(np.flatnonzero(~right)[0])
        raise ValueError(
            f"{fmt.name}: slot {slots[first]} lies at {_place(mapped, first)} by coordinates(), and at "
            f"{_place(places, slots[first])} by the layout"
        )
    if not fmt.marks_padding:
        inside[slots] = False
        if inside.any():
            slot = int(np.flatnonzero(inside)[0])
            raise ValueError(
                f"{fmt.name}: slot {slot} is padding at {_place(places, slot)} in the tensor; set "
                "marks_padding, or give padding an index outside"
            )


def _check_distinct(layout: Layout, packed: Packed, known: Known) -> None:
    """Entries of a distinct axis under one parent entry lie at different coordinates.

    A parallel loop over such an axis relies on it.
    """
    axes = [stored.axis for stored in layout.axes]
    positions = _grid(axes, known)
    places, inside = _places(layout, axes, packed, known, range(packed.format.rank))
    inside[:] = False
    inside[packed.storage.slots] = True  # what padding is at does not matter
    for stored in layout.axes:
        if not stored.distinct or not stored.dims:
            continue
        parent = stored.axis.parent_axis
        group = [] if parent is None else [positions[parent]]
        keys = np.stack([*group, *(places[dim] for dim in stored.dims)])[:, inside]
        with_entry = np.vstack([keys, positions[stored.axis][inside]])
        once, both = (np.unique(found, axis=1).shape[1] for found in (keys, with_entry))
        if once != both:
            raise ValueError(
                f"{packed.format.name}: axis {stored.axis.name.removeprefix('a_')} is distinct, but "
                f"{both - once} of its entries are at coordinates of dimensions {stored.dims} of others"
            )


def _check_covers(layout: Layout, packed: Packed, known: Known) -> None:
    """The axes of the dimensions in ``covers`` visit every coordinate once, or do so at the start."""
    for attribute in ("covers", "covers_at_start"):
        covers = tuple(getattr(packed.format, attribute))
        if covers:
            first = layout.axes[0].axis if attribute == "covers_at_start" else None
            _check_visits(layout, packed, known, attribute, covers, first)


def _check_visits(
    layout: Layout,
    packed: Packed,
    known: Known,
    attribute: str,
    covers: tuple[int, ...],
    first: Axis | None,
) -> None:
    """Each coordinate of some dimensions is visited once, under the first entry of ``first`` if given."""
    needed: set[Axis] = set()
    for stored in layout.axes:
        if stored.axis != first and set(stored.dims) & set(covers):
            needed |= {stored.axis, *ancestors(stored.axis)}
    axes = [stored.axis for stored in layout.axes if stored.axis in needed]
    places, inside = _places(layout, axes, packed, known, covers)
    if first is not None:
        inside &= _walk(axes, known)[0][first] == 0
    shape = [packed.shape[dim] for dim in covers]
    visited = np.ravel_multi_index([found[inside] for found in places], shape)
    times = np.bincount(visited, minlength=int(np.prod(shape)))
    if (times != 1).any():
        where = int(np.flatnonzero(times != 1)[0])
        place = tuple(int(found) for found in np.unravel_index(where, shape))
        raise ValueError(
            f"{packed.format.name}: {attribute} names dimensions {covers}; the axes visit {place} of "
            f"them {times[where]} times, not once"
        )


def _places(
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
    positions = _grid(axes, known)
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


def _grid(axes: Sequence[Axis], known: Known) -> dict[Axis, np.ndarray]:
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


def _place(coordinates: Sequence[np.ndarray], slot: int) -> tuple[int, ...]:
    return tuple(int(found[slot]) for found in coordinates)


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "nothing"

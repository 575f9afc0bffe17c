"""Try a format on a tensor: what its three methods say of storage must agree.

For authors of formats. A kernel trusts the layout, `unpack` trusts the index map; a fault in one of
them is a wrong result, seldom an error. Here the axes are walked as a kernel walks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .format import Format, Packed
from .layout import Layout
from .visits import Known, bind_layout, places_of, positions_of

__all__ = ["check_format"]


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
    layout, known = bind_layout(packed)
    packed.check()
    _check_places(layout, packed, known)
    _check_distinct(layout, packed, known)
    return packed


def _check_places(layout: Layout, packed: Packed, known: Known) -> None:
    """Every entry lies where the index map says, and padding outside unless it is marked."""
    fmt, slots = packed.format, packed.storage.slots
    axes = [stored.axis for stored in layout.axes]
    places, inside = places_of(layout, axes, packed, known, range(packed.format.rank))
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
    positions = positions_of(axes, known)
    places, inside = places_of(layout, axes, packed, known, range(packed.format.rank))
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


def _place(coordinates: Sequence[np.ndarray], slot: int) -> tuple[int, ...]:
    return tuple(int(found[slot]) for found in coordinates)

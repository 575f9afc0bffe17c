"""Checks of sparse index arrays: the cheap ones of every call and the full ones on request.

In: NumPy views of ``indptr`` and ``indices``. Out: nothing, or a ValueError that names the
argument, the expected and the found. The cheap check reads two numbers; the full checks read every
stored index.
"""

from __future__ import annotations

import numpy as np


def check_ends(label: str, indptr: np.ndarray, stored: int) -> None:
    """Check that `indptr` begins with 0 and ends with the number of stored entries.

    Spare capacity (arrays longer than ``indptr[-1]``) is refused: slice the arrays instead.

    Raises
    ------
    ValueError
        If an end is wrong.

    Examples
    --------
    >>> import numpy as np
    >>> from tvm_sparse.runtime.structure import check_ends
    >>> check_ends("spmm: argument 'indptr'", np.array([0, 2, 3]), 4)
    Traceback (most recent call last):
        ...
    ValueError: spmm: argument 'indptr': expected the last pointer to be 4, the number of stored \
entries, found 3; slice the stored arrays to indptr[-1]
    """
    if indptr.size == 0:
        raise ValueError(f"{label}: expected at least one pointer, found an empty array")
    if indptr[0] != 0:
        raise ValueError(f"{label}: expected the first pointer to be 0, found {indptr[0]}")
    if indptr[-1] != stored:
        hint = "; slice the stored arrays to indptr[-1]" if 0 <= indptr[-1] < stored else ""
        raise ValueError(
            f"{label}: expected the last pointer to be {stored}, the number of stored entries, "
            f"found {indptr[-1]}{hint}"
        )


def check_monotone(label: str, indptr: np.ndarray) -> None:
    """Check that pointers never decrease."""
    decreasing = np.flatnonzero(indptr[1:] < indptr[:-1])
    if decreasing.size:
        row = int(decreasing[0])
        raise ValueError(
            f"{label}: expected pointers that never decrease, found {indptr[row]} then "
            f"{indptr[row + 1]} at row {row}"
        )


def check_row_lengths(label: str, indptr: np.ndarray, length: int) -> None:
    """Check that no row of a ragged axis, whose coordinates count up, is longer than the axis."""
    lengths = np.diff(indptr)
    if lengths.size and lengths.max() > length:
        row = int(lengths.argmax())
        raise ValueError(
            f"{label}: expected rows of at most {length} entries, found {lengths[row]} in row {row}"
        )


def check_coordinates(label: str, indices: np.ndarray, length: int) -> None:
    """Check that every coordinate lies in ``[0, length)``; negative ones are never wrapped."""
    if indices.size == 0 or (indices.min() >= 0 and indices.max() < length):
        return
    flat = indices.reshape(-1)
    position = int(np.flatnonzero((flat < 0) | (flat >= length))[0])
    raise ValueError(
        f"{label}: expected coordinates in [0, {length}), found {flat[position]} at position "
        f"{position}"
    )


def check_order(
    label: str, indptr: np.ndarray, indices: np.ndarray, is_sorted: bool, is_unique: bool
) -> None:
    """Check that the coordinates of each row are sorted and unique, as declared."""
    if is_sorted:
        position = first_disorder(indptr, indices, strict=is_unique)
        if position is not None:
            wanted = "increase" if is_unique else "never decrease"
            raise ValueError(
                f"{label}: expected coordinates that {wanted} within a row, found "
                f"{indices[position]} then {indices[position + 1]} at position {position}"
            )
    elif is_unique:
        rows = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
        order = np.lexsort((indices, rows))
        same = (np.diff(rows[order]) == 0) & (np.diff(indices[order]) == 0)
        if same.any():
            position = int(order[np.flatnonzero(same)[0] + 1])
            raise ValueError(
                f"{label}: expected unique coordinates within a row, found {indices[position]} "
                f"again in row {rows[position]}"
            )


def first_disorder(indptr: np.ndarray, indices: np.ndarray, strict: bool) -> int | None:
    """Return the first position whose successor in the same row breaks the order, or None.

    With `strict`, an equal successor breaks it too.
    """
    if indices.size < 2:
        return None
    broken = indices[1:] <= indices[:-1] if strict else indices[1:] < indices[:-1]
    starts = indptr[1:-1]
    starts = starts[(starts > 0) & (starts < indices.size)]
    broken[starts - 1] = False  # the successor begins another row
    position = int(broken.argmax())
    return position if broken[position] else None


def check_padded_rows(
    label: str, indices: np.ndarray, length: int, is_sorted: bool, is_unique: bool
) -> None:
    """Check rows of padded coordinates (ELL), where a value outside ``[0, length)`` is padding.

    In a sorted axis the padding lies behind the entries, and is ``>= length``.
    """
    if indices.shape[-1] == 0 or indices.size == 0:
        return
    rows = indices.reshape(-1, indices.shape[-1])
    if not is_sorted:
        rows = np.sort(rows, axis=1)
    elif rows.min() < 0:
        row, slot = np.argwhere(rows < 0)[0]
        raise ValueError(
            f"{label}: expected padding of at least {length} in a sorted axis, found "
            f"{rows[row, slot]} in row {row}"
        )
    before, after = rows[:, :-1], rows[:, 1:]
    is_entry = (after >= 0) & (after < length)
    broken = is_entry & ((after <= before) if is_unique else (after < before))
    if broken.any():
        row, slot = np.argwhere(broken)[0]
        wanted = "coordinates that increase" if is_sorted else "unique coordinates"
        raise ValueError(
            f"{label}: expected {wanted} within a row, found {before[row, slot]} then "
            f"{after[row, slot]} in row {row}"
        )


def check_distinct(label: str, indices: np.ndarray, length: int) -> None:
    """Check that coordinates are in range and none occurs twice: such an axis has no padding."""
    entries = indices.reshape(-1)
    check_coordinates(label, entries, length)
    seen = np.zeros(length, bool)
    seen[entries] = True
    if np.count_nonzero(seen) == entries.size:
        return
    values, counts = np.unique(entries, return_counts=True)
    raise ValueError(
        f"{label}: expected distinct coordinates, found {values[counts > 1][0]} "
        f"{counts[counts > 1][0]} times"
    )

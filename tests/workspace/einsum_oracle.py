"""What ``einsum`` should give: join the factors of each term, expand, and combine equal coordinates."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

_OPERATIONS = {
    "plus-times": (np.add, np.multiply, 0),
    "min-plus": (np.minimum, np.add, np.inf),
    "max-plus": (np.maximum, np.add, -np.inf),
    "max-times": (np.maximum, np.multiply, -np.inf),
    "min-times": (np.minimum, np.multiply, np.inf),
    "max-min": (np.maximum, np.minimum, -np.inf),
    "min-max": (np.minimum, np.maximum, np.inf),
    "or-and": (np.maximum, np.minimum, 0),
}


@dataclass
class Expected:
    """Sorted coordinates ``(entries, dimensions)``, values, their scale, and how many products met."""

    coordinates: np.ndarray
    values: np.ndarray
    scale: np.ndarray
    products: int


_TERM = re.compile(r"([+-]*)(?:([\d.]+(?:e[+-]?\d+)?)\*)?([A-Za-z,]+)")


def expect(expression, *operands, semiring="plus-times", mask=None, complement=False) -> Expected:
    """Compute an expression in float64 or complex128."""
    left, result = expression.replace(" ", "").split("->")
    numbers, parts = iter(range(len(operands))), []
    for signs, number, term in _TERM.findall(left):
        factors = [_entries(operands[next(numbers)], own, semiring) for own in term.split(",")]
        coordinates, values = _product(factors, result, semiring)
        scale = (-1) ** signs.count("-") * float(number or 1)
        parts.append((coordinates, values if scale == 1 else scale * values))
    coordinates = np.concatenate([own for own, _ in parts])
    values = np.concatenate([own for _, own in parts])
    if mask is not None:
        _, places, _ = _entries(mask, result, "or-and", every=False)
        known, masked = _keys(coordinates, places)
        kept = np.isin(known, masked) != complement
        coordinates, values = coordinates[kept], values[kept]
    add, _, zero = _OPERATIONS[semiring]
    if coordinates.shape[1]:
        found, places = np.unique(coordinates, axis=0, return_inverse=True)
    else:
        found, places = np.zeros((1, 0), np.int64), np.zeros(values.size, np.int64)
    total, scale = np.full(len(found), zero, values.dtype), np.zeros(len(found))
    add.at(total, places.ravel(), values)
    np.add.at(scale, places.ravel(), np.abs(values))
    return Expected(found, total, scale, values.size)


def _stored(operand, every):
    """Coordinates and values of an operand; all places of a dense one, or those that are not zero."""
    if isinstance(operand, np.ndarray):
        chosen = np.ones(operand.shape, bool) if every else operand != 0
        return np.argwhere(chosen), operand[chosen]
    if isinstance(operand, list):
        parts = [_stored(own, every) for own in operand]
        columns = [np.insert(own, 0, number, axis=1) for number, (own, _) in enumerate(parts)]
        return np.concatenate(columns), np.concatenate([own for _, own in parts])
    coo = operand.tocoo() if sp.issparse(operand) else operand.unpack().tocoo()
    return np.stack([np.asarray(c, np.int64) for c in coo.coords], axis=1), coo.data


def _entries(operand, letters, semiring, every=True):
    """Distinct letters, coordinates and values of an operand; repeated ones added up."""
    coordinates, values = _stored(operand, every)
    values = (values != 0) if semiring == "or-and" else values
    distinct = "".join(dict.fromkeys(letters))
    first = coordinates[:, [letters.index(v) for v in letters]]
    chosen = (coordinates == first).all(axis=1)
    coordinates = coordinates[chosen][:, [letters.index(v) for v in distinct]]
    found, places = np.unique(coordinates, axis=0, return_inverse=True)
    summed = np.zeros(len(found), np.result_type(values.dtype, np.float64))
    np.add.at(summed, places.ravel(), values[chosen])
    return distinct, found, np.minimum(summed, 1) if semiring == "or-and" else summed


def _product(factors, result, semiring):
    _, multiply, _ = _OPERATIONS[semiring]
    letters, coordinates, values = factors[0]
    for own, others, their in factors[1:]:
        shared = [v for v in own if v in letters]
        left, right = _keys(
            coordinates[:, [letters.index(v) for v in shared]],
            others[:, [own.index(v) for v in shared]],
        )
        order = np.argsort(right, kind="stable")
        begin = np.searchsorted(right[order], left, "left")
        count = np.searchsorted(right[order], left, "right") - begin
        rows = np.repeat(np.arange(left.size), count)
        within = np.arange(rows.size) - np.repeat(np.cumsum(count) - count, count)
        columns = order[begin[rows] + within]
        new = [v for v in own if v not in letters]
        added = others[columns][:, [own.index(v) for v in new]]
        coordinates = np.concatenate([coordinates[rows], added], axis=1)
        values, letters = multiply(values[rows], their[columns]), letters + "".join(new)
    return coordinates[:, [letters.index(v) for v in result]], values


def _keys(left, right):
    """One number for each row, equal where rows are."""
    both = np.concatenate([left, right])
    if not both.shape[1]:
        return np.zeros(len(left), np.int64), np.zeros(len(right), np.int64)
    _, numbers = np.unique(both, axis=0, return_inverse=True)
    numbers = numbers.ravel()
    return numbers[: len(left)], numbers[len(left) :]


def check(found, expression: str, *operands, tolerance=1e-12, **options):
    """Compare a sparse result: coordinates exactly and in order, values within the scale of their sums."""
    expected = expect(expression, *operands, **options)
    if sp.issparse(found):
        if found.format == "csc":
            found, expected = found.T, _transposed(expected)
        assert_sound(found)
        coo = found.tocoo()
        coordinates = np.stack([np.asarray(c) for c in coo.coords], axis=1)
        values = coo.data
    elif hasattr(found, "unpack"):
        entries = found.entries()
        coordinates, values = np.stack(entries.coordinates, axis=1), entries.values
    else:
        coordinates, values = np.zeros((1, 0)), np.array([found])
    np.testing.assert_array_equal(coordinates, expected.coordinates)
    bound = tolerance * (1 + expected.scale)
    values = values.astype(np.result_type(values.dtype, np.float64))
    with np.errstate(invalid="ignore"):
        both = (expected.values == values) | (np.abs(values - expected.values) <= bound)
    both |= np.isnan(expected.values) & np.isnan(values)
    assert both.all(), (values[~both], expected.values[~both])
    return expected


def _transposed(expected: Expected) -> Expected:
    swapped = expected.coordinates[:, ::-1]
    order = np.lexsort(swapped.T[::-1])
    parts = expected.values[order], expected.scale[order], expected.products
    return Expected(swapped[order], *parts)


def assert_sound(tensor) -> None:
    """Pointers rise to the number of entries; coordinates rise within rows, none twice."""
    if tensor.format == "csr":
        assert tensor.indptr[0] == 0 and tensor.indptr[-1] == tensor.nnz == tensor.data.size
        assert (np.diff(tensor.indptr) >= 0).all()
        rises = np.diff(tensor.indices) > 0
        starts = tensor.indptr[1:-1]
        rises[starts[(starts > 0) & (starts < tensor.nnz)] - 1] = True
        assert rises.all()
    assert all(((c >= 0) & (c < n)).all() for c, n in zip(tensor.tocoo().coords, tensor.shape))

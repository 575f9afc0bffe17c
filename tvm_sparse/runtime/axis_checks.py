"""Checks of the index arrays of an axis, each named by its argument.

In: the arrays of a call, in host memory. Out: nothing, or an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .signature import Signature
from .structure import (
    check_coordinates,
    check_distinct,
    check_ends,
    check_monotone,
    check_order,
    check_padded_rows,
    check_row_lengths,
)

__all__ = ["check_axis", "check_axis_ends"]


def check_axis_ends(
    signature: Signature,
    axis: Mapping[str, Any],
    views: Mapping[str, Any],
    sizes: Mapping[str, Any],
) -> None:
    """Check where the pointers of an axis begin and end."""
    pointers = views.get(axis.get("indptr"))
    stored = signature.extent(axis, "nnz")
    if pointers is not None and stored is not None:
        label = _axis_label(signature, axis, "indptr")
        check_ends(label, pointers, stored.evaluate(sizes))


def check_axis(
    signature: Signature, axis: Mapping[str, Any], views: Mapping[str, Any], length: int | None
) -> None:
    """Check every pointer and coordinate of an axis; its length is None if nothing gives it."""
    pointers = views.get(axis.get("indptr"))
    indices = views.get(axis.get("indices"))
    order = axis.get("sorted", True), axis.get("unique", True)
    if pointers is not None:
        check_monotone(_axis_label(signature, axis, "indptr"), pointers)
        if axis["kind"] == "dense_variable" and length is not None:
            check_row_lengths(_axis_label(signature, axis, "indptr"), pointers, length)
    if indices is None:
        return
    label = _axis_label(signature, axis, "indices")
    if axis.get("distinct") and length is not None:
        check_distinct(label, indices, length)
    if axis["kind"] == "sparse_fixed":
        if length is not None:
            check_padded_rows(label, indices, length, *order)
        return
    if length is not None:
        check_coordinates(label, indices, length)
    if pointers is not None:
        check_order(label, pointers, indices, *order)


def _axis_label(signature: Signature, axis: Mapping[str, Any], kind: str) -> str:
    return f"{signature.label(axis[kind])} (axis {axis['name']!r})"

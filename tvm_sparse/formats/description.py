"""What the arrays of a format mean, as plain data: so that a kernel can tell the formats that it takes.

Names of arrays do not say it: CSR and CSC both have ``indptr`` and ``indices``. A description holds the
axes and the map to coordinates of the tensor, but no sizes, which the shapes of the arrays show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tvm.ir import Var

if TYPE_CHECKING:
    from .format import Format

__all__ = ["describe_format", "difference"]

#: What a kernel may rely on; a tensor that promises more than a kernel needs is fine.
_PROMISES = ("distinct", "unique", "sorted")
#: Dimensions whose coordinates are all visited, which a kernel relies on to initialise a result.
_VISITS = ("covers", "covers_at_start")


def describe_format(fmt: Format) -> dict[str, Any]:
    """Return the description of a format: its name, axes, map to coordinates, and marks.

    Examples
    --------
    >>> from tvm_sparse.formats import BSR
    >>> describe_format(BSR(2, 3))["coordinates"]
    'v0 * 2 + v2, v1 * 3 + v3'
    """
    layout = fmt.layout("t", [Var(f"n{dim}", "int32") for dim in range(fmt.rank)])
    numbers = {stored.axis: number for number, stored in enumerate(layout.axes)}
    axes = []
    for stored in layout.axes:
        axis = stored.axis
        entry = {"kind": axis.kind, "dims": list(stored.dims), "distinct": stored.distinct}
        if axis.parent_axis is not None:
            entry["parent"] = numbers[axis.parent_axis]
        for promise in ("unique", "sorted"):
            entry[promise] = bool(getattr(axis, promise, True))
        axes.append(entry)
    variables = [Var(f"v{number}", axis.dtype) for axis, number in numbers.items()]
    coordinates = ", ".join(str(expr) for expr in layout.to_tensor(variables))
    return {
        "name": fmt.name,
        "axes": axes,
        "coordinates": coordinates,
        "marks_padding": fmt.marks_padding,
        **{visits: list(getattr(fmt, visits)) for visits in _VISITS},
    }


def difference(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str | None:
    """Say why a tensor of one description cannot stand for one of another; None if it can."""
    names = f"packed as {expected['name']}, found one packed as {found['name']}"
    left, right = found["axes"], expected["axes"]
    structure = [[axis.get(key) for key in ("kind", "dims", "parent")] for axis in left]
    wanted = [[axis.get(key) for key in ("kind", "dims", "parent")] for axis in right]
    if structure != wanted:
        return f"{names}, whose axes are others"
    if found["coordinates"] != expected["coordinates"]:
        return (
            f"{names}, where slots (v0, v1, ...) have the coordinates ({found['coordinates']}) and not "
            f"({expected['coordinates']})"
        )
    for promise in _PROMISES:
        if any(wants[promise] and not has[promise] for has, wants in zip(left, right)):
            return f"{names}, whose entries are not known to be {promise}"
    for visits in _VISITS:
        missing = set(expected.get(visits, ())) - set(found.get(visits, ()))
        if missing:
            return f"{names}, whose axes are not known to visit all of dimension {min(missing)}"
    if expected["marks_padding"] and not found["marks_padding"]:
        return f"{names}, whose values do not tell padding from entries"
    return None

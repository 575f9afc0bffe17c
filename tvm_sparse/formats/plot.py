"""Pictures of packed matrices: where the stored slots lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .format import Packed

__all__ = ["draw"]

#: Rows or columns beyond which single entries are no longer seen.
LARGEST = 512


def draw(packed: Packed, ax: Any = None) -> Any:
    """Draw a packed matrix, one cell for each entry.

    The colour of a cell is the position of its slot in storage, dark first, so that the order of
    storage shows. The title says format, size and share of padding.

    Parameters
    ----------
    packed : Packed
        A matrix of at most 512 rows and columns.
    ax : matplotlib.axes.Axes, optional
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The drawing.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    ValueError
        If the tensor is no matrix or larger.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from matplotlib.figure import Figure
    >>> from tvm_sparse.formats import ELL
    >>> packed = ELL(2).pack(sp.coo_matrix([[0, 5.0], [7.0, 8.0]]))
    >>> packed.plot(Figure().subplots()).get_title()
    'ell2: 48 bytes, 25 % padding'
    """
    if len(packed.shape) != 2:
        raise ValueError(f"packed: expected a matrix, found {len(packed.shape)} dimensions")
    if max(packed.shape) > LARGEST:
        raise ValueError(
            f"packed: expected at most {LARGEST} rows and columns, found shape {packed.shape}; "
            "draw a part of it"
        )
    rows, columns = packed.shape
    cells = np.full((rows, columns), np.nan)
    slots = packed.storage.slots
    cells[packed.format.coordinates(packed.storage, slots)] = slots
    axes = _new_axes() if ax is None else ax
    axes.imshow(
        np.ma.masked_invalid(cells) if cells.size else np.zeros((1, 1, 4)),
        cmap="viridis",
        vmin=0,
        vmax=max(1, packed.values.size - 1),
        interpolation="nearest",
        extent=(-0.5, max(1, columns) - 0.5, max(1, rows) - 0.5, -0.5),
    )
    axes.set_xlabel("column")
    axes.set_ylabel("row")
    axes.set_title(
        f"{packed.format.name}: {packed.nbytes} bytes, {100 * packed.padding:.0f} % padding"
    )
    return axes


def _new_axes() -> Any:
    try:
        from matplotlib import pyplot  # noqa: PLC0415 (only drawing needs matplotlib)
    except ImportError as error:
        raise ImportError(
            "drawing a format needs matplotlib, which tvm_sparse requires; install it with: "
            "pip install matplotlib"
        ) from error
    return pyplot.figure().subplots()

"""Pictures of packed matrices: where the stored slots lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .composition import PackedComposition
    from .format import Packed

__all__ = ["draw", "draw_parts"]

#: Rows or columns beyond which single entries are no longer seen.
LARGEST = 512


def draw(packed: Packed, ax: Any = None) -> Any:
    """Draw a packed matrix, one cell for each entry.

    The colour of a cell is the position of its slot in storage, dark first, so that the order of
    storage shows. Padding of formats that store it at coordinates, such as :class:`BSR`, is grey; that
    of others, such as :class:`ELL`, lies nowhere. The title says format, size and share of padding.

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
    cells = _empty_cells(packed)
    slots = packed.storage.slots
    cells[packed.format.coordinates(packed.storage, slots)] = slots
    axes = _show(cells, packed.values.size - 1, packed.format.name, packed, ax)
    _show_padding(_padding_cells(packed), axes)
    return axes


def draw_parts(packed: PackedComposition, ax: Any = None) -> Any:
    """Draw a matrix packed in parts, one cell for each entry, one colour for each part that has some.

    Padding that lies in the matrix is grey, as in :func:`draw`.

    Parameters
    ----------
    packed : PackedComposition
        A matrix of at most 512 rows and columns.
    ax : matplotlib.axes.Axes, optional
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The drawing, with a legend.

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
    >>> from tvm_sparse.formats import Hyb
    >>> packed = Hyb(buckets=[1, 2]).pack(sp.coo_matrix([[0, 5.0], [7.0, 8.0]]))
    >>> packed.plot(Figure().subplots()).get_title()
    '2 of 3 parts: 52 bytes, 0 % padding'
    """
    cells = _empty_cells(packed)
    filled = {name: part for name, part in packed.parts.items() if part.storage.slots.size}
    for number, part in enumerate(filled.values()):
        cells[part.entries().coordinates] = number
    title = f"{len(filled)} of {len(packed.parts)} parts"
    axes = _show(cells, len(filled) - 1, title, packed, ax)
    colour = axes.get_images()[-1].to_rgba
    padding = np.logical_or.reduce([_padding_cells(part) for part in packed.parts.values()])
    _show_padding(padding & np.isnan(cells), axes)
    for number, name in enumerate(filled):
        axes.plot([], [], "s", color=colour(number), label=name)
    if filled:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), title="part")
    return axes


def _empty_cells(packed: Packed | PackedComposition) -> np.ndarray:
    if len(packed.shape) != 2:
        raise ValueError(f"packed: expected a matrix, found {len(packed.shape)} dimensions")
    if max(packed.shape) > LARGEST:
        raise ValueError(
            f"packed: expected at most {LARGEST} rows and columns, found shape {packed.shape}; "
            "draw a part of it"
        )
    return np.full(packed.shape, np.nan)


def _show(
    cells: np.ndarray, last: int, name: str, packed: Packed | PackedComposition, ax: Any
) -> Any:
    """Show cells of values ``0 .. last``."""
    rows, columns = packed.shape
    axes = _new_axes() if ax is None else ax
    axes.imshow(
        np.ma.masked_invalid(cells) if cells.size else np.zeros((1, 1, 4)),
        cmap="viridis",
        vmin=0,
        vmax=max(1, last),
        interpolation="nearest",
        extent=(-0.5, max(1, columns) - 0.5, max(1, rows) - 0.5, -0.5),
    )
    axes.set_xlabel("column")
    axes.set_ylabel("row")
    axes.set_title(f"{name}: {packed.nbytes} bytes, {100 * packed.padding:.0f} % padding")
    return axes


def _padding_cells(packed: Packed) -> np.ndarray:
    """Return for each coordinate of a matrix whether it lies in a padding slot."""
    cells = np.zeros(packed.shape, bool)
    if packed.format.marks_padding:
        is_padding = np.ones(packed.values.size, bool)
        is_padding[packed.storage.slots] = False
        found = packed.format.coordinates(packed.storage, np.flatnonzero(is_padding))
        inside = [(c >= 0) & (c < extent) for c, extent in zip(found, packed.shape)]
        cells[tuple(c[np.logical_and.reduce(inside)] for c in found)] = True
    return cells


def _show_padding(cells: np.ndarray, axes: Any) -> None:
    """Show cells of padding in grey, over what :func:`_show` drew."""
    if cells.any():
        extent = axes.get_images()[-1].get_extent()
        grey = np.where(cells[..., None], (0.5, 0.5, 0.5, 0.35), 0.0)
        axes.imshow(grey, interpolation="nearest", extent=extent)


def _new_axes() -> Any:
    try:
        from matplotlib import pyplot  # noqa: PLC0415 (only drawing needs matplotlib)
    except ImportError as error:
        raise ImportError(
            "drawing a format needs matplotlib, which tvm_sparse requires; install it with: "
            "pip install matplotlib"
        ) from error
    return pyplot.figure().subplots()

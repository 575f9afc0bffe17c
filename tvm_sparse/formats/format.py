"""The interface of all formats, and what packing a tensor into one gives.

A format is a description that knows no tensor: how the compiler sees it (:meth:`Format.layout`), and how
arrays are made of a tensor (:meth:`Format.pack`). A user's own format is a subclass with three methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from tvm.ir import Expr

from .entries import Entries, as_entries
from .layout import Layout

__all__ = ["Format", "Packed", "Storage"]


@dataclass(frozen=True)
class Storage:
    """The arrays that hold one tensor.

    Attributes
    ----------
    values : numpy.ndarray
        One element for each slot, in the natural shape of the format; zero in padding.
    arrays : dict of str to numpy.ndarray
        Index arrays, by the names of the layout's parameters.
    sizes : dict of str to int
        Sizes, by the names of the layout's parameters.
    slots : numpy.ndarray
        For each entry that was packed, its slot in the flattened values.
    """

    values: np.ndarray
    arrays: dict[str, np.ndarray]
    sizes: dict[str, int]
    slots: np.ndarray


class Format(ABC):
    """How a sparse tensor is stored.

    Subclasses define :meth:`layout`, :meth:`store` and :meth:`coordinates`; everything else follows.

    Attributes
    ----------
    name : str
        Short name, used in the names of parameters.
    rank : int
        Number of dimensions of the tensors it stores.
    keeps_duplicates : bool
        Whether repeated coordinates have slots of their own; otherwise they are summed.
    """

    name: str
    rank: int = 2
    keeps_duplicates: bool = False

    @abstractmethod
    def layout(self, prefix: str, shape: Sequence[Expr], index_dtype: str = "int32") -> Layout:
        """Describe the format to the compiler.

        Parameters
        ----------
        prefix : str
            Before the names of axes and parameters.
        shape : sequence of Expr
            Sizes of the tensor, constants or variables.
        index_dtype : str
            ``"int32"`` or ``"int64"``.
        """

    @abstractmethod
    def store(self, entries: Entries, index_dtype: np.dtype) -> Storage:
        """Lay out entries, which are sorted and, unless duplicates are kept, unique."""

    @abstractmethod
    def coordinates(self, storage: Storage, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the coordinates in the tensor of slots that hold entries: the index map."""

    def pack(self, tensor: Any, index_dtype: str = "int32") -> Packed:
        """Store a tensor in this format.

        Parameters
        ----------
        tensor : scipy.sparse matrix or array, torch.Tensor, Packed or tuple
            See :func:`as_entries`. Repeated coordinates are summed unless the format keeps them;
            explicit zeros are entries.
        index_dtype : str
            ``"int32"`` or ``"int64"``.

        Returns
        -------
        Packed
            The arrays.

        Raises
        ------
        TypeError, ValueError
            If the tensor is not one, has another rank, or does not fit the index dtype.
        """
        if index_dtype not in ("int32", "int64"):
            raise ValueError(f"index_dtype: expected 'int32' or 'int64', found {index_dtype!r}")
        given = as_entries(tensor, self.rank)
        entries, places = _prepare(given, self.keeps_duplicates)
        dtype = np.dtype(index_dtype)
        check_fits(self.name, max(given.shape, default=0), dtype)
        storage = self.store(entries, dtype)
        check_fits(self.name, max(storage.values.size, *storage.sizes.values(), 0), dtype)
        return Packed(self, given.shape, storage, places)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


@dataclass(frozen=True)
class Packed:
    """A tensor in a format.

    Attributes
    ----------
    format : Format
        The format.
    shape : tuple of int
        Of the tensor.
    storage : Storage
        Its arrays.
    places : numpy.ndarray or None
        For each entry of the source, its place among the stored ones; None where they are the same.
    """

    format: Format
    shape: tuple[int, ...]
    storage: Storage
    places: np.ndarray | None = field(default=None, repr=False)

    @property
    def values(self) -> np.ndarray:
        """The values, one for each slot."""
        return self.storage.values

    @property
    def nbytes(self) -> int:
        """Bytes of values and index arrays, those that a kernel reads."""
        return self.values.nbytes + sum(a.nbytes for a in self.storage.arrays.values())

    @property
    def padding(self) -> float:
        """Share of the slots that hold no entry, between 0 and 1."""
        return 1 - self.storage.slots.size / self.values.size if self.values.size else 0.0

    def entries(self) -> Entries:
        """Return the stored entries: coordinates through the index map, and values."""
        slots = self.storage.slots
        return Entries(
            tuple(self.format.coordinates(self.storage, slots)),
            self.values.reshape(-1)[slots],
            self.shape,
        )

    def unpack(self) -> sp.csr_matrix | sp.coo_array:
        """Return the tensor as SciPy holds it: CSR for matrices, else COO.

        Explicit zeros stay, padding goes; entries are sorted. SciPy holds no half precision: float16
        and bfloat16 values become float32, which is exact; :meth:`entries` keeps the dtype.
        """
        entries = self.entries().sorted()
        values = entries.values
        if values.dtype == np.float16 or values.dtype.kind == "V":
            values = values.astype(np.float32)
        if len(self.shape) != 2:
            return sp.coo_array((values, entries.coordinates), shape=self.shape)
        rows, columns = entries.coordinates
        indptr = np.zeros(self.shape[0] + 1, columns.dtype)
        np.cumsum(np.bincount(rows, minlength=self.shape[0]), out=indptr[1:])
        return sp.csr_matrix((values, columns, indptr), shape=self.shape)

    def update_values(self, values: np.ndarray) -> None:
        """Replace the values, the structure stays.

        Parameters
        ----------
        values : numpy.ndarray
            Shape ``(entries,)`` in the order of the source that was packed; repeated coordinates are
            summed where the format does.

        Raises
        ------
        TypeError, ValueError
            If they are of another kind, or there are more or fewer of them.
        """
        given = np.asarray(values)
        slots, places = self.storage.slots, self.places
        count = slots.size if places is None else places.size
        if given.shape != (count,):
            raise ValueError(f"values: expected shape ({count},), found {given.shape}")
        if not np.can_cast(given.dtype, self.values.dtype, "same_kind"):
            raise TypeError(f"values: expected {self.values.dtype}, found {given.dtype}")
        flat = self.values.reshape(-1)
        if places is None:
            flat[slots] = given
        elif places.size == slots.size:
            flat[slots[places]] = given
        else:
            flat[slots] = _sum_by_place(given, places).astype(flat.dtype)

    def arguments(self, name: str) -> dict[str, Any]:
        """Return what a kernel takes for this tensor, by parameter name.

        Parameters
        ----------
        name : str
            The prefix of its layout in the kernel: the values go by it, arrays and sizes by
            ``name_indptr`` and so on.
        """
        parts = {**self.storage.arrays, **self.storage.sizes}
        return {name: self.values, **{f"{name}_{key}": part for key, part in parts.items()}}

    def plot(self, ax: Any = None) -> Any:
        """Draw where entries lie in the matrix, coloured in the order in which they are stored.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw.

        Returns
        -------
        matplotlib.axes.Axes
            The drawing.
        """
        from .plot import draw  # noqa: PLC0415 (only drawing needs matplotlib)

        return draw(self, ax)


def _prepare(given: Entries, keeps_duplicates: bool) -> tuple[Entries, np.ndarray | None]:
    """Sort entries and sum repeated ones; say where each went."""
    order = given.order
    entries = given.sorted()
    places = None
    if order is not None:
        places = np.empty(order.size, np.int64)
        places[order] = np.arange(order.size)
    if keeps_duplicates or entries.count < 2:
        return entries, places
    repeated = np.logical_and.reduce([c[1:] == c[:-1] for c in entries.coordinates])
    if not repeated.any():
        return entries, places
    first = np.concatenate([[True], ~repeated])
    rank = np.cumsum(first) - 1
    unique = Entries(
        tuple(c[first] for c in entries.coordinates),
        _sum_by_place(entries.values, rank),
        entries.shape,
    )
    return unique, rank if places is None else rank[places]


def _sum_by_place(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Sum the values of each place, in the order of the source; every place has at least one.

    Starts from the first value and not from zero, which would lose the sign of -0.0.
    """
    wide = np.result_type(values.dtype, np.float32) if values.dtype.kind in "fV" else values.dtype
    order = np.argsort(places, kind="stable")
    begins = np.concatenate([[0], np.flatnonzero(np.diff(places[order])) + 1])
    return np.add.reduceat(values[order].astype(wide), begins).astype(values.dtype)


def check_fits(name: str, size: int, dtype: np.dtype) -> None:
    """Refuse a size, of a tensor in the format called ``name``, that an index dtype cannot hold."""
    if size > np.iinfo(dtype).max:
        raise ValueError(
            f"{name}: size {size} does not fit index_dtype {dtype.name}; pass index_dtype='int64'"
        )

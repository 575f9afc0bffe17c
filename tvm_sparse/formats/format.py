"""The interface of all formats, and what packing a tensor into one gives.

A format is a description that knows no tensor: how the compiler sees it (:meth:`Format.layout`), and how
arrays are made of a tensor (:meth:`Format.pack`). A user's own format is a subclass with three methods.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from tvm.ir import Expr

from .description import describe_format
from .entries import Entries, as_entries, places_in
from .layout import Layout

if TYPE_CHECKING:
    from .on_device import PackedOnDevice

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
    They set :attr:`name`, and keep each parameter of their ``__init__`` as an attribute of its name, by
    which a trace saves them. :func:`check_format` tries whether what they say agrees.

    Attributes
    ----------
    name : str
        Short name, an identifier. It tells formats apart: kernels take tensors packed in one of the same
        name, and parameters are named by it.
    rank : int
        Number of dimensions of the tensors it stores.
    keeps_duplicates : bool
        Whether repeated coordinates have slots of their own; otherwise they are summed.
    marks_padding : bool
        Whether the bits of a value tell padding from entries, in types of floats: a padding slot holds
        +0.0 (all bits zero), and an entry that is zero is stored as -0.0, which equals it.
    covers : tuple of int
        Dimensions of which the axes visit every coordinate once, whether it holds entries or not. A
        result over these is initialised by the part itself.
    covers_at_start : tuple of int
        As `covers`, but under the first entry of the first axis, a dense one; under later entries the
        axes may visit some of the coordinates again, to add to the result.
    combines : bool
        Whether rows repeat, a few times: each stored row then computes its contribution at a place of
        its own, and they are added to the result one after another.
    """

    name: str
    rank: int = 2
    keeps_duplicates: bool = False
    marks_padding: bool = False
    covers: tuple[int, ...] = ()
    covers_at_start: tuple[int, ...] = ()
    combines: bool = False

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
        """Return the coordinates in the tensor of slots that hold entries: the index map.

        A format that marks padding is asked for its padding slots too; these may lie outside.
        """

    def takes(self, entries: Entries) -> np.ndarray:
        """Choose the entries that the format stores well, as one part of a :class:`Composition`.

        Parameters
        ----------
        entries : Entries
            Those that the parts before it left; sorted.

        Returns
        -------
        numpy.ndarray
            A boolean for each; all of them unless the format says otherwise.
        """
        return np.ones(entries.count, bool)

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
        dtype = as_index_dtype(index_dtype)
        given = as_entries(tensor, self.rank)
        entries, places = prepare(given, self.keeps_duplicates)
        return Packed(self, given.shape, store_entries(self, entries, dtype), places)

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
        slots = self.values.size
        return (slots - self.storage.slots.size) / slots if slots else 0.0

    @functools.cached_property
    def description(self) -> dict[str, Any]:
        """What its arrays mean, see :func:`tvm_sparse.formats.description.describe_format`."""
        return describe_format(self.format)

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
        return to_scipy(self.entries())

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
        slots = self.storage.slots
        stored = in_stored_order(values, self.places, slots.size, self.values.dtype)
        self.values.reshape(-1)[slots] = mark_zeros(stored) if self.format.marks_padding else stored

    def restore_padding(self) -> None:
        """Put zeros back into padding after something wrote to all slots, and mark entries of zero.

        A kernel whose result was passed as a packed tensor has done so. Where a kernel was given the
        arrays of :meth:`arguments`, call it before another kernel reads them.
        """
        if self.format.marks_padding:
            slots, values = self.storage.slots, self.values.reshape(-1)
            entries = values[slots]
            values[:] = 0
            values[slots] = mark_zeros(entries)

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

    def check(self) -> None:
        """Validate what index arrays do not tell, such as values in padding.

        Part of ``validate="full"`` of a kernel.

        Raises
        ------
        ValueError
            If two entries share a slot, an entry lies outside of the tensor, padding is not zero, or the
            axes do not visit what :attr:`Format.covers` says.
        """
        from .visits import check_covers  # noqa: PLC0415 (it needs this module)

        check_slots(self.format.name, self, self.storage.slots.size)
        check_covers(self)

    def to(self, device: Any) -> PackedOnDevice:
        """Return it on a GPU, where kernels for CUDA take it.

        Parameters
        ----------
        device : str, torch.device or tvm.runtime.Device
            ``"cuda"`` or ``"cuda:1"``.

        Returns
        -------
        PackedOnDevice
            With copies of the arrays; ``to_host()`` brings the values back.

        Raises
        ------
        ValueError
            If it is no GPU, or this machine lacks it.
        """
        from .on_device import PackedOnDevice, gpu  # noqa: PLC0415 (few need a GPU)

        return PackedOnDevice(self, gpu(device))

    def formats(self, name: str) -> dict[str, str]:
        """Return the name of the format by that of its values among the arguments."""
        return {name: self.format.name}

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

    def __repr__(self) -> str:
        return f"<Packed {self.format.name}: {describe(self, self.storage.slots.size)}>"


def describe(packed: Any, count: int) -> str:
    """Return shape, entries, size and padding of a packed tensor as text."""
    shape = "x".join(map(str, packed.shape))
    return f"{shape}, {count} entries, {packed.nbytes} bytes, {100 * packed.padding:.0f} % padding"


def as_index_dtype(name: str) -> np.dtype:
    """Return the dtype of index arrays; refuse others than int32 and int64."""
    if name not in ("int32", "int64"):
        raise ValueError(f"index_dtype: expected 'int32' or 'int64', found {name!r}")
    return np.dtype(name)


def store_entries(format: Format, entries: Entries, dtype: np.dtype) -> Storage:
    """Lay out sorted entries in a format, and check that sizes fit the index dtype."""
    check_fits(format.name, max(entries.shape, default=0), dtype)
    if format.marks_padding:
        entries = entries.with_values(mark_zeros(entries.values))
    storage = format.store(entries, dtype)
    check_fits(format.name, max(storage.values.size, *storage.sizes.values(), 0), dtype)
    return storage


def mark_zeros(values: np.ndarray) -> np.ndarray:
    """Return values with -0.0 for every zero, as entries are stored beside padding; integers as given."""
    if values.dtype.kind not in "fcV":
        return values
    zero = values == 0
    return np.where(zero, -np.zeros((), values.dtype), values) if zero.any() else values


def to_scipy(entries: Entries) -> sp.csr_matrix | sp.coo_array:
    """Return entries as SciPy holds them, sorted; see :meth:`Packed.unpack`."""
    entries = entries.sorted()
    values = entries.values
    if values.dtype == np.float16 or values.dtype.kind == "V":
        values = values.astype(np.float32)
    if len(entries.shape) != 2:
        return sp.coo_array((values, entries.coordinates), shape=entries.shape)
    indptr = entries.row_pointers.astype(entries.columns.dtype)
    return sp.csr_matrix((values, entries.columns, indptr), shape=entries.shape)


def in_stored_order(
    values: np.ndarray, places: np.ndarray | None, count: int, dtype: np.dtype
) -> np.ndarray:
    """Bring values from the order of the source to that of the ``count`` stored entries.

    Repeated coordinates are summed where ``places`` names one entry several times.
    """
    given = np.asarray(values)
    expected = count if places is None else places.size
    if given.shape != (expected,):
        raise ValueError(f"values: expected shape ({expected},), found {given.shape}")
    if not np.can_cast(given.dtype, dtype, "same_kind"):
        raise TypeError(f"values: expected {dtype}, found {given.dtype}")
    if places is None:
        return given
    if places.size > count:
        return _sum_by_place(given, places).astype(dtype)
    stored = np.empty_like(given)
    stored[places] = given
    return stored


def prepare(given: Entries, keeps_duplicates: bool) -> tuple[Entries, np.ndarray | None]:
    """Sort entries and sum repeated ones; say where each went."""
    order = given.order
    entries = given.sorted()
    places = None if order is None else places_in(order)
    if keeps_duplicates or entries.count < 2:
        return entries, places
    repeated = entries.repeats()
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
    with np.errstate(invalid="ignore"):  # of infinite values
        return np.add.reduceat(values[order].astype(wide), begins).astype(values.dtype)


def check_fits(name: str, size: int, dtype: np.dtype) -> None:
    """Refuse a size, of a tensor in the format called ``name``, that an index dtype cannot hold."""
    if size > np.iinfo(dtype).max:
        raise ValueError(
            f"{name}: size {size} does not fit index_dtype {dtype.name}; pass index_dtype='int64'"
        )


def as_size(size: Integral) -> int:
    """Return a plain integer of NumPy's; a sampled one of a schedule stays as it is."""
    return size if isinstance(size, int) else int(size)


def check_positive(**sizes: int) -> None:
    """Refuse parameters of a format that are not positive integers, by name."""
    for name, size in sizes.items():
        if not isinstance(size, Integral) or size < 1:
            raise ValueError(f"{name}: expected an integer of at least 1, found {size!r}")


def check_slots(name: str, part: Packed, count: int) -> None:
    """Refuse a tensor in which ``count`` entries do not have slots in the values to themselves."""
    slots, values = part.storage.slots, part.values.reshape(-1)
    held = np.zeros(values.size, bool)
    if slots.size != count or (count and not 0 <= slots.min() <= slots.max() < values.size):
        raise ValueError(
            f"{name}: expected {count} slots in 0..{values.size - 1}, found {slots.size} others"
        )
    held[slots] = True
    if np.count_nonzero(held) != count:
        raise ValueError(f"{name}: expected one entry in each slot, found one with several")
    if values[~held].view(np.uint8).any():
        raise ValueError(f"{name}: expected zeros in padding, found other values")
    if part.format.marks_padding and values.dtype.kind in "fcV":
        bits = values[slots].view(np.uint8).reshape(count, values.itemsize)
        if not bits.any(axis=1).all():
            raise ValueError(
                f"{name}: expected -0.0 for an entry that is zero, found 0.0 as in padding"
            )
    for dim, (found, extent) in enumerate(zip(part.entries().coordinates, part.shape)):
        if count and not 0 <= found.min() <= found.max() < extent:
            raise ValueError(
                f"{name}: expected coordinates of dimension {dim} in 0..{extent - 1}, found "
                f"{found.min()}..{found.max()}"
            )

"""Compositions: a tensor as a sum of parts, each in the format that suits it.

Every entry goes to one part. Parts choose in order, each from what those before it left, so that they
are disjoint and together hold the whole tensor by construction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from .entries import Entries, as_entries, stable_order
from .format import (
    Format,
    Packed,
    as_index_dtype,
    check_slots,
    describe,
    in_stored_order,
    prepare,
    store_entries,
    to_scipy,
)
from .visits import check_covered_together, check_covers

if TYPE_CHECKING:
    from .on_device import PackedCompositionOnDevice

__all__ = ["Composition", "PackedComposition"]


class Composition:
    """A tensor as the sum of disjoint parts, by name.

    Parameters
    ----------
    parts : mapping of str to Format, or sequence of Format
        By name; those of a sequence go by the formats' names. Each takes, in order, what it stores
        well (:meth:`Format.takes`) of what is left; the last one usually takes all.
    keeps_duplicates : bool
        Give repeated coordinates slots of their own; all parts must do so. Otherwise they are summed
        before the entries are divided.

    Notes
    -----
    The composable formats of SparseTIR (ASPLOS'23), where the parts are divided by hand
    and unchecked.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import BSR, CSR, Composition
    >>> matrix = sp.coo_matrix([[1.0, 2, 0, 0], [3, 4, 0, 5]])
    >>> packed = Composition({"blocks": BSR(2, 2, min_fill=0.5), "rest": CSR()}).pack(matrix)
    >>> packed.parts["blocks"].values.tolist(), packed.parts["rest"].values.tolist()
    ([[[1.0, 2.0], [3.0, 4.0]]], [5.0])
    """

    keeps_duplicates: bool = False
    rank: int
    #: Names of parts that together visit every coordinate of the dimensions ``covers`` once, see
    #: :attr:`Format.covers`; none unless the composition says so.
    covering_parts: tuple[str, ...] = ()
    covers: tuple[int, ...] = ()

    @property
    def disjoint_rows(self) -> dict[str, str]:
        """Groups of parts, by part, that have no row in common; none unless the composition says so."""
        return {}

    def __init__(
        self, parts: Mapping[str, Format] | Sequence[Format], keeps_duplicates: bool = False
    ) -> None:
        self._parts = name_parts(parts, "parts")
        self.keeps_duplicates = keeps_duplicates
        self.rank = _common_rank(self._parts)
        for name, part in self._parts.items():
            if keeps_duplicates and not part.keeps_duplicates:
                raise ValueError(
                    f"parts: {name} ({part.name}) sums repeated coordinates, which the composition "
                    "is to keep"
                )

    @property
    def parts(self) -> dict[str, Format]:
        """The formats of the parts, in the order in which they take entries."""
        return self._parts

    def assign(self, entries: Entries) -> np.ndarray:
        """Say which part each entry goes to.

        Parameters
        ----------
        entries : Entries
            Sorted and, unless duplicates are kept, unique.

        Returns
        -------
        numpy.ndarray
            Number of the part in the order of :attr:`parts`; their count where none takes the entry.
        """
        count = len(self.parts)
        numbers = np.full(entries.count, count, np.min_scalar_type(count))
        left, places = entries, np.arange(entries.count)
        for number, (name, part) in enumerate(self.parts.items()):
            taken = np.asarray(part.takes(left))
            if taken.dtype != bool or taken.shape != (left.count,):
                raise ValueError(
                    f"{name} ({part.name}): expected takes() to return {left.count} booleans, found "
                    f"{taken.dtype} of shape {taken.shape}"
                )
            numbers[places[taken]] = number
            rest = np.flatnonzero(~taken)
            left, places = left.take(rest), places[rest]
        return numbers

    def pack(self, tensor: Any, index_dtype: str = "int32") -> PackedComposition:
        """Divide a tensor among the parts and store each in its format.

        Parameters
        ----------
        tensor : scipy.sparse matrix or array, torch.Tensor, Packed or tuple
            See :func:`as_entries`.
        index_dtype : str
            ``"int32"`` or ``"int64"``.

        Returns
        -------
        PackedComposition
            The parts.

        Raises
        ------
        TypeError, ValueError
            If the tensor is not one, has another rank, does not fit the index dtype, or has entries
            that no part takes.
        """
        dtype = as_index_dtype(index_dtype)
        entries, places = prepare(as_entries(tensor, self.rank), self.keeps_duplicates)
        return self._fitted(entries)._pack(entries, places, dtype)

    def fitted(self, tensor: Any) -> Composition:
        """Choose, for a tensor, what the description leaves open, as :meth:`pack` does first.

        Parameters
        ----------
        tensor : scipy.sparse matrix or array, torch.Tensor, Packed or tuple
            See :func:`as_entries`.

        Returns
        -------
        Composition
            Itself if it leaves nothing open.
        """
        entries, _ = prepare(as_entries(tensor, self.rank), self.keeps_duplicates)
        return self._fitted(entries)

    def _fitted(self, entries: Entries) -> Composition:
        """Choose what is open for sorted entries."""
        return self

    def _pack(
        self, entries: Entries, places: np.ndarray | None, dtype: np.dtype
    ) -> PackedComposition:
        parts, chosen = {}, {}
        for (name, part), picked in zip(self.parts.items(), self._divide(entries)):
            own = entries if picked.size == entries.count else entries.take(picked)
            parts[name] = Packed(part, entries.shape, store_entries(part, own, dtype))
            chosen[name] = picked
        return PackedComposition(self, entries.shape, parts, chosen, places)

    def _divide(self, entries: Entries) -> list[np.ndarray]:
        """Return the places of each part's entries, in order."""
        numbers, count = self.assign(entries), len(self.parts)
        sizes = np.bincount(numbers, minlength=count + 1)
        if sizes[count]:
            raise ValueError(
                f"{self!r}: {sizes[count]} of {entries.count} entries are left after the last part; "
                "add one that takes all, for example CSR()"
            )
        order = stable_order(numbers, count)
        if entries.count < 2**31:
            order = order.astype(np.int32)
        return np.split(order, np.cumsum(sizes[: count - 1]))

    def __repr__(self) -> str:
        formats = ", ".join(f"{name}: {part.name}" for name, part in self._parts.items())
        return f"<{type(self).__name__} {formats}>"


@dataclass(frozen=True)
class PackedComposition:
    """A tensor packed as a sum of parts.

    Attributes
    ----------
    composition : Composition
        What it was packed by.
    shape : tuple of int
        Of the tensor.
    parts : dict of str to Packed
        The parts, by name; each has the shape of the whole tensor.
    chosen : dict of str to numpy.ndarray
        Places of each part's entries among all entries, which are sorted.
    places : numpy.ndarray or None
        For each entry of the source, its place among the sorted ones; None where they are the same.
    """

    composition: Composition
    shape: tuple[int, ...]
    parts: dict[str, Packed]
    chosen: dict[str, np.ndarray] = field(repr=False)
    places: np.ndarray | None = field(default=None, repr=False)

    @property
    def count(self) -> int:
        """Number of stored entries."""
        return sum(picked.size for picked in self.chosen.values())

    @property
    def nbytes(self) -> int:
        """Bytes of values and index arrays, those that a kernel reads."""
        return sum(part.nbytes for part in self.parts.values())

    @property
    def padding(self) -> float:
        """Share of the slots that hold no entry, between 0 and 1."""
        slots = sum(part.values.size for part in self.parts.values())
        return (slots - self.count) / slots if slots else 0.0

    def entries(self) -> Entries:
        """Return the stored entries of all parts, sorted."""
        parts = [part.entries() for part in self.parts.values()]
        order = np.concatenate([np.empty(0, np.int32), *self.chosen.values()])

        def joined(arrays: list[np.ndarray]) -> np.ndarray:
            together = np.concatenate(arrays)
            whole = np.empty_like(together)
            whole[order] = together
            return whole

        dims = range(len(self.shape))
        coordinates = tuple(joined([part.coordinates[dim] for part in parts]) for dim in dims)
        return Entries(coordinates, joined([part.values for part in parts]), self.shape)

    def unpack(self) -> sp.csr_matrix | sp.coo_array:
        """Return the tensor as SciPy holds it, as :meth:`Packed.unpack` does."""
        return to_scipy(self.entries())

    def update_values(self, values: np.ndarray) -> None:
        """Replace the values, the structure and the division into parts stay.

        Parameters
        ----------
        values : numpy.ndarray
            Shape ``(entries,)`` in the order of the source that was packed.

        Raises
        ------
        TypeError, ValueError
            If they are of another kind, or there are more or fewer of them.
        """
        dtype = next(iter(self.parts.values())).values.dtype
        stored = in_stored_order(values, self.places, self.count, dtype)
        for name, part in self.parts.items():
            part.update_values(stored[self.chosen[name]])

    def restore_padding(self) -> None:
        """Put zeros back into the padding of all parts, as :meth:`Packed.restore_padding` does."""
        for part in self.parts.values():
            part.restore_padding()

    def arguments(self, name: str) -> dict[str, Any]:
        """Return what a kernel takes for this tensor, by parameter name.

        Parameters
        ----------
        name : str
            The prefix of the operand: part ``rest`` goes by ``name_rest``, see
            :meth:`Packed.arguments`.
        """
        return {
            key: argument
            for part_name, part in self.parts.items()
            for key, argument in part.arguments(f"{name}_{part_name}").items()
        }

    def to(self, device: Any) -> PackedCompositionOnDevice:
        """Return it on a GPU, where kernels for CUDA take it.

        Parameters
        ----------
        device : str, torch.device or tvm.runtime.Device
            ``"cuda"`` or ``"cuda:1"``.

        Returns
        -------
        PackedCompositionOnDevice
            With copies of the arrays; ``to_host()`` brings the values back.

        Raises
        ------
        ValueError
            If it is no GPU, or this machine lacks it.
        """
        from .on_device import PackedCompositionOnDevice, gpu  # noqa: PLC0415 (few need a GPU)

        return PackedCompositionOnDevice(self, gpu(device))

    def formats(self, name: str) -> dict[str, str]:
        """Return the names of the parts' formats by those of their values among the arguments."""
        return {f"{name}_{part_name}": part.format.name for part_name, part in self.parts.items()}

    def check(self) -> None:
        """Validate the parts, and that every entry is in one of them.

        Part of ``validate="full"`` of a kernel.

        Raises
        ------
        ValueError
            If a part has a slot twice, an entry outside of the tensor or a value in padding, if an
            entry lies in two parts, or one is missing, or if a part, or those that are to do so together,
            do not visit what they are to cover.
        """
        for name, part in self.parts.items():
            check_slots(name, part, self.chosen[name].size)
            check_covers(part)
        if together := self.composition.covering_parts:
            covering = [self.parts[name] for name in together]
            label = f"{self.composition!r}: covers of {', '.join(together)}"
            check_covered_together(covering, self.composition.covers, label)
        held = np.sort(np.concatenate(list(self.chosen.values())))
        if not np.array_equal(held, np.arange(held.size)):
            raise ValueError(f"{self.composition!r}: expected every entry in one part")
        parts = [part.entries().coordinates for part in self.parts.values()]
        coordinates = tuple(np.concatenate(found) for found in zip(*parts))
        entries = Entries(coordinates, np.empty(held.size, bool), self.shape).sorted()
        if not self.composition.keeps_duplicates and entries.count > 1:
            repeated = np.flatnonzero(entries.repeats())
            if repeated.size:
                where = tuple(int(found[repeated[0]]) for found in entries.coordinates)
                raise ValueError(f"{self.composition!r}: entry {where} is stored twice")

    def plot(self, ax: Any = None) -> Any:
        """Draw where the entries of each part lie in the matrix, one colour for each part.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw.

        Returns
        -------
        matplotlib.axes.Axes
            The drawing.
        """
        from .plot import draw_parts  # noqa: PLC0415 (only drawing needs matplotlib)

        return draw_parts(self, ax)

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{name}{f': {part.format.name}' if part.format.name != name else ''}"
            f" of {self.chosen[name].size}"
            for name, part in self.parts.items()
        )
        return f"<PackedComposition {describe(self, self.count)} ({parts})>"


def name_parts(parts: Mapping[str, Format] | Sequence[Format], label: str) -> dict[str, Format]:
    """Return formats by name; a sequence goes by the formats' own names."""
    if isinstance(parts, Mapping):
        named, found = dict(parts), list(parts.values())
    elif isinstance(parts, Sequence) and not isinstance(parts, str):
        found = list(parts)
        named = {getattr(part, "name", str(part)): part for part in found}
    else:
        raise TypeError(
            f"{label}: expected a format such as CSR(), a dict of formats by name or a sequence of them, "
            f"found {parts!r}"
        )
    for part in found:
        if not isinstance(part, Format):
            hint = "; name its parts, as in **hyb.parts" if isinstance(part, Composition) else ""
            raise TypeError(f"{label}: expected a Format for each part, found {part!r}{hint}")
    for name in named:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{label}: expected names that are identifiers, found {name!r}")
    if not named:
        raise ValueError(f"{label}: expected one format or more, found none")
    if len(named) < len(found):
        raise ValueError(f"{label}: two have the same name; pass a dict of names to formats")
    return named


def _common_rank(parts: Mapping[str, Format]) -> int:
    ranks = {part.rank for part in parts.values()}
    if len(ranks) != 1:
        found = ", ".join(f"{name} of {part.rank}" for name, part in parts.items())
        raise ValueError(f"parts: expected formats for tensors of one rank, found {found}")
    return ranks.pop()

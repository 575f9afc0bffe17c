"""hyb: rows sorted into buckets by length, each bucket padded to one width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from .bucket import Bucket, EmptyRows, LongBucket, rows_without_entries
from .composition import Composition, PackedComposition
from .entries import Entries
from .format import Format, Packed, as_size, check_positive
from .orders import Order, check_order, order_name
from .row_visits import find_rows

__all__ = ["BucketComposition", "Hyb", "choose_widths"]


class BucketComposition(Composition):
    """Base of compositions whose parts are buckets, the widths of which may be left open.

    Parameters
    ----------
    rank : int
        Number of dimensions of the tensors.
    buckets : dict of str to Bucket or None
        The parts by name; None while widths are open.
    """

    def __init__(self, rank: int, buckets: Mapping[str, Bucket] | None) -> None:
        if buckets is None:
            self._parts, self.rank = {}, rank
        else:
            super().__init__(buckets)

    @property
    def parts(self) -> dict[str, Format]:
        """The buckets by name, narrow ones first."""
        if not self._parts:
            raise ValueError(
                f"{self!r}: widths are open; give buckets, or let fitted(tensor) choose them"
            )
        return self._parts

    def _fitted(self, entries: Entries) -> Composition:
        return self if self._parts else self._choose(entries)

    def _choose(self, entries: Entries) -> Composition:
        """Choose widths for sorted entries."""
        raise NotImplementedError


class Hyb(BucketComposition):
    """Rows in buckets by length, for each range of columns on its own.

    Columns are cut into equal ranges. In each, a row goes by its number of entries there: into the
    narrowest bucket that is at least as wide, nowhere if it has none, and into the widest one, cut
    into pieces, if it is longer than that. Part ``w4`` is the bucket of width 4, range by range; see
    :class:`Bucket`, and :class:`LongBucket` for the widest. With one range, part ``w0`` lists the rows
    without entries (:class:`EmptyRows`), so that the parts together visit every row once.

    One description serves every matrix: buckets and ranges may be empty.

    Parameters
    ----------
    column_parts : int
        Number of ranges, which keep the rows of a dense operand that one range needs in cache.
    buckets : sequence of int, optional
        Widths, rising. None leaves them open: :meth:`fitted`, and :meth:`pack` for its tensor, choose
        them from how long rows are, see :func:`choose_widths`.
    order : str, sequence of int, callable or None
        Order of the rows of each bucket, as for :class:`RowList`.

    Notes
    -----
    hyb(c, k) of SparseTIR (ASPLOS'23), which has widths 1, 2, 4, ..., 2**k, gives
    pieces of a long row as several rows, and carries no values.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse.formats import Hyb
    >>> packed = Hyb(buckets=[1, 2]).pack(sp.coo_matrix([[0, 5.0, 0], [1.0, 2, 3], [0, 0, 0]]))
    >>> {name: part.values.tolist() for name, part in packed.parts.items()}
    {'w0': [[[]]], 'w1': [[[5.0]]], 'w2': [[1.0, 2.0], [3.0, 0.0]]}
    >>> packed.padding
    0.2
    """

    def __init__(
        self,
        column_parts: int = 1,
        buckets: Sequence[int] | None = None,
        order: Order = None,
    ) -> None:
        check_positive(column_parts=column_parts)
        self.column_parts = column_parts
        self.order = check_order(order)
        self.buckets = None if buckets is None else check_widths(buckets)
        if self.buckets is None:
            super().__init__(2, None)
            return
        buckets = make_buckets(self.buckets, column_parts, order=self.order)
        if column_parts == 1:
            buckets.insert(0, EmptyRows())
            self.covers = (0,)
            self.covering_parts = tuple(bucket.name for bucket in buckets)
        super().__init__(2, {bucket.name.rpartition("_")[2]: bucket for bucket in buckets})

    @property
    def disjoint_rows(self) -> dict[str, str]:
        """All buckets: a row, or its entries in one range, is in one of them."""
        return dict.fromkeys(self.parts, "buckets")

    def _choose(self, entries: Entries) -> Hyb:
        lengths = np.diff(find_rows(entries, self.column_parts))
        return Hyb(self.column_parts, choose_widths(lengths), self.order)

    def assign(self, entries: Entries) -> np.ndarray:
        lengths = np.diff(find_rows(entries, self.column_parts))
        numbers = bucket_of_length(lengths, self.buckets) + len(self.parts) - len(self.buckets)
        return np.repeat(numbers.astype(np.min_scalar_type(len(self.parts))), lengths)

    def _pack(
        self, entries: Entries, places: np.ndarray | None, dtype: np.dtype
    ) -> PackedComposition:
        packed = super()._pack(entries, places, dtype)
        if self.covering_parts:
            name = self.covering_parts[0]
            rows = rows_without_entries(entries)
            empty = self.parts[name]
            storage = empty.store_rows(rows, entries.shape[1], entries.values.dtype, dtype)
            packed.parts[name] = Packed(empty, entries.shape, storage)
        return packed

    def __repr__(self) -> str:
        order = "" if self.order is None else f", order={order_name(self.order)}"
        return f"Hyb(column_parts={self.column_parts}, buckets={self.buckets}{order})"


def make_buckets(
    widths: Sequence[int],
    column_parts: int = 1,
    relation: int | None = None,
    order: Order = None,
) -> list[Bucket]:
    """Return one bucket for each width; the widest one takes rows of any length."""
    kinds = [*[Bucket] * (len(widths) - 1), LongBucket]
    return [kind(width, column_parts, relation, order) for kind, width in zip(kinds, widths)]


def bucket_of_length(lengths: np.ndarray, widths: Sequence[int]) -> np.ndarray:
    """Return the number of the narrowest bucket that holds rows of these lengths, or of the widest."""
    return np.minimum(np.searchsorted(widths, lengths), len(widths) - 1)


def check_widths(buckets: Sequence[int]) -> tuple[int, ...]:
    """Refuse widths that are not positive and rising."""
    widths = tuple(buckets)
    check_positive(**{f"buckets[{k}]": width for k, width in enumerate(widths)})
    if not widths or any(low >= high for low, high in pairwise(widths)):
        raise ValueError(f"buckets: expected one or more rising widths, found {list(widths)}")
    return tuple(as_size(width) for width in widths)


def choose_widths(lengths: np.ndarray, most: int = 8) -> tuple[int, ...]:
    """Choose widths of buckets for rows of these lengths.

    Widths come from the numbers of at most three significant bits (1 to 8, 10, 12, 14, 16, 20, ...)
    and the lengths that at least a tenth of the rows have. The widest is at least the mean length, so
    that most rows stay whole. A choice costs, for each padded row or piece of one, its width and one
    more for bookkeeping. The rule finds the cheapest choice of ``most`` widths or fewer, and takes the
    one with the fewest widths that costs at most 1/20 more.

    Parameters
    ----------
    lengths : numpy.ndarray
        Entries of each row that has some.
    most : int
        Upper bound of the number of widths.

    Returns
    -------
    tuple of int
        Rising.

    Examples
    --------
    >>> import numpy as np
    >>> choose_widths(np.array([1, 1, 1, 1, 9, 9, 33]))
    (1, 9, 33)
    """
    if lengths.size == 0:
        return (1,)
    rows = np.bincount(lengths)  # rows of each length
    widths = _candidates(rows)
    # below[k]: rows that fit into width k; cost[j, k]: of rows longer than width j, up to width k.
    below = np.cumsum(rows)[np.minimum(widths, rows.size - 1)]
    low = np.concatenate([[0], below])
    cost = (below[None, :] - low[:, None]) * (widths + 1)
    cost = np.where(np.arange(widths.size)[None, :] >= np.arange(low.size)[:, None], cost, np.inf)
    # A row longer than the widest bucket fills as many pieces as it needs.
    found = np.flatnonzero(rows)
    pieces = np.where(found > widths[:, None], -(-found // widths[:, None]), 0) @ rows[found]
    cut = np.where(widths >= lengths.mean(), pieces * (widths + 1), np.inf)

    best, choice = [cost[0]], []  # cost of one more bucket, up to each width
    for _ in range(min(most, widths.size) - 1):
        total = best[-1][:, None] + cost[1:]
        choice.append(np.argmin(total, axis=0))
        best.append(np.min(total, axis=0))
    ends = [int(np.argmin(costs + cut)) for costs in best]
    least = [float((costs + cut)[end]) for costs, end in zip(best, ends)]
    fewest = next(k for k, total in enumerate(least) if total <= 1.05 * min(least))
    chosen = [ends[fewest]]
    for step in reversed(choice[:fewest]):
        chosen.append(int(step[chosen[-1]]))
    return tuple(int(widths[k]) for k in reversed(chosen))


def _candidates(rows: np.ndarray) -> np.ndarray:
    """Return widths to choose from, given how many rows there are of each length."""
    longest = rows.size - 1
    common = np.flatnonzero(rows * 10 >= rows.sum())
    steps = [np.arange(1, 9)]
    while steps[-1][-1] < longest:
        steps.append(steps[-1][-4:] * 2)
    short = np.concatenate(steps)
    return np.union1d(short[: np.searchsorted(short, longest) + 1], common[common > 0])

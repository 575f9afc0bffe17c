"""hyb for graphs with several relations: buckets by length of the rows of each relation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .entries import Entries
from .format import check_positive
from .hyb import BucketComposition, bucket_of_length, check_widths, choose_widths, make_buckets
from .row_visits import find_rows

__all__ = ["RelationalHyb"]


class RelationalHyb(BucketComposition):
    """Tensors (relation, row, column): each relation's rows in buckets by length.

    Within a relation it is :class:`Hyb` with one range of columns. Part ``r2_w4`` is the bucket of
    width 4 of relation 2; the relation is a constant of the part, so that a kernel loads the weights
    of its relation once. One description serves every tensor with so many relations.

    Parameters
    ----------
    relations : int
        Number of relations.
    buckets : sequence of int or sequence of sequence of int, optional
        Rising widths, the same for all relations or one sequence for each. None leaves them open:
        :meth:`fitted`, and :meth:`pack` for its tensor, choose them for each relation, see
        :func:`choose_widths`.
    most : int
        At most so many buckets are chosen for a relation.

    Notes
    -----
    The 3-D hyb of SparseTIR (ASPLOS'23), there with the same widths for all relations.

    Examples
    --------
    >>> import numpy as np
    >>> from tvm_sparse.formats import RelationalHyb
    >>> edges = np.array([0, 1, 1]), np.array([2, 0, 0]), np.array([1, 0, 2])
    >>> packed = RelationalHyb(2).pack((edges, np.array([5.0, 6, 7]), (2, 3, 3)))
    >>> {name: part.values.tolist() for name, part in packed.parts.items()}
    {'r0_w1': [[5.0]], 'r1_w2': [[6.0, 7.0]]}
    """

    def __init__(
        self,
        relations: int,
        buckets: Sequence[int] | Sequence[Sequence[int]] | None = None,
        most: int = 4,
    ) -> None:
        check_positive(relations=relations, most=most)
        self.relations, self.most = relations, most
        self.buckets = None if buckets is None else _widths_by_relation(relations, buckets)
        super().__init__(
            3,
            self.buckets
            and {
                bucket.name: bucket
                for relation, widths in enumerate(self.buckets)
                for bucket in make_buckets(widths, relation=relation)
            },
        )

    def _choose(self, entries: Entries) -> RelationalHyb:
        pointers = find_rows(entries)
        lengths = self._by_relation(np.diff(pointers), entries, pointers)
        widths = [choose_widths(found, self.most) for found in lengths]
        return RelationalHyb(self.relations, widths, self.most)

    def assign(self, entries: Entries) -> np.ndarray:
        pointers = find_rows(entries)
        lengths = np.diff(pointers)
        numbers = np.full(lengths.size, len(self.parts), np.min_scalar_type(len(self.parts)))
        first = 0
        for widths, found, own in zip(
            self.buckets,
            self._by_relation(lengths, entries, pointers),
            self._by_relation(numbers, entries, pointers),
        ):
            own[:] = bucket_of_length(found, widths) + first
            first += len(widths)
        return np.repeat(numbers, lengths)

    def _by_relation(
        self, of_rows: np.ndarray, entries: Entries, pointers: np.ndarray
    ) -> list[np.ndarray]:
        """Cut an array with one element for each stored row into views of one relation each."""
        relations = entries.coordinates[0][pointers[:-1]]
        ends = np.searchsorted(relations, np.arange(1, self.relations + 1))
        return np.split(of_rows, ends)[: self.relations]

    def __repr__(self) -> str:
        widths = "None" if self.buckets is None else f"<{sum(map(len, self.buckets))} in all>"
        return f"RelationalHyb(relations={self.relations}, buckets={widths})"


def _widths_by_relation(
    relations: int, buckets: Sequence[int] | Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    given = list(buckets)
    if not any(isinstance(widths, Sequence) for widths in given):
        given = [given] * relations
    if len(given) != relations:
        raise ValueError(f"buckets: expected widths for {relations} relations, found {len(given)}")
    return tuple(check_widths(widths) for widths in given)

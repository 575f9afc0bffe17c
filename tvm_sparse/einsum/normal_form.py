"""The normal form of a sum of products: fewer variables, whose sizes entries can pay for.

Three rewritings, each of coordinates alone, at a cost of sorting what it touches:

- *join*: two factors that share several variables, and each have more, share one variable instead: the
  number of the shared coordinates among those that both have. ``bik,bkj->bij`` with ``x = (b, k)`` becomes
  ``bix,xj->bij``.
- *fuse*: variables that always stand together become one, as ``i, j`` in ``ijk,kl->ijl``.
- *compact*: coordinates of a variable much larger than the number of entries are numbered anew.

So the contraction of two tensors of any order is the product of two matrices, and one kernel serves all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..formats.entries import coordinates_of
from .factors import Factor

__all__ = ["Problem", "Restoration", "normalize"]

#: A variable is numbered anew if it has this many more coordinates than there are entries.
_SPARE = 8
_LEAST_SIZE = 1 << 12
#: Up to this many coordinates for each entry they are numbered by a table instead of a search.
_SPARE_TABLE = 64


@dataclass(frozen=True)
class Problem:
    """A sum of products of factors.

    Attributes
    ----------
    terms : tuple of tuple of Factor
        The products.
    result : tuple of str
        Variables of the result, in the order of its levels.
    sizes : dict of str to int
        Of every variable.
    """

    terms: tuple[tuple[Factor, ...], ...]
    result: tuple[str, ...]
    sizes: dict[str, int]

    @property
    def factors(self) -> list[Factor]:
        """The factors of all terms."""
        return [factor for term in self.terms for factor in term]

    @property
    def kept(self) -> set[str]:
        """Variables whose coordinates are needed as they are: those of dense factors."""
        return {v for factor in self.factors if factor.is_dense for v in factor.variables}

    def variables(self) -> list[str]:
        """All variables, those of the result first."""
        found = [*self.result, *(v for factor in self.factors for v in factor.variables)]
        return list(dict.fromkeys(found))


@dataclass
class Restoration:
    """How variables of the result come back: by a table of coordinates, or as parts of a fused one."""

    parts: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    tables: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def restore(self, variable: str, coordinates: np.ndarray) -> dict[str, np.ndarray]:
        """Return coordinates of the original variables that one stands for."""
        if variable in self.tables:
            coordinates = self.tables[variable][coordinates]
        if variable not in self.parts:
            return {variable: coordinates}
        members = self.parts[variable]
        unraveled = coordinates_of(coordinates, [size for _, size in members])
        found: dict[str, np.ndarray] = {}
        for (member, _), own in zip(members, unraveled):
            found |= self.restore(member, own)
        return found

    @property
    def is_trivial(self) -> bool:
        """Whether every variable stands for itself."""
        return not self.parts and not self.tables


def normalize(problem: Problem, is_dense: bool = False) -> tuple[Problem, Restoration]:
    """Bring a problem to normal form.

    Parameters
    ----------
    problem : Problem
        Products and their sum.
    is_dense : bool
        Whether the result is a dense array, whose variables keep all their coordinates.

    Returns
    -------
    Problem, Restoration
        The same in fewer variables, and how coordinates of its result are turned back.
    """
    restoration = Restoration()
    joined = _join_terms(_fuse(problem, restoration), restoration)
    fused = _fuse(joined, restoration)
    return _compact_all(fused, restoration, is_dense), restoration


# --- join ------------------------------------------------------------------------------------------


def _join_terms(problem: Problem, restoration: Restoration) -> Problem:
    sizes, terms = dict(problem.sizes), []
    for number, term in enumerate(problem.terms):
        sparse = [factor for factor in term if factor.can_drive]
        if len(sparse) == 2:
            joined = _join(*sparse, problem, sizes, f"shared{number}")
            if joined is not None:
                shared = [v for v in sparse[0].variables if v in sparse[1].variables]
                restoration.notes.append(f"{', '.join(shared)} joined in term {number}")
                term = (*joined, *(factor for factor in term if not factor.can_drive))
        terms.append(term)
    return replace(problem, terms=tuple(terms), sizes=sizes)


def _join(
    left: Factor, right: Factor, problem: Problem, sizes: dict[str, int], name: str
) -> tuple[Factor, Factor] | None:
    """Let two factors share one variable; None where they share one already or one is a filter."""
    shared = [v for v in left.variables if v in right.variables]
    if len(shared) < 2 or set(shared) in (set(left.variables), set(right.variables)):
        return None
    needed = [v for v in shared if v in problem.result or v in problem.kept]
    # The one that holds more of the result from its outermost level on drives the loops.
    if _leading(right, problem.result) > _leading(left, problem.result):
        left, right = right, left
    codes = _codes([[f.coordinates(v) for v in shared] for f in (left, right)], shared, sizes)
    known, places = np.unique(codes[1], return_inverse=True)
    found = np.searchsorted(known, codes[0])
    found[found == known.size] = 0
    both = known[found] == codes[0] if known.size else np.zeros(codes[0].size, bool)
    sizes[name] = known.size
    left, found = left.take(both), found[both]
    columns = {v: left.coordinates(v) for v in left.variables if v not in shared or v in needed}
    driving = left.with_columns({**columns, name: found}, sizes)
    rest = {v: right.coordinates(v) for v in right.variables if v not in shared}
    return driving, right.with_columns({name: places, **rest}, sizes)


def _leading(factor: Factor, result: Sequence[str]) -> int:
    """How many variables of the result, from the outermost on, a factor has."""
    count = 0
    while count < len(result) and result[count] in factor.variables:
        count += 1
    return count


# --- fuse ------------------------------------------------------------------------------------------


def _fuse(problem: Problem, restoration: Restoration) -> Problem:
    for group in _groups(problem):
        problem = _fuse_group(problem, group, restoration)
    return problem


def _groups(problem: Problem) -> list[list[str]]:
    """Variables that always stand together, next to each other in the result if they stand there."""
    factors, kept = problem.factors, problem.kept
    where = {
        v: tuple(k for k, factor in enumerate(factors) if v in factor.variables)
        for v in problem.variables()
    }
    groups: list[list[str]] = []
    for v in problem.variables():
        joins = groups and v not in kept and groups[-1][0] not in kept
        if v in problem.result:
            if joins and where[groups[-1][0]] == where[v]:
                groups[-1].append(v)
            else:
                groups.append([v])
            continue
        for group in groups:
            if group[0] not in problem.result and where[group[0]] == where[v] and v not in kept:
                group.append(v)
                break
        else:
            groups.append([v])
    outside = [g for g in groups if g[0] in problem.result]
    if len(outside) == 1 and len(outside[0]) > 1:  # rows are needed to share work
        first = groups.index(outside[0])
        groups[first : first + 1] = [outside[0][:1], outside[0][1:]]
    elif not outside and len(groups) == 1 and len(groups[0]) > 1:
        groups = [groups[0][:1], groups[0][1:]]
    return [group for group in groups if len(group) > 1]


def _fuse_group(problem: Problem, group: list[str], restoration: Restoration) -> Problem:
    """Fuse variables one after another, so that no number exceeds 63 bits."""
    name = group[0]
    for following in group[1:]:
        problem, name = _compact(problem, name, restoration, least=2**31)
        problem, following = _compact(problem, following, restoration, least=2**31)
        sizes = dict(problem.sizes)
        fused = f"{name}{following}"
        members = [(name, sizes[name]), (following, sizes[following])]
        sizes[fused] = sizes[name] * sizes[following]
        restoration.parts[fused] = members
        problem = Problem(
            tuple(
                tuple(_fuse_factor(f, name, following, fused, sizes) for f in term)
                for term in problem.terms
            ),
            tuple(fused if v == name else v for v in problem.result if v != following),
            sizes,
        )
        name = fused
    restoration.notes.append(f"{', '.join(group)} fused")
    return problem


def _fuse_factor(
    factor: Factor, outer: str, inner: str, fused: str, sizes: dict[str, int]
) -> Factor:
    if outer not in factor.variables:
        return factor
    columns = {}
    for variable in factor.variables:
        if variable == outer:
            key = factor.coordinates(outer).astype(np.int64) * sizes[inner]
            columns[fused] = key + factor.coordinates(inner)
        elif variable != inner:
            columns[variable] = factor.coordinates(variable)
    return factor.with_columns(columns, sizes)


# --- compact ---------------------------------------------------------------------------------------


def _compact_all(problem: Problem, restoration: Restoration, is_dense: bool) -> Problem:
    in_order = _comes_in_order(problem)
    for variable in problem.variables():
        if in_order and variable in problem.result[1:]:
            continue  # no memory for the places of a row is needed
        if is_dense and variable in problem.result:
            continue
        entries = sum(
            f.count for f in problem.factors if variable in f.variables and not f.is_dense
        )
        least = max(_LEAST_SIZE, _SPARE * entries)
        problem, _ = _compact(problem, variable, restoration, least)
    return problem


def _comes_in_order(problem: Problem) -> bool:
    """Whether the factors have the variables of the result, so that entries need not be collected."""
    return all(f.can_drive and set(f.variables) == set(problem.result) for f in problem.factors)


def _compact(
    problem: Problem, variable: str, restoration: Restoration, least: int
) -> tuple[Problem, str]:
    """Number the coordinates of a variable anew, in order, if its size is this large."""
    if problem.sizes[variable] < least or variable in problem.kept:
        return problem, variable
    having = [factor for factor in problem.factors if variable in factor.variables]
    columns = [factor.coordinates(variable) for factor in having]
    table, numbers = _numbered(columns, problem.sizes[variable])
    number_of = {id(factor): own for factor, own in zip(having, numbers)}
    new = f"{variable}'"
    sizes = {**problem.sizes, new: table.size}
    restoration.tables[new] = table
    restoration.parts[new] = [(variable, problem.sizes[variable])]
    restoration.notes.append(f"{variable} numbered anew: {table.size} of {problem.sizes[variable]}")

    def renamed(factor: Factor) -> Factor:
        if variable not in factor.variables:
            return factor
        columns = {v: factor.coordinates(v) for v in factor.variables}
        own = number_of[id(factor)]
        named = {(new if v == variable else v): columns[v] for v in columns}
        return factor.with_columns({**named, new: own}, sizes)

    terms = tuple(tuple(renamed(factor) for factor in term) for term in problem.terms)
    result = tuple(new if v == variable else v for v in problem.result)
    return Problem(terms, result, sizes), new


def _numbered(columns: Sequence[np.ndarray], size: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the distinct coordinates in order, and for each column the places of its own among them."""
    if size > _SPARE_TABLE * sum(own.size for own in columns):
        table = np.unique(np.concatenate(columns))
        return table, [np.searchsorted(table, own) for own in columns]
    occurs = np.zeros(size, bool)
    for own in columns:
        occurs[own] = True
    places = np.cumsum(occurs, dtype=np.int32 if size < 2**31 else np.int64)
    places -= 1
    return np.flatnonzero(occurs), [places[own] for own in columns]


def _codes(
    lists: Sequence[Sequence[np.ndarray]], variables: Sequence[str], sizes: dict[str, int]
) -> list[np.ndarray]:
    """Return one number for the coordinates of each entry, equal where all coordinates are equal."""
    codes = [own[0].astype(np.int64) for own in lists]
    bound = sizes[variables[0]]
    for place, variable in enumerate(variables[1:], start=1):
        if bound * max(1, sizes[variable]) >= 2**62:
            table = np.unique(np.concatenate(codes))
            codes, bound = [np.searchsorted(table, own) for own in codes], table.size
        codes = [own * sizes[variable] + lst[place] for own, lst in zip(codes, lists)]
        bound *= max(1, sizes[variable])
    return codes

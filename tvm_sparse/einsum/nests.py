"""The loops of a product: their order, which factor drives each, and which factors are searched.

A loop runs over the stored coordinates of one factor, its driver, or over those that several have in
common; factors that begin with the same variable are found by it as a row is. Vectors are looked up. A
sum of tensors over the variables of the result is one nest, whose loops run over the coordinates that
any of them stores. Orders are compared by the number of steps that average numbers of entries suggest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..workspace.detection import Detection, detect
from .factors import Factor

__all__ = ["Estimate", "Loop", "Nest", "best_nest", "typical", "union_nest"]

#: Above this many variables orders are not enumerated.
MOST_VARIABLES = 8

#: Up to this many entries and coordinates a product is planned as one of typical sizes is: a kernel that
#: suits it better would take longer to compile than it saves.
SMALL = 1 << 12
_TYPICAL_SIZE, _TYPICAL_ENTRIES = 64, 512

#: So many tensors are added up side by side.
_MOST_MERGED = 8

_WORKSPACE_BITS = 12  # places of a row that the drain of a workspace passes in one step
_LARGE_ROW = 1 << 28


@dataclass(frozen=True)
class Estimate:
    """Stands for the entries of a factor where their number alone counts."""

    count: int


@dataclass(frozen=True)
class Loop:
    """One loop: over coordinates that levels of all drivers store; over all if there is no driver."""

    variable: str
    drivers: tuple[int, ...]


@dataclass(frozen=True)
class Nest:
    """The loops of a product.

    Attributes
    ----------
    loops : tuple of Loop
        Outermost first.
    searched : tuple of int
        Sparse factors that are looked up.
    steps : float
        Estimated number of innermost steps, searches counted as several.
    entries : float
        Estimated number of products.
    """

    loops: tuple[Loop, ...]
    searched: tuple[int, ...]
    steps: float
    entries: float

    @property
    def order(self) -> tuple[str, ...]:
        """Variables, outermost first."""
        return tuple(loop.variable for loop in self.loops)

    def detection(self, result: Sequence[str]) -> Detection:
        """What a result needs under this nest, its outermost level being of all rows."""
        return detect(self.order, result)


def best_nest(term: Sequence[Factor], result: Sequence[str], sizes: dict[str, int]) -> Nest | None:
    """Return the nest of the fewest steps whose outermost loop runs over the rows of the result.

    Parameters
    ----------
    term : sequence of Factor
        Factors of the product.
    result : sequence of str
        Variables of the result, at least one.
    sizes : dict of str to int
        Of the variables.

    Returns
    -------
    Nest or None
        None if there are too many variables to try.
    """
    term, sizes = typical(term, sizes)
    variables = list(dict.fromkeys(v for factor in term for v in factor.variables))
    if len(variables) > MOST_VARIABLES:
        return None
    inner = [v for v in variables if v != result[0]]
    nests = (_nest(term, (result[0], *order), sizes) for order in itertools.permutations(inner))
    return min(nests, key=lambda nest: nest.steps + _assembly(nest, result, sizes))


def union_nest(terms: Sequence[Sequence[Factor]], result: Sequence[str]) -> Nest | None:
    """Return the nest of a sum of tensors; None where terms are products, or not over all of the result.

    Drivers are the only factors of the terms, by the number of the term.
    """
    are_tensors = all(len(term) == 1 and term[0].can_drive for term in terms)
    if not (1 < len(terms) <= _MOST_MERGED and len(result) > 1 and are_tensors):
        return None
    if any(set(factor.variables) != set(result) for (factor,) in terms):
        return None
    everyone = tuple(range(len(terms)))
    loops = [Loop(v, everyone if place else ()) for place, v in enumerate(result)]
    steps = float(sum(factor.count for (factor,) in terms))
    return Nest(tuple(loops), (), steps, steps)


def typical(
    term: Sequence[Factor], sizes: dict[str, int]
) -> tuple[Sequence[Factor], dict[str, int]]:
    """Return factors and sizes to plan with: those given, or for a small product typical ones."""
    variables = {v for factor in term for v in factor.variables}
    entries = sum(factor.count for factor in term if not factor.is_dense)
    if entries > SMALL or any(sizes[v] > SMALL for v in variables):
        return term, sizes
    planned = []
    for factor in term:
        count = min(_TYPICAL_ENTRIES, _TYPICAL_SIZE ** len(factor.variables) // 2)
        planned.append(factor if factor.is_dense else replace(factor, entries=Estimate(count)))
    return planned, dict.fromkeys(variables, _TYPICAL_SIZE)


def _assembly(nest: Nest, result: Sequence[str], sizes: dict[str, int]) -> float:
    """Steps that the workspace of the rows costs; much for rows that memory may not hold."""
    span = math.prod(sizes[v] for v in result[1:])
    rows = sizes[result[0]]
    return rows * (1 + span / 2**_WORKSPACE_BITS) * (100 if span > _LARGE_ROW else 1)


def _nest(term: Sequence[Factor], order: Sequence[str], sizes: dict[str, int]) -> Nest:
    """Choose the driver of each loop of an order, and count steps."""
    depth = [0] * len(term)
    alive = [factor.can_drive for factor in term]
    levels = [[v for v in order if v in factor.variables] for factor in term]
    loops, searched = [], set()
    count, steps = 1.0, 0.0
    for variable in order:
        having = [k for k, f in enumerate(term) if not f.is_dense and variable in f.variables]
        fans = {k: _fan(term[k], levels[k], depth[k], sizes) for k in having}
        drivers = tuple(k for k in having if alive[k] and depth[k])
        shortest = min(drivers, key=fans.get, default=None)
        count *= sizes[variable] if shortest is None else fans[shortest]
        lookups, passed = 0.0, 1.0
        for k in drivers:
            if k != shortest:
                lookups += 1 + math.log2(1 + fans[k] / max(1.0, fans[shortest]))
                passed *= min(1.0, fans[k] / max(1, sizes[variable]))
        for k in having:
            if k not in drivers and (depth[k] or len(levels[k]) == 1):
                alive[k] = False
                searched.add(k)
                lookups += 1 + (math.log2(1 + fans[k]) if depth[k] else 0)
                if not term[k].excludes:
                    passed *= min(1.0, fans[k] / max(1, sizes[variable]))
            depth[k] += 1
        loops.append(Loop(variable, drivers))
        steps += count * (1 + lookups)
        count *= passed
    return Nest(tuple(loops), tuple(sorted(searched)), steps, count)


def _fan(factor: Factor, levels: Sequence[str], depth: int, sizes: dict[str, int]) -> float:
    """Average number of entries of a level under one of the level before; roots have all rows."""
    if depth == 0:
        return min(factor.count, sizes[levels[0]])
    parents = sizes[levels[0]]
    if depth > 1:
        parents = min(factor.count, math.prod(sizes[v] for v in levels[:depth]))
    nodes = min(factor.count, math.prod(sizes[v] for v in levels[: depth + 1]))
    return nodes / max(1, parents)

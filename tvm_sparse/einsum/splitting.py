"""Products of several factors in pairs, where that takes fewer steps than one nest of loops.

``A B C`` over ``ik,kl,lj->ij`` in one nest visits every path from ``i`` to ``j``; ``(A B) C`` merges the
paths that meet in ``l`` first. A product with a mask, in turn, is better left whole: the mask is looked up
where the product would have to be stored.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from .factors import Factor
from .nests import Estimate, best_nest, typical

__all__ = ["Split", "choose_split"]

#: Steps that an entry of a result between costs: it is counted, written, converted and read.
_STORED = 2.5


@dataclass(frozen=True)
class Split:
    """Two factors of a term to multiply first, and the variables of their product."""

    first: int
    second: int
    result: tuple[str, ...]


def choose_split(
    term: Sequence[Factor], result: Sequence[str], sizes: dict[str, int], repeats: float = 1.0
) -> Split | None:
    """Return the pair to multiply first, None if the term is better computed as a whole.

    Parameters
    ----------
    term : sequence of Factor
        Factors of a product.
    result : sequence of str
        Variables of the result; may be empty.
    sizes : dict of str to int
        Of the variables.
    repeats : float
        How many times as often the whole is computed as pairs are.
    """
    if len(term) < 3:
        return None
    term, sizes = typical(term, sizes)
    whole = _whole(term, result, sizes)
    options = [option for option in _options(term, result, sizes) if option is not None]
    steps, split = min(options, key=lambda option: option[0], default=(math.inf, None))
    return split if steps < repeats * whole else None


def _options(term: Sequence[Factor], result: Sequence[str], sizes: dict[str, int]):
    """Estimated steps and split of each pair, the rest being computed as a whole or in pairs."""
    for first, second in itertools.combinations(range(len(term)), 2):
        pair = [term[first], term[second]]
        if all(factor.is_dense for factor in pair) or any(factor.excludes for factor in pair):
            continue
        rest = [factor for k, factor in enumerate(term) if k not in (first, second)]
        needed = {*result, *(v for factor in rest for v in factor.variables)}
        order = _order_of(pair, needed, result)
        if not order:
            continue
        nest = best_nest(pair, order, sizes)
        if nest is None:
            continue
        span = math.prod(float(sizes[v]) for v in order)
        held = span * -math.expm1(-nest.entries / span) if span else 0.0
        product = Factor(order, -1, Estimate(max(1, int(held))))
        after = [product, *rest]
        following = _whole(after, result, sizes)
        if len(after) > 2:
            options = _options(after, result, sizes)
            following = min([following, *(steps for steps, _ in options)])
        yield nest.steps + _STORED * held + following, Split(first, second, order)


def _order_of(pair: Sequence[Factor], needed: set[str], result: Sequence[str]) -> tuple[str, ...]:
    """Variables of a product of two, those of the result first and in its order."""
    found = [v for factor in pair for v in factor.variables if v in needed]
    own = set(found)
    return tuple(dict.fromkeys([*(v for v in result if v in own), *found]))


def _whole(term: Sequence[Factor], result: Sequence[str], sizes: dict[str, int]) -> float:
    """Estimated steps of one nest."""
    if result:
        nest = best_nest(term, result, sizes)
        return math.inf if nest is None else nest.steps
    variables = dict.fromkeys(v for factor in term for v in factor.variables)
    nests = [best_nest(term, (v,), sizes) for v in variables]
    return min((nest.steps for nest in nests if nest is not None), default=math.inf)

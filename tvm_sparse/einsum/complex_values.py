"""Complex values: kernels compute real and imaginary parts one after another, by the same loops.

A product of complex factors is a sum of real products, one for each choice of parts: with two factors
``re = re re - im im`` and ``im = re im + im re``. Both parts have as many terms over the same
coordinates, so one plan computes them, from other values; and the structure, found once, is that of the
products, whatever cancels.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .factors import Factor

__all__ = ["Expansion", "expand", "joined"]


@dataclass(frozen=True)
class Expansion:
    """Sums of products of real factors.

    Attributes
    ----------
    terms : list of list of Factor
        The products; each factor has a source of its own.
    origins : tuple of int
        For each of these sources, the one that its values are a part of.
    parts : tuple of tuple of str
        For the real part of the result, and for the imaginary one: which part of each source, ``"re"``,
        ``"im"``, ``"-im"`` or ``"0"``.
    """

    terms: list[list[Factor]]
    origins: tuple[int, ...]
    parts: tuple[tuple[str, ...], tuple[str, ...]]

    def values(self, given: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        """Return the values of all sources, for the real part of the result and for the imaginary one."""
        return [
            [_part(given[origin], part) for origin, part in zip(self.origins, parts)]
            for parts in self.parts
        ]


def expand(terms: Sequence[Sequence[Factor]], is_complex: Sequence[bool]) -> Expansion:
    """Expand products of complex factors into sums of products of their parts.

    Parameters
    ----------
    terms : sequence of sequence of Factor
        The products.
    is_complex : sequence of bool
        For each source, whether its values are complex.

    Returns
    -------
    Expansion
        The same in real numbers; a product of n complex factors becomes 2 ** (n - 1) real ones.

    Examples
    --------
    The real part of ``a b`` is ``re re - im im``, the imaginary one ``re im + im re``.

    >>> expansion = expand([[Factor(("i",), 0), Factor(("i",), 1)]], [True, True])
    >>> expansion.origins
    (0, 1, 0, 1)
    >>> expansion.parts[0]
    ('re', 're', '-im', 'im')
    >>> expansion.parts[1]
    ('re', 'im', 'im', 're')
    """
    expanded: list[list[Factor]] = []
    origins: list[int] = []
    parts: tuple[list[str], list[str]] = ([], [])
    for term in terms:
        choices = _choices(term, [is_complex[factor.source] for factor in term])
        for own in choices:
            numbered = [replace(f, source=len(origins) + k) for k, f in enumerate(term)]
            expanded.append(numbered)
            origins += [factor.source for factor in term]
            for all_, chosen in zip(parts, own):
                all_ += chosen
    return Expansion(expanded, tuple(origins), (tuple(parts[0]), tuple(parts[1])))


def joined(real: np.ndarray, imaginary: np.ndarray) -> np.ndarray:
    """Return complex values of these parts."""
    values = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
    values.real, values.imag = real, imaginary
    return values


def _choices(
    term: Sequence[Factor], is_complex: Sequence[bool]
) -> list[tuple[list[str], list[str]]]:
    """Pairs of a choice of parts that adds to the real part of a product, and one to the imaginary."""
    if not any(is_complex):
        return [(["re"] * len(term), ["0"] * len(term))]
    found: tuple[list, list] = ([], [])
    for imaginary in itertools.product(*((0, 1) if own else (0,) for own in is_complex)):
        degree = sum(imaginary)
        own = ["im" if is_imaginary else "re" for is_imaginary in imaginary]
        if degree % 4 > 1:  # the square of the imaginary unit
            own[imaginary.index(1)] = "-im"
        found[degree % 2].append(own)
    return list(zip(*found))


def _part(values: np.ndarray, part: str) -> np.ndarray:
    if part == "0":
        return np.zeros_like(values.real)
    found = np.ascontiguousarray(values.real if part == "re" else values.imag)
    return -found if part == "-im" else found

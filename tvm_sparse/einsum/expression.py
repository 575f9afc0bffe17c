"""Expressions of ``einsum``: sums of products of operands, one letter for each dimension.

The grammar, spaces meaning nothing::

    expression  = [sign] term {("+" | "-") [sign] term} "->" letters
    term        = [number "*"] letters {"," letters}
    number      = as Python writes integers and floating-point numbers
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass

__all__ = ["Expression", "Number", "parse"]

#: A coefficient; an integer stays one, so that integer results stay exact.
Number = int | float

_TERM = re.compile(
    r"(?P<signs>[+-]*)(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\*)?(?P<factors>[^+-]*)"
)


@dataclass(frozen=True)
class Expression:
    """A sum of products.

    Attributes
    ----------
    terms : tuple of tuple of str
        The letters of each factor of each term.
    result : str
        The letters of the result.
    coefficients : tuple of int or float
        What each term is multiplied by.
    """

    terms: tuple[tuple[str, ...], ...]
    result: str
    coefficients: tuple[Number, ...]

    @property
    def operands(self) -> list[str]:
        """The letters of all operands, in the order in which they are passed."""
        return [letters for term in self.terms for letters in term]

    def __str__(self) -> str:
        terms = []
        for term, coefficient in zip(self.terms, self.coefficients):
            size = abs(coefficient)
            scale = "" if size == 1 and isinstance(size, int) else f"{size}*"
            terms.append(("-" if coefficient < 0 else "+") + scale + ",".join(term))
        return "".join(terms).removeprefix("+") + "->" + self.result


def parse(text: str) -> Expression:
    """Read an expression such as ``"ik,kj - 0.5*ij -> ij"``.

    Parameters
    ----------
    text : str
        Factors of a product are separated by ``,``, terms by ``+`` or ``-``; a term may begin with a
        number and ``*``; the letters of the result follow ``->``. Spaces mean nothing.

    Returns
    -------
    Expression
        What it says.

    Raises
    ------
    TypeError, ValueError
        If it says nothing, repeats a letter of the result, or names one there that not every term has.

    Examples
    --------
    >>> parse("ik, kj + ij -> ij").terms
    (('ik', 'kj'), ('ij',))
    >>> parse("2*ij - 0.5*ji -> ij").coefficients
    (2, -0.5)
    """
    if not isinstance(text, str):
        raise TypeError(f"expression: expected a text such as 'ik,kj->ij', found {text!r}")
    left, arrow, result = "".join(text.split()).partition("->")
    if not arrow:
        raise ValueError(
            f"expression: expected '->' and the letters of the result, as in 'ik,kj->ij', found {text!r}"
        )
    coefficients, terms = zip(*_terms(left, text))
    expression = Expression(terms, result, coefficients)
    for number, letters in enumerate(expression.operands):
        _check_letters(f"operand {number}", letters)
        if not letters:
            raise ValueError(
                f"expression: operand {number}: expected letters, one for each dimension, found none in "
                f"{text!r}"
            )
    _check_letters("result", result)
    if len(set(result)) != len(result):
        raise ValueError(f"expression: result: expected each letter once, found {result!r}")
    for number, term in enumerate(terms):
        _check_term(number, term, result)
    return expression


def _terms(left: str, text: str) -> list[tuple[Number, tuple[str, ...]]]:
    """Coefficient and factors of each term."""
    found, position = [], 0
    while position < len(left) or not found:
        match = _TERM.match(left, position)
        signs = match["signs"]
        if len(signs) > (2 if found else 1):
            raise ValueError(
                f"expression: expected one sign before a term, found {signs!r} in {text!r}"
            )
        number = match["number"] or "1"
        size = int(number) if number.isdigit() else float(number)
        coefficient = -size if signs.count("-") % 2 else size
        found.append((coefficient, tuple(match["factors"].split(","))))
        position = match.end()
    return found


def _check_term(number: int, term: tuple[str, ...], result: str) -> None:
    missing = ", ".join(repr(letter) for letter in result if letter not in "".join(term))
    if missing:
        raise ValueError(
            f"expression: term {number} ({','.join(term)!r}): expected all letters of the result "
            f"{result!r}, found no {missing}; multiply it by an operand that has the letter, such as "
            "numpy.ones(size), or leave the letter out of the result"
        )


def _check_letters(what: str, letters: str) -> None:
    unknown = [letter for letter in letters if letter not in string.ascii_letters]
    if unknown:
        raise ValueError(
            f"expression: {what}: expected letters a-z or A-Z, found {unknown[0]!r} in {letters!r}"
        )

"""Expressions of ``einsum``: products and sums of operands, one letter for each dimension."""

from __future__ import annotations

import string
from dataclasses import dataclass

__all__ = ["Expression", "parse"]


@dataclass(frozen=True)
class Expression:
    """A sum of products.

    Attributes
    ----------
    terms : tuple of tuple of str
        The letters of each factor of each term.
    result : str
        The letters of the result.
    """

    terms: tuple[tuple[str, ...], ...]
    result: str

    @property
    def operands(self) -> list[str]:
        """The letters of all operands, in the order in which they are passed."""
        return [letters for term in self.terms for letters in term]

    def __str__(self) -> str:
        return "+".join(",".join(term) for term in self.terms) + "->" + self.result


def parse(text: str) -> Expression:
    """Read an expression such as ``"ik,kj+ij->ij"``.

    Parameters
    ----------
    text : str
        Factors of a product are separated by ``,``, terms of a sum by ``+``; the letters of the result
        follow ``->``. Spaces mean nothing.

    Returns
    -------
    Expression
        What it says.

    Raises
    ------
    TypeError, ValueError
        If it says nothing, repeats a letter in one operand, or names a letter in the result that not
        every term has.

    Examples
    --------
    >>> parse("ik, kj + ij -> ij").terms
    (('ik', 'kj'), ('ij',))
    """
    if not isinstance(text, str):
        raise TypeError(f"expression: expected a text such as 'ik,kj->ij', found {text!r}")
    left, arrow, result = "".join(text.split()).partition("->")
    if not arrow:
        raise ValueError(
            f"expression: expected '->' and the letters of the result, as in 'ik,kj->ij', found {text!r}"
        )
    terms = tuple(tuple(term.split(",")) for term in left.split("+"))
    expression = Expression(terms, result)
    for number, letters in enumerate(expression.operands):
        _check_letters(f"operand {number}", letters)
        if not letters:
            raise ValueError(
                f"expression: operand {number}: expected letters, one for each dimension, found none in "
                f"{text!r}"
            )
    _check_letters("result", result)
    for term in terms:
        missing = [letter for letter in result if letter not in "".join(term)]
        if missing:
            raise ValueError(
                f"expression: result: expected letters that every term has, found {', '.join(missing)!r} "
                f"in none of the operands {','.join(term)!r}"
            )
    return expression


def _check_letters(what: str, letters: str) -> None:
    unknown = [letter for letter in letters if letter not in string.ascii_letters]
    if unknown:
        raise ValueError(
            f"expression: {what}: expected letters a-z or A-Z, found {unknown[0]!r} in {letters!r}"
        )
    if len(set(letters)) != len(letters):
        raise ValueError(f"expression: {what}: expected each letter once, found {letters!r}")

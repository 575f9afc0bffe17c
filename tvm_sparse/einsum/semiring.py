"""Semirings: what adds and what multiplies, and in which type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .expression import Number

__all__ = ["SEMIRINGS", "Arithmetic", "Semiring", "arithmetic"]


@dataclass(frozen=True)
class Semiring:
    """Two operations on values.

    Attributes
    ----------
    name : str
        By which a user chooses it.
    add, multiply : str
        How they are written, over ``{a}`` and ``{b}``.
    reduce : numpy.ufunc
        The addition.
    distributes : bool
        Whether multiplication distributes over addition for all values, so that a product may be
        computed in pairs.
    """

    name: str
    add: str
    multiply: str
    reduce: np.ufunc
    distributes: bool = True

    def zero(self, dtype: np.dtype) -> Any:
        """Return the value that leaves every other one as it is in a sum, that of an absent entry."""
        if self.reduce is np.add or self.name == "or-and":
            return dtype.type(0)
        sign = 1 if self.reduce is np.minimum else -1
        if dtype.kind == "f":
            return dtype.type(sign * np.inf)
        limits = np.iinfo(dtype)
        return dtype.type(limits.max if sign > 0 else limits.min)

    def one(self, dtype: np.dtype) -> Any:
        """Return the value that leaves every other one as it is in a product, that of a mask."""
        if self.multiply == _SUM:
            return dtype.type(0)
        if self.multiply == _PRODUCT or self.name == "or-and":
            return dtype.type(1)
        limits = np.iinfo(dtype) if dtype.kind != "f" else None
        if self.multiply == _LEAST:
            return dtype.type(np.inf if limits is None else limits.max)
        return dtype.type(-np.inf if limits is None else limits.min)


_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_TYPES = {
    "bool",
    *_INTEGERS,
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
}

_SUM, _LEAST, _MOST = "{a} + {b}", "S.min({a}, {b})", "S.max({a}, {b})"
_PRODUCT = "{a} * {b}"

SEMIRINGS = {
    own.name: own
    for own in (
        Semiring("plus-times", _SUM, _PRODUCT, np.add),
        Semiring("min-plus", _LEAST, _SUM, np.minimum),
        Semiring("max-plus", _MOST, _SUM, np.maximum),
        # A negative factor turns the order around.
        Semiring("max-times", _MOST, _PRODUCT, np.maximum, distributes=False),
        Semiring("min-times", _LEAST, _PRODUCT, np.minimum, distributes=False),
        Semiring("max-min", _MOST, _LEAST, np.maximum),
        Semiring("min-max", _LEAST, _MOST, np.minimum),
        Semiring("or-and", _MOST, _LEAST, np.maximum),
    )
}


@dataclass(frozen=True)
class Arithmetic:
    """A semiring and the types of one call.

    Attributes
    ----------
    semiring : Semiring
        What adds and multiplies.
    held : numpy.dtype
        Type of operands and sums in the kernel; truth values are held as int8, complex values in parts.
    result : numpy.dtype
        Type of the result.
    """

    semiring: Semiring
    held: np.dtype
    result: np.dtype

    @property
    def is_logical(self) -> bool:
        """Whether values are truth values."""
        return self.semiring.name == "or-and"

    def values(self, given: np.ndarray) -> np.ndarray:
        """Return values of an operand in the type in which they are held; complex ones stay complex."""
        if self.is_logical:
            return (given != 0).astype(self.held)
        wanted = np.result_type(self.held, np.complex64) if given.dtype.kind == "c" else self.held
        return given.astype(wanted)

    def takes(self, found: np.dtype, planned: np.dtype) -> bool:
        """Whether values of one type may stand where those of another were planned for."""
        return self.is_logical or np.can_cast(_plain(found), _plain(planned), "same_kind")

    def finished(self, held: np.ndarray) -> np.ndarray:
        """Return values of the result in its type.

        Raises
        ------
        ValueError
            If one does not fit.
        """
        if held.dtype == self.result:
            return held
        if self.result.kind in "iu" and held.size:
            limits = np.iinfo(self.result)
            if held.min() < limits.min or held.max() > limits.max:
                raise ValueError(
                    f"dtype: expected one that holds {held.min()} .. {held.max()}, found {self.result}; "
                    f"the sums were computed in {held.dtype}"
                )
        return held.astype(self.result)


def arithmetic(
    name: str, dtypes: Sequence[np.dtype], dtype: Any = None, coefficients: Sequence[Number] = ()
) -> Arithmetic:
    """Choose the types of a call.

    Parameters
    ----------
    name : str
        The semiring.
    dtypes : sequence of numpy.dtype
        Types of the operands.
    dtype : numpy.dtype, optional
        That of the result, if asked for.
    coefficients : sequence of int or float
        What terms are multiplied by.

    Returns
    -------
    Arithmetic
        Integers are held as int64 (uint64 if all are unsigned and one of them is uint64), half precision
        as float32, others as NumPy promotes them; a coefficient that is no integer makes integers
        float64. Sums of truth values are "or", products "and", unless there are coefficients.

    Raises
    ------
    TypeError, ValueError
        If there is no such semiring, a type is not one of numbers that kernels compute with, or the
        semiring has no place for coefficients or complex values.

    Examples
    --------
    >>> arithmetic("plus-times", [np.dtype("uint8"), np.dtype("int32")]).result
    dtype('int64')
    >>> arithmetic("plus-times", [np.dtype("bool")]).semiring.name
    'or-and'
    >>> arithmetic("plus-times", [np.dtype("int32")], coefficients=[0.5]).result
    dtype('float64')
    """
    if name not in SEMIRINGS:
        raise ValueError(f"semiring: expected one of {', '.join(SEMIRINGS)}, found {name!r}")
    scaled = [own for own in coefficients if own != 1 or isinstance(own, float)]
    if scaled and name != "plus-times":
        raise ValueError(
            f"expression: expected sums without differences and coefficients over semiring {name!r}, found "
            f"coefficient {scaled[0]}; they stand in sums of products over 'plus-times' alone"
        )
    is_logical = all(own == np.bool_ for own in dtypes) and not scaled
    if name == "plus-times" and is_logical and dtype in (None, bool):
        name = "or-and"
    asked = None if dtype is None else _asked_dtype(dtype)
    if name == "or-and":
        result = np.dtype("bool") if asked is None else asked
        return Arithmetic(SEMIRINGS[name], np.dtype("int8"), result)
    common = _common(dtypes, scaled)
    if common.kind == "c" and name != "plus-times":
        raise TypeError(
            f"semiring: expected 'plus-times' for complex operands, which have no order, found {name!r}"
        )
    if asked is not None and (
        asked.kind not in "iufc" or asked.itemsize > 8 * (1 + (asked.kind == "c"))
    ):
        raise TypeError(f"dtype: expected one of integers, real or complex numbers, found {asked}")
    if asked is not None and "iufc".index(asked.kind) < {"f": 2, "c": 3}.get(common.kind, 0):
        raise TypeError(f"dtype: expected one that holds results of {common}, found {asked}")
    held = _held(common, asked, dtypes)
    if held == np.uint64 and any(own < 0 for own in scaled):
        raise TypeError(
            "operands: expected signed integers or real numbers for a difference, found unsigned ones of "
            "64 bits; convert one, for example to float64"
        )
    if held.kind in "iu" and any(abs(own) > np.iinfo(np.int64).max for own in scaled):
        raise ValueError(f"expression: expected coefficients of 64 bits, found {scaled}")
    return Arithmetic(SEMIRINGS[name], held, common if asked is None else asked)


def _asked_dtype(dtype: Any) -> np.dtype:
    try:
        return np.dtype(dtype)
    except TypeError:
        raise TypeError(f"dtype: expected a dtype of NumPy, found {dtype!r}") from None


def _common(dtypes: Sequence[np.dtype], coefficients: Sequence[Number]) -> np.dtype:
    """The type of a result of operands of these types."""
    for own in dtypes:
        if own.name not in _TYPES:
            raise TypeError(
                "operands: expected integers, truth values, real or complex numbers of up to 64 bits a "
                f"part, found {own}"
            )
    common = np.result_type(*map(_plain, dtypes))
    if common.kind in "fc":
        return np.promote_types(common, np.float32)
    if any(isinstance(own, float) for own in coefficients):
        return np.dtype("float64")
    return np.dtype("uint64") if common == np.uint64 else np.dtype("int64")


def _held(common: np.dtype, asked: np.dtype | None, dtypes: Sequence[np.dtype]) -> np.dtype:
    """The type in which operands are multiplied and summed: that of a part of complex ones."""
    held = _part(common)
    if asked is None:
        return held
    if asked.kind in "fc":
        return np.promote_types(_part(asked), np.float32 if held.kind != "f" else held)
    return asked if asked == np.uint64 and all(own.kind in "ub" for own in dtypes) else held


def _plain(dtype: np.dtype) -> np.dtype:
    return np.dtype("float32") if dtype.name == "bfloat16" else dtype


def _part(dtype: np.dtype) -> np.dtype:
    return dtype.type(0).real.dtype if dtype.kind == "c" else dtype

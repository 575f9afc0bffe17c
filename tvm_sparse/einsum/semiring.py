"""Semirings: what adds and what multiplies, and in which type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
        Type of operands and sums in the kernel; truth values are held as int8.
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
        """Return values of an operand in the type in which they are held."""
        return (given != 0).astype(self.held) if self.is_logical else given.astype(self.held)

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


def arithmetic(name: str, dtypes: Sequence[np.dtype], dtype: Any = None) -> Arithmetic:
    """Choose the types of a call.

    Parameters
    ----------
    name : str
        The semiring.
    dtypes : sequence of numpy.dtype
        Types of the operands.
    dtype : numpy.dtype, optional
        That of the result, if asked for.

    Returns
    -------
    Arithmetic
        Integers are held as int64 (uint64 if all are unsigned and one of them is uint64), half precision
        as float32, others as NumPy promotes them. Sums of truth values are "or", products "and".

    Raises
    ------
    TypeError, ValueError
        If there is no such semiring, or a type is not one of numbers that kernels compute with.

    Examples
    --------
    >>> arithmetic("plus-times", [np.dtype("uint8"), np.dtype("int32")]).result
    dtype('int64')
    >>> arithmetic("plus-times", [np.dtype("bool")]).semiring.name
    'or-and'
    """
    if name not in SEMIRINGS:
        raise ValueError(f"semiring: expected one of {', '.join(SEMIRINGS)}, found {name!r}")
    if name == "plus-times" and all(own == np.bool_ for own in dtypes) and dtype in (None, bool):
        name = "or-and"
    asked = None if dtype is None else np.dtype(dtype)
    if name == "or-and":
        result = np.dtype("bool") if asked is None else asked
        return Arithmetic(SEMIRINGS[name], np.dtype("int8"), result)
    held = _held(dtypes)
    if asked is None:
        return Arithmetic(SEMIRINGS[name], held, held)
    if asked.kind not in "iuf" or asked.itemsize > 8:
        raise TypeError(f"dtype: expected one of integers or real numbers, found {asked}")
    if held.kind == "f" and asked.kind != "f":
        raise TypeError(f"dtype: expected one that holds results of {held}, found {asked}")
    if asked.kind == "f":
        held = np.promote_types(asked, np.float32) if held.kind != "f" else max(held, asked)
    elif asked == np.uint64 and all(own.kind in "ub" for own in dtypes):
        held = asked
    return Arithmetic(SEMIRINGS[name], held, asked)


def _held(dtypes: Sequence[np.dtype]) -> np.dtype:
    """The type in which operands of these types are multiplied and summed."""
    for own in dtypes:
        if own.name != "bfloat16" and (own.kind not in "biuf" or own.itemsize > 8):
            raise TypeError(
                f"operands: expected integers, truth values or real numbers of up to 64 bits, found {own}"
            )
    plain = [np.dtype("float32") if own.name == "bfloat16" else own for own in dtypes]
    common = np.result_type(*plain)
    if common.kind == "f":
        return np.promote_types(common, np.float32)
    return np.dtype("uint64") if common == np.uint64 else np.dtype("int64")

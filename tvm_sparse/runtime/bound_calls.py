"""Calls of a kernel with the same SciPy matrices as before: their arguments, bound and checked once.

In: the arguments of a call. Out: what was bound for them, as long as the matrices still hold the very
arrays. What stands in the arrays may change: values are read again, and whoever uses the structure looks
at it again.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import tvm_ffi

__all__ = ["BoundCalls"]

#: Calls that are remembered.
_CAPACITY = 16


class BoundCalls:
    """What was bound for the last calls.

    Matrices are referenced weakly, their arrays for as long as the matrices live. Only calls with CSR, CSC
    and BSR matrices and integers are remembered, and only if what was bound are their very arrays, all of
    them: an array that was copied, or compared with another one, may change unnoticed.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple, _Entry] = {}
        self._lock = threading.Lock()

    def get(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what was bound for these arguments, None if they are others or have changed."""
        key = _key(args, kwargs)
        entry = self._entries.get(key)
        if entry is None:
            return None
        if not entry.is_valid():
            self._entries.pop(key, None)
            return None
        return dict(entry.bound)

    def remember(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], bound: Mapping[str, Any]
    ) -> None:
        """Remember what was bound, if it is what the arguments hold."""
        given = [*args, *kwargs.values()]
        matrices = [value for value in given if not _is_integer(value)]
        if not matrices or not all(map(_is_compressed, matrices)):
            return
        tensors = [own for own in bound["operands"].values() if isinstance(own, tvm_ffi.Tensor)]
        arrays = [array for matrix in matrices for array in _arrays(matrix)]
        held = {array.ctypes.data for array in arrays if array.size}
        if held != {tensor.data_ptr() for tensor in tensors if tensor.numel()}:
            return
        key = _key(args, kwargs)
        entries = self._entries
        with self._lock:
            for old in list(entries):  # others may go meanwhile, with their matrices
                entry = entries.get(old)
                if entry is not None and (not entry.is_alive() or len(entries) >= _CAPACITY):
                    entries.pop(old, None)
            entries[key] = _Entry(matrices, dict(bound), lambda _: entries.pop(key, None))

    def forget(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Forget a call, whose arguments turned out to be unfit."""
        self._entries.pop(_key(args, kwargs), None)


class _Entry:
    """A call: its matrices, the arrays that they held, and what was bound."""

    def __init__(self, matrices: Sequence[Any], bound: dict[str, Any], dropped) -> None:
        self.bound = bound
        self._known = [
            (weakref.ref(matrix, dropped), matrix.shape, [*map(_Held, _arrays(matrix))])
            for matrix in matrices
        ]

    def is_alive(self) -> bool:
        return all(reference() is not None for reference, _, _ in self._known)

    def is_valid(self) -> bool:
        for reference, shape, arrays in self._known:
            matrix = reference()
            if matrix is None or matrix.shape != shape:
                return False
            if not all(then.is_still(now) for now, then in zip(_arrays(matrix), arrays)):
                return False
        return True


class _Held:
    """An array as it was. NumPy moves no array that is weakly referenced."""

    __slots__ = ("_dtype", "_reference", "_shape", "_strides")

    def __init__(self, array: np.ndarray) -> None:
        self._reference = weakref.ref(array)
        self._shape, self._strides, self._dtype = array.shape, array.strides, array.dtype

    def is_still(self, array: np.ndarray) -> bool:
        return (
            self._reference() is array
            and array.shape == self._shape
            and array.strides == self._strides
            and array.dtype is self._dtype
        )


def _key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple:
    return (*map(_name, args), *((name, _name(value)) for name, value in kwargs.items()))


def _name(value: Any) -> tuple[str, int]:
    """Integers by value, other arguments by identity."""
    return ("value", value) if _is_integer(value) else ("object", id(value))


def _is_integer(value: Any) -> bool:
    return type(value) is int


def _is_compressed(value: Any) -> bool:
    return sp.issparse(value) and value.format in ("csr", "csc", "bsr")


def _arrays(matrix: Any) -> tuple[np.ndarray, ...]:
    return matrix.data, matrix.indices, matrix.indptr

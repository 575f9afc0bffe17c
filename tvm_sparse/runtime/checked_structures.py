"""The index arrays that passed the full check of their structure, so that a later call skips it.

In: the objects that a caller passed as ``indptr`` and ``indices`` of an axis. Out: whether these
very objects, still at the same place with the same shape, were found sound before. What is
remembered is the identity of the objects, never their content: a change in place goes unnoticed.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm_ffi

from .arrays import is_cupy, is_torch

#: Structures remembered for each axis of each kernel.
CAPACITY = 64


class CheckedStructures:
    """The structures of one axis that were found sound.

    Objects are referenced weakly. TVM tensors allow no weak reference: these are kept alive, and
    let go when another structure is remembered after the caller has dropped them.

    Examples
    --------
    >>> import numpy as np
    >>> from tvm_sparse.runtime.checked_structures import CheckedStructures
    >>> indptr, indices = np.array([0, 1, 2]), np.array([4, 0])
    >>> checked = CheckedStructures()
    >>> checked.remember(indptr, indices, 5)
    >>> checked.holds(indptr, indices, 5), checked.holds(indptr, indices.copy(), 5)
    (True, False)
    >>> checked.holds(indptr, indices, 4)  # the axis is shorter in this call
    False
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], tuple] = {}
        self._lock = threading.Lock()

    def holds(self, indptr: Any, indices: Any, length: Any) -> bool:
        """Tell whether these objects were remembered for an axis of this length.

        On a GPU, where looking at the ends of pointers would cost a copy at each call, the length stands
        with the number of entries.
        """
        entry = self._entries.get((id(indptr), id(indices)))
        return (
            entry is not None
            and entry[0]() is indptr
            and entry[1]() is indices
            and entry[2] == length
            and entry[3] == _place(indptr)
            and entry[4] == _place(indices)
        )

    def remember(self, indptr: Any, indices: Any, length: Any) -> None:
        """Remember objects whose structure is sound; either may be None, as not every axis has it.

        Only NumPy and CuPy arrays, PyTorch and TVM tensors are remembered; other objects, of which nothing
        is known, are checked at each call.
        """
        if not (_is_known(indptr) and _is_known(indices)):
            return
        entry = (_reference(indptr), _reference(indices), length, _place(indptr), _place(indices))
        with self._lock:
            self._forget_dropped()
            while len(self._entries) >= CAPACITY:
                self._entries.pop(next(iter(self._entries)))
            self._entries[id(indptr), id(indices)] = entry

    def _forget_dropped(self) -> None:
        for key, entry in list(self._entries.items()):
            if any(_is_dropped(reference) for reference in entry[:2]):
                del self._entries[key]


class _Kept:
    """A reference to an object that allows no weak one."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self) -> Any:
        return self.value


def _none() -> None:
    """Stand for the reference to an array that an axis does not have."""


def _is_known(value: Any) -> bool:
    return (
        value is None
        or isinstance(value, np.ndarray | tvm_ffi.Tensor)
        or is_torch(value)
        or is_cupy(value)
    )


def _reference(value: Any) -> Callable[[], Any]:
    if value is None:
        return _none
    return _Kept(value) if isinstance(value, tvm_ffi.Tensor) else weakref.ref(value)


def _is_dropped(reference: Callable[[], Any]) -> bool:
    """Tell whether no one but `reference` still refers to the object."""
    if isinstance(reference, _Kept):
        return sys.getrefcount(reference.value) <= 2  # the reference, and the call's argument
    return reference is not _none and reference() is None


def _place(value: Any) -> Any:
    """Where an array lies and how large it is, as far as that can change in place."""
    if type(value) is np.ndarray:  # NumPy moves no array that is weakly referenced
        return value.shape
    if value is None or isinstance(value, tvm_ffi.Tensor):
        return None
    if is_torch(value):
        return value.data_ptr(), value.shape
    return (value.data.ptr, value.shape) if is_cupy(value) else value.shape

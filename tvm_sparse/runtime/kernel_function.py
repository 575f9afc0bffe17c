"""A compiled function as a Python callable.

A call with a complete list of ready arrays takes a short path (a few microseconds); everything else,
and every call that the compiled code refuses, goes through
:class:`~tvm_sparse.runtime.binding.Binding`, which repairs what may be repaired and names the argument,
the expected and the found otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi

from .binding import Binding
from .prepared_tensors import PreparedTensors
from .signature import Signature

__all__ = ["KernelFunction", "check_level"]

_VALIDATION_LEVELS = ("cheap", "full")


class KernelFunction:
    """One compiled function.

    **Arguments.** Positional arguments follow the parameter order: all parameters, or all
    buffers, or only the inputs; keywords name parameters (or buffers). A SciPy sparse matrix or
    PyTorch sparse tensor passed for a sparse buffer also supplies the pointers and indices of its
    axes. Sizes that are left out are inferred from shapes. Outputs that are left out (or None) are
    allocated: as PyTorch tensors if an input is one, as TVM tensors if all inputs are, else as
    NumPy arrays. A sparse matrix passed for an output gives its structure, and the result is a
    new matrix.

    **Arrays** are NumPy, PyTorch, TVM or other DLPack arrays in host memory. Dtypes must match.
    Inputs may be read-only; views that are strided, unaligned or byte-swapped are copied, and
    strided outputs are written through a copy, so gaps keep their content. A flat array may
    stand for a buffer of several dimensions if other arguments determine all its sizes. An output
    may not overlap another argument.

    **Checks.** Always: rank, shape relations, dtype, device, overlap, and the two ends of each
    ``indptr`` (first 0, last the number of stored entries; spare capacity is refused). When index
    arrays are first seen: every pointer and coordinate, in range and ordered as the axes declare.
    The array objects that passed are remembered (the last 64 of each axis), and later calls with
    them skip this check. *A change in place of a remembered array is not noticed:* pass
    ``validate="full"``, which checks at each call, or a new array. Sparse matrices are checked at
    each call, and sorted in a copy where an axis asks for it.

    **Packed tensors** are passed by keyword. Their arrays are made ready at the first call and kept as
    long as the tensor lives: later calls share these arrays, so new values in them are seen, and notice
    arrays that were replaced.

    Returns
    -------
    array or tuple of arrays or None
        The outputs, as passed or allocated.

    Raises
    ------
    TypeError, ValueError
        If an argument is missing, superfluous or unfit; the message names it, the expected and
        the found.
    """

    def __init__(
        self, name: str, function: tvm_ffi.Function, metadata: dict, validate: str = "cheap"
    ) -> None:
        self.name = name
        self.metadata = metadata
        self.validate = validate
        self._function = function
        self._signature = Signature(name, metadata)
        self._is_ready = self._ready_check()
        self._prepared = PreparedTensors(self._signature)
        self._completions = {
            len(given): self._completion(given)
            for given in (self._signature.inputs, [p["name"] for p in self._signature.buffers])
        }

    # What depends on where arrays lie.

    _binding_type = Binding

    def _ready_check(self) -> Callable[[Sequence[Any]], bool]:
        return self._signature.ready_check()

    def _completion(self, given: Sequence[str]) -> Callable[[Sequence[Any]], list | None] | None:
        return self._signature.completion(given)

    def __call__(self, *args: Any, validate: str | None = None, **kwargs: Any) -> Any:
        """Run the kernel."""
        level = validate or self.validate
        if level == "cheap":
            if not kwargs:
                complete = self._completions.get(len(args))
                ready = args if complete is None else complete(args)
                if ready is not None and self._is_ready(ready) and self._accepts(ready):
                    return self._signature.results(ready)
            elif not args:
                prepared = self._prepared.find(kwargs)
                ready = None if prepared is None else prepared.complete(kwargs)
                if ready is not None and self._accepts(ready):
                    return prepared.results(ready)
        check_level(level)
        binding = self._binding_type(self._signature, args, kwargs)
        results = binding.run(self._function, level)
        if binding.packed:
            self._prepared.remember(binding)
        return results

    def _accepts(self, ready: Sequence[Any]) -> bool:
        """Run the compiled code, unless it refuses the arguments, before anything is written."""
        try:
            self._function(*ready)
        except (TypeError, ValueError, BufferError):
            return False  # the binding repairs or explains
        return True

    def arguments(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the complete list of ready arguments that a call would pass, fully validated."""
        ready: list[Any] = []
        self._binding_type(self._signature, args, kwargs).run(
            lambda *all_: ready.extend(all_), "full"
        )
        return ready

    @property
    def signature(self) -> Signature:
        """What its arguments are."""
        return self._signature

    @property
    def heading(self) -> str:
        """Name and parameters, such as ``"spmv(a, x, y, indptr, indices, m, n, nnz)"``."""
        return f"{self.name}({', '.join(self._signature.names)})"

    def __repr__(self) -> str:
        return f"<KernelFunction {self.heading}>"


def check_level(level: str) -> None:
    if level not in _VALIDATION_LEVELS:
        raise ValueError(f"validate: expected 'cheap' or 'full', found {level!r}")

"""Kernels whose result is sparse: run the phases, and allocate the result between them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..workspace import find_policy
from .dimensions import dimension
from .executable import Executable
from .threads import get_num_threads

__all__ = ["SparseResultKernel"]

#: Least work of a task, in produced entries: below twice this much one task does all.
_LEAST_WORK = 1 << 14


class SparseResultKernel:
    """A compiled function whose sparse result it allocates itself.

    Made by :func:`tvm_sparse.compile` from a function with a result over ``S.sparse_output``.

    Parameters
    ----------
    executable : Executable
        The phases.
    plan : dict
        What :func:`tvm_sparse.workspace.assemble` says of them.
    """

    def __init__(self, executable: Executable, plan: dict) -> None:
        self.executable, self.plan = executable, plan
        self._phases = {
            phase: executable[f"{plan['name']}_{phase}"] for phase in ("work", "count", "fill")
        }
        self._names = {
            phase: [arg["name"] for arg in function.metadata["args"]]
            for phase, function in self._phases.items()
        }

    def __call__(self, *args: Any, **kwargs: Any) -> sp.csr_matrix | sp.coo_array:
        """Compute the result.

        Parameters
        ----------
        *args, **kwargs
            The operands and sizes, as :class:`KernelFunction` takes them.

        Returns
        -------
        scipy.sparse.csr_matrix or coo_array
            Sorted, without duplicates. Places where terms cancel are entries.
        """
        known = self._bind(args, kwargs)
        self._run("work", known)
        work = np.from_dlpack(known["work"])
        known |= self._share(work)
        counts = np.empty_like(work)
        self._run("count", known | {"counts": counts})
        indptr = np.append(0, np.cumsum(counts))
        stored = int(indptr[-1])
        places = np.empty(stored, self.plan["place_dtype"])
        values = np.empty(stored, self.plan["dtype"])
        result = {"result_indptr": indptr, "result_indices": places, "result_values": values}
        self._run("fill", known | result | {"result_nnz": stored})
        return self._matrix(self._sizes(known), indptr, places, values)

    def _matrix(self, shape, indptr, places, values) -> sp.csr_matrix | sp.coo_array:
        hoisted = self.plan["hoisted"]
        index_dtype = self.plan["index_dtype"]
        if len(shape) == 2 and hoisted == 1:
            structure = (values, places, indptr.astype(index_dtype))
            return _canonical(sp.csr_matrix(structure, shape=shape))
        row = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
        coordinates = (
            *np.unravel_index(row, shape[:hoisted] or (1,))[: hoisted or 0],
            *np.unravel_index(places, shape[hoisted:]),
        )
        if len(shape) == 2:
            rows = np.append(0, np.cumsum(np.bincount(coordinates[0], minlength=shape[0])))
            structure = (values, coordinates[1].astype(index_dtype), rows.astype(index_dtype))
            return _canonical(sp.csr_matrix(structure, shape=shape))
        coordinates = tuple(found.astype(index_dtype) for found in coordinates)
        return _canonical(sp.coo_array((values, coordinates), shape=shape))

    def _bind(self, args: tuple, kwargs: dict) -> dict[str, Any]:
        function = self._phases["work"]
        ready = function.arguments(*args, **kwargs)
        return dict(zip(self._names["work"], ready))

    def _share(self, work: np.ndarray) -> dict[str, Any]:
        """Cut the rows into one stretch of equal work for each thread."""
        before = np.append(0, np.cumsum(work + 1))
        tasks = max(1, min(get_num_threads(), int(before[-1]) // _LEAST_WORK))
        bounds = np.searchsorted(before, np.arange(1, tasks) * (before[-1] / tasks))
        rows = np.concatenate([[0], bounds, [work.size]]).astype(np.int64)
        return {"tasks": tasks, "task_rows": rows, "most": int(work.max(initial=0))}

    def _scratch(self, name: str, known: dict[str, Any]) -> np.ndarray:
        own = next(s for s in find_policy(self.plan["policy"]).scratch if s.name == name)
        length = math.prod(self._sizes(known)[self.plan["hoisted"] :])
        dtype = self.plan["dtype"] if own.dtype == "value" else own.dtype
        fill = self.plan["neutral"] if own.fill is None else own.fill
        size = own.size(length, known["most"])
        known[f"{name}_size"] = size
        return np.full(size * known["tasks"], fill, dtype)

    def _sizes(self, known: dict[str, Any]) -> tuple[int, ...]:
        return tuple(dimension(text).evaluate(known) for text in self.plan["shape"])

    def _run(self, phase: str, known: dict[str, Any]) -> None:
        taken = [name for name in self._names[phase] if name.startswith("workspace_")]
        borrowed = {}
        for name in taken:
            borrowed[name] = self._scratch(name.removeprefix("workspace_"), known)
        self._phases[phase](*(borrowed.get(n, known.get(n)) for n in self._names[phase]))


def _canonical(matrix):
    """Note that a matrix is sorted and has no duplicates, so that SciPy does not look."""
    if hasattr(matrix, "has_sorted_indices"):
        matrix.has_sorted_indices = True
    matrix.has_canonical_format = True
    return matrix

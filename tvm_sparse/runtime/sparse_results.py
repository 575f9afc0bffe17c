"""Kernels whose result is sparse: run the phases, and allocate the result between them."""

from __future__ import annotations

import math
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from .dimensions import dimension
from .executable import Executable
from .threads import get_num_threads

__all__ = ["ResultPlan", "SparseResultKernel"]

#: Least work of a task, in produced entries: below twice this much one task does all.
_LEAST_WORK = 1 << 14
#: Bytes of room for all that rows may produce, above which their entries are counted first.
_MOST_ROOM = 1 << 30


class SparseResultKernel:
    """A compiled function that allocates its sparse result.

    Made by :func:`tvm_sparse.compile` from a function with a result over ``S.sparse_output``, and by
    :func:`tvm_sparse.load` from the library that it was exported to.

    Parameters
    ----------
    executable : Executable
        The phases.
    description : dict
        What :func:`tvm_sparse.workspace.assemble` says of them.
    """

    def __init__(self, executable: Executable, description: dict) -> None:
        self.executable, self.description = executable, description
        name = description["name"]
        self._phases = {phase: executable[f"{name}_{phase}"] for phase in description["phases"]}
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
        scipy.sparse.csr_matrix or scipy.sparse.coo_array
            A matrix, or a tensor of another number of dimensions. Sorted, without duplicates. Places
            where terms cancel are entries.

        Raises
        ------
        TypeError, ValueError
            If an argument is unfit; see :class:`KernelFunction`.
        """
        known = self._bind(args, kwargs)
        indptr, places, values, _ = self._compute(known)
        return self._matrix(known, indptr, places, values)

    def plan(self, *args: Any, **kwargs: Any) -> ResultPlan:
        """Find the structure of the result, to compute it for several values.

        Parameters
        ----------
        *args, **kwargs
            Operands and sizes of a call.

        Returns
        -------
        ResultPlan
            Call it with operands of the same structure.
        """
        return ResultPlan(self, self._bind(args, kwargs))

    def export_library(self, path: str | os.PathLike, **options: Any) -> Path:
        """Write all phases into one shared library; see :meth:`Executable.export_library`."""
        return self.executable.export_library(path, **options)

    def __repr__(self) -> str:
        own = self.description
        shape = ", ".join(own["shape"])
        return f"<SparseResultKernel {own['name']} -> {own['result']} ({shape}), {own['policy']}>"

    # --- phases ---

    def _bind(self, args: tuple, kwargs: dict) -> dict[str, Any]:
        ready = self._phases["work"].arguments(*args, **kwargs)
        return dict(zip(self._names["work"], ready))

    def _compute(self, known: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict]:
        """Compute the result; return its arrays, and how rows were shared."""
        self._run("work", known)
        work = np.from_dlpack(known["work"])
        shared, room = self._share(work, self._row_length(known))
        item = np.dtype(self.description["place_dtype"]).itemsize
        item += np.dtype(self.description["dtype"]).itemsize
        by_phases = room[-1] * item > _MOST_ROOM
        compute = self._count_and_fill if by_phases else self._append_in_tasks
        return *compute(known | shared, room), shared

    def _append_in_tasks(self, known: dict[str, Any], room: np.ndarray) -> tuple:
        """Let each task write its rows one after another to room for all that it may produce."""
        places = np.empty(room[-1], self.description["place_dtype"])
        values = np.empty(room[-1], self.description["dtype"])
        counts = np.empty_like(np.from_dlpack(known["work"]))
        result = {"result_indices": places, "result_values": values, "counts": counts}
        begins = {"task_begins": room[:-1], "result_room": int(room[-1])}
        self._run("append", known | result | begins)
        indptr = _pointers(counts)
        for task in range(1, known["tasks"]):
            begin, end = indptr[known["task_rows"][task : task + 2]]
            own = slice(room[task], room[task] + end - begin)
            for array in (places, values):
                array[begin:end] = array[own]
        for array in (places, values):
            array.resize(indptr[-1], refcheck=False)  # gives back what no row needed
        return indptr, places, values

    def _count_and_fill(self, known: dict[str, Any], _room: np.ndarray) -> tuple:
        """Count the entries of each row first, and allocate no more than these."""
        counts = np.empty_like(np.from_dlpack(known["work"]))
        self._run("count", known | {"counts": counts})
        indptr = _pointers(counts)
        places = np.empty(indptr[-1], self.description["place_dtype"])
        values = np.empty(indptr[-1], self.description["dtype"])
        result = {"result_indptr": indptr, "result_indices": places, "result_values": values}
        self._run("fill", known | result | {"result_nnz": int(indptr[-1])})
        return indptr, places, values

    def _share(self, work: np.ndarray, length: int) -> tuple[dict[str, Any], np.ndarray]:
        """Cut the rows into one stretch of equal work for each thread; bound the entries of each."""
        before = np.zeros(work.size + 1, np.int64)
        np.cumsum(work + 1, out=before[1:])
        tasks = max(1, min(get_num_threads(), int(before[-1]) // _LEAST_WORK))
        bounds = np.searchsorted(before, np.arange(1, tasks) * (before[-1] / tasks))
        rows = np.concatenate([[0], bounds, [work.size]]).astype(np.int64)
        most = np.minimum(work, length)
        room = [int(most[begin:end].sum()) for begin, end in pairwise(rows)]
        shared = {"tasks": tasks, "task_rows": rows, "most": int(work.max(initial=0))}
        return shared, np.append(0, np.cumsum(room))

    def _run(self, phase: str, known: dict[str, Any]) -> None:
        names = self._names[phase]
        scratch = [name for name in self.description["scratch"] if f"workspace_{name}" in names]
        for name in scratch:
            known[f"{name}_size"] = self._scratch_size(name, known)
            known[f"workspace_{name}"] = self._scratch(name, known)
        self._phases[phase](*(known[name] for name in names))

    def _scratch_size(self, name: str, known: dict[str, Any]) -> int:
        length = self._row_length(known)
        sizes = {"length": length, "most": known["most"], "min": min, "max": max, "pow2": _power}
        size = eval(self.description["scratch"][name]["size"], {"__builtins__": {}}, sizes)
        if length >= 2**63 or size * known["tasks"] >= 2**63:
            raise ValueError(
                f"{self.description['name']}: expected a row of fewer than 2**63 places, found {length}"
            )
        return size

    def _scratch(self, name: str, known: dict[str, Any]) -> np.ndarray:
        own = self.description["scratch"][name]
        dtype = self.description["dtype"] if own["dtype"] == "value" else own["dtype"]
        fill = self.description["neutral"] if own["fill"] is None else own["fill"]
        count = known[f"{name}_size"] * known["tasks"]
        return np.zeros(count, dtype) if fill == 0 else np.full(count, fill, dtype)

    def _row_length(self, known: dict[str, Any]) -> int:
        """Return how many places a row has."""
        return math.prod(self._shape(known)[self.description["hoisted"] :])

    def _shape(self, known: dict[str, Any]) -> tuple[int, ...]:
        return tuple(dimension(text).evaluate(known) for text in self.description["shape"])

    def _matrix(self, known, indptr, places, values) -> sp.csr_matrix | sp.coo_array:
        """Put the result together as SciPy holds it."""
        shape, hoisted = self._shape(known), self.description["hoisted"]
        index_dtype = self.description["index_dtype"]
        if len(shape) == 2 and hoisted == 1:
            return _matrix((values, places, indptr.astype(index_dtype)), shape)
        row = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
        outer = np.unravel_index(row, shape[:hoisted]) if hoisted else ()
        coordinates = (*outer, *np.unravel_index(places, shape[hoisted:]))
        if len(shape) == 2:
            rows = np.append(0, np.cumsum(np.bincount(coordinates[0], minlength=shape[0])))
            structure = coordinates[1].astype(index_dtype), rows.astype(index_dtype)
            return _matrix((values, *structure), shape)
        coordinates = tuple(found.astype(index_dtype) for found in coordinates)
        tensor = sp.coo_array((values, coordinates), shape=shape)
        tensor.has_canonical_format = True
        return tensor


class ResultPlan:
    """A sparse result whose structure is known: compute it for new values.

    Made by :meth:`SparseResultKernel.plan`.

    Attributes
    ----------
    nnz : int
        Entries of the result.
    """

    def __init__(self, kernel: SparseResultKernel, known: dict[str, Any]) -> None:
        self._kernel = kernel
        self._indices = {
            arg["name"]: np.array(np.from_dlpack(known[arg["name"]]))
            for arg in kernel._phases["work"].metadata["args"]
            if arg.get("index_of") is not None
        }
        self._indptr, self._places, _, self._shared = kernel._compute(known)
        self.nnz = int(self._indptr[-1])

    def __call__(self, *args: Any, **kwargs: Any) -> sp.csr_matrix | sp.coo_array:
        """Compute the result for operands of the structure that was planned for.

        Raises
        ------
        ValueError
            If their structure is another one.
        """
        kernel = self._kernel
        known = kernel._bind(args, kwargs)
        for name, planned in self._indices.items():
            if not np.array_equal(np.from_dlpack(known[name]), planned):
                raise ValueError(
                    f"{kernel.description['name']}: argument {name!r}: expected the index array that was "
                    "planned for, found another one; make a new plan"
                )
        values = np.empty(self.nnz, kernel.description["dtype"])
        result = {"result_indices": self._places, "result_values": values}
        structure = {"result_indptr": self._indptr, "result_nnz": self.nnz}
        phase = "refill" if "refill" in kernel.description["phases"] else "fill"
        kernel._run(phase, known | self._shared | structure | result)
        return kernel._matrix(known, self._indptr, self._places.copy(), values)


def _pointers(counts: np.ndarray) -> np.ndarray:
    """Return where the entries of each row begin, and the last ones end."""
    pointers = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=pointers[1:])
    return pointers


def _power(size: int) -> int:
    """The next power of two, at least 1."""
    return 1 << max(0, int(size) - 1).bit_length()


def _matrix(structure: tuple, shape: tuple[int, int]) -> sp.csr_matrix:
    """Return a CSR matrix that is known to be sound, sorted and without duplicates."""
    values, indices, indptr = structure
    matrix = sp.csr_matrix(shape, dtype=values.dtype)
    matrix.data, matrix.indices, matrix.indptr = values, indices, indptr
    matrix.has_sorted_indices = matrix.has_canonical_format = True
    return matrix

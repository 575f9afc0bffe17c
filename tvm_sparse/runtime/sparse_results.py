"""Kernels whose result is sparse: run the phases, and allocate the result between them."""

from __future__ import annotations

import copy
import functools
import math
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..formats.entries import coordinates_of
from ..workspace.costs import memory_bytes
from ..workspace.policy import scratch_elements
from .binding import Binding
from .bound_calls import BoundCalls
from .dimensions import dimension
from .executable import Executable
from .minimal import array_to_tensor
from .signature import Signature
from .threads import get_num_threads

__all__ = ["ResultPlan", "SparseResultKernel", "WorkspaceFullError"]

#: Least work of a task, in produced entries: below twice this much one task does all.
_LEAST_WORK = 1 << 14
#: Rows whose structure one thread looks through by itself.
_LEAST_CHECKED = 1 << 11
#: Bytes that keep what different threads write apart: two cache lines, which are often fetched together.
_APART = 128
#: A plan remembers where each of fewer terms goes, which takes four bytes each.
_MOST_TERMS = 1 << 28
#: Places of a row from which on it does not.
_LONG_ROW = 1 << 26
#: Bytes of room for all that rows may produce, above which their entries are counted first.
_MOST_ROOM = 1 << 30


class WorkspaceFullError(MemoryError):
    """The entries of a row did not fit into the scratch memory of a bounded policy."""


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
        self._phases = {
            phase: executable[symbol] for phase, symbol in description["symbols"].items()
        }
        self._functions = {
            phase: executable.module.get_function(symbol)
            for phase, symbol in description["symbols"].items()
        }
        self._calls = BoundCalls()
        self._scratches = description["scratch"] | description.get("trace_scratch", {})
        self._entry_bytes = sum(np.dtype(description[k]).itemsize for k in ("place_dtype", "dtype"))
        work = self._phases["work"].metadata
        operands = {**work, "args": work["args"][:-1]}  # all phases begin with them
        self._signature = Signature(description["name"], operands)
        #: Of the parameters of each phase, those that the runtime adds to the operands.
        self._names = {
            phase: [arg["name"] for arg in function.metadata["args"][len(operands["args"]) :]]
            for phase, function in self._phases.items()
        }
        self._phase_scratches = {
            phase: [name for name in self._scratches if f"workspace_{name}" in names]
            for phase, names in self._names.items()
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
        return self._result(known, self._share(self._work(known), self._length(known)))

    def _result(self, known: dict[str, Any], shared: dict[str, Any]) -> Any:
        """Compute a result in one phase while room allows, else count its entries first."""
        room = self._room(known, shared)
        if room is None:
            return self._fill(known, self._structure(known, shared))
        return self._matrix(known, *self._append(known | shared, room))

    def _room(self, known: dict[str, Any], shared: dict[str, Any]) -> np.ndarray | None:
        """Return where each task may write all that it may produce; None where that is too much."""
        if "append" not in self.description["phases"]:
            return None
        most, bounds = self._length(known), shared["task_rows"]
        if shared["most"] <= most:
            begins = shared["before"][bounds]
        else:
            held = np.minimum(shared["work"], most)
            sizes = [held[begin:end].sum() for begin, end in pairwise(bounds)]
            begins = np.append(0, np.cumsum(sizes))
        return begins if begins[-1] * self._entry_bytes <= _MOST_ROOM else None

    def _append(self, known: dict[str, Any], room: np.ndarray) -> tuple[np.ndarray, ...]:
        """Let each task write its rows one after another; return pointers, places and values."""
        places = np.empty(room[-1], self.description["place_dtype"])
        values = np.empty(room[-1], self.description["dtype"])
        counts = np.empty(known["rows"], np.int64)
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

    def _fill(self, known: dict[str, Any], structure: dict[str, Any]) -> Any:
        """Allocate and compute a result of known structure."""
        places = np.empty(structure["result_nnz"], self.description["place_dtype"])
        values = np.empty(structure["result_nnz"], self.description["dtype"])
        result = {"result_indices": places, "result_values": values}
        self._run("fill", known | structure | result)
        return self._matrix(known, _row_begins(structure), places, values)

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
        return f"<SparseResultKernel {self._heading} -> {own['result']} ({shape}), {own['policy']}>"

    @property
    def _heading(self) -> str:
        """The name, and what a call takes."""
        return f"{self.description['name']}({', '.join(self._signature.names)})"

    # --- phases ---

    def _bind(self, args: tuple, kwargs: dict) -> dict[str, Any]:
        """Return the arguments of the phases; those of a call like one before are only looked through."""
        known = self._calls.get(args, kwargs)
        if known is not None:
            if self._is_sound(known):
                return known
            self._calls.forget(args, kwargs)
        ready: list[Any] = []
        binding = Binding(self._signature, args, kwargs)
        binding.run(lambda *all_: ready.extend(all_), self.executable.validate)
        known: dict[str, Any] = {"operands": dict(zip(self._signature.names, ready))}
        known["rows"] = math.prod(self._shape(known)[: self.description["hoisted"]])
        if "check" in self._phases:
            self._calls.remember(args, kwargs, known)
        return known

    def _is_sound(self, known: dict[str, Any]) -> bool:
        """Whether the index arrays are still those of sorted matrices."""
        tasks = get_num_threads() if known["rows"] > _LEAST_CHECKED else 1
        faults = np.zeros(tasks, np.int64)
        self._run("check", known | {"tasks": tasks, "faults": faults})
        return int(faults.sum()) == 0

    def _count(self, known: dict[str, Any]) -> dict[str, Any]:
        """Share the rows between tasks and count their entries; return what ``fill`` needs."""
        return self._structure(known, self._share(self._work(known), self._length(known)))

    def _work(self, known: dict[str, Any]) -> np.ndarray:
        """Return how many entries each row produces."""
        work = np.empty(known["rows"], np.int64)
        self._run("work", known | {"work": work})
        if self.description.get("is_exact"):  # these are all, and no entry comes twice
            self._check_memory(int(work.sum()))
        return work

    def _check_memory(self, entries: int) -> None:
        """Refuse a result that takes more memory than there is, before it is allocated."""
        own = self.description
        size = sum(np.dtype(own[kind]).itemsize for kind in ("place_dtype", "dtype"))
        if len(own["shape"]) != 2 or own["hoisted"] != 1:  # coordinates are made of places
            size += len(own["shape"]) * np.dtype(own["index_dtype"]).itemsize
        if entries * size > memory_bytes():
            raise MemoryError(
                f"{own['name']}: result {own['result']}: expected one that fits into the "
                f"{memory_bytes() / 2**30:.3g} GiB of this machine, found {entries} entries, which take "
                f"{entries * size / 2**30:.3g} GiB; compute it in parts, such as some rows at a time"
            )

    def _structure(self, known: dict[str, Any], structure: dict[str, Any]) -> dict[str, Any]:
        """Count the entries of rows that are shared between tasks; return what ``fill`` needs."""
        counts = np.empty(structure["work"].size * structure.get("parts", 1), np.int64)
        self._run("count", known | structure | {"counts": counts})
        if self.description["is_bounded"] and counts.min(initial=0) < 0:
            raise WorkspaceFullError(f"workspace {self.description['policy']!r}: no room for a row")
        indptr = _pointers(counts)
        self._check_memory(int(indptr[-1]))
        return structure | {"result_indptr": indptr, "result_nnz": int(indptr[-1])}

    def _share(self, work: np.ndarray, length: int) -> dict[str, Any]:
        """Cut the rows, of so many places each, into one stretch of equal cost for each thread."""
        before = np.zeros(work.size + 1, np.int64)
        np.cumsum(work, out=before[1:])
        shares = (int(before[-1]) + work.size) // _LEAST_WORK
        tasks = min(get_num_threads(), shares) if shares > 1 else 1
        rows = np.array([0, work.size])
        if tasks > 1:
            cost = self._cost_before(work, before, length)
            bounds = np.searchsorted(cost, np.arange(1, tasks) * (cost[-1] / tasks))
            rows = np.concatenate([[0], bounds, [work.size]]).astype(np.int64)
        return {
            "tasks": tasks,
            "task_rows": rows,
            "work": work,
            "before": before,
            "most": int(work.max(initial=0)),
            "ordered": 1,
        }

    def _cost_before(self, work: np.ndarray, before: np.ndarray, length: int) -> np.ndarray:
        """Estimate what the rows before each one cost: a step for a row, a term, and an entry."""
        cost = before + np.arange(work.size + 1.0)
        if not self.description["streams"]:
            cost[1:] += np.cumsum(work / (1 + work / max(1, length)))  # about as many are distinct
        return cost

    def _run(self, phase: str, known: dict[str, Any]) -> None:
        names = self._names[phase]
        for name in self._phase_scratches[phase]:
            known[f"{name}_size"] = self._scratch_size(name, known)
            known[f"workspace_{name}"] = self._scratch(name, known)
        # Operands are checked, and the rest was made here: the compiled function is called itself.
        own = (_ready(known[name]) for name in names)
        self._functions[phase](*known["operands"].values(), *own)

    def _scratch_size(self, name: str, known: dict[str, Any]) -> int:
        length, most = known.get("width", self._length(known)), known["most"]
        room = known.get("room", 16 * min(most, length) + 64)
        size = scratch_elements(self._scratches[name]["size"], length, most, room)
        if known["tasks"] == 1:
            return size
        apart = _APART // self._scratch_dtype(name).itemsize
        return -(-size // apart) * apart

    def _length(self, known: dict[str, Any]) -> int:
        """Return the places of a row."""
        depth = self.description["hoisted"]
        sizes = self._shape(known)[depth:]
        length = math.prod(sizes)
        if length >= 2**63:
            names = " * ".join(self.description["shape"][depth:])
            raise ValueError(
                f"{self.description['name']}: result {self.description['result']}: expected a row of fewer "
                f"than 2**63 places, found {names} = {' * '.join(map(str, sizes))} of them; loops over "
                "dense axes that the result begins with make rows shorter"
            )
        return length

    def _scratch(self, name: str, known: dict[str, Any]) -> np.ndarray:
        """Allocate scratch; that of two tasks shares no cache line, which both would write."""
        own, dtype = self._scratches[name], self._scratch_dtype(name)
        fill = self.description["neutral"] if own["fill"] is None else own["fill"]
        size = known[f"{name}_size"] * known["tasks"] * dtype.itemsize
        memory = np.zeros(size + _APART, np.uint8)
        begin = -memory.ctypes.data % _APART
        scratch = memory[begin : begin + size].view(dtype)
        if fill != 0:
            scratch.fill(fill)
        return scratch

    def _scratch_dtype(self, name: str) -> np.dtype:
        own = self._scratches[name]["dtype"]
        return np.dtype(self.description["dtype"] if own == "value" else own)

    def _shape(self, known: dict[str, Any]) -> tuple[int, ...]:
        operands = known["operands"]
        return tuple(dimension(text).evaluate(operands) for text in self.description["shape"])

    def _matrix(self, known, indptr, places, values) -> sp.csr_matrix | sp.coo_array:
        """Put the result together as SciPy holds it."""
        return _assembled(self._stored(known, indptr, places), values, self._shape(known))

    def _stored(self, known, indptr, places) -> tuple[np.ndarray, ...]:
        """Return the index arrays of the result: columns and pointers of a matrix, or coordinates."""
        shape, hoisted = self._shape(known), self.description["hoisted"]
        index_dtype = self.description["index_dtype"]
        if indptr[-1] > np.iinfo(index_dtype).max:
            index_dtype = "int64"
        if len(shape) == 2 and hoisted == 1:
            return places.astype(index_dtype, copy=False), indptr.astype(index_dtype)
        row = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
        outer = coordinates_of(row, shape[:hoisted]) if hoisted else ()
        coordinates = (*outer, *coordinates_of(places, shape[hoisted:]))
        if len(shape) == 2:
            rows = np.append(0, np.cumsum(np.bincount(coordinates[0], minlength=shape[0])))
            return coordinates[1].astype(index_dtype), rows.astype(index_dtype)
        return tuple(found.astype(index_dtype) for found in coordinates)


class ResultPlan:
    """A sparse result whose structure is known: compute it for new values.

    Results share their index arrays, which are therefore read-only: copy one to change its structure.

    Made by :meth:`SparseResultKernel.plan`.

    Attributes
    ----------
    nnz : int
        Entries of the result.
    """

    def __init__(
        self,
        kernel: SparseResultKernel,
        known: dict[str, Any],
        structure: dict[str, Any] | None = None,
        limit: int | None = None,
    ) -> None:
        self._kernel, self._limit = kernel, limit
        deciding = kernel.description.get("deciding", ())
        self._indices, self._deciding = {}, {}
        for arg in kernel._signature.parameters:
            name = arg["name"]
            if arg.get("index_of") is not None:
                self._indices[name] = _array(known["operands"][name]).copy()
            elif name in deciding:
                self._deciding[name] = _array(known["operands"][name]).copy()
        self._shape = kernel._shape(known)
        self._structure = kernel._count(known) if structure is None else structure
        self.nnz = self._structure["result_nnz"]
        #: Places in rows, and the index arrays that results share.
        self._found: tuple[np.ndarray, tuple[np.ndarray, ...]] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> sp.csr_matrix | sp.coo_array:
        """Compute the result for operands of the structure that was planned for.

        Raises
        ------
        ValueError
            If their structure is another one.
        """
        kernel = self._kernel
        known = kernel._bind(args, kwargs)
        self._check_structure(known)
        values = np.empty(self.nnz, kernel.description["dtype"])
        phase = self._phase(known)
        if phase == "fill":
            places = np.empty(self.nnz, kernel.description["place_dtype"])
        else:
            places, _ = self._found
        result = {"result_indices": places, "result_values": values}
        kernel._run(phase, known | self._structure | result)
        if self._found is None:
            stored = kernel._stored(known, _row_begins(self._structure), places)
            self._found = places, tuple(map(_read_only, stored))
        return _assembled(self._found[1], values, self._shape)

    def _check_structure(self, known: dict[str, Any]) -> None:
        """Refuse operands that give the result another structure than was planned for."""
        name = self._kernel.description["name"]
        for array, planned in self._indices.items():
            if not np.array_equal(_array(known["operands"][array]), planned):
                raise ValueError(
                    f"{name}: argument {array!r}: expected the index array that was planned for, found "
                    "another one; make a new plan"
                )
        shape = self._kernel._shape(known)
        if shape != self._shape:
            raise ValueError(
                f"{name}: expected sizes of a result of the shape {self._shape} that was planned for, "
                f"found {shape}; make a new plan"
            )
        for other, planned in self._deciding.items():
            if not np.array_equal(_array(known["operands"][other]), planned, equal_nan=True):
                raise ValueError(
                    f"{name}: argument {other!r}: expected the values that were planned for, which decide "
                    "which entries there are, found others; make a new plan"
                )

    def _phase(self, known: dict[str, Any]) -> str:
        """Return what computes the values: the structure too at first, and later by a trace of terms."""
        phases = self._kernel.description["phases"]
        if self._found is None:
            return "fill"
        if "term_entries" in self._structure:
            return "replay"
        terms = int(self._structure["before"][-1]) if "before" in self._structure else _MOST_TERMS
        if "trace" in phases and terms < _MOST_TERMS and self._has_room(known):
            trace = {"terms": terms, "term_entries": np.empty(terms, np.int32)}
            traced = self._structure | trace
            self._kernel._run("trace", known | traced | {"result_indices": self._found[0]})
            self._structure = traced  # other threads see it when it is complete
            return "replay"
        return "refill" if "refill" in phases else "fill"

    def _has_room(self, known: dict[str, Any]) -> bool:
        """Whether a trace may have the table of a row's places that each task needs."""
        length = self._kernel._length(known)
        size = 4 * length * self._structure["tasks"]
        return length < _LONG_ROW and (self._limit is None or size <= self._limit)


def _row_begins(structure: dict[str, Any]) -> np.ndarray:
    """Return where each row begins: those of parts of a row are left out."""
    return structure["result_indptr"][:: structure.get("parts", 1)]


def _array(value: Any) -> np.ndarray:
    """Return an array, or a number as one."""
    return np.asarray(value if np.isscalar(value) else np.from_dlpack(value))


def _ready(value: Any) -> Any:
    """Return an argument as compiled code takes it."""
    return array_to_tensor(value, written=True) if isinstance(value, np.ndarray) else value


def _pointers(counts: np.ndarray) -> np.ndarray:
    """Return where the entries of each row begin, and the last ones end."""
    pointers = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=pointers[1:])
    return pointers


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def _assembled(
    stored: tuple[np.ndarray, ...], values: np.ndarray, shape: tuple[int, ...]
) -> sp.csr_matrix | sp.coo_array:
    """Return a matrix or tensor that is known to be sound, sorted and without duplicates."""
    if len(shape) != 2:
        tensor = sp.coo_array((values, stored), shape=shape)
        tensor.has_canonical_format = True
        return tensor
    matrix = copy.copy(_prototype(shape))
    matrix.data, (matrix.indices, matrix.indptr) = values, stored
    return matrix


@functools.lru_cache(maxsize=64)
def _prototype(shape: tuple[int, int]) -> sp.csr_matrix:
    """Return a matrix of a shape, whose copies take arrays: SciPy would check them and choose a dtype."""
    matrix = sp.csr_matrix(shape)
    matrix.has_sorted_indices = matrix.has_canonical_format = True
    matrix.data = matrix.indices = matrix.indptr = None
    return matrix

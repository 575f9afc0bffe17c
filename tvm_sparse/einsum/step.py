"""One kernel of a plan: its program, its arguments, and what its result looks like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..formats.entries import Entries, RowEntries
from ..runtime.sparse_results import ResultPlan, SparseResultKernel
from ..workspace.costs import memory_bytes
from .complex_values import Expansion, joined
from .nests import Nest
from .normal_form import Problem, Restoration
from .program import Program, compiled, compiled_dense
from .semiring import Arithmetic

__all__ = ["Step"]


@dataclass
class Step:
    """One kernel and its arguments.

    Attributes
    ----------
    program : Program
        What is compiled, and its arguments.
    workspace : str
        How entries are collected.
    problem : Problem
        The sum of products in normal form.
    nests : list of Nest
        The loops of each term.
    restoration : Restoration
        How variables of the result come back.
    is_dense : bool
        Whether the result is a dense array.
    is_total : bool
        Whether all values are added up, for a result without dimensions.
    expansion : Expansion or None
        What the terms are parts of; None if they are real.
    entries : Entries or None
        The structure of the result, once it is found; None if it is dense.
    known : ResultPlan or None
        How it is computed for new values.
    """

    program: Program
    workspace: str
    problem: Problem
    nests: list[Nest]
    restoration: Restoration
    is_dense: bool
    is_total: bool
    expansion: Expansion | None = None
    entries: Entries | None = None
    known: ResultPlan | None = field(default=None, repr=False)

    def run(self, sources: Sequence[np.ndarray], arithmetic: Arithmetic, again: bool) -> np.ndarray:
        """Compute the values of the result; the first time, its structure too."""
        if self.expansion is None:
            return self._run(sources, arithmetic, again)
        real, imaginary = self.expansion.values(sources)
        found = self._run(real, arithmetic, again)
        return joined(found, self._run(imaginary, arithmetic, again=True))

    def _run(
        self, sources: Sequence[np.ndarray], arithmetic: Arithmetic, again: bool
    ) -> np.ndarray:
        arguments = self.program.call.arguments(sources)
        if self.is_dense:
            return self._run_dense(arguments, arithmetic)
        kernel = compiled(self.program.text, self.workspace)
        if again:
            self.known = self.known or kernel.plan(**arguments)
            return self.known(**arguments).data
        self._check_rows(kernel, arithmetic)
        found = kernel(**arguments)
        self.entries = self._restored(found)
        return found.data

    def _check_rows(self, kernel: SparseResultKernel, arithmetic: Arithmetic) -> None:
        """Refuse rows for which the workspace that a user chose has no memory.

        An automatic choice weighs memory itself; the policy in its description is the first of several.
        """
        policy, spans = kernel.description["policy"], self.problem.result[1:]
        size = math.prod(self.problem.sizes[v] for v in spans) * arithmetic.held.itemsize
        if self.workspace == "auto" or policy != "dense" or size <= memory_bytes():
            return
        text = " x ".join(f"{self.problem.sizes[v]} ({v})" for v in spans)
        raise ValueError(
            f"einsum: expected rows of the result that workspace {policy!r} can hold in memory, found "
            f"rows of {text} places; choose another workspace, or another order of the result's letters"
        )

    def _run_dense(self, arguments: dict[str, Any], arithmetic: Arithmetic) -> np.ndarray:
        shape = tuple(self.problem.sizes[v] for v in self.problem.result)
        zero = arithmetic.semiring.zero(arithmetic.held)
        result = np.full(shape, zero, arithmetic.held)
        if result.size:
            compiled_dense(self.program.text)(**arguments, result=result)
        if self.is_total:
            result = np.array([arithmetic.semiring.reduce.reduce(result, initial=zero)])
        return result.reshape(-1)

    def _restored(self, found: sp.csr_matrix | sp.coo_array) -> Entries:
        """The structure of a result over the original variables, sorted; places as values."""
        places, result = np.arange(found.nnz), self.problem.result
        if len(result) == 2 and self.restoration.is_trivial:
            return RowEntries(found.indptr, found.indices, places, found.shape)
        if found.format == "csr":
            found = found.tocoo(copy=False)
        coordinates: dict[str, np.ndarray] = {}
        for variable, own in zip(result, found.coords):
            coordinates |= self.restoration.restore(variable, own)
        return Entries(tuple(coordinates.values()), places, ())

"""Plans: the kernels that an expression runs on operands of one structure, and their arguments."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..formats.entries import Entries, RowEntries
from ..ir import SparseFunc
from ..runtime.sparse_results import ResultPlan, SparseResultKernel
from .explain import describe
from .expression import parse
from .factors import Factor, read_operand, read_sizes
from .nests import MOST_VARIABLES, Nest, best_nest
from .normal_form import Problem, Restoration, normalize
from .program import Program, compiled, compiled_dense, parsed, write_program
from .results import finish, result_order
from .semiring import Arithmetic, arithmetic
from .splitting import choose_split

__all__ = ["EinsumPlan"]


@dataclass
class _Step:
    """One kernel and its arguments."""

    program: Program
    workspace: str
    problem: Problem
    nests: list[Nest]
    restoration: Restoration
    is_dense: bool
    is_total: bool  # whether all values are added up, for a result without dimensions
    entries: Entries | None = None
    known: ResultPlan | None = field(default=None, repr=False)

    def run(self, sources: Sequence[np.ndarray], arithmetic: Arithmetic, again: bool) -> np.ndarray:
        """Compute the values of the result; the first time, its structure too."""
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
        """Refuse rows for whose places a dense workspace has no memory, before anything is computed."""
        policy, spans = kernel.description["policy"], self.problem.result[1:]
        size = math.prod(self.problem.sizes[v] for v in spans) * arithmetic.held.itemsize
        if policy != "dense" or size <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
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


class EinsumPlan:
    """A sum of products on operands of one structure, made by :func:`einsum_plan`.

    Call it with operands of the same structure and other values.

    Attributes
    ----------
    functions : list of SparseFunc
        The programs that it runs, in this order.
    """

    def __init__(
        self,
        expression: str,
        operands: Sequence[Any],
        out: str = "csr",
        semiring: str = "plus-times",
        dtype: Any = None,
        workspace: str = "auto",
        prune: bool = False,
    ) -> None:
        self.expression = parse(expression)
        letters = self.expression.operands
        if len(operands) != len(letters):
            raise TypeError(
                f"operands: expected {len(letters)} for {str(self.expression)!r}, found {len(operands)}"
            )
        self._order = result_order(self.expression.result, out)
        read = [read_operand(own, op, n) for n, (own, op) in enumerate(zip(letters, operands))]
        factors, self._sources, given = zip(*read)
        self._sizes = read_sizes(self._sources)
        self._arithmetic = arithmetic(semiring, [own.dtype for own in self._sources], dtype)
        self._out, self._workspace, self._prune = out, workspace, prune
        self._steps: list[_Step] = []
        self._values = self._operand_values(given)
        numbers = iter(factors)
        self._terms = [[next(numbers) for _ in term] for term in self.expression.terms]
        self._wraps_arrays = _all_arrays(operands)
        self._wide = any(_has_wide_indices(factor) for factor in factors)
        self._entries, self._last = self._solve_all()
        self._first: list[np.ndarray] | None = self._values

    def __call__(self, *operands: Any) -> Any:
        """Compute the result for operands of the planned structure.

        Returns
        -------
        scipy.sparse matrix or array, Packed, numpy.ndarray or number
            As :func:`einsum` does.

        Raises
        ------
        TypeError, ValueError
            If there are more or fewer operands, or their structure is another one.
        """
        if len(operands) != len(self._sources):
            raise TypeError(
                f"operands: expected {len(self._sources)} for {str(self.expression)!r}, found "
                f"{len(operands)}"
            )
        given = [source.read_again(op) for source, op in zip(self._sources, operands)]
        values = self._operand_values(given)
        for step in self._steps:
            values.append(step.run(values, self._arithmetic, again=True))
        return self._finished(values)

    @property
    def functions(self) -> list[SparseFunc]:
        """The programs, in the order in which they run."""
        return [parsed(step.program.text) for step in self._steps]

    def __str__(self) -> str:
        return describe(self)

    def script(self) -> str:
        """Return the programs as TVMScript."""
        return "\n\n".join(func.script() for func in self.functions)

    def first_result(self) -> Any:
        """Return the result for the operands that the plan was made with; once, then they are let go."""
        if self._first is None:
            raise ValueError("plan: call it with operands; its first result was taken already")
        values, self._first = self._first, None
        return self._finished(values)

    # --- planning ---

    def _operand_values(self, given: Sequence[Any]) -> list[np.ndarray]:
        pairs = zip(self._sources, given)
        return [source.values(own, self._arithmetic) for source, own in pairs]

    def _solve_all(self) -> tuple[Entries | None, list[int]]:
        """Plan everything; return the structure of the result and the sources of its values."""
        if self._order:
            factor = self._solve(self._terms, self._order, self._out == "dense")
            return factor.entries, [factor.source]
        return None, [self._solve([term], (), True).source for term in self._terms]

    def _solve(
        self, terms: Sequence[Sequence[Factor]], result: Sequence[str], is_dense: bool = False
    ) -> Factor:
        """Plan and run a sum of products; return it as a factor."""
        terms = [self._in_pairs(list(term), result) for term in terms]
        sizes = {v: self._size(v) for term in terms for f in term for v in f.variables}
        problem = Problem(tuple(map(tuple, terms)), tuple(result), sizes)
        problem, restoration = normalize(problem, is_dense)
        inner = problem if result else _with_rows(problem)
        nests = [best_nest(term, inner.result, inner.sizes) for term in inner.terms]
        if None in nests:
            raise ValueError(
                f"expression: expected at most {MOST_VARIABLES} letters in products that are not split in "
                f"pairs, found {str(self.expression)!r}"
            )
        program = write_program(
            inner.terms, nests, inner.result, inner.sizes, self._arithmetic, is_dense
        )
        step = _Step(program, self._workspace, inner, nests, restoration, is_dense, not result)
        self._values.append(step.run(self._values, self._arithmetic, again=False))
        self._steps.append(step)
        if step.entries is not None:
            step.entries = _with_shape(step.entries, tuple(sizes[v] for v in result))
        return Factor(tuple(result), len(self._values) - 1, step.entries)

    def _in_pairs(self, term: list[Factor], result: Sequence[str]) -> list[Factor]:
        """Replace pairs of factors by their products where that pays off."""
        if not self._arithmetic.semiring.distributes:
            return term
        sizes = {v: self._size(v) for factor in term for v in factor.variables}
        while (split := choose_split(term, result, sizes)) is not None:
            pair = [term[split.first], term[split.second]]
            rest = [factor for factor in term if all(factor is not own for own in pair)]
            term = [self._solve([pair], split.result), *rest]
        return term

    def _size(self, variable: str) -> int:
        return self._sizes[variable]

    def _finished(self, values: list[np.ndarray]) -> Any:
        add = self._arithmetic.semiring.reduce
        found = values[self._last[0]]
        for number in self._last[1:]:
            found = add(found, values[number])
        shape = tuple(self._sizes[letter] for letter in self.expression.result)
        return finish(
            self._entries,
            found,
            shape,
            out=self._out,
            arithmetic=self._arithmetic,
            prune=self._prune,
            as_array=self._wraps_arrays,
            wide=self._wide,
        )


def _with_rows(problem: Problem) -> Problem:
    """Let a problem without a result have one value for each coordinate of its best variable."""
    (term,) = problem.terms
    variables = dict.fromkeys(v for factor in term for v in factor.variables)
    nests = {v: best_nest(term, (v,), problem.sizes) for v in variables}
    tried = {v: nest.steps for v, nest in nests.items() if nest is not None}
    return replace(problem, result=(min(tried, key=tried.get, default=next(iter(variables))),))


def _with_shape(entries: Entries, shape: tuple[int, ...]) -> Entries:
    if isinstance(entries, RowEntries):
        return entries
    return Entries(entries.coordinates, entries.values, shape)


def _all_arrays(operands: Sequence[Any]) -> bool:
    """Whether the SciPy operands are arrays, not matrices."""
    found = [isinstance(operand, sp.sparray) for operand in operands if sp.issparse(operand)]
    return bool(found) and all(found)


def _has_wide_indices(factor: Factor) -> bool:
    return not factor.is_dense and any(c.dtype == np.int64 for c in factor.entries.coordinates)

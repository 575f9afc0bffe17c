"""Plans: the kernels that an expression runs on operands of one structure, and their arguments."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..formats.entries import Entries, RowEntries
from ..ir import SparseFunc
from .complex_values import Expansion, expand, joined
from .explain import describe
from .expression import parse
from .factors import Factor
from .masks import read_mask
from .nests import MOST_VARIABLES, best_nest
from .normal_form import Problem, normalize
from .operands import read_operand, read_sizes, scaled
from .program import parsed, write_program
from .results import Output
from .semiring import arithmetic
from .splitting import choose_split
from .step import Step

__all__ = ["EinsumPlan"]


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
        *,
        out: str = "csr",
        blocksize: tuple[int, int] | None = None,
        semiring: str = "plus-times",
        dtype: Any = None,
        mask: Any = None,
        complement: bool = False,
        workspace: str = "auto",
        prune: bool = False,
    ) -> None:
        self.expression = parse(expression)
        letters, result = self.expression.operands, self.expression.result
        if len(operands) != len(letters):
            raise TypeError(
                f"operands: expected {len(letters)} for {str(self.expression)!r}, found {len(operands)}"
            )
        self._output = Output(result, out, blocksize, prune)
        read = [read_operand(own, op, n) for n, (own, op) in enumerate(zip(letters, operands))]
        factors, sources, given = zip(*read)
        numbers = iter(factors)
        terms = [[next(numbers) for _ in term] for term in self.expression.terms]
        self._sources = scaled(sources, terms, self.expression.coefficients)
        self._mask = None if mask is None else read_mask(mask, result, complement, len(factors))
        if self._mask is not None:
            terms = [[*term, self._mask.factor] for term in terms]
        elif complement:
            raise ValueError("complement: expected a mask to complement, found none")
        known = [*self._sources, *([self._mask.source] if self._mask else [])]
        self._sizes = read_sizes(known)
        dtypes = [own.dtype for own in self._sources]
        self._arithmetic = arithmetic(semiring, dtypes, dtype, self.expression.coefficients)
        self._output.check(self._shape, self._arithmetic)
        self._workspace, self._steps = workspace, []
        self._expansion: Expansion | None = None
        self._labels = [own.label for own in known]
        if not self._arithmetic.is_logical and any(own.kind == "c" for own in dtypes):
            self._expansion = expand(terms, [own.dtype.kind == "c" for own in known])
            self._labels = [self._labels[origin] for origin in self._expansion.origins]
            terms = self._expansion.terms
        self._terms = terms
        self._wraps_arrays = _all_arrays(operands)
        self._wide = any(_has_wide_indices(factor) for factor in factors)
        self._values, *others = self._parts(given)
        self._entries, self._last = self._solve_all()
        self._first: list[list[np.ndarray]] | None = [self._values, *others]

    def __call__(self, *operands: Any) -> Any:
        """Compute the result for operands of the planned structure.

        Entries may come in another order or format than planned, such as CSC in place of CSR.

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
        return self._finished([self._run(values) for values in self._parts(given)])

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
        (solved, *others), self._first = self._first, None
        return self._finished([self._total(solved), *map(self._run, others)])

    # --- values ---

    def _parts(self, given: Sequence[Any]) -> list[list[np.ndarray]]:
        """Return the values of all sources; of complex operands those of each part of the result."""
        pairs = zip(self._sources, given)
        values = [source.values(own, self._arithmetic) for source, own in pairs]
        if self._mask is not None:
            values.append(self._mask.values(self._arithmetic))
        return [values] if self._expansion is None else self._expansion.values(values)

    def _run(self, values: list[np.ndarray]) -> np.ndarray:
        """Compute the values of the result from those of the sources."""
        for step in self._steps:
            values.append(step.run(values, self._arithmetic, again=True))
        return self._total(values)

    def _total(self, values: Sequence[np.ndarray]) -> np.ndarray:
        add = self._arithmetic.semiring.reduce
        return functools.reduce(add, [values[number] for number in self._last])

    def _finished(self, parts: Sequence[np.ndarray]) -> Any:
        values = parts[0] if len(parts) == 1 else joined(*parts)
        return self._output.finish(
            self._entries,
            values,
            self._shape,
            arithmetic=self._arithmetic,
            as_array=self._wraps_arrays,
            wide=self._wide,
        )

    # --- planning ---

    def _solve_all(self) -> tuple[Entries | None, list[int]]:
        """Plan everything; return the structure of the result and the sources of its values."""
        order = self._output.order
        if order:
            factor = self._solve(self._terms, order, self._output.is_dense)
            return factor.entries, [factor.source]
        return None, [self._solve([term], (), True).source for term in self._terms]

    def _solve(
        self, terms: Sequence[Sequence[Factor]], result: Sequence[str], is_dense: bool = False
    ) -> Factor:
        """Plan and run a sum of products; return it as a factor."""
        terms = [self._in_pairs(list(term), result) for term in terms]
        sizes = {v: self._sizes[v] for term in terms for f in term for v in f.variables}
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
        step = Step(program, self._workspace, inner, nests, restoration, is_dense, not result)
        self._values.append(step.run(self._values, self._arithmetic, again=False))
        self._steps.append(step)
        if step.entries is not None:
            step.entries = _with_shape(step.entries, tuple(sizes[v] for v in result))
        return Factor(tuple(result), len(self._values) - 1, step.entries)

    def _in_pairs(self, term: list[Factor], result: Sequence[str]) -> list[Factor]:
        """Replace pairs of factors by their products where that pays off."""
        if not self._arithmetic.semiring.distributes:
            return term
        sizes = {v: self._sizes[v] for factor in term for v in factor.variables}
        excluding = [factor for factor in term if factor.excludes]
        term = [factor for factor in term if not factor.excludes]
        while (split := choose_split(term, result, sizes)) is not None:
            pair = [term[split.first], term[split.second]]
            rest = [factor for factor in term if all(factor is not own for own in pair)]
            term = [self._solve([pair], split.result), *rest]
        return [*term, *excluding]

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(self._sizes[letter] for letter in self.expression.result)


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

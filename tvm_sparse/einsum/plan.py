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
from .complex_values import expand
from .explain import describe
from .expression import parse
from .factors import Factor
from .masks import Mask, read_mask
from .nests import MOST_VARIABLES, best_nest, union_nest
from .normal_form import Problem, normalize
from .operands import read_operand, read_sizes, scaled
from .options import EinsumOptions
from .program import parsed, write_program
from .results import Output
from .semiring import arithmetic
from .splitting import Split, choose_split
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

    def __init__(self, expression: str, operands: Sequence[Any], options: EinsumOptions) -> None:
        self.expression = parse(expression)
        letters, result = self.expression.operands, self.expression.result
        if len(operands) != len(letters):
            raise TypeError(
                f"operands: expected {len(letters)} for {str(self.expression)!r}, found {len(operands)}"
            )
        self._output = Output(result, options.out, options.blocksize, options.prune)
        read = [read_operand(own, op, n) for n, (own, op) in enumerate(zip(letters, operands))]
        factors, sources, given = zip(*read)
        numbers = iter(factors)
        terms = [[next(numbers) for _ in term] for term in self.expression.terms]
        self._sources = scaled(sources, terms, self.expression.coefficients)
        self._mask = _read_mask(options, result, len(factors))
        if self._mask is not None:
            terms = [[*term, self._mask.factor] for term in terms]
        known = [*self._sources, *([self._mask.source] if self._mask else [])]
        self._labels = [own.label for own in known]
        self._sizes = read_sizes(known)
        dtypes = [own.dtype for own in self._sources]
        self._arithmetic = arithmetic(
            options.semiring, dtypes, options.dtype, self.expression.coefficients
        )
        self._output.check(self._shape, self._arithmetic)
        self._workspace = options.workspace
        self._steps: list[Step] = []
        self._terms = terms
        self._wraps_arrays = _all_arrays(operands)
        self._wide = any(_has_wide_indices(factor) for factor in factors)
        self._values = self._source_values(given)
        self._entries, self._last = self._solve_all()
        self._first: list[np.ndarray] | None = self._values

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
        values = self._source_values(given)
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

    # --- values ---

    def _source_values(self, given: Sequence[Any]) -> list[np.ndarray]:
        pairs = zip(self._sources, given)
        values = [source.values(own, self._arithmetic) for source, own in pairs]
        return values if self._mask is None else [*values, self._mask.values(self._arithmetic)]

    def _finished(self, values: Sequence[np.ndarray]) -> Any:
        add = self._arithmetic.semiring.reduce
        return self._output.finish(
            self._entries,
            functools.reduce(add, [values[number] for number in self._last]),
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
        expansion = None
        if any(self._is_complex(factor) for term in terms for factor in term):
            expansion = expand(terms, [own.dtype.kind == "c" for own in self._values])
            terms = expansion.terms
        sizes = {v: self._sizes[v] for term in terms for f in term for v in f.variables}
        problem = Problem(tuple(map(tuple, terms)), tuple(result), sizes)
        problem, restoration = normalize(problem, is_dense)
        inner = problem if result else _with_rows(problem)
        union = None if is_dense or not result else union_nest(inner.terms, inner.result)
        nests = [best_nest(term, inner.result, inner.sizes) for term in inner.terms]
        nests = nests if union is None else [union]
        if None in nests:
            raise ValueError(
                f"expression: expected at most {MOST_VARIABLES} letters in products that are not split in "
                f"pairs, found {str(self.expression)!r}"
            )
        program = write_program(
            inner.terms, nests, inner.result, inner.sizes, self._arithmetic, is_dense
        )
        step = Step(
            program, self._workspace, inner, nests, restoration, is_dense, not result, expansion
        )
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
        while (split := self._split(term, result, sizes)) is not None:
            pair = [term[split.first], term[split.second]]
            rest = [factor for factor in term if all(factor is not own for own in pair)]
            term = [self._solve([pair], split.result), *rest]
        return term

    def _split(
        self, term: Sequence[Factor], result: Sequence[str], sizes: dict[str, int]
    ) -> Split | None:
        """Choose a pair; as a whole, complex factors make more real products than two each time."""
        parts = sum(self._is_complex(factor) for factor in term)
        return choose_split(term, result, sizes, 2.0 ** max(0, parts - 2))

    def _is_complex(self, factor: Factor) -> bool:
        return self._values[factor.source].dtype.kind == "c"

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(self._sizes[letter] for letter in self.expression.result)


def _read_mask(options: EinsumOptions, result: str, count: int) -> Mask | None:
    if options.mask is not None:
        return read_mask(options.mask, result, options.complement, count)
    if options.complement:
        raise ValueError("complement: expected a mask to complement, found none")
    return None


def _with_rows(problem: Problem) -> Problem:
    """Let a problem without a result have one value for each coordinate of its best variable."""
    each = [dict.fromkeys(v for factor in term for v in factor.variables) for term in problem.terms]
    common = [v for v in each[0] if all(v in own for own in each)]
    nests = {v: [best_nest(term, (v,), problem.sizes) for term in problem.terms] for v in common}
    tried = {v: sum(nest.steps for nest in own) for v, own in nests.items() if None not in own}
    return replace(problem, result=(min(tried, key=tried.get, default=common[0]),))


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

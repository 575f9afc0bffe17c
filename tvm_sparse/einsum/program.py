"""The program of a sum of products, over coordinates, and the arrays that it takes.

The text names variables by letters of its own, so that expressions that differ in letters alone share a
kernel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule

from ..ir import SparseFunc
from ..runtime.compile import compile, lower
from ..runtime.executable import Executable
from ..runtime.sparse_results import SparseResultKernel
from .factors import Factor
from .levels import store_levels
from .nests import Nest
from .semiring import Arithmetic

__all__ = ["Call", "Program", "compiled", "compiled_dense", "parsed", "write_program"]

_LETTERS = "ijklmnopqrstuvwxyzabcdefgh"


@dataclass(frozen=True)
class Call:
    """What a program takes.

    Attributes
    ----------
    fixed : dict of str to numpy.ndarray or int
        Index arrays and sizes.
    values : dict of str to tuple
        For each array of values: number of its source, places in it or None for the first in order, how
        many, and for a factor of one variable its coordinates and its size.
    """

    fixed: dict[str, np.ndarray | int] = field(default_factory=dict)
    values: dict[str, tuple] = field(default_factory=dict)

    def arguments(self, sources: Sequence[np.ndarray]) -> dict[str, np.ndarray | int]:
        """Return all arguments by name, values being taken from these sources."""
        found = dict(self.fixed)
        for name, (source, places, count, stored, size) in self.values.items():
            values = sources[source][:count] if places is None else sources[source][places]
            if stored is not None:
                spread = np.zeros(size, values.dtype)
                spread[stored] = values
                values = spread
            found[name] = values
        return found


@dataclass(frozen=True)
class Program:
    """A program and its arguments.

    Attributes
    ----------
    text : str
        TVMScript.
    call : Call
        What it takes.
    letters : dict of str to str
        The letter that stands for each variable.
    """

    text: str
    call: Call
    letters: dict[str, str]


def write_program(
    terms: Sequence[Sequence[Factor]],
    nests: Sequence[Nest],
    result: Sequence[str],
    sizes: dict[str, int],
    arithmetic: Arithmetic,
    is_dense: bool = False,
) -> Program:
    """Write the program of a sum of products.

    Parameters
    ----------
    terms : sequence of sequence of Factor
        The products.
    nests : sequence of Nest
        Their loops; a single one for several terms adds tensors up side by side.
    result : sequence of str
        Variables of the result.
    sizes : dict of str to int
        Of the variables.
    arithmetic : Arithmetic
        Operations and types.
    is_dense : bool
        Whether the result is a dense array, to which products are added in place.
    """
    writer = _Writer(result, nests, sizes, arithmetic, is_dense)
    if len(nests) < len(terms):
        writer.add_union(terms, nests[0])
        return Program(writer.text(), writer.call, writer.letters)
    for number, (term, nest) in enumerate(zip(terms, nests)):
        writer.add_term(number, term, nest)
    return Program(writer.text(), writer.call, writer.letters)


@functools.lru_cache(maxsize=256)
def parsed(text: str) -> SparseFunc:
    """Return the function of a text."""
    from ..script import from_source  # noqa: PLC0415 (the dialect is registered after this is loaded)

    return from_source(text)


@functools.lru_cache(maxsize=256)
def compiled(text: str, workspace: str) -> SparseResultKernel:
    """Return the kernel of a text, compiled once."""
    return compile(parsed(text), workspace=workspace)


@functools.lru_cache(maxsize=256)
def compiled_dense(text: str) -> Executable:
    """Return the kernel of a text with a dense result, compiled once; rows run in parallel."""
    module = lower(parsed(text))
    return compile(
        IRModule({name: _rows_in_parallel(func) for name, func in module.functions.items()})
    )


def _rows_in_parallel(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Run outermost loops, each over the rows of the result, in parallel: rows share nothing."""

    def parallel(loop: tirx.For, _mutator) -> tirx.For:
        kind = tirx.ForKind.PARALLEL
        return tirx.For(loop.loop_var, loop.min, loop.extent, kind, loop.body)

    return func.with_body(tvm_ffi.structural_mutate(func.body, [(tirx.For, parallel)]))


class _Writer:
    """Writes parameters, axes, buffers and iterations, and notes what arguments they take."""

    def __init__(
        self,
        result: Sequence[str],
        nests: Sequence[Nest],
        sizes: dict[str, int],
        arithmetic: Arithmetic,
        is_dense: bool,
    ) -> None:
        self.is_dense = is_dense
        self.result, self.sizes, self.arithmetic = list(result), sizes, arithmetic
        order = dict.fromkeys([*result, *(v for nest in nests for v in nest.order)])
        self.letters = dict(zip(order, _LETTERS))
        self.dtype = arithmetic.held.name
        self.arrays: list[str] = ["result"]
        self.scalars: list[str] = []
        self.axes: list[str] = []
        self.buffers: list[str] = []
        self.iterations: list[str] = []
        self.call = Call()
        self._dense: set[str] = set()
        self._factors = 0
        self._index_dtype = "int32"
        if any(size >= 2**31 for size in sizes.values()):
            self._index_dtype = "int64"
        self._add_result()

    def text(self) -> str:
        """Return the program."""
        parameters = ", ".join(
            [*(f"{name}: S.handle" for name in self.arrays)]
            + [f"{name}: S.{self._index_dtype}" for name in self.scalars]
        )
        lines = [*self.axes, *self.buffers, *self.iterations]
        body = "\n".join(f"    {line}" for line in lines)
        return f"@S.prim_func\ndef einsum({parameters}):\n{body}\n"

    def add_term(self, number: int, term: Sequence[Factor], nest: Nest) -> None:
        """Add a product: its factors, and the iteration over them."""
        names = []
        for factor in term:
            name = f"T{self._factors}"
            self._factors += 1
            names.append(name)
            if factor.is_dense:
                self._add_dense(name, factor)
            else:
                place = len(names) - 1
                self._add_sparse(name, factor, nest, place in nest.searched)
        self._add_iteration(number, term, names, nest)

    def add_union(self, terms: Sequence[Sequence[Factor]], nest: Nest) -> None:
        """Add a sum of tensors: one iteration over the coordinates that any of them stores."""
        factors = [factor for (factor,) in terms]
        names = [f"T{number}" for number in range(len(factors))]
        for name, factor in zip(names, factors):
            self._add_sparse(name, factor, nest, is_searched=False, default=self._zero())
        add = self.arithmetic.semiring.add
        reads = [self._read(name, factor, nest) for name, factor in zip(names, factors)]
        value = functools.reduce(lambda a, b: add.format(a=a, b=b), reads)
        axes = ", ".join(self._loop_axes(factors, names, nest, "union"))
        variables = ", ".join(self.letters[v] for v in nest.order)
        place = ", ".join(self.letters[v] for v in self.result)
        self.iterations += [
            f'with S.sp_iter([{axes}], "{"S" * len(nest.order)}", "sum") as [{variables}]:',
            f"    Result[{place}] = {value}",
        ]

    def _zero(self) -> str:
        """What an absent entry of a summand counts as; nothing where that is 0."""
        zero = self.arithmetic.semiring.zero(self.arithmetic.held).item()
        if zero == 0:
            return ""
        return f'S.{self.dtype}("{zero}")' if math.isinf(zero) else f"S.{self.dtype}({zero})"

    # --- parameters, axes and buffers ---

    def _scalar(self, name: str, value: int) -> str:
        if name not in self.scalars:
            self.scalars.append(name)
            self.call.fixed[name] = int(value)
        return name

    def _all(self, variable: str) -> str:
        """The axis of all coordinates of a variable."""
        letter = self.letters[variable]
        axis = letter.upper()
        if variable not in self._dense:
            self._dense.add(variable)
            size = self._scalar(f"n_{letter}", self.sizes[variable])
            self.axes.append(f"{axis} = S.dense_fixed({size})")
        return axis

    def _add_result(self) -> None:
        axes = [self._all(self.result[0])]
        for variable in self.result[1:]:
            letter = self.letters[variable]
            size = self._scalar(f"n_{letter}", self.sizes[variable])
            if self.is_dense:
                axes.append(self._all(variable))
            else:
                self._output(axes, f"Result_{letter.upper()}", size)
        if self._has_one_place:
            self._output(axes, "Result_only", "1")
        axes = f"({', '.join(axes)},)"
        self.buffers.append(f'Result = S.match_sparse_buffer(result, {axes}, "{self.dtype}")')

    @property
    def _has_one_place(self) -> bool:
        """Whether a row of the result has one place alone: it has no second variable."""
        return len(self.result) == 1 and not self.is_dense

    def _output(self, axes: list[str], name: str, size: str) -> None:
        self.axes.append(f'{name} = S.sparse_output({axes[-1]}, {size}, "{self._index_dtype}")')
        axes.append(name)

    def _buffer(self, name: str, axes: Sequence[str], dtype: str, default: str = "") -> None:
        parameter = name.lower()
        self.arrays.append(parameter)
        axes = f"({', '.join(axes)},)"
        default = f", default={default}" if default else ""
        self.buffers.append(
            f'{name} = S.match_sparse_buffer({parameter}, {axes}, "{dtype}"{default})'
        )

    def _add_dense(self, name: str, factor: Factor) -> None:
        self._buffer(name, [self._all(v) for v in factor.variables], self.dtype)
        self.call.values[name.lower()] = (factor.source, None, None, None, 0)

    def _add_sparse(
        self, name: str, factor: Factor, nest: Nest, is_searched: bool, default: str = ""
    ) -> None:
        variables = [v for v in nest.order if v in factor.variables]
        levels = store_levels(factor, variables, self._index_dtype)
        axes = [self._all(variables[0])]
        for variable, pointers, indices in zip(variables[1:], levels.pointers, levels.indices):
            axes.append(self._compressed(name, variable, axes[-1], pointers, indices))
        size = self.sizes[variables[0]]
        if not factor.excludes:
            self._buffer(name, axes, self.dtype, default)
            taken = factor.source, levels.places, factor.count, levels.stored, size
            self.call.values[name.lower()] = taken
        if is_searched:
            self._buffer(f"{name}_stored", axes, "int8")
            self.call.fixed[f"{name.lower()}_stored"] = _presence(levels.stored, size, factor.count)

    def _compressed(self, name: str, variable: str, parent: str, pointers, indices) -> str:
        letter, prefix = self.letters[variable], name.lower()
        arrays = f"{prefix}_{letter}_indptr", f"{prefix}_{letter}_indices"
        self.arrays += arrays
        self.call.fixed.update(zip(arrays, (pointers, indices)))
        size = self._scalar(f"n_{letter}", self.sizes[variable])
        stored = self._scalar(f"{prefix}_{letter}_nnz", indices.size)
        axis = f"{name}_{letter.upper()}"
        self.axes.append(
            f"{axis} = S.sparse_variable({parent}, ({size}, {stored}), ({', '.join(arrays)}), "
            f'"{self._index_dtype}")'
        )
        return axis

    # --- iterations ---

    def _add_iteration(
        self, number: int, term: Sequence[Factor], names: list[str], nest: Nest
    ) -> None:
        kinds = "".join("S" if v in self.result else "R" for v in nest.order)
        variables = ", ".join(self.letters[v] for v in nest.order)
        axes = ", ".join(self._loop_axes(term, names, nest))
        lines = [f'with S.sp_iter([{axes}], "{kinds}", "term{number}") as [{variables}]:']
        indent = "    "
        for place in nest.searched:
            factor = term[place]
            read = self._read(f"{names[place]}_stored", factor, nest)
            lines.append(f"{indent}if {read} {'==' if factor.excludes else '!='} S.int8(0):")
            indent += "    "
        multiply = self.arithmetic.semiring.multiply
        reads = [self._read(n, f, nest) for n, f in zip(names, term) if not f.excludes]
        value = functools.reduce(lambda a, b: multiply.format(a=a, b=b), reads)
        place = [self.letters[v] for v in self.result] + ["0"] * self._has_one_place
        store = f"Result[{', '.join(place)}]"
        total = self.arithmetic.semiring.add.format(a=store, b=value)
        self.iterations += [*lines, f"{indent}{store} = {total}"]

    def _read(self, name: str, factor: Factor, nest: Nest) -> str:
        order = factor.variables
        if not factor.is_dense:
            order = [v for v in nest.order if v in factor.variables]
        return f"{name}[{', '.join(self.letters[v] for v in order)}]"

    def _level_axis(
        self, factor: Factor, name: str, variable: str, nest: Nest, axes: dict[str, str]
    ) -> str:
        """The axis of a factor's level; the first one is attached to the loop over its rows."""
        own = [v for v in nest.order if v in factor.variables]
        axis, root = f"{name}_{self.letters[variable].upper()}", axes[own[0]]
        is_attached = own.index(variable) == 1 and root != self.letters[own[0]].upper()
        return f"S.attach({axis}, {root})" if is_attached else axis

    def _loop_axes(
        self, term: Sequence[Factor], names: list[str], nest: Nest, merge: str = "intersect"
    ) -> list[str]:
        """What each loop runs over: all coordinates, or a level under the place that loops have found."""
        axes: dict[str, str] = {}
        found = []
        for loop in nest.loops:
            if not loop.drivers:
                written = self._all(loop.variable)
            else:
                own = [
                    self._level_axis(term[k], names[k], loop.variable, nest, axes)
                    for k in loop.drivers
                ]
                written = own[0] if len(own) == 1 else f"S.{merge}({', '.join(own)})"
            axes[loop.variable] = written
            found.append(written)
        return found


def _presence(stored: np.ndarray | None, size: int, count: int) -> np.ndarray:
    """Ones where a factor has entries."""
    if stored is None:
        return np.ones(count, np.int8)
    flags = np.zeros(size, np.int8)
    flags[stored] = 1
    return flags

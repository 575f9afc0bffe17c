"""SpMM with blocks of entries, as tile programs see it: which loop is which, and where operands lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var

from .block_nests import Factor, Nest, at, same_place, stride, uses
from .staging import bind, cast

__all__ = ["BlockProduct", "Outside", "Steps"]


@dataclass(frozen=True)
class BlockProduct:
    """SpMM of one part: for each row of blocks ``b``, ``C[i, k] += A[b, i, j] * B[column(b, j), k]``.

    Attributes
    ----------
    nest : Nest
        Where it comes from.
    block, column, row, feature : Var
        Variables of its loops ``b``, ``j``, ``i`` and ``k``.
    count : Expr
        Blocks under a row of blocks.
    columns, rows : int
        Size of a block.
    features : Expr
        Feature width.
    values, dense : Factor
        ``A`` and ``B``.
    row_conditions : tuple of Expr
        Whether a row of a block is one of the matrix.
    entry_conditions : tuple of Expr
        Whether a column of a block is one of the matrix.
    by_columns : bool
        Whether the values of a column are neighbours, not those of a row.
    """

    nest: Nest
    block: Var
    column: Var
    row: Var
    feature: Var
    count: Expr
    columns: int
    rows: int
    features: Expr
    values: Factor
    dense: Factor
    row_conditions: tuple[Expr, ...]
    entry_conditions: tuple[Expr, ...]
    by_columns: bool

    @staticmethod
    def of(nest: Nest | None) -> BlockProduct | None:
        """Return the product that a nest computes, or None where it is no such."""
        if nest is None or nest.kinds.lstrip("S") != "RRSS" or len(nest.factors) != 2:
            return None
        *_, (block, count), (column, columns), (row, rows), (feature, features) = nest.variables
        values, dense = nest.factors
        if uses(values.load, feature):
            values, dense = dense, values
        sizes = isinstance(columns, tirx.IntImm) and isinstance(rows, tirx.IntImm)
        if not sizes or uses(values.load, feature) or uses(dense.load, row) or values.conditions:
            return None
        tests = [c for c in nest.conditions if not uses(c, values.buffer)]  # of padding, otherwise
        steps = stride(values.index, column), stride(values.index, row)
        if 1 not in steps or stride(dense.index, feature) != 1:
            return None
        return BlockProduct(
            nest,
            block,
            column,
            row,
            feature,
            count,
            int(columns),
            int(rows),
            features,
            values,
            dense,
            tuple(c for c in tests if not uses(c, block, column)),
            (*(c for c in tests if uses(c, block, column)), *dense.conditions),
            steps[0] != 1,
        )

    @property
    def outer(self) -> tuple[tuple[Var, Expr], ...]:
        """Variables that the row of blocks determines, and their extents."""
        return self.nest.variables[:-4]

    @property
    def dtype(self) -> str:
        """Of the dense operand."""
        return str(self.dense.buffer.ty.dtype)

    @property
    def has_one_dtype(self) -> bool:
        """Whether both operands have the same dtype."""
        return str(self.values.buffer.ty.dtype) == self.dtype

    @property
    def sum_dtype(self) -> str:
        """In which the program adds up."""
        return str(self.nest.init.ty.dtype)

    @property
    def strips(self) -> Expr:
        """Number of rows of blocks."""
        total = cast(1, "int64")
        for _, extent in self.outer:
            total = total * cast(extent, "int64")
        return total

    def padding_tests(self, value: Expr) -> list[Expr]:
        """Return the conditions on a value that tell entries from padding."""

        def load(node: TensorLoad, mutator) -> Expr:
            if node.source.same_as(self.values.buffer):
                return value
            return mutator.default_mutate(node)

        tests = [test for test in self.nest.conditions if uses(test, self.values.buffer)]
        return [tvm_ffi.structural_mutate(test, [(TensorLoad, load)]) for test in tests]

    @property
    def entry_loads(self) -> list[list[TensorLoad]]:
        """Loads that tell an entry's row of the dense operand, those of the same place together."""
        found: list[list[TensorLoad]] = []

        def note(load: TensorLoad) -> None:
            if not str(load.ty.dtype).startswith("int") or not uses(load, self.block, self.column):
                return
            for known in found:
                if same_place(known[0], load):
                    known.append(load)
                    return
            found.append([load])

        for expr in (self.dense.index, *self.entry_conditions):
            tvm_ffi.structural_walk(expr, (TensorLoad, note))
        return found

    @property
    def known_features(self) -> int | None:
        """Feature width, if it is a constant."""
        return int(self.features) if isinstance(self.features, tirx.IntImm) else None


class Outside:
    """Values for the outer variables of a product; what they alone determine is loaded once.

    Parameters
    ----------
    product : BlockProduct
        The product.
    place : Expr
        Number of the row of blocks, int32.
    """

    def __init__(self, product: BlockProduct, place: Expr) -> None:
        self._values: dict[Var, Expr] = {}
        for number, (var, extent) in enumerate(product.outer):
            inner = [size for _, size in product.outer[number + 1 :]]
            value = place
            for size in inner:
                value = tirx.truncdiv(value, cast(size, "int32"))
            if number:
                value = tirx.truncmod(value, cast(extent, "int32"))
            dtype = str(var.ty.dtype)
            self._values[var] = bind(var.name, cast(value, dtype))
        self._loads: list[tuple[TensorLoad, Var]] = []
        within = {var for var, _ in product.nest.variables[-4:]}
        for expr in product.nest.expressions:
            self._load(expr, within)

    def at(
        self,
        expr: Expr,
        values: Mapping[Var, Expr | int] | None = None,
        held: Sequence[tuple[TensorLoad, Expr]] = (),
    ) -> Expr:
        """Return an expression with these values put in, and others for inner variables.

        Parameters
        ----------
        expr : Expr
            Of the nest.
        values : dict of Var to Expr
            For inner variables.
        held : sequence of (TensorLoad, Expr)
            Loads of the nest whose values are there already.
        """

        def load(node: TensorLoad, mutator) -> Expr:
            for known, value in (*self._loads, *held):
                if tvm_ffi.structural_equal(known, node):
                    return value
            return mutator.default_mutate(node)

        known = tvm_ffi.structural_mutate(expr, [(TensorLoad, load)])
        return at(known, {**self._values, **(values or {})})

    def _load(self, expr: Expr, within: set[Var]) -> None:
        """Load what no inner variable determines."""

        def note(load: TensorLoad) -> None:
            invariant = not uses(load, *within)
            known = any(tvm_ffi.structural_equal(load, found) for found, _ in self._loads)
            if invariant and not known and str(load.ty.dtype).startswith("int"):
                self._loads.append((load, bind(f"{load.source.name}_here", self.at(load))))

        tvm_ffi.structural_walk(expr, (TensorLoad, note))


@dataclass(frozen=True)
class Steps:
    """How entries under a row of blocks are staged: `depth` columns of blocks in each step.

    Parameters
    ----------
    product : BlockProduct
        The product.
    depth : int
        Columns of a step.
    count : Expr
        Blocks under the row of blocks.
    """

    product: BlockProduct
    depth: int
    count: Expr

    @property
    def columns(self) -> int:
        """Columns that a block takes: its own, and as many more as make it fit to steps."""
        columns = self.product.columns
        if columns >= self.depth:
            return -(-columns // self.depth) * self.depth
        return next(size for size in range(columns, self.depth + 1) if self.depth % size == 0)

    @property
    def number(self) -> Expr:
        """How many steps there are."""
        dtype = str(self.count.ty.dtype)
        together = max(1, self.depth // self.columns)
        whole = tirx.truncdiv(self.count + cast(together - 1, dtype), cast(together, dtype))
        return whole * cast(max(1, self.columns // self.depth), dtype)

    def entry(self, step: Expr, k: Expr, together: int = 1) -> tuple[dict[Var, Expr], list[Expr]]:
        """Return which entry the k-th of a step is, the first of some that are copied together.

        Returns
        -------
        dict of Var to Expr
            Block and column, in range in any case.
        list of Expr
            All must hold for there to be such an entry.
        """
        dtype = str(self.count.ty.dtype)
        block, column, conditions = step, k, []
        if self.columns < self.depth:
            block = step * cast(self.depth // self.columns, dtype)
            block = block + cast(tirx.truncdiv(k, self.columns), dtype)
            column = tirx.truncmod(k, self.columns)
            conditions.append(block < self.count)
            block = tirx.min(block, self.count - cast(1, dtype))
        elif self.columns > self.depth:
            each = cast(self.columns // self.depth, dtype)
            block = tirx.truncdiv(step, each)
            column = cast(tirx.truncmod(step, each), "int32") * self.depth + k
        if self.columns != self.product.columns:
            conditions.append(column < self.product.columns)
            column = tirx.min(column, self.product.columns - together)
        return {self.product.block: block, self.product.column: column}, conditions

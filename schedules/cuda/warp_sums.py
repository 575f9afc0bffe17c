"""Sums of products of staged operands, in fragments or in registers, as phases of a tile program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tvm import tirx
from tvm.ir import Expr, Var
from tvm.tirx.script import builder as T

from .fragments import WarpProduct
from .staging import allocate, cast, loop, result_block
from .tensor_cores import StagedOperand, load_narrow, load_wide, multiply_add

__all__ = ["ThreadSums", "WarpSums"]


class WarpSums:
    """Emits what a warp does on tensor cores: fill, multiply and store.

    Parameters
    ----------
    product : WarpProduct
        What a warp computes.
    """

    def __init__(self, product: WarpProduct) -> None:
        self._product = product
        self._wides, self._narrows = product.counts[:: -1 if product.is_swapped else 1]
        #: Registers of a fragment of the narrow operand: 8 lines take two.
        self._each = 2 if product.is_swapped else 4
        self._lane: Expr | None = None

    def allocate(self) -> None:
        """Allocate registers."""
        number = self._wides * self._narrows * self._each * 2
        self._sums = allocate("sums", (number,), "float32", "local")
        self._wide = allocate("wide", (4,), "uint32", "local")
        self._narrow = allocate("narrow", (self._narrows * self._each,), "uint32", "local")

    def fill(self, lane: Expr) -> None:
        """Begin with zeros, in a lane."""
        self._lane = lane
        with loop("i", T.unroll(int(self._sums.ty.shape[0]))) as i:
            T.buffer_store(self._sums, cast(0, "float32"), [i])

    def multiply(
        self,
        stage: Expr,
        depth: int,
        a_at: Callable[[Expr, Expr, Expr], Expr],
        b_at: Callable[[Expr, Expr, Expr], Expr],
    ) -> None:
        """Add the product of what is staged.

        Parameters
        ----------
        stage : Expr
            Which buffer.
        depth : int
            Values of each row and column that are staged.
        a_at : function of (stage, row, depth)
            A value of the first operand.
        b_at : function of (stage, depth, column)
            A value of the second.
        """
        product, zero = self._product, cast(0, "int32")
        sizes = (
            ("a", a_at(stage, zero, zero), product.rows, not product.a_by_columns),
            ("b", b_at(stage, zero, zero), product.columns, product.b_by_columns),
        )
        operands = [
            StagedOperand.of(name, first, lines, depth, along_depth)
            for name, first, lines, along_depth in sizes
        ]
        wide, narrow = operands[:: -1 if product.is_swapped else 1]
        fragment = product.shape.depth
        with loop("part", T.unroll(depth // fragment)) as part:
            self._multiply_part(wide.moved(0, part * fragment), narrow.moved(0, part * fragment))

    def _multiply_part(self, wide: StagedOperand, narrow: StagedOperand) -> None:
        for number in range(self._narrows):
            registers = _elements(self._narrow, number * self._each, self._each)
            load_narrow(registers, narrow.moved(number * self._each * 4, 0), self._lane)
        for number in range(self._wides):
            registers = _elements(self._wide, 0, 4)
            load_wide(registers, wide.moved(number * 16, 0), self._lane)
            for other in range(self._abreast):
                sums = _elements(self._sums, (number * self._abreast + other) * 4, 4)
                multiply_add(sums, registers, _elements(self._narrow, other * 2, 2), wide.dtype)

    def store(self, target: Var, row: Expr, column: Expr) -> None:
        """Store the sums to shared memory, at a place that is the warp's own."""
        line, pair = tirx.truncdiv(self._lane, 4), tirx.truncmod(self._lane, 4) * 2
        swapped = self._product.is_swapped
        with result_block(target):
            for number in range(self._wides * self._abreast * 2):
                product, half = divmod(number, 2)
                wide = product // self._abreast * 16 + half * 8 + line
                narrow = product % self._abreast * 8 + pair
                # Two sums lie next to each other along the narrow operand.
                with loop("next", T.unroll(2) if swapped else T.vectorized(2)) as one:
                    i, j = (narrow + one, wide) if swapped else (wide, narrow + one)
                    value = tirx.BufferLoad(self._sums, [number * 2 + one])
                    T.buffer_store(target, value, [row + i, column + j])

    @property
    def _abreast(self) -> int:
        """How many products of an instruction there are along the narrow operand."""
        return self._narrows * self._each // 2


def _elements(buffer: Var, first: int, number: int) -> list[Expr]:
    return [tirx.BufferLoad(buffer, [first + element]) for element in range(number)]


class ThreadSums:
    """Emits the loops of a thread that multiplies on CUDA cores, in the phases of :class:`WarpSums`.

    Parameters
    ----------
    rows, columns : int
        Sums of a thread.
    dtype : str
        In which it adds up.
    """

    def __init__(self, rows: int, columns: int, dtype: str) -> None:
        self.rows, self.columns, self.dtype = rows, columns, dtype
        self._sums: Var | None = None

    def allocate(self) -> None:
        """Allocate registers."""
        self._sums = allocate("sums", (self.rows, self.columns), self.dtype, "local")
        self._a = allocate("a_held", (self.rows,), self.dtype, "local")
        self._b = allocate("b_held", (self.columns,), self.dtype, "local")

    def fill(self, lane: Expr) -> None:
        """Begin with zeros."""
        del lane
        with self._grid() as (i, j):
            T.buffer_store(self._sums, cast(0, self.dtype), [i, j])

    def multiply(
        self,
        stage: Expr,
        depth: int,
        a_at: Callable[[Expr, Expr, Expr], Expr],
        b_at: Callable[[Expr, Expr, Expr], Expr],
    ) -> None:
        """Add the product of what is staged; parameters as those of :meth:`WarpSums.multiply`."""
        with loop("k", T.serial(depth)) as k:
            with loop("i", T.unroll(self.rows)) as i:
                T.buffer_store(self._a, cast(a_at(stage, i, k), self.dtype), [i])
            with loop("j", T.unroll(self.columns)) as j:
                T.buffer_store(self._b, cast(b_at(stage, k, j), self.dtype), [j])
            with self._grid() as (i, j):
                product = tirx.BufferLoad(self._a, [i]) * tirx.BufferLoad(self._b, [j])
                T.buffer_store(self._sums, tirx.BufferLoad(self._sums, [i, j]) + product, [i, j])

    def store(self, target: Var, row: Expr, column: Expr) -> None:
        """Store the sums to shared memory, at a place that is the thread's own."""
        with result_block(target), self._grid() as (i, j):
            T.buffer_store(target, tirx.BufferLoad(self._sums, [i, j]), [row + i, column + j])

    @contextmanager
    def _grid(self) -> Iterator[tuple[Var, Var]]:
        with loop("i", T.unroll(self.rows)) as i, loop("j", T.unroll(self.columns)) as j:
            yield i, j

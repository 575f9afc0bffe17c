"""Sums of products of staged operands, in fragments or in registers, as phases of a tile program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tvm import s_tir, tirx
from tvm.ir import Expr, Var
from tvm.tirx.script import builder as T

from .fragments import WarpProduct
from .staging import allocate, axis, cast, everything_of, loop
from .tensor_cores import fill_intrinsic, multiply_intrinsic, store_intrinsic

__all__ = ["ThreadSums", "WarpSums"]


class WarpSums:
    """Emits the loops that fill, multiply and store, and maps them to tensor cores afterwards.

    Parameters
    ----------
    product : WarpProduct
        What a warp computes.
    """

    def __init__(self, product: WarpProduct) -> None:
        self.product = product
        self._sums: Var | None = None

    def allocate(self) -> None:
        """Allocate the fragments."""
        shape = (self.product.rows, self.product.columns)
        self._sums = allocate("sums", shape, "float32", "wmma.accumulator")

    def fill(self) -> None:
        """Begin with zeros."""
        with T.grid(self.product.rows, self.product.columns) as (i, j), T.sblock("fill"):
            vi, vj = self._axes(i, j)
            T.buffer_store(self._sums, tirx.const(0.0, "float32"), [vi, vj])

    def multiply(
        self,
        stages: int,
        stage: Expr,
        depth: int,
        a_at: Callable[[Var, Var, Var], Expr],
        b_at: Callable[[Var, Var, Var], Expr],
    ) -> None:
        """Add the product of what is staged.

        Parameters
        ----------
        stages : int
            Number of buffers.
        stage : Expr
            Which of them.
        depth : int
            Values of each row and column that are staged.
        a_at : function of (stage, row, depth)
            A value of the first operand.
        b_at : function of (stage, depth, column)
            A value of the second.
        """
        fragment = self.product.shape.depth
        with T.sblock("step"):
            vstage = axis("vstage", T.axis.opaque(stages, stage))
            with (
                loop("part", T.unroll(depth // fragment)) as part,
                T.grid(self.product.rows, self.product.columns, fragment) as (i, j, k),
                T.sblock("multiply"),
            ):
                vi, vj = self._axes(i, j)
                vk = axis("vk", T.axis.reduce(depth, part * fragment + k))
                a, b = (
                    tirx.Cast("float32", x) for x in (a_at(vstage, vi, vk), b_at(vstage, vk, vj))
                )
                total = tirx.BufferLoad(self._sums, [vi, vj]) + a * b
                T.buffer_store(self._sums, total, [vi, vj])

    def store(self, target: Var, row: Expr, column: Expr) -> None:
        """Store the sums to shared memory, at a place that is the warp's own."""
        with T.sblock("pass_on"):
            T.reads(everything_of(self._sums))
            T.writes(everything_of(target))
            T.sblock_attr({"buffer_dim_align": [[0, 0, 32, 8]]})
            with T.grid(self.product.rows, self.product.columns) as (i, j), T.sblock("store"):
                vi, vj = self._axes(i, j)
                value = tirx.BufferLoad(self._sums, [vi, vj])
                T.buffer_store(target, value, [row + vi, column + vj])

    def tensorize(self, sch: s_tir.Schedule) -> None:
        """Map the loops to tensor cores, once they are in a schedule."""
        for block, loops, intrinsic in (
            ("fill", 2, fill_intrinsic),
            ("multiply", 3, multiply_intrinsic),
            ("store", 2, store_intrinsic),
        ):
            outermost = sch.get_loops(sch.get_sblock(block))[-loops]
            sch.tensorize(outermost, intrinsic(self.product))

    def _axes(self, i: Var, j: Var) -> tuple[Var, Var]:
        return (
            axis("vi", T.axis.spatial(self.product.rows, i)),
            axis("vj", T.axis.spatial(self.product.columns, j)),
        )


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

    def fill(self) -> None:
        """Begin with zeros."""
        with self._grid() as (i, j):
            T.buffer_store(self._sums, cast(0, self.dtype), [i, j])

    def multiply(
        self,
        stages: int,
        stage: Expr,
        depth: int,
        a_at: Callable[[Expr, Expr, Expr], Expr],
        b_at: Callable[[Expr, Expr, Expr], Expr],
    ) -> None:
        """Add the product of what is staged; parameters as those of :meth:`WarpSums.multiply`."""
        del stages
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
        with self._grid() as (i, j):
            T.buffer_store(target, tirx.BufferLoad(self._sums, [i, j]), [row + i, column + j])

    def tensorize(self, sch: s_tir.Schedule) -> None:
        """Do nothing: the loops stay as they are."""
        del sch

    @contextmanager
    def _grid(self) -> Iterator[tuple[Var, Var]]:
        with loop("i", T.unroll(self.rows)) as i, loop("j", T.unroll(self.columns)) as j:
            yield i, j

"""The sums of a warp in fragments of tensor cores, as phases of a tile program."""

from __future__ import annotations

from collections.abc import Callable

from tvm import s_tir, tirx
from tvm.ir import Expr, Var
from tvm.tirx.script import builder as T

from .staging import allocate, axis, everything_of, loop
from .tensor_cores import WarpProduct

__all__ = ["WarpSums"]


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
        for block, loops in (("fill", 2), ("multiply", 3), ("store", 2)):
            outermost = sch.get_loops(sch.get_sblock(block))[-loops]
            sch.tensorize(outermost, getattr(self.product, block))

    def _axes(self, i: Var, j: Var) -> tuple[Var, Var]:
        return (
            axis("vi", T.axis.spatial(self.product.rows, i)),
            axis("vj", T.axis.spatial(self.product.columns, j)),
        )

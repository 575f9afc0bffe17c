"""Vector registers: how many lanes a target has, and the sum of the lanes of one accumulator."""

from __future__ import annotations

from tvm import s_tir
from tvm.target import Target
from tvm.target.codegen import llvm_get_vector_width

from ...transform.sum_lanes import LANE, SUMS

__all__ = ["reduce_lanes", "sum_in_lanes", "vector_lanes", "vectorize_groups"]


def vector_lanes(target: Target | str | dict | None, bits: int = 32) -> int:
    """Return how many values of a width fit one vector register of a target.

    Parameters
    ----------
    target : tvm.target.Target, str, dict or None
        A CPU target; None is the target in whose scope the call is made, else the host.
    bits : int
        Width of a value.

    Returns
    -------
    int
        At least 4.

    Examples
    --------
    >>> from tvm_sparse.schedules.cpu import vector_lanes
    >>> vector_lanes({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"})
    16
    """
    if target is None:
        target = Target.current(allow_none=True) or {"kind": "llvm"}
    return max(4, int(llvm_get_vector_width(Target(target))) // bits)


def vectorize_groups(sch: s_tir.Schedule, loop: s_tir.schedule.LoopRV, lanes: int) -> None:
    """Cut a loop over registers into vectors, and unroll over them.

    Before and after, with 4 lanes::

        for v in range(8):              for group in T.unroll(2):
            ...                             for lane in T.vectorized(4):
                                                ...
    """
    extent = int(sch.get(loop).extent)
    if extent <= lanes:
        sch.vectorize(loop)
        return
    group, lane = sch.split(loop, [extent // lanes, lanes])
    sch.vectorize(lane)
    sch.unroll(group)


def sum_in_lanes(
    sch: s_tir.Schedule,
    steps: s_tir.schedule.LoopRV,
    loop: s_tir.schedule.LoopRV,
    lanes: int,
) -> None:
    """Sum the reduced `loop` inside of the reduced loop `steps` in the lanes of vectors.

    Before and after, with 4 lanes, see :func:`tvm_sparse.transform.SumLanes`::

        for k in range(n):              for k in range(n):
            for v in range(8):              for group in T.unroll(2):
                c += x[k * 8 + v]               for lane in T.vectorized(4):
                                                    sums[...] += x[k * 8 + group * 4 + lane]
                                        c = sum of sums[:]
    """
    extent = int(sch.get(loop).extent)
    if extent > lanes:
        group, loop = sch.split(loop, [extent // lanes, lanes])
        sch.unroll(group)
    sch.annotate(loop, LANE, True)
    sch.annotate(steps, SUMS, True)


def reduce_lanes(
    sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, width: int, factor_axis: int
) -> list[s_tir.schedule.SBlockRV]:
    """Turn a serial sum over lanes into a tree: half of the lanes onto the other half, and so on.

    Before and after, with 8 lanes::

        for v in range(8):              for half in range(2):
            c += lanes[v]                   for v in range(4):
                                                four[v] += lanes[half * 4 + v]
                                        for half in range(2):
                                            for v in range(2):
                                                two[v] += four[half * 2 + v]
                                        for v in range(2):
                                            c += two[v]

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    block : SBlockRV
        A block whose innermost loop sums `width` lanes, `width` a power of two.
    width : int
        Number of lanes.
    factor_axis : int
        Where the lanes go among the axes of the partial results.

    Returns
    -------
    list of SBlockRV
        The blocks of the partial results, in order.
    """
    partial = []
    while width > 2:
        width //= 2
        _, lane = sch.split(sch.get_loops(block)[-1], [2, width])
        partial.append(sch.rfactor(lane, factor_axis))
    return partial

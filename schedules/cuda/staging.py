"""Pieces of kernels that stage operands in shared memory: loops, shares of threads, pipelines.

The functions emit statements into the TensorIR builder that is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Var
from tvm.script import tirx as operations
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from ...transform.kernel_fusion import LEAST_BLOCKS
from .fragments import WARP

__all__ = [
    "Threads",
    "allocate",
    "axis",
    "barrier",
    "bind",
    "cast",
    "choose",
    "everything",
    "everything_of",
    "kernel",
    "loop",
    "loop_over",
    "pipeline",
    "result_block",
    "when",
]


def kernel(
    name: str,
    blocks: Expr,
    warps: int,
    declare: Callable[[], None],
    body: Callable[[Var, Var, Var], None],
) -> tirx.For:
    """Return the loops over thread blocks, warps and lanes around a block.

    Parameters
    ----------
    name : str
        Name of the block.
    blocks : Expr
        Number of thread blocks.
    warps : int
        Warps of each.
    declare : function
        Allocates memory of the block, and says what it reads and writes.
    body : function of (block, warp, lane)
        Emits what a thread does.
    """
    with (
        IRBuilder() as made,
        T.prim_func(s_tir=True),
        loop("tile", T.thread_binding(blocks, "blockIdx.x")) as tile,
        loop("warp", T.thread_binding(warps, "threadIdx.y")) as warp,
        loop("lane", T.thread_binding(WARP, "threadIdx.x")) as lane,
        T.sblock(name),
    ):
        extents = ((blocks, tile), (warps, warp), (WARP, lane))
        names = ("vtile", "vwarp", "vlane")
        axes = [axis(n, T.axis.spatial(*extent)) for n, extent in zip(names, extents)]
        declare()
        # Told so, the assembler takes the registers that it needs, and spills none for more thread blocks.
        with T.attr(tirx.const(0, "int32"), LEAST_BLOCKS, tirx.const(1, "int32")):
            body(*axes)
    return loop_over(made.get().body, tile)


def loop_over(body: tirx.Stmt, variable: Var) -> tirx.For:
    """Return the loop of a statement that has this variable."""
    found: list[tirx.For] = []
    tvm_ffi.structural_walk(body, (tirx.For, found.append))
    return next(nest for nest in found if nest.loop_var.same_as(variable))


@contextmanager
def loop(name: str, frame) -> Iterator[Var]:
    """Open a loop whose variable has a name."""
    with frame as var:
        yield IRBuilder.name(name, var)


@contextmanager
def when(*conditions: Expr) -> Iterator[None]:
    """Open a conditional on all conditions; on none, it holds."""
    if not conditions:
        yield
        return
    with T.If(everything(conditions)), T.Then():
        yield


def choose(condition: Expr | bool, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
    """Emit one of two branches, or both where only the kernel knows which."""
    if isinstance(condition, bool):
        (then if condition else otherwise)()
        return
    with T.If(condition):
        with T.Then():
            then()
        with T.Else():
            otherwise()


def everything(conditions: Sequence[Expr]) -> Expr:
    """Return whether all conditions hold; true for none."""
    total = tirx.const(True, "bool")
    for number, condition in enumerate(conditions):
        total = tirx.And(total, condition) if number else condition
    return total


@contextmanager
def result_block(target: Var) -> Iterator[None]:
    """Open a block that writes results to shared memory, all of which is kept."""
    with T.sblock("pass_on"):
        T.reads()
        T.writes(everything_of(target))
        T.sblock_attr({"buffer_dim_align": [[0, 0, 32, 8]], "explicit_write_region": [0]})
        yield


def everything_of(buffer: Var) -> tirx.BufferRegion:
    """Return the region that is all of a buffer."""
    return buffer[tuple(slice(0, size) for size in buffer.ty.shape)]


def bind(name: str, value: Expr) -> Expr:
    """Compute a value once and keep it in a register; what is let be may be computed at every use."""
    register = allocate(name, (1,), str(value.ty.dtype), "local")
    T.buffer_store(register, value, [0])
    return tirx.BufferLoad(register, [0])


def axis(name: str, var: Var) -> Var:
    """Name a variable of a block."""
    return IRBuilder.name(name, var)


def allocate(name: str, shape: Sequence[int], dtype: str, scope: str) -> Var:
    """Allocate memory that lives as long as the block."""
    return IRBuilder.name(name, T.sblock_alloc_buffer(tuple(shape), dtype, scope=scope))


def cast(value: Expr | int, dtype: str) -> Expr:
    """Return a value in a type."""
    if isinstance(value, int):
        return tirx.const(value, dtype)
    return value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)


def barrier() -> None:
    """Wait for all threads of the thread block."""
    T.evaluate(operations.tvm_storage_sync("shared"))


class Threads:
    """The threads of a thread block, which share work that is cut into equal pieces.

    Parameters
    ----------
    warp, lane : Expr
        Coordinates of a thread.
    warps : int
        Their number.
    """

    def __init__(self, warp: Expr, lane: Expr, warps: int) -> None:
        self._thread, self._count = warp * WARP + lane, warps * WARP

    def share(self, pieces: int, body: Callable[[Expr, Expr], None], unroll: bool = True) -> None:
        """Let every thread do its share of `pieces`, neighbours next to each other.

        Parameters
        ----------
        pieces : int
            How many.
        body : function of (piece, round)
            Emits what is done for a piece; a thread has one in each round.
        unroll : bool
            Whether rounds are unrolled, so that what a thread keeps for each stays in registers.
        """
        with loop("round", (T.unroll if unroll else T.serial)(self.rounds(pieces))) as number:
            piece = number * self._count + self._thread
            with when(*[piece < pieces] * (pieces % self._count > 0)):
                body(piece, number)

    def rounds(self, pieces: int) -> int:
        """Return in how many rounds the threads do `pieces`."""
        return -(-pieces // self._count)


def pipeline(
    steps: Expr,
    stages: int,
    staged: Mapping[Var, tuple[int, int]],
    fetch: Callable[[Expr, Expr], None],
    consume: Callable[[Expr], None],
) -> None:
    """Fetch operands of steps while those of earlier ones are consumed.

    ::

        for turn in range(steps + stages - 1):
            wait until the copies of step (turn - stages + 1) have arrived, and for all threads
            if turn < steps:       fetch(turn, turn % stages)
            if turn >= stages - 1: consume((turn - stages + 1) % stages)

    One barrier a turn: after it, all threads see what arrived, and none reads what is overwritten next.
    Blocks with opaque variables tell TVM that the buffers are kept from one turn to the next, and all of
    them; it knows nothing of what lies behind the addresses that copies are given.

    Parameters
    ----------
    steps : Expr
        How many.
    stages : int
        Buffers, two or more.
    staged : dict of Var to (int, int)
        Buffers in shared memory, a stage along the first dimension; for each, a modulus and the remainder
        that the distance of rows is given.
    fetch : function of (step, stage)
        Emits the copies of a step to a buffer.
    consume : function of stage
        Emits what is done with it.
    """
    ahead = stages - 1
    distances = [[number, 1, *pitch] for number, pitch in enumerate(staged.values())]
    buffers = list(range(len(staged)))
    with loop("turn", T.serial(steps + ahead)) as turn:
        T.evaluate(operations.ptx["cp.async.wait_group"](stages - 2))
        barrier()
        with when(turn < steps), T.sblock("fetch"):
            step = axis("step", T.axis.opaque(steps, turn))
            stage = axis("stage", T.axis.opaque(stages, tirx.truncmod(turn, stages)))
            T.reads()
            T.writes(*(_of_stage(buffer, stage) for buffer in staged))
            T.sblock_attr({"buffer_dim_align": distances, "explicit_write_region": buffers})
            fetch(step, stage)
        T.evaluate(operations.ptx["cp.async.commit_group"]())
        with when(turn >= ahead), T.sblock("consume"):
            stage = axis("stage", T.axis.opaque(stages, tirx.truncmod(turn - ahead, stages)))
            T.reads(*(_of_stage(buffer, stage) for buffer in staged))
            T.writes()
            T.sblock_attr({"explicit_read_region": buffers})
            consume(stage)


def _of_stage(buffer: Var, stage: Var) -> tirx.BufferRegion:
    return buffer[(stage, *(slice(0, size) for size in buffer.ty.shape[1:]))]

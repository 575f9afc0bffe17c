"""Pieces of the kernels that stage operands in shared memory: loops, chunked copies, pipelines.

The functions emit statements into the TensorIR builder that is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tvm import DataType, tirx
from tvm.ir import Expr, Var
from tvm.script import tirx as operations
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

__all__ = ["Threads", "bind", "chunk_lanes", "copy_chunk", "loop", "otherwise", "pipeline", "when"]

#: Bytes of the widest load.
VECTOR_BYTES = 16
#: Sizes that asynchronous copies have.
_ASYNC_BYTES = (4, 8, 16)


@contextmanager
def loop(name: str, frame) -> Iterator[Var]:
    """Open a loop whose variable has a name."""
    with frame as var:
        IRBuilder.name(name, var)
        yield var


@contextmanager
def when(condition: Expr | bool) -> Iterator[None]:
    """Open a conditional, or nothing where the condition is known to hold."""
    if condition is True:
        yield
        return
    with T.If(condition), T.Then():
        yield


@contextmanager
def choice(condition: Expr) -> Iterator[None]:
    """Open a conditional for :func:`then` and :func:`otherwise`."""
    with T.If(condition):
        yield


then, otherwise = T.Then, T.Else


def bind(name: str, value: Expr) -> Var:
    """Compute a value once and name it."""
    return IRBuilder.name(name, T.Bind(value))


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
        self._thread, self._count = warp * 32 + lane, warps * 32

    def share(self, pieces: int, body: Callable[[Expr], None], unroll: bool = True) -> None:
        """Let every thread do its share of `pieces`, neighbours next to each other."""
        rounds = -(-pieces // self._count)
        with loop("round", (T.unroll if unroll else T.serial)(rounds)) as turn:
            piece = turn * self._count + self._thread
            with when(pieces % self._count == 0 or piece < pieces):
                body(piece)


def chunk_lanes(dtype: str, *sizes: int) -> int:
    """Return how many values a copy takes at once, a divisor of all sizes."""
    lanes = VECTOR_BYTES // itemsize(dtype)
    while any(size % lanes for size in sizes):
        lanes //= 2
    return lanes


def itemsize(dtype: str) -> int:
    """Return the bytes of a value."""
    return DataType(dtype).bits // 8


def copy_chunk(
    target: Var,
    place: list[Expr],
    source: Var,
    index: Expr,
    lanes: int,
    valid: Expr,
    is_async: bool,
) -> None:
    """Copy neighbouring values to shared memory, or zeros.

    Parameters
    ----------
    target, place
        Where to; aligned to the chunk.
    source, index
        Where from, a flat buffer in global memory; aligned to the chunk. Not read where not `valid`.
    lanes : int
        How many.
    valid : Expr
        Whether there are values; zeros are written otherwise.
    is_async : bool
        Copy asynchronously where a chunk has a size for it.
    """
    dtype = str(target.ty.dtype)
    size = lanes * itemsize(dtype)
    if is_async and size in _ASYNC_BYTES:
        cached = "cg" if size == VECTOR_BYTES else "ca"  # 16 bytes may go past the first cache
        copy = operations.ptx[f"cp.async.{cached}.shared.global"]
        present = tirx.Select(valid, tirx.const(size, "uint32"), tirx.const(0, "uint32"))
        T.evaluate(
            copy(
                operations.address_of(tirx.BufferLoad(target, place)),
                operations.address_of(tirx.BufferLoad(source, [index])),
                size,
                present,
            )
        )
        return
    zero = tirx.const(0, dtype)
    *before, last = place
    with loop("lane", T.vectorized(lanes) if lanes > 1 else T.serial(1)) as lane:
        value = tirx.BufferLoad(source, [index + tirx.Cast(str(index.ty.dtype), lane)])
        T.buffer_store(target, tirx.if_then_else(valid, value, zero), [*before, last + lane])


def pipeline(
    steps: Expr, stages: int, fetch: Callable[[Expr, Expr], None], consume: Callable[[Expr], None]
) -> None:
    """Fetch operands of steps while those of earlier ones are consumed.

    ::

        for turn in range(steps + stages - 1):
            if turn >= stages - 1: wait until the copies of step (turn - stages + 1) have arrived
            if turn < steps:       fetch(turn, turn % stages)
            if turn >= stages - 1: consume((turn - stages + 1) % stages)

    One barrier a step: after it, what arrived is seen by all threads, and none still reads what the next
    copies overwrite.

    Parameters
    ----------
    steps : Expr
        How many.
    stages : int
        Buffers, two or more.
    fetch : function of (step, stage)
        Emits the copies of a step to a buffer.
    consume : function of stage
        Emits what is done with it.
    """
    ahead = stages - 1
    with loop("turn", T.serial(steps + ahead)) as turn:
        arrived = turn >= ahead
        with when(arrived):
            T.evaluate(operations.ptx["cp.async.wait_group"](stages - 2))
            T.evaluate(operations.tvm_storage_sync("shared"))
        with when(turn < steps):
            fetch(turn, tirx.truncmod(turn, stages))
        T.evaluate(operations.ptx["cp.async.commit_group"]())
        with when(arrived):
            consume(tirx.truncmod(turn - ahead, stages))

"""Pieces of kernels that stage operands in shared memory: loops, shares of threads, copies, pipelines.

The functions emit statements into the TensorIR builder that is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import tvm_ffi
from tvm import DataType, tirx
from tvm.ir import Expr, Var
from tvm.script import tirx as operations
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from .fragments import WARP

__all__ = [
    "LEAST_BLOCKS",
    "ChunkStores",
    "Threads",
    "allocate",
    "axis",
    "barrier",
    "bind",
    "cast",
    "choose",
    "chunk_lanes",
    "copy_chunk",
    "copy_values",
    "everything",
    "everything_of",
    "itemsize",
    "kernel",
    "load_chunk",
    "loop",
    "pipeline",
    "when",
]

#: Bytes of the widest load, and of rows of shared memory that are padded: neighbours fall on other banks.
VECTOR_BYTES = 16
#: Attribute of a kernel: thread blocks that must fit a multiprocessor. Told so, the assembler takes the
#: registers that it needs; otherwise it spills some to make room for more thread blocks.
LEAST_BLOCKS = "tirx.launch_bounds_min_blocks_per_sm"
#: Lanes of the longest vectors that CUDA has types for.
_MOST_LANES = 4
#: Sizes that asynchronous copies have.
_ASYNC_BYTES = (4, 8, 16)


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
        with T.attr(tirx.const(0, "int32"), LEAST_BLOCKS, tirx.const(1, "int32")):
            body(*axes)
    found: list[tirx.For] = []
    tvm_ffi.structural_walk(made.get().body, (tirx.For, found.append))
    return next(nest for nest in found if nest.loop_var.same_as(tile))


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


def chunk_lanes(dtype: str, *sizes: int) -> int:
    """Return how many values a copy takes at once, a divisor of all sizes."""
    lanes = 1 if dtype == "bool" else VECTOR_BYTES // itemsize(dtype)  # CUDA has no vectors of bool
    while any(size % lanes for size in sizes):
        lanes //= 2
    return lanes


def itemsize(dtype: str) -> int:
    """Return the bytes of a value."""
    return DataType(dtype).bits // 8


def copy_chunk(
    target: Var,
    place: Sequence[Expr],
    source: Var,
    index: Expr,
    lanes: int,
    valid: Expr,
    is_async: bool,
    is_shared: bool = False,
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
    is_shared : bool
        Whether other copies of the thread block take the same values, so that the first cache is of use.
    """
    size = lanes * itemsize(str(target.ty.dtype))
    if not is_async or size not in _ASYNC_BYTES:
        together = min(lanes, _MOST_LANES)
        for first in range(0, lanes, together):
            frame = T.vectorized(together) if together > 1 else T.serial(1)
            to = [*place[:-1], place[-1] + first]
            begin = index + cast(first, "int64")
            copy_values(target, to, source, lambda v, at=begin: at + cast(v, "int64"), valid, frame)
        return
    cached = "cg" if size == VECTOR_BYTES and not is_shared else "ca"
    copy = operations.ptx[f"cp.async.{cached}.shared.global"]
    present = tirx.Select(valid, tirx.const(size, "uint32"), tirx.const(0, "uint32"))
    here = operations.address_of(tirx.BufferLoad(target, list(place)))
    there = operations.address_of(tirx.BufferLoad(source, [index]))
    T.evaluate(copy(here, there, size, present))


def copy_values(
    target: Var,
    place: Sequence[Expr],
    source: Var,
    index_of: Callable[[Expr], Expr],
    valid: Expr | Callable[[Expr], Expr],
    frame,
) -> None:
    """Copy values to neighbouring places of shared memory through registers, or zeros.

    Parameters
    ----------
    target, place
        Where to.
    source, index_of
        Where from, for each lane.
    valid : Expr or function of the lane
        Whether there is a value.
    frame
        The loop over lanes.
    """
    *before, last = place
    with loop("lane", frame) as lane:
        present = valid(lane) if callable(valid) else valid
        value = tirx.BufferLoad(source, [index_of(lane)])
        chosen = tirx.if_then_else(present, value, tirx.const(0, str(target.ty.dtype)))
        T.buffer_store(target, chosen, [*before, last + lane])


def load_chunk(target: Var, place: Sequence[Expr], source: Var, index: Expr, lanes: int) -> None:
    """Load neighbouring values to registers at once.

    Parameters
    ----------
    target, place
        Registers, and the first of them.
    source, index
        Where from, a flat buffer in global memory; aligned to the chunk.
    lanes : int
        How many.
    """
    dtype = str(target.ty.dtype)
    *before, first = place
    if itemsize(dtype) != 4 or lanes == 1:  # vectors of others come apart as well as together
        with loop("v", T.vectorized(lanes) if lanes > 1 else T.serial(1)) as v:
            value = tirx.BufferLoad(source, [index + cast(v, "int64")])
            T.buffer_store(target, value, [*before, first + v])
        return
    kind = "f32" if dtype == "float32" else "b32"
    registers = [tirx.BufferLoad(target, [*before, first + lane]) for lane in range(lanes)]
    there = operations.address_of(tirx.BufferLoad(source, [index]))
    T.evaluate(operations.ptx[f"ld.global.v{lanes}.{kind}"](*registers, there))


class ChunkStores:
    """Stores of neighbouring values to global memory at once.

    The compiler takes a vector that is computed value by value apart, and does not always put it together
    again, so that the instruction is given.

    Parameters
    ----------
    target : Var
        Where to, a flat buffer of 16 or 32 bits a value.
    lanes : int
        Values of a chunk, 4 bytes or more; chunks are aligned to their size.
    """

    def __init__(self, target: Var, lanes: int) -> None:
        self._target, self._lanes = target, lanes
        self._dtype = str(target.ty.dtype)
        is_narrow = itemsize(self._dtype) == 2
        self._rounded = allocate("rounded", (lanes,), self._dtype, "local") if is_narrow else None

    @staticmethod
    def suit(dtype: str, lanes: int) -> bool:
        """Whether values of a dtype can be stored so."""
        return itemsize(dtype) in (2, 4) and itemsize(dtype) * lanes >= 4

    def store(self, index: Expr, value_of: Callable[[int], Expr]) -> None:
        """Store values from an index on; `value_of` gives that of a lane, in any dtype."""
        values = [cast(value_of(lane), self._dtype) for lane in range(self._lanes)]
        if self._rounded is not None:
            for lane, value in enumerate(values):
                T.buffer_store(self._rounded, value, [lane])
            pairs = range(0, self._lanes, 2)
            values = [tirx.BufferLoad(self._rounded, [tirx.Ramp(lane, 1, 2)]) for lane in pairs]
        words = [operations.reinterpret("uint32", value) for value in values]
        vector = f".v{len(words)}" if len(words) > 1 else ""
        there = operations.address_of(tirx.BufferLoad(self._target, [index]))
        T.evaluate(operations.ptx[f"st.global{vector}.b32"](there, *words))


def pipeline(
    steps: Expr,
    stages: int,
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
        T.evaluate(operations.ptx["cp.async.wait_group"](stages - 2))
        barrier()
        with when(turn < steps):
            fetch(turn, tirx.truncmod(turn, stages))
        T.evaluate(operations.ptx["cp.async.commit_group"]())
        with when(turn >= ahead):
            consume(tirx.truncmod(turn - ahead, stages))

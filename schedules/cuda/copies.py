"""Copies of neighbouring values by vectors: to shared memory, to registers, and to results.

The functions emit statements into the TensorIR builder that is open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import DataType, tirx
from tvm.ir import Expr, Var
from tvm.script import tirx as operations
from tvm.tirx.script import builder as T

from .staging import allocate, cast, loop

__all__ = [
    "ChunkStores",
    "chunk_lanes",
    "copy_chunk",
    "copy_values",
    "itemsize",
    "load_chunk",
    "row_lanes",
]

#: Bytes of the widest load, and of rows of shared memory that are padded: neighbours fall on other banks.
VECTOR_BYTES = 16
#: Lanes of the longest vectors that CUDA has types for.
_MOST_LANES = 4
#: Sizes that asynchronous copies have.
_ASYNC_BYTES = (4, 8, 16)


def chunk_lanes(dtype: str, *sizes: int) -> int:
    """Return how many values a copy takes at once, a divisor of all sizes."""
    lanes = 1 if dtype == "bool" else VECTOR_BYTES // itemsize(dtype)  # CUDA has no vectors of bool
    while any(size % lanes for size in sizes):
        lanes //= 2
    return lanes


def row_lanes(dtype: str, length: int | None) -> int:
    """Return how many values of a row a copy takes at once: a divisor of its length, if that is known.

    The most there are where the length is not known, or its divisors are too small to be copied at once.

    Examples
    --------
    >>> from tvm_sparse.schedules.cuda.copies import row_lanes
    >>> [row_lanes("float16", length) for length in (128, 100, 17, None)]
    [8, 4, 8, 8]
    """
    lanes = chunk_lanes(dtype, *([] if length is None else [length]))
    return lanes if lanes * itemsize(dtype) >= min(_ASYNC_BYTES) else chunk_lanes(dtype)


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

"""Keep the padding of a part out of results.

Some formats have slots that hold no entry and whose coordinates lie inside of the tensor: blocks that
are partly filled, diagonals. In floats the bits of a value tell them apart (:attr:`Format.marks_padding`),
and statements run under a condition. In other types padding looks like an entry that is zero, which only
sums of products do not notice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var

from ..errors import SparseProgramError
from ..formats import Format
from ..ir import SparseBuffer, SparseIteration
from ..ir.accumulation import is_accumulation
from ..ir.contents import buffers_stored, stores_in

__all__ = ["check_padding", "holds_entry", "marking_operand"]

#: Unsigned integers as wide as a float.
_BITS = {"float16": "uint16", "bfloat16": "uint16", "float32": "uint32", "float64": "uint64"}
#: Floats that hold every integer as a finite value.
_WIDE_FLOATS = ("bfloat16", "float32", "float64")


def marking_operand(iteration: SparseIteration, operands: Sequence[SparseBuffer]) -> int | None:
    """Return which operand tells padding from entries: one of floats that the iteration only reads."""
    stored = buffers_stored(iteration)
    return next(
        (k for k, o in enumerate(operands) if o.dtype in _BITS and o.buffer not in stored), None
    )


def holds_entry(buffer: SparseBuffer, variables: Sequence[Var]) -> Expr:
    """Return the condition that a slot holds an entry: all bits of a padding slot are zero."""
    bits = _BITS[buffer.dtype]
    value = tirx.reinterpret(bits, tirx.BufferLoad(buffer.buffer, list(variables)))
    return tirx.NE(value, tirx.const(0, bits))


def check_padding(
    iteration: SparseIteration,
    operands: Sequence[SparseBuffer],
    fmt: Format,
    keeps_init: bool,
    label: str,
) -> None:
    """Check that padding which nothing marks changes no result but the operands' own.

    Parameters
    ----------
    iteration : SparseIteration
        Before it is rewritten.
    operands : sequence of SparseBuffer
        None of them marks padding.
    fmt : Format
        Has padding inside of the tensor.
    keeps_init : bool
        Whether the part initialises the places that it visits.
    label : str
        For the error.

    Raises
    ------
    SparseProgramError
        If a statement is not known to do nothing for an operand of zero.
    """
    own = {operand.buffer for operand in operands}
    for store in stores_in(iteration.body):
        if store.buffer in own:
            continue
        if not keeps_init and is_accumulation(store) and _adds_nothing(store, own):
            continue
        names = ", ".join(f"{operand.name} ({operand.dtype})" for operand in operands)
        raise SparseProgramError(
            f"{label}: format {fmt.name} pads with zeros that, in operand {names}, cannot be told "
            f"from entries, and they would change {store.buffer.name}; hold the operand in floats that "
            "are only read, or in a format without such padding, for example CSR or ELL"
        )


def _adds_nothing(store: tirx.BufferStore, operands: Collection[Var]) -> bool:
    value = store.value
    if not isinstance(value, tirx.Add | tirx.Sub):
        return False
    left_is_result = isinstance(value.a, TensorLoad) and value.a.source.same_as(store.buffer)
    return _vanishes(value.b if left_is_result else value.a, operands)


def _vanishes(expr: Expr, operands: Collection[Var]) -> bool:
    """Whether an expression is zero where the operands are."""
    if isinstance(expr, TensorLoad):
        return expr.source in operands
    if isinstance(expr, tirx.Cast):
        return _vanishes(expr.value, operands)
    if isinstance(expr, tirx.Add | tirx.Sub):
        return _vanishes(expr.a, operands) and _vanishes(expr.b, operands)
    if isinstance(expr, tirx.Mul):
        pairs = ((expr.a, expr.b), (expr.b, expr.a))
        return any(_vanishes(zero, operands) and _is_finite(other) for zero, other in pairs)
    return False


def _is_finite(expr: Expr) -> bool:
    """Whether zero times an expression is zero, and not NaN."""
    dtype = str(expr.ty.dtype)
    if not dtype.startswith(("float", "bfloat")):
        return True
    if isinstance(expr, tirx.Cast):
        return dtype in _WIDE_FLOATS and not str(expr.value.ty.dtype).startswith(
            ("float", "bfloat")
        )
    return False

"""Sums that are added to memory atomically, as threads of several thread blocks add to one place."""

from __future__ import annotations

from tvm import tirx
from tvm.backend.cuda.op import cuda_atomic_add
from tvm.ir import Expr, Var

from ..errors import SparseProgramError

__all__ = ["ATOMIC_ADD", "ATOMIC_DTYPES", "atomic_sum"]

#: Name of TVM's operator that does so.
ATOMIC_ADD = "tirx.cuda.atomic_add"
#: Dtypes that CUDA adds atomically.
ATOMIC_DTYPES = ("float32", "float64", "int32")


def atomic_sum(result: Var, place: Expr, term: Expr) -> tirx.Stmt:
    """Return the statement that adds a term to an element of a result, whoever else does.

    Parameters
    ----------
    result : Var
        A flat buffer in global memory.
    place : Expr
        Which element.
    term : Expr
        What is added, of the same dtype.

    Raises
    ------
    SparseProgramError
        If CUDA has no atomic addition of that dtype.

    Examples
    --------
    >>> from tvm import tirx
    >>> c = tirx.decl_buffer((4,), "float32", "C")
    >>> print(atomic_sum(c, tirx.const(1, "int32"), tirx.const(2, "float32")))
    C = T.Buffer((4,))
    T.cuda.atomic_add(T.address_of(C[1]), T.float32(2.0))
    """
    dtype = str(result.ty.dtype)
    if dtype not in ATOMIC_DTYPES:
        raise SparseProgramError(
            f"{result.name}: expected a dtype that CUDA adds atomically ({', '.join(ATOMIC_DTYPES)}), "
            f"found {dtype}; pass deterministic=True, with formats whose rows are not scattered"
        )
    there = tirx.address_of(tirx.BufferLoad(result, [place]))
    return tirx.Evaluate(cuda_atomic_add(there, term))

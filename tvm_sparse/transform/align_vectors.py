"""Align arrays of a thread and of a block so that vectors of them can be moved at once.

``cache_read`` and ``cache_write`` give them the alignment of the argument that they stand for, which is
that of its elements. CUDA reads and writes a vector at multiples of its size only, and does not check.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad, Var

from ..ir.contents import loads_in, stores_in
from ..ir.renaming import renamed

__all__ = ["AlignVectors", "vector_bytes"]

#: Bytes of the widest load or store.
_MOST_BYTES = 16
_SCOPES = ("local", "shared")
_ALIGNMENT = "buffer_data_alignment"


def AlignVectors() -> tvm.transform.Pass:
    """Build the pass that aligns local and shared arrays to the widest vector that is moved of them.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs whose vectors are lowered.

    Notes
    -----
    Before::

        b = T.alloc_buffer((8,), "float16", scope="local", align=2)
        b[0:8] = B[j * 64 : j * 64 + 8]

    and after::

        b = T.alloc_buffer((8,), "float16", scope="local", align=16)
        b[0:8] = B[j * 64 : j * 64 + 8]

    Examples
    --------
    >>> from tvm_sparse.transform import AlignVectors
    >>> AlignVectors().info.name
    'tvm_sparse.AlignVectors'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        widest = vector_bytes(func.body)
        aligned: dict[Var, Var] = {}

        def note(stmt: tirx.AllocBuffer) -> None:
            kind = stmt.buffer.ty
            alignment = min(widest.get(stmt.buffer, 0), _MOST_BYTES)
            if kind.storage_scope in _SCOPES and kind.data_alignment < alignment:
                aligned[stmt.buffer] = tirx.decl_buffer(
                    kind.shape,
                    str(kind.dtype),
                    stmt.buffer.name,
                    scope=kind.storage_scope,
                    data_alignment=alignment,
                )

        tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, note))
        if not aligned:
            return func
        body = renamed(func.body, aligned)
        return func.with_body(tvm_ffi.structural_map(body, (tirx.AllocBuffer, _noted)))

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.AlignVectors")


def _noted(stmt: tirx.AllocBuffer) -> tirx.AllocBuffer:
    """Note the alignment where code generation looks for it first."""
    if _ALIGNMENT not in stmt.annotations:
        return stmt
    alignment = max(int(stmt.annotations[_ALIGNMENT]), int(stmt.buffer.ty.data_alignment))
    return tirx.AllocBuffer(stmt.buffer, {**stmt.annotations, _ALIGNMENT: alignment}, stmt.span)


def vector_bytes(body: tirx.Stmt) -> dict[Var, int]:
    """Return the bytes of the widest vector that is read or written of each buffer."""
    widest: dict[Var, int] = {}

    for access in (*loads_in(body), *stores_in(body)):
        buffer = access.source if isinstance(access, TensorLoad) else access.buffer
        lanes = [int(i.lanes) for i in access.indices if isinstance(i, tirx.Ramp)]
        size = tvm.DataType(str(buffer.ty.dtype)).itemsize * max(lanes, default=1)
        widest[buffer] = max(widest.get(buffer, 0), size)
    return widest

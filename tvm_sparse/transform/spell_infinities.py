"""Write infinities and NaN of bfloat16 by their bits.

TVM prints constants of bfloat16 for CUDA as numbers in C, and C has no number that is infinite or none.
"""

from __future__ import annotations

import math

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr

from ._targets import is_for_cuda

__all__ = ["SpellInfinities"]


def SpellInfinities() -> tvm.transform.Pass:
    """Build the pass that makes constants of bfloat16 that are not finite of their bits.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs for CUDA, after the last one that simplifies.

    Notes
    -----
    Before::

        y[i] = T.bfloat16("inf")

    and after::

        y[i] = T.reinterpret("bfloat16", T.uint16(0x7F80))

    Examples
    --------
    >>> from tvm_sparse.transform import SpellInfinities
    >>> SpellInfinities().info.name
    'tvm_sparse.SpellInfinities'
    """

    def constant(node: tirx.FloatImm) -> Expr:
        if str(node.ty.dtype) != "bfloat16" or math.isfinite(float(node.value)):
            return node
        bits = int(np.float32(node.value).view(np.uint32)) >> 16
        return tirx.reinterpret("bfloat16", tirx.const(bits, "uint16"))

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        if not is_for_cuda(func):
            return func
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.FloatImm, constant)))

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.SpellInfinities")

"""Run a loop in parallel over ranges of the loop inside of it.

Entries of a row that are scattered (COO, CSC) cannot be shared between threads: two might add to one row.
Ranges of features can: every thread goes over all entries, and adds to columns of its own.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import For, ForKind

from ..ir.contents import variables_of
from ._store_nests import StoreNest, find_nest, with_body
from ._tile_loops import TAIL

__all__ = ["SHARE_INNER", "ShareInner"]

#: Annotation of loops that do so; its value is the length of a range, and the lanes of a vector.
SHARE_INNER = "tvm_sparse.share_inner"
#: Least steps, entries or columns times features, that repay waking the other threads.
_LEAST_STEPS = 1 << 18


def ShareInner() -> tvm.transform.Pass:
    """Build the pass that shares annotated loops between threads by ranges of their innermost loop.

    The annotation promises that the steps of the innermost loop store to different places, whatever the
    loops around it are at.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs whose blocks are already lowered to loops.

    Notes
    -----
    Before::

        for e in T.serial(n, annotations={"tvm_sparse.share_inner": [64, 16]}):
            for k in range(f):
                C[row[e] * f + k] += A[e] * B[column[e] * f + k]

    and after::

        if f > 64 and n * f >= 262144:
            for t in T.parallel((f + 63) // 64):
                for e in range(n):
                    for k in range(t * 64, min(t * 64 + 64, f)):  # in vectors
                        C[row[e] * f + k] += A[e] * B[column[e] * f + k]
        else:
            for e in range(n):
                for k in range(f):                                # in vectors
                    C[row[e] * f + k] += A[e] * B[column[e] * f + k]

    Examples
    --------
    >>> from tvm_sparse.transform import ShareInner
    >>> ShareInner().info.name
    'tvm_sparse.ShareInner'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        shared = []

        def rewrite(loop: For) -> tirx.Stmt:
            if SHARE_INNER not in loop.annotations:
                return loop
            shared.append(loop)
            width, lanes = map(int, loop.annotations[SHARE_INNER])
            return _share(loop, width, lanes)

        body = tvm_ffi.structural_map(func.body, (For, rewrite))
        return func.with_body(body) if shared else func

    share = tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.ShareInner")
    return tvm.transform.Sequential(
        [share, tirx.transform.ConvertSSA()], name="tvm_sparse.ShareInner"
    )


def _share(loop: For, width: int, lanes: int) -> tirx.Stmt:
    annotations = {key: value for key, value in loop.annotations.items() if key != SHARE_INNER}
    serial = with_body(loop, loop.body, annotations)
    nest = find_nest(serial)
    if nest is None or len(nest.loops) < 2:
        return serial
    *around, inner = nest.loops
    if variables_of(inner.extent) & nest.loop_vars:
        return serial
    plain = StoreNest(tuple(around), nest.conditions, nest.store)
    zero = tirx.const(0, str(inner.loop_var.ty.dtype))
    alone = _in_vectors(plain, inner, zero, inner.extent, width, lanes)
    if isinstance(inner.extent, tirx.IntImm) and int(inner.extent) <= width:
        return alone
    number = tirx.Var("inner_range", str(inner.loop_var.ty.dtype))
    begin = number * width
    own = _in_vectors(plain, inner, begin, tirx.min(width, inner.extent - begin), width, lanes)
    ranges = tirx.truncdiv(inner.extent + (width - 1), tirx.const(width, str(zero.ty.dtype)))
    steps = loop.extent.astype("int64") * inner.extent.astype("int64")
    enough = tirx.And(inner.extent > width, steps >= tirx.const(_LEAST_STEPS, "int64"))
    return tirx.IfThenElse(enough, For(number, zero, ranges, ForKind.PARALLEL, own), alone)


def _in_vectors(
    around: StoreNest, inner: For, begin: Expr, count: Expr, width: int, lanes: int
) -> tirx.Stmt:
    """Loops around vectors of the steps ``begin .. begin + count`` of the innermost one."""
    dtype = str(inner.loop_var.ty.dtype)
    zero = tirx.const(0, dtype)

    def loop(suffix: str, extent, kind: ForKind, **annotations) -> For:
        var = tirx.Var(f"{inner.loop_var.name}_{suffix}", dtype)
        return For(var, zero, extent, kind, inner.body, annotations=annotations)

    tiles = tirx.truncdiv(count + (width - 1), tirx.const(width, dtype))
    tile = loop("tile", tiles, ForKind.SERIAL, **{TAIL: lanes})
    group = loop("group", tirx.const(width // lanes, dtype), ForKind.UNROLLED)
    lane = loop("lane", tirx.const(lanes, dtype), ForKind.VECTORIZED)
    step = tile.loop_var * width + group.loop_var * lanes + lane.loop_var
    place = inner.min + begin + step

    def moved(node):
        return tvm_ffi.structural_map(
            node, (tirx.Var, lambda var: place if var.same_as(inner.loop_var) else var)
        )

    conditions = [*(moved(condition) for condition in around.conditions), step < count]
    loops = (*around.loops, tile, group, lane)
    return StoreNest(loops, tuple(conditions), moved(around.store)).around_store()

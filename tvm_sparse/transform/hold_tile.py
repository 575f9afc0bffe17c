"""Hold the tile of a result that a loop adds to in registers, whatever rows the tile spans.

``cache_write`` copies one interval of a buffer, and in flat storage the interval around a tile of
several rows holds other tiles too. This pass works on loops, after blocks are gone: it takes the very
elements that the loop stores to, and copies those.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad
from tvm.tirx import For

from ..ir.contents import loads_from, variables_of
from ._marked_loops import marked_loops_pass
from ._store_nests import StoreNest, common_value, find_nest, same_element, with_body

__all__ = ["HOLD", "HoldTile"]

#: Annotation of loops whose stores go to registers.
HOLD = "tvm_sparse.hold"


def HoldTile() -> tvm.transform.Pass:
    """Build the pass that gives annotated reduction loops accumulators of their own.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs whose blocks are already lowered to loops.

    Notes
    -----
    Before, with loops of constant extent over the elements of the tile::

        for j in T.serial(n, annotations={"tvm_sparse.hold": True}):
            for i, k in T.grid(4, 16):
                if i < m:
                    C[i * f + k] = C[i * f + k] + A[j * 4 + i] * B[j * f + k]

    and after::

        for i in range(4):
            if i < m:
                for k in range(16):
                    held[i * 16 + k] = C[i * f + k]
        for j in range(n):
            for i in range(4):
                if i < m:
                    for k in range(16):
                        held[i * 16 + k] = held[i * 16 + k] + A[j * 4 + i] * B[j * f + k]
        for i in range(4):
            if i < m:
                for k in range(16):
                    C[i * f + k] = held[i * 16 + k]

    Where the statement before the loop gives all of these elements one value, ``held`` starts with that
    instead. Conditions move out of the loops that they do not depend on. A loop is left as it is where
    it is no nest around one store, where the tile loops do not have constant extents, or where it reads
    elements of the result other than the one it stores.

    Examples
    --------
    >>> from tvm_sparse.transform import HoldTile
    >>> HoldTile().info.name
    'tvm_sparse.HoldTile'
    """

    return marked_loops_pass("tvm_sparse.HoldTile", HOLD, _hold)


def _hold(loop: For, before: tirx.Stmt | None) -> tuple[tirx.Stmt, bool]:
    """Return what a loop becomes, and whether that replaces the statement before it too."""
    nest = find_nest(loop.body)
    if nest is None or not _can_hold(nest, loop):
        return loop, False
    tile, result = nest.of_tile(), nest.store.buffer
    size, place = 1, tirx.const(0, "int64")
    for inner in tile.loops:
        size *= int(inner.extent)
        place = place * int(inner.extent) + inner.loop_var.astype("int64")
    held = tirx.decl_buffer((size,), str(result.ty.dtype), f"{result.name}_held")

    def load(node: TensorLoad, mutator) -> Expr:
        if node.source.same_as(result):
            return tirx.BufferLoad(held, [place])
        return mutator.default_mutate(node)

    value = tvm_ffi.structural_mutate(nest.store.value, [(TensorLoad, load)])
    element = list(nest.store.indices)
    start = None if before is None else common_value(before, tile)
    first = tirx.BufferLoad(result, element) if start is None else start
    statement = tirx.SeqStmt(
        [
            tirx.AllocBuffer(held),
            tile.around(tirx.BufferStore(held, first, [place])),
            with_body(loop, nest.around(tirx.BufferStore(held, value, [place])), loop.annotations),
            tile.around(tirx.BufferStore(result, tirx.BufferLoad(held, [place]), element)),
        ]
    )
    return statement, start is not None


def _can_hold(nest: StoreNest, loop: For) -> bool:
    store = nest.store
    inside = {inner.loop_var for inner in nest.loops}
    if loop.loop_var in set().union(*map(variables_of, store.indices)):
        return False
    for inner in nest.tile_loops:
        if not isinstance(inner.extent, tirx.IntImm) or not isinstance(inner.min, tirx.IntImm):
            return False
        if int(inner.min):
            return False
    if any(variables_of(inner.extent) & inside for inner in nest.loops):
        return False
    return all(
        same_element(load.indices, store.indices) for load in loads_from(store.value, store.buffer)
    )

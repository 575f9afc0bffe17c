"""Round the sums of half-precision results where the rows are summed, part by part.

Results are summed in a float32 temporary, and rounded by an iteration of their own: two kernels more to
write and read memory. Where each row is summed at one place, that place can round it. Runs on stage III,
before scheduling.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var
from tvm.s_tir import SBlock, SBlockRealize

from ..ir.contents import buffers_used, loads_in, stores_in
from ._blocks import changed_block
from ._row_nests import RowNest, read_row_nest

__all__ = ["RoundRows"]


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.RoundRows")
class RoundRows:
    """Let the nests that sum rows round them, where none adds to what another one has stored.

    Before::

        for r in range(w1_rows):
            with T.sblock("spmm_w1_0"):
                ... sums[row[vr] * f + vk] = sums[row[vr] * f + vk] + ...
        for r in range(w2_rows):
            with T.sblock("spmm_w2_0"):
                ... sums[row[vr] * f + vk] = sums[row[vr] * f + vk] + ...
        for i, k in T.grid(m, f):
            with T.sblock("spmm_cast_0"):
                C[vi * f + vk] = T.Cast("float16", sums[vi * f + vk])

    and after, for each of the parts::

        for r in range(w1_rows):
            with T.sblock("spmm_w1_0"):
                sums_row = T.sblock_alloc_buffer((f,), scope="local")
                ... sums_row[vk] = sums_row[vk] + ...
                for k in range(f):
                    with T.sblock("spmm_w1_round"):
                        C[row[vr] * f + vk] = T.Cast("float16", sums_row[vk])

    A part may add to a constant that all rows were filled with; it then begins with the constant.
    Programs that add up rows in several places stay as they are.
    """

    def transform_module(self, module: tvm.ir.IRModule, _context) -> tvm.ir.IRModule:
        """Rewrite the functions of ``module``."""
        rewritten = tvm.ir.IRModule(attrs=module.attrs)
        for var, func in module.functions.items():
            rewritten[var] = _round(func) if isinstance(func, tirx.PrimFunc) else func
        return rewritten


def _round(func: tirx.PrimFunc) -> tirx.PrimFunc:
    root = func.body
    if not isinstance(root, SBlockRealize) or not isinstance(root.block.body, tirx.SeqStmt):
        return func
    *before, last = root.block.body.seq
    conversion = _conversion(last)
    if conversion is None or conversion[0] not in set(root.block.alloc_buffers):
        return func
    sums, result = conversion
    statements = _rounded(before, sums, result)
    if statements is None:
        return func
    block = changed_block(
        root.block,
        body=tirx.SeqStmt(statements) if len(statements) > 1 else statements[0],
        alloc_buffers=[each for each in root.block.alloc_buffers if not each.same_as(sums)],
        match_buffers=[m for m in root.block.match_buffers if not m.source.source.same_as(sums)],
    )
    return func.with_body(SBlockRealize(root.iter_values, root.predicate, block))


def _rounded(statements: Sequence[tirx.Stmt], sums: Var, result: Var) -> list[tirx.Stmt] | None:
    """Round in each statement that stores sums; None where one of them must not."""
    nests = {place: read_row_nest(stmt) for place, stmt in enumerate(statements)}
    nests = {place: nest for place, nest in nests.items() if nest and nest.result.same_as(sums)}
    filled: Expr | None = None
    made = []
    for place, stmt in enumerate(statements):
        nest = nests.get(place)
        if nest is not None:
            init = _begins_with(nest, filled if len(nests) == 1 else None)
            if init is None:
                return None
            made.append(_rounding(nest, init, result))
        elif not _touches(stmt, sums):
            made.append(stmt)
        else:
            filled = _constant(stmt, sums)
            if filled is None or any(earlier < place for earlier in nests):
                return None
            made.append(_filled(stmt, result))
    return made if nests else None


def _begins_with(nest: RowNest, filled: Expr | None) -> Expr | None:
    """Return what sums begin with: a constant of the nest itself, or else what all rows hold."""
    value = nest.init.value
    return value if isinstance(value, tirx.FloatImm) else filled


def _rounding(nest: RowNest, init: Expr, result: Var) -> tirx.For:
    dtype = str(result.ty.dtype)

    def finish(place: Expr, total: Expr) -> tirx.Stmt:
        return tirx.BufferStore(result, tirx.Cast(dtype, total), [place])

    return nest.finished("round", init, finish, result)


def _conversion(stmt: tirx.Stmt) -> tuple[Var, Var] | None:
    """Return the sums and the result that a statement converts them to, if it does only that."""
    stores = stores_in(stmt)
    if len(stores) != 1 or not isinstance(stores[0].value, tirx.Cast):
        return None
    store, load = stores[0], stores[0].value.value
    if not isinstance(load, TensorLoad) or len(loads_in(stmt)) != 1:
        return None
    is_same = all(map(tvm_ffi.structural_equal, load.indices, store.indices))
    return (load.source, store.buffer) if is_same else None


def _constant(stmt: tirx.Stmt, sums: Var) -> Expr | None:
    """Return the constant that a statement fills all sums with, if it does only that."""
    stores = stores_in(stmt)
    if len(stores) != 1 or not stores[0].buffer.same_as(sums) or loads_in(stmt):
        return None
    return stores[0].value if isinstance(stores[0].value, tirx.FloatImm) else None


def _filled(stmt: tirx.Stmt, result: Var) -> tirx.Stmt:
    """Let a fill of the sums be one of the result."""

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        value = tirx.Cast(str(result.ty.dtype), node.value)
        return tirx.BufferStore(result, value, node.indices)

    def block(node: SBlock) -> SBlock:
        regions = [tirx.BufferRegion(result, region.region) for region in node.writes]
        return changed_block(node, writes=regions)

    return tvm_ffi.structural_map(stmt, [(tirx.BufferStore, store), (SBlock, block)])


def _touches(stmt: tirx.Stmt, buffer: Var) -> bool:
    return buffer in buffers_used(stmt)

"""Fuse independent row loops horizontally: one parallel region for all of them.

Parts of a decomposed operand that have no row in common are such loops. On a CPU they share one parallel
loop over tasks, cut as :func:`BalanceRows` cuts a loop alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

import tvm
import tvm_ffi
from tvm import tirx

from ..ir.statements import in_sequence
from .balance import (
    BALANCE,
    DEFAULT_GRAIN,
    TOGETHER,
    Grain,
    Shares,
    grain_of,
    shares_of,
    tasks_in_parallel,
)

__all__ = ["FuseRowLoops", "MergeOuterLoops"]


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.MergeOuterLoops")
class MergeOuterLoops:
    """Merge neighbouring serial loops of one group and of equal extents, before their row loops fuse.

    Parts of an operand that go over ranges of columns, one after another, so work on one range together.

    Before::

        for t in T.serial(4, annotations={"tvm_sparse.together": "buckets"}):
            first(t)
        for t in T.serial(4, annotations={"tvm_sparse.together": "buckets"}):
            second(t)

    and after::

        for t in range(4):
            first(t)
            second(t)
    """

    def transform_module(self, module: tvm.IRModule, _context) -> tvm.IRModule:
        """Rewrite the functions of ``module``, whose blocks may still stand."""
        merged = tvm.IRModule(attrs=module.attrs)
        for var, func in module.functions.items():
            if isinstance(func, tirx.PrimFunc):
                func = func.with_body(
                    tvm_ffi.structural_map(func.body, (tirx.SeqStmt, _merge_outer))
                )
            merged[var] = func
        return merged


def _merge_outer(node: tirx.SeqStmt) -> tirx.Stmt:
    parts: list[tirx.Stmt] = []
    for stmt in node.seq:
        last = parts[-1] if parts else None
        parts[-1:] = [_merged(last, stmt)] if _merge_well(last, stmt) else [*parts[-1:], stmt]
    return in_sequence(parts)


def _merge_well(first: tirx.Stmt | None, second: tirx.Stmt) -> bool:
    loops = (first, second)
    if not all(isinstance(loop, tirx.For) and TOGETHER in loop.annotations for loop in loops):
        return False
    return (
        all(loop.kind == tirx.ForKind.SERIAL for loop in loops)
        and str(first.annotations[TOGETHER]) == str(second.annotations[TOGETHER])
        and first.loop_var.ty.dtype == second.loop_var.ty.dtype
        and tvm_ffi.structural_equal(first.min, second.min)
        and tvm_ffi.structural_equal(first.extent, second.extent)
    )


def _merged(first: tirx.For, second: tirx.For) -> tirx.For:
    own = second.loop_var
    body = tvm_ffi.structural_map(
        second.body, (tirx.Var, lambda var: first.loop_var if var.same_as(own) else var)
    )
    head = list(first.body.seq) if isinstance(first.body, tirx.SeqStmt) else [first.body]
    return tirx.For(
        first.loop_var,
        first.min,
        first.extent,
        first.kind,
        tirx.SeqStmt([*head, body]),
        annotations=first.annotations,
    )


def FuseRowLoops(grain: Grain = DEFAULT_GRAIN) -> tvm.transform.Pass:
    """Build the pass that fuses neighbouring row loops of one group.

    Parameters
    ----------
    grain : Grain
        The size of a task.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs of loops. It leaves no serial copy of a loop, which would double the code of
        every part.

    Notes
    -----
    Before::

        for i in T.parallel(m, annotations={"tvm_sparse.together": "c0", ...}):
            first(i)
        for i in T.parallel(n, annotations={"tvm_sparse.together": "c0", ...}):
            second(i)

    and after::

        for task in T.parallel(first_tasks + second_tasks):
            if 0 <= task < first_tasks:
                for i in range(first_row(task), first_row(task + 1)):
                    first(i)
            if first_tasks <= task < first_tasks + second_tasks:
                for i in range(...):
                    second(i)

    Examples
    --------
    >>> from tvm_sparse.transform import FuseRowLoops
    >>> FuseRowLoops().info.name
    'tvm_sparse.FuseRowLoops'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        fused = []

        def sequence(node: tirx.SeqStmt) -> tirx.Stmt:
            parts: list[tirx.Stmt] = []
            for name, group in groupby(node.seq, _group_of):
                members = list(group)
                if name is not None:
                    fused.append(name)
                    members = [_fuse(members, grain)]
                parts += members
            return in_sequence(parts)

        def alone(loop: tirx.For) -> tirx.Stmt:
            if _group_of(loop) is None:
                return loop
            fused.append(loop)
            return _fuse([loop], grain)

        body = tvm_ffi.structural_map(func.body, (tirx.SeqStmt, sequence))
        body = tvm_ffi.structural_map(body, (tirx.For, alone))
        return func.with_body(body) if fused else func

    fuse = tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.FuseRowLoops")
    return tvm.transform.Sequential(
        [fuse, tirx.transform.ConvertSSA()], name="tvm_sparse.FuseRowLoops"
    )


def _group_of(stmt: tirx.Stmt) -> str | None:
    if not isinstance(stmt, tirx.For) or BALANCE not in stmt.annotations:
        return None
    name = stmt.annotations.get(TOGETHER)
    return None if name is None else str(name)


def _fuse(loops: Sequence[tirx.For], grain: Grain) -> tirx.Stmt:
    shares = [shares_of(loop, grain_of(loop, grain)) for loop in loops]
    if any(own is None for own in shares):
        return in_sequence(loops)
    bindings = [binding for own in shares for binding in own.bindings]
    ends: list[tvm.ir.Expr] = [tirx.IntImm("int64", 0)]
    for own in shares:
        end = tirx.Var("balance_end", "int64")
        bindings.append(tirx.Bind(end, ends[-1] + own.tasks))
        ends.append(end)
    task = tirx.Var("balance_task", "int64")
    choices = [_choice(task, own, *ends_of) for own, ends_of in zip(shares, pairwise(ends))]
    body = tasks_in_parallel(task, ends[-1], in_sequence(choices))
    return tirx.SeqStmt([*bindings, body])


def _choice(task: tirx.Var, own: Shares, begin: tvm.ir.Expr, end: tvm.ir.Expr) -> tirx.Stmt:
    local = tirx.Var("balance_local", "int64")
    share = tirx.SeqStmt([tirx.Bind(local, task - begin), own.chunk(local)])
    return tirx.IfThenElse(tirx.And(task >= begin, task < end), share, None)

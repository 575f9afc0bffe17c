"""Lower reductions over threads with TVM's pass: what it takes, what it leaves out, what it leaves over.

TVM writes the sum back under the condition that a thread is the first of those that sum, and keeps other
conditions of a block only where there are several. It sums numbers of threads that are no powers of two
without barriers that it needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr

from ..errors import SparseProgramError
from ..ir.contents import variables_of

__all__ = ["LowerThreadReductions"]

_WARP = 32


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.LowerThreadReductions")
class LowerThreadReductions:
    """TVM's ``LowerCrossThreadReduction``, for modules that have threads.

    Before::

        for j in T.thread_binding(4, "threadIdx.y"):
            for k in T.thread_binding(32, "threadIdx.x"):
                with T.sblock("dot"):
                    T.where(j < n)
                    C[j] = C[j] + X[j, k]

    and after::

        for j in T.thread_binding(4, "threadIdx.y"):
            for k in T.thread_binding(32, "threadIdx.x"):
                with T.sblock("dot_cross_thread"):
                    T.tvm_thread_allreduce(1, X[j, k], j < n, sum[0], k)
                with T.sblock("dot_write_back"):
                    T.where(j < n and k == 0)
                    C[j] = sum[0]

    where TVM's own pass would have dropped ``j < n``.

    Raises
    ------
    SparseProgramError
        If a reduction is over a number of threads that is not constant, or neither a power of two up to
        32 nor a multiple of 32, or TVM can't lower it: every thread would keep a sum of its own.
    """

    def transform_module(self, module: tvm.IRModule, _context) -> tvm.IRModule:
        """Rewrite the functions of ``module``."""
        functions = [func for func in module.functions.values() if isinstance(func, tirx.PrimFunc)]
        if not any(_has_threads(func.body) for func in functions):
            return module
        for func in functions:
            _check_lanes(func.body)
        lowered = _each_body(module, _repeat_conditions)
        lowered = s_tir.transform.LowerCrossThreadReduction()(lowered)
        lowered = _each_body(lowered, _drop_repeats)
        for func in lowered.functions.values():
            if isinstance(func, tirx.PrimFunc):
                _refuse_unlowered(func.body)
        return lowered


def _each_body(module: tvm.IRModule, rewrite: Callable[[tirx.Stmt], tirx.Stmt]) -> tvm.IRModule:
    rewritten = tvm.IRModule(attrs=module.attrs)
    for var, func in module.functions.items():
        is_lowered = isinstance(func, tirx.PrimFunc)
        rewritten[var] = func.with_body(rewrite(func.body)) if is_lowered else func
    return rewritten


def _has_threads(body: tirx.Stmt) -> bool:
    bound: list[tirx.For] = []
    tvm_ffi.structural_walk(
        body, (tirx.For, lambda loop: bound.append(loop) if _tag(loop) is not None else None)
    )
    return bool(bound)


def _tag(loop: tirx.For) -> str | None:
    is_bound = loop.kind == tirx.ForKind.THREAD_BINDING
    return str(loop.thread_binding.thread_tag) if is_bound else None


def _reduced(realize: s_tir.SBlockRealize, loops: list[tirx.For]) -> list[tirx.For]:
    """Return the loops that a block reduces over, none if it doesn't begin a reduction itself."""
    if realize.block.init is None:
        return []
    values = [
        value
        for iv, value in zip(realize.block.iter_vars, realize.iter_values)
        if iv.iter_type == tirx.IterVar.CommReduce
    ]
    used = set().union(*map(variables_of, values))
    return [loop for loop in loops if loop.loop_var in used]


def _repeat_conditions(body: tirx.Stmt) -> tirx.Stmt:
    """Write a condition on loops that a reduction over threads is not over as one that TVM keeps.

    TVM looks for the parts of conjunctions, so that a condition that is none is written twice.
    """
    loops: list[tirx.For] = []

    def loop(node: tirx.For, mutator) -> tirx.Stmt:
        loops.append(node)
        mutated = mutator.default_mutate(node)
        loops.pop()
        return mutated

    def realize(node: s_tir.SBlockRealize, mutator) -> tirx.Stmt:
        reduced = [each.loop_var for each in _reduced(node, loops)]
        condition = node.predicate
        is_kept = isinstance(condition, (tirx.And, tirx.IntImm))
        if not reduced or is_kept or variables_of(condition) & set(reduced):
            return mutator.default_mutate(node)
        both = tirx.And(condition, condition)
        return s_tir.SBlockRealize(node.iter_values, both, node.block, node.span)

    return tvm_ffi.structural_mutate(body, [(tirx.For, loop), (s_tir.SBlockRealize, realize)])


def _drop_repeats(body: tirx.Stmt) -> tirx.Stmt:
    """Write conditions that were written twice once."""

    def once(node: tirx.And) -> Expr:
        return node.a if tvm_ffi.structural_equal(node.a, node.b) else node

    return tvm_ffi.structural_map(body, (tirx.And, once))


def _refuse_unlowered(body: tirx.Stmt) -> None:
    """Refuse reductions over threads that were left as they are: each thread would keep its own sum."""
    for name, reduced in _thread_reductions(body):
        loop = reduced[0]
        raise SparseProgramError(
            f"block {name}: its reduction over {loop.loop_var.name}, which is bound to {_tag(loop)}, "
            "can't be lowered; keep its loops next to each other and their bindings affine"
        )


def _thread_reductions(body: tirx.Stmt) -> list[tuple[str, list[tirx.For]]]:
    """Return the blocks that reduce over threads by name, each with its loops over them."""
    found: list[tuple[str, list[tirx.For]]] = []
    loops: list[tirx.For] = []

    def loop(node: tirx.For, visitor) -> None:
        loops.append(node)
        visitor.default_visit(node)
        loops.pop()

    def realize(node: s_tir.SBlockRealize, visitor) -> None:
        bound = [each for each in _reduced(node, loops) if _tag(each) is not None]
        if bound:
            found.append((node.block.name_hint, bound))
        visitor.default_visit(node)

    tvm_ffi.structural_visit(body, [(tirx.For, loop), (s_tir.SBlockRealize, realize)])
    return found


def _check_lanes(body: tirx.Stmt) -> None:
    for name, loops in _thread_reductions(body):
        lanes = [each for each in loops if str(_tag(each)).startswith("threadIdx")]
        for each in lanes:
            if not isinstance(each.extent, tirx.IntImm):
                raise SparseProgramError(
                    f"block {name}: expected a constant number of threads to reduce over, found "
                    f"{each.extent} in loop {each.loop_var.name}, which is bound to {_tag(each)}; split "
                    "the loop by a constant and bind the inner one, as in "
                    "schedule.split(loop, [None, 32])"
                )
        count = math.prod(int(each.extent) for each in lanes)
        if count % _WARP and (count > _WARP or count & (count - 1)):
            names = ", ".join(each.loop_var.name for each in lanes)
            raise SparseProgramError(
                f"block {name}: expected a power of two up to {_WARP} or a multiple of {_WARP} threads to "
                f"reduce over, found {count} of loop {names}; split it by such a number"
            )

"""Sums get an accumulator for each lane, and lanes under conditions of their own run masked."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.script import ir as I
from tvm.script import tirx as T

from tvm_sparse.transform import PIPELINE_NAME, MaskLanes, PeelVectorTail, SumLanes


def assert_becomes(before: tvm.IRModule, transform, after: tvm.IRModule) -> None:
    assert transform(before).script() == after.script()


def compiled(module: tvm.IRModule):
    target = tvm.target.Target({"kind": "llvm"})
    return tvm.compile(SumLanes()(module), target, tir_pipeline=PIPELINE_NAME)["main"]


def test_a_sum_is_made_in_lanes_that_are_added_in_halves():
    @I.ir_module
    class Before:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((64,), "float32"), C: T.Buffer((4,), "float32"), n: T.int64):
            for p in range(T.int64(4)):
                C[p] = T.float32(0)
                for k in T.serial(n, annotations={"tvm_sparse.sums": True}):
                    for v in T.serial(T.int64(4), annotations={"tvm_sparse.lane": True}):
                        C[p] = C[p] + A[k * T.int64(4) + v]

    @I.ir_module
    class After:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((64,), "float32"), C: T.Buffer((4,), "float32"), n: T.int64):
            for p in range(T.int64(4)):
                C_sums = T.alloc_buffer((4,))
                C_sums[T.Ramp(T.int64(0), T.int64(1), 4)] = T.Broadcast(T.float32(0.0), 4)
                for k in range(n):
                    for v in T.vectorized(T.int64(4)):
                        C_sums[v] = C_sums[v] + A[k * T.int64(4) + v]
                C_sums[T.Ramp(T.int64(0), T.int64(1), 2)] = (
                    C_sums[T.Ramp(T.int64(0), T.int64(1), 2)]
                    + C_sums[T.Ramp(T.int64(2), T.int64(1), 2)]
                )
                C_sums[T.int64(0)] = C_sums[T.int64(0)] + C_sums[T.int64(1)]
                C[p] = T.float32(0.0) + C_sums[T.int64(0)]

    simplified = tirx.transform.StmtSimplify()
    assert_becomes(simplified(SumLanes()(Before)), tvm.transform.Sequential([]), simplified(After))


def test_conditions_on_results_choose_between_all_at_once_and_one_after_another():
    @I.ir_module
    class Before:
        @T.prim_func(s_tir=True)
        def main(
            A: T.Buffer((64,), "float32"), C: T.Buffer((4,), "float32"), n: T.int64, m: T.int64
        ):
            for k in T.serial(n, annotations={"tvm_sparse.sums": True}):
                for i in T.unroll(T.int64(4)):
                    for v in T.serial(T.int64(4), annotations={"tvm_sparse.lane": True}):
                        if i < m:
                            C[i] = C[i] + A[k * T.int64(4) + v]

    text = SumLanes()(Before).script()
    assert "all_hold" in text and text.count("C_sums = T.alloc_buffer((16,)") == 1
    run = compiled(Before)
    a = np.arange(64, dtype="float32")
    for n, m in ((16, 4), (16, 2), (3, 0), (0, 4)):
        c = tvm.runtime.tensor(np.full(4, 7, "float32"))
        run(tvm.runtime.tensor(a), c, n, m)
        expected = np.full(4, 7.0)
        expected[:m] += a[: 4 * n].sum()
        np.testing.assert_array_equal(c.numpy(), expected)


def test_a_choice_that_does_not_change_in_a_sum_moves_out_of_it_and_means_the_same():
    @I.ir_module
    class Before:
        @T.prim_func(s_tir=True)
        def main(
            A: T.Buffer((64,), "float32"), C: T.Buffer((1,), "float32"), n: T.int64, m: T.int64
        ):
            for k in T.serial(n, annotations={"tvm_sparse.sums": True}):
                for v in T.serial(T.int64(4), annotations={"tvm_sparse.lane": True}):
                    C[T.int64(0)] = C[T.int64(0)] + A[k * T.int64(4) + v] * T.if_then_else(
                        m < n, A[k * T.int64(4) + v], T.float32(0)
                    )

    vectors: list[tirx.For] = []
    found = SumLanes()(Before)["main"].body
    tvm_ffi.structural_walk(found, (tirx.For, vectors.append))
    (vector,) = [loop for loop in vectors if loop.kind == tirx.ForKind.VECTORIZED]
    assert "if_then_else" not in str(vector)
    run = compiled(Before)
    a = np.arange(64, dtype="float32")
    for m, expected in ((0, (a[:32] ** 2).sum()), (99, 0)):
        c = tvm.runtime.tensor(np.zeros(1, "float32"))
        run(tvm.runtime.tensor(a), c, 8, m)
        assert c.numpy()[0] == expected


@pytest.mark.parametrize("value", ["C[p] * T.float32(2)", "A[k * T.int64(4) + v]"])
def test_what_is_no_sum_stays(value: str):
    text = f"""
@I.ir_module
class Before:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((64,), "float32"), C: T.Buffer((4,), "float32"), n: T.int64):
        for p in range(T.int64(4)):
            for k in T.serial(n, annotations={{"tvm_sparse.sums": True}}):
                for v in T.serial(T.int64(4), annotations={{"tvm_sparse.lane": True}}):
                    C[p] = {value} + C[p] * C[p]
"""
    found = SumLanes()(tvm.script.from_source(text)).script()
    assert "C_sums" not in found and "tvm_sparse.sums" not in found


def test_lanes_under_conditions_read_nothing_where_they_are_off():
    """Padding has an index behind the operand, of which nothing may be read."""

    @I.ir_module
    class Before:
        @T.prim_func(s_tir=True)
        def main(
            A: T.Buffer((16,), "float32"),
            J: T.Buffer((16,), "int32"),
            x: T.handle,
            C: T.Buffer((1,), "float32"),
            n: T.int64,
        ):
            X = T.match_buffer(x, (n,), "float32")
            for k in T.serial(T.int64(4), annotations={"tvm_sparse.sums": True}):
                for v in T.serial(T.int64(4), annotations={"tvm_sparse.lane": True}):
                    if J[k * T.int64(4) + v] < T.Cast("int32", n):
                        C[T.int64(0)] = (
                            C[T.int64(0)]
                            + A[k * T.int64(4) + v] * X[T.Cast("int64", J[k * T.int64(4) + v])]
                        )

    looped = tvm.IRModule({"main": _in_a_loop(Before["main"])})
    text = MaskLanes()(SumLanes()(looped)).script()
    assert "masked_load" in text and "vector.reduce.or" in text
    run = compiled(looped)
    a = np.arange(16, dtype="float32") + 1
    for n in (0, 1, 9):
        x = np.full(n, 2, "float32")
        for entries in (0, 3, 4, 10, 16):
            columns = np.full(16, 2**30, "int32")  # far behind
            columns[:entries] = np.arange(entries) % max(n, 1) if n else 2**30
            c = tvm.runtime.tensor(np.zeros(1, "float32"))
            run(*map(tvm.runtime.tensor, (a, columns, x)), c, n)
            assert c.numpy()[0] == (2 * a[:entries].sum() if n else 0)


def _in_a_loop(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The body once, in a loop: what it allocates is then its own."""
    zero, one = tirx.const(0, "int64"), tirx.const(1, "int64")
    once = tirx.For(tirx.Var("once", "int64"), zero, one, tirx.ForKind.SERIAL, func.body)
    return func.with_body(once)


def test_a_rest_that_reads_in_order_needs_no_condition_to_run_with_all_lanes_off():
    """The last entries of a row, where no lane looks up an index (PeelVectorTail)."""

    @I.ir_module
    class Before:
        @T.prim_func(s_tir=True)
        def main(
            A: T.Buffer((64,), "float32"), P: T.Buffer((9,), "int32"), C: T.Buffer((8,), "float32")
        ):
            for i in range(T.int64(8)):
                C[i] = T.float32(0)
                for k in T.serial(
                    T.Cast("int64", P[i + T.int64(1)] - P[i] + 3) // T.int64(4),
                    annotations={"tvm_sparse.sums": True, "tvm_sparse.tail": 4},
                ):
                    for v in T.serial(T.int64(4), annotations={"tvm_sparse.lane": True}):
                        if k * T.int64(4) + v < T.Cast("int64", P[i + T.int64(1)] - P[i]):
                            C[i] = C[i] + A[T.Cast("int64", P[i]) + k * T.int64(4) + v]

    assert "masked_load" in PeelVectorTail()(SumLanes()(Before)).script()
    run = compiled(Before)
    a = np.arange(64, dtype="float32")
    pointers = np.array([0, 0, 1, 4, 8, 13, 20, 40, 64], "int32")
    c = tvm.runtime.tensor(np.full(8, np.nan, "float32"))
    run(tvm.runtime.tensor(a), tvm.runtime.tensor(pointers), c)
    expected = [a[b:e].sum() for b, e in itertools.pairwise(pointers)]
    np.testing.assert_array_equal(c.numpy(), expected)

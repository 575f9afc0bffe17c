"""A tile of a result stays in registers, blocks without padding need no tests, buffers fit the stack."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm.script import ir as I
from tvm.script import tirx as T

from tvm_sparse.transform import FitStack, HoldTile, SkipPaddingTests


def _assert_becomes(before: tvm.IRModule, transform, after: tvm.IRModule) -> None:
    assert transform(before).script() == after.script()


def test_a_tile_over_rows_is_loaded_held_and_stored():
    @I.ir_module
    class Before:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32"), n: T.int64):
            for j in T.serial(n, annotations={"tvm_sparse.hold": True}):
                for i, k in T.grid(T.int64(4), T.int64(2)):
                    if i < n:
                        C[i * T.int64(16) + k] = C[i * T.int64(16) + k] + A[j]

    @I.ir_module
    class After:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32"), n: T.int64):
            C_held = T.alloc_buffer((8,), "float32")
            for i in range(T.int64(4)):
                if i < n:
                    for k in range(T.int64(2)):
                        C_held[i * T.int64(2) + k] = C[i * T.int64(16) + k]
            for j in range(n):
                for i in range(T.int64(4)):
                    if i < n:
                        for k in range(T.int64(2)):
                            C_held[i * T.int64(2) + k] = C_held[i * T.int64(2) + k] + A[j]
            for i in range(T.int64(4)):
                if i < n:
                    for k in range(T.int64(2)):
                        C[i * T.int64(16) + k] = C_held[i * T.int64(2) + k]

    _assert_becomes(Before, HoldTile(), After)


def test_a_held_tile_starts_with_the_constant_stored_before():
    @I.ir_module
    class Before:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32"), n: T.int64):
            for i in range(T.int64(4)):
                C[i * T.int64(16)] = T.float32(0)
            for j in T.serial(n, annotations={"tvm_sparse.hold": True}):
                for i in range(T.int64(4)):
                    C[i * T.int64(16)] = C[i * T.int64(16)] + A[j]

    @I.ir_module
    class After:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32"), n: T.int64):
            C_held = T.alloc_buffer((4,), "float32")
            for i in range(T.int64(4)):
                C_held[i] = T.float32(0)
            for j in range(n):
                for i in range(T.int64(4)):
                    C_held[i] = C_held[i] + A[j]
            for i in range(T.int64(4)):
                C[i * T.int64(16)] = C_held[i]

    _assert_becomes(Before, HoldTile(), After)


def test_a_constant_for_other_elements_stays():
    @I.ir_module
    class Before:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32"), n: T.int64):
            for i in range(T.int64(4)):
                C[i * T.int64(8)] = T.float32(0)
            for j in T.serial(n, annotations={"tvm_sparse.hold": True}):
                for i in range(T.int64(4)):
                    C[i * T.int64(16)] = C[i * T.int64(16)] + A[j]

    text = HoldTile()(Before).script()
    assert "C[i * T.int64(8)] = T.float32(0" in text
    assert "C_held[i] = C[i * T.int64(16)]" in text


def test_a_loop_that_reads_other_elements_of_the_result_stays():
    @I.ir_module
    class Before:
        @T.prim_func(s_tir=True)
        def main(C: T.Buffer((64,), "float32"), n: T.int64):
            for _j in T.serial(n, annotations={"tvm_sparse.hold": True}):
                for i in range(T.int64(4)):
                    C[i * T.int64(8)] = C[i * T.int64(8)] + C[i * T.int64(8) + T.int64(1)]

    @I.ir_module
    class After:
        @T.prim_func(s_tir=True)
        def main(C: T.Buffer((64,), "float32"), n: T.int64):
            for _j in range(n):
                for i in range(T.int64(4)):
                    C[i * T.int64(8)] = C[i * T.int64(8)] + C[i * T.int64(8) + T.int64(1)]

    _assert_becomes(Before, HoldTile(), After)


def test_full_blocks_run_without_tests():
    @I.ir_module
    class Before:
        @T.prim_func(s_tir=True)
        def main(
            A: T.Buffer((256,), "float32"),
            B: T.Buffer((64,), "float32"),
            C: T.Buffer((4,), "float32"),
            n: T.int64,
        ):
            for b in T.serial(n, annotations={"tvm_sparse.full_blocks": True}):
                for j, i in T.grid(T.int64(2), T.int64(4)):
                    if T.reinterpret("uint32", A[b * 8 + i * T.int64(2) + j]) != T.uint32(0):  # noqa: SIM102
                        if i < n:
                            C[i] = C[i] + A[b * 8 + i * T.int64(2) + j] * T.if_then_else(
                                b * 2 + j < n, B[b * 2 + j], T.float32(0)
                            )

    body = SkipPaddingTests()(Before)["main"].body
    found: list[tvm.tirx.IfThenElse] = []
    tvm_ffi.structural_walk(body, (tvm.tirx.IfThenElse, found.append))
    (choice,) = [stmt for stmt in found if stmt.else_case is not None]
    assert "vector.reduce.and" in str(choice.condition)
    for text in (str(choice.then_case), str(choice.else_case)):
        assert "if_then_else" not in text and "< n" not in text
    assert "reinterpret" not in str(choice.then_case)
    assert str(choice.else_case).count("reinterpret") == 1


def test_a_large_buffer_used_at_constant_places_is_cut():
    @I.ir_module
    class Before:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((512,), "float32")):
            held = T.alloc_buffer((512,), "float32")
            held[T.Ramp(0, 1, 16)] = A[T.Ramp(0, 1, 16)]
            held[T.Ramp(8, 1, 16)] = A[T.Ramp(8, 1, 16)]
            held[500] = A[500]
            A[500] = held[500] + held[3]

    text = FitStack()(Before).script()
    assert "held_0 = T.alloc_buffer((24,)" in text
    assert "held_1 = A[500]" in text and "A[500] = held_1 + held_0[T.int64(3)]" in text


def test_a_large_buffer_used_at_variable_places_stays():
    @I.ir_module
    class Before:
        @T.prim_func(s_tir=True)
        def main(A: T.Buffer((512,), "float32")):
            held = T.alloc_buffer((512,), "float32")
            for i in range(512):
                held[i] = A[i]
            A[0] = held[500]

    tvm.ir.assert_structural_equal(FitStack()(Before), Before)

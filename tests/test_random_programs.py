"""Compiled random programs, scheduled or not, give what the interpreter of stage I gives."""

from __future__ import annotations

from functools import partial

import numpy as np
import tvm
import tvm_ffi
from hypothesis import assume, given, settings
from tvm import tirx
from tvm.error import InternalError
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import ScheduleError

from tests.execution import build, lower, poisoned
from tests.interpreter import interpret
from tests.random_programs import Program, programs
from tvm_sparse.ir import SparseFunc
from tvm_sparse.script import from_source


def scheduled(func: SparseFunc, choices: list[int]) -> tvm.IRModule:
    """Lower a program and apply random primitives, those that TVM refuses left out."""
    sch = Schedule(lower(func), debug_mask="none", error_render_level="none")
    sch.work_on(func.name)
    for choice in choices:
        primitive, choice = choice % 5, choice // 5
        blocks = _blocks(sch)
        if not blocks:
            break  # all loops are plain ones
        block = blocks[choice % len(blocks)]
        loops = sch.get_loops(block)
        try:
            if not all(map(partial(_is_serial, sch), loops)):
                continue
            if primitive == 0 and loops:
                sch.split(loops[choice % len(loops)], [None, 2 + choice % 3])
            elif primitive == 1 and len(loops) > 1:
                k = choice % (len(loops) - 1)
                sch.reorder(loops[k + 1], loops[k])
            elif primitive == 2 and len(loops) > 1:
                k = choice % (len(loops) - 1)
                sch.fuse(loops[k], loops[k + 1])
            elif primitive == 3 and loops:
                sch.decompose_reduction(block, loops[choice % len(loops)])
            elif primitive == 4 and loops:
                _, inner = sch.split(loops[-1], [None, 4])
                (sch.vectorize if _is_plain(sch.get(block)) else sch.unroll)(inner)
        except (ScheduleError, ValueError, InternalError):
            continue
    return sch.mod


def _blocks(sch: Schedule) -> list:
    found = []
    pending = [sch.get_sblock("root")]
    while pending:
        children = sch.get_child_blocks(pending.pop())
        found += children
        pending += children
    return found


def _is_serial(sch: Schedule, loop) -> bool:
    return sch.get(loop).kind == tirx.ForKind.SERIAL


def _is_plain(block) -> bool:
    """Whether TVM can vectorise a block: it says that it cannot only when it compiles."""
    found = []
    tvm_ffi.structural_walk(block.body, [((tirx.While, tirx.For), found.append)])
    return not found


def check(program: Program) -> None:
    """Compare a compiled program with the interpreter."""
    func = from_source(program.text)
    expected = interpret(func, program.arrays, program.scalars)
    if program.bound:
        func = func.specialize({name: program.scalars[name] for name in program.bound})
    arrays = dict(program.arrays)
    for name in program.outputs:
        arrays[name] = poisoned(arrays[name].shape, str(arrays[name].dtype))
    module = scheduled(func, program.schedule) if program.schedule else None
    try:
        kernel = build(func, module)
    except ValueError as refusal:
        assume("call decompose_reduction before" not in str(refusal))
        raise
    results = kernel(arrays, program.scalars)
    for name, array in results.items():
        wanted = expected[name].astype(array.dtype)
        np.testing.assert_array_equal(array, wanted, err_msg=name)


@given(programs())
def test_compiled_programs_agree_with_the_interpreter(program):
    check(program)


@settings(max_examples=max(50, settings.default.max_examples // 5))
@given(programs())
def test_printed_programs_parse_back_to_equal_ones(program):
    func = from_source(program.text)
    assert tvm_ffi.structural_equal(from_source(func.script()), func)


NESTED_SEARCH = """
@S.prim_func
def program(indptr: T.handle, indices: T.handle, x: T.handle, z: T.handle, y: T.handle):
    I = S.dense_fixed(3)
    K = S.dense_fixed(3)
    D = S.dense_fixed(1)
    J = S.sparse_variable(D, (4, 3), (indptr, indices), "int32")
    X = S.match_sparse_buffer(x, (D, J), "float64")
    Z = S.match_sparse_buffer(z, (D, J), "float64")
    T1 = S.alloc_sparse_buffer((I, K), "float64")
    T2 = S.alloc_sparse_buffer((I, K), "float64")
    Y = S.match_sparse_buffer(y, (I,), "float64")
    with S.sp_iter([I, K, D], "SSR", "sum") as [i, k, d]:
        with T.init():
            T1[i, k] = T.float64(4)
            T2[i, k] = T.float64(4)
        if i < 2:
            T1[i, k] = T1[i, k] * T.if_then_else(i < 2, Z[d, 0], T.float64(1))
        v: T.int32 = T.cast(0, "int32")
        if i < 2:
            for t in range(2):
                T2[i, k] = T.min(T2[i, k], X[d, 0] + X[v, v])
    with S.sp_iter([I], "S", "copy") as [i]:
        Y[i] = X[0, 0]
"""


def test_scheduled_reductions_around_nested_searches_compile():
    """TVM's lowering of reductions over threads refused them, on CPUs too."""
    arrays = {
        "indptr": np.array([0, 3], "int32"),
        "indices": np.array([0, 1, 3], "int32"),
        "x": np.arange(3.0),
        "z": np.arange(1.0, 4.0),
        "y": np.zeros(3),
    }
    choices = [92, 132, 343, 251, 137, 10, 3, 242, 807, 615, 755, 313]
    check(Program(NESTED_SEARCH, arrays, {}, ["y"], choices))

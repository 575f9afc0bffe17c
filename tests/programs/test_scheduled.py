"""Stock schedule primitives on stages II and III leave the result as it is, empty rows included."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tests.execution import build, lower, poisoned, stage_two
from tests.programs.references import REFERENCES, STRUCTURES, Draw
from tests.programs.scripts import parse


def _loops(sch: tvm.s_tir.Schedule, name: str):
    """Return the row loop, the entry loop and the feature loop of an SpMM."""
    (i,) = sch.get_loops(sch.get_sblock(f"{name}_0"))
    j, k = sch.get_loops(sch.get_sblock(f"{name}_1"))
    return i, j, k


def parallel(sch, name):
    sch.parallel(_loops(sch, name)[0])


def vectorized_tiles(sch, name):
    i, j, k = _loops(sch, name)
    outer, inner = sch.split(k, [None, 4])
    sch.reorder(outer, j, inner)
    sch.vectorize(inner)
    sch.parallel(i)


def unrolled_entries(sch, name):
    _, j, k = _loops(sch, name)
    outer, inner = sch.split(j, [None, 2])
    sch.reorder(outer, k, inner)
    sch.unroll(inner)


def rows_split(sch, name):
    i, _, _ = _loops(sch, name)
    outer, inner = sch.split(i, [None, 4])
    sch.parallel(outer)
    sch.unroll(inner)


def features_outermost(sch, name):
    _, j, k = _loops(sch, name)
    sch.reorder(k, j)


def accumulate_in_registers(sch, name):
    i, j, k = _loops(sch, name)
    outer, inner = sch.split(k, [None, 4])
    sch.reorder(outer, j, inner)
    copy = sch.cache_write(sch.get_sblock(f"{name}_1"), 0, "local")
    sch.reverse_compute_at(copy, outer)
    sch.vectorize(inner)
    sch.parallel(i)


def init_decomposed(sch, name):
    i, j, _ = _loops(sch, name)
    sch.parallel(i)
    sch.decompose_reduction(sch.get_sblock(f"{name}_1"), j)


def init_decomposed_per_tile(sch, name):
    _, j, k = _loops(sch, name)
    outer, inner = sch.split(k, [None, 2])
    sch.reorder(outer, j, inner)
    sch.vectorize(inner)
    init = sch.decompose_reduction(sch.get_sblock(f"{name}_1"), j)
    sch.vectorize(sch.get_loops(init)[-1])


def split_reduction(sch, name):
    _, j, k = _loops(sch, name)
    outer, inner = sch.split(j, [None, 3])
    sch.reorder(k, outer, inner)
    sch.rfactor(inner, factor_axis=0)


SCHEDULES = [
    parallel,
    vectorized_tiles,
    unrolled_entries,
    rows_split,
    features_outermost,
    accumulate_in_registers,
    init_decomposed,
    init_decomposed_per_tile,
    split_reduction,
]


def _check(func, module: tvm.IRModule, index: str) -> None:
    kernel = build(func, module)
    for seed, structure in enumerate(STRUCTURES):
        case = REFERENCES["csrmm"](Draw(structure, index, seed))
        arrays = {**case.arrays, "c": poisoned(case.arrays["c"].shape, "float32")}
        result = kernel(arrays, case.sizes)["c"]
        np.testing.assert_allclose(result, case.expected["c"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_csr_product_is_right_however_it_is_scheduled(schedule, index, stage):
    func = parse("csrmm", index)
    sch = tvm.s_tir.Schedule((stage_two if stage == 2 else lower)(func))
    sch.work_on(func.name)
    schedule(sch, "csrmm")
    assert tvm.s_tir.analysis.verify_well_formed(sch.mod)
    _check(func, sch.mod, index)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_csr_product_of_constant_width_is_right_however_it_is_scheduled(schedule):
    func = parse("csrmm").specialize({"f": 5})
    sch = tvm.s_tir.Schedule(lower(func))
    sch.work_on(func.name)
    schedule(sch, "csrmm")
    _check(func, sch.mod, "int32")


def _agree(name: str, schedule) -> None:
    func = parse(name)
    sch = tvm.s_tir.Schedule(lower(func))
    sch.work_on(func.name)
    schedule(sch)
    kernel = build(func, sch.mod)
    for seed, structure in enumerate(STRUCTURES):
        case = REFERENCES[name](Draw(structure, "int32", seed))
        arrays = dict(case.arrays)
        for output in case.expected:
            arrays[output] = poisoned(arrays[output].shape, "float32")
        results = kernel(arrays, case.sizes)
        for output, expected in case.expected.items():
            np.testing.assert_allclose(results[output], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order", [[2, 3], [3, 2], [0, 1, 2, 3]])
def test_spatial_and_reduction_loops_fused_into_one_keep_the_init(order):
    def schedule(sch):
        loops = sch.get_loops(sch.get_sblock("bsrmm_0"))
        if order == [3, 2]:
            sch.reorder(loops[3], loops[2])
        sch.split(sch.fuse(*(loops[k] for k in order)), [None, 5])

    _agree("bsrmm", schedule)


def test_reduction_loop_outside_the_spatial_ones_keeps_the_init():
    def schedule(sch):
        loops = sch.get_loops(sch.get_sblock("bsrmm_0"))
        sch.reorder(loops[2], loops[0])

    _agree("bsrmm", schedule)


def test_dot_products_may_be_split_into_partial_sums():
    def schedule(sch):
        loop = sch.get_loops(sch.get_sblock("sddmm_1"))[-1]
        _, inner = sch.split(loop, [None, 4])
        sch.rfactor(inner, 0)

    _agree("sddmm", schedule)


@pytest.mark.parametrize("block", ["square_sum_1", "square_sum_2"])
def test_reductions_over_two_levels_may_be_split(block):
    def schedule(sch):
        (loop,) = sch.get_loops(sch.get_sblock(block))
        outer, inner = sch.split(loop, [None, 2])
        sch.reorder(inner, outer)

    _agree("square_sum", schedule)

"""Loops whose rows are scattered run in parallel over ranges of features, in vectors."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.script import ir as I
from tvm.script import tirx as T

from tests.schedule.decompositions import FORMATS
from tests.schedules.test_formats_on_cpu import check, in_float64, random_entries
from tvm_sparse import schedules
from tvm_sparse.runtime import set_num_threads
from tvm_sparse.transform import ShareInner


@I.ir_module
class Scattered:
    @T.prim_func(s_tir=True)
    def main(R: T.Buffer((9,), "int32"), b: T.handle, c: T.handle, n: T.int64, f: T.int64):
        B = T.match_buffer(b, (9 * f,), "float32")
        C = T.match_buffer(c, (9 * f,), "float32")
        for e in T.serial(n, annotations={"tvm_sparse.share_inner": [64, 16]}):
            if R[e] >= 0:
                for k in range(f):
                    C[T.Cast("int64", R[e]) * f + k] = (
                        C[T.Cast("int64", R[e]) * f + k] + B[e * f + k]
                    )


def test_ranges_of_the_inner_loop_are_parallel_where_the_work_repays_it():
    loops: list[tirx.For] = []
    body = ShareInner()(Scattered)["main"].body
    tvm_ffi.structural_walk(body, (tirx.For, loops.append))
    kinds = [loop.kind for loop in loops]
    assert kinds.count(tirx.ForKind.PARALLEL) == 1
    assert kinds.count(tirx.ForKind.VECTORIZED) == 2
    assert "262144" in tvm.IRModule({"main": Scattered["main"].with_body(body)}).script()


def test_a_loop_with_nothing_inside_stays():
    @I.ir_module
    class Before:
        @T.prim_func(s_tir=True)
        def main(C: T.Buffer((64,), "float32")):
            for k in T.serial(64, annotations={"tvm_sparse.share_inner": [64, 16]}):
                C[k] = T.float32(0)

    assert "share_inner" not in ShareInner()(Before).script()
    assert "parallel" not in ShareInner()(Before).script()


@pytest.mark.parametrize("name", ["coo", "coo_duplicates", "csc"])
def test_products_with_scattered_rows_are_right_on_many_threads(name: str):
    """Enough entries and features for parallel ranges, the last one shorter than the others."""
    call = schedules.spmm.build(formats=FORMATS[name].formats)
    tensor = random_entries(300, 2000, 0.02, seed=4)
    packed = FORMATS[name].packs.pack(tensor)
    b = np.random.default_rng(1).standard_normal((2000, 203)).astype("float32")
    results = []
    for threads in (1, 4):
        set_num_threads(threads)
        try:
            check(call, packed, in_float64(tensor), b, 1e-5)
            results.append(call(a=packed, b=b))
        finally:
            set_num_threads(None)
    np.testing.assert_array_equal(*results)

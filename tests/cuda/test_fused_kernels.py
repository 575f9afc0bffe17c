"""Parts of a decomposed operand in one CUDA kernel."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule

from tests.cuda.source import cubin_of, cuda_source, kernels_in
from tests.execution import lower
from tvm_sparse import SparseProgramError, SparseSchedule, schedules
from tvm_sparse.formats import Hyb
from tvm_sparse.schedules.cuda import parts
from tvm_sparse.script import from_source
from tvm_sparse.transform import FuseKernels


def hyb_module(hyb: Hyb, **options: object) -> tvm.IRModule:
    sch = SparseSchedule(schedules.spmm.program())
    sch.decompose_format("spmm", "A", hyb)
    scheduled = sch.lower()
    scheduled.work_on("spmm")
    parts.schedule(scheduled, list(hyb.parts), groups=hyb.disjoint_rows, **options)
    return scheduled.mod


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_buckets_of_hyb_are_one_kernel(arch):
    source = cuda_source(hyb_module(Hyb(1, [1, 2, 4, 8]), share=None), arch)
    assert len(kernels_in(source)) == 1
    assert len(cubin_of(source, arch)) > 1000


def test_long_rows_are_shared_by_two_kernels_more():
    assert len(kernels_in(cuda_source(hyb_module(Hyb(1, [1, 2, 4, 8]))))) == 3


def test_ranges_of_columns_are_merged_before_rows_are_scheduled():
    with pytest.raises(ValueError, match="expected a format with one loop over rows for CUDA"):
        hyb_module(Hyb(3, [1, 4]))


TWO_RESULTS = """
@S.prim_func
def f(a: S.handle, b: S.handle, m: S.int32, n: S.int32):
    I = S.dense_fixed(m)
    J = S.dense_fixed(n)
    K = S.dense_fixed(64)
    A = S.match_sparse_buffer(a, (I, K), "float32")
    B = S.match_sparse_buffer(b, (J, K), "float32")
    with S.sp_iter([I, K], "SS", "first") as [i, k]:
        A[i, k] = S.cast(i, "float32")
    with S.sp_iter([J, K], "SS", "second") as [j, k]:
        B[j, k] = S.cast(k, "float32")
"""


def two_kernels(threads: tuple[int, int], tags: tuple[str, str]) -> tvm.IRModule:
    sch = Schedule(lower(from_source(TWO_RESULTS)))
    sch.work_on("f")
    for name, count, tag in zip(("first", "second"), threads, tags):
        row, feature = sch.get_loops(sch.get_sblock(f"{name}_0"))
        _, inner = sch.split(feature, [None, count])
        sch.bind(row, "blockIdx.x")
        sch.bind(inner, tag)
        sch.annotate(row, "tvm_sparse.together", "both")
    return sch.mod


def bound_extents(module: tvm.IRModule) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}

    def visit(loop: tirx.For) -> None:
        if loop.kind == tirx.ForKind.THREAD_BINDING:
            tag = str(loop.thread_binding.thread_tag)
            constant = isinstance(loop.extent, tirx.IntImm)
            found.setdefault(tag, []).append(int(loop.extent) if constant else -1)

    tvm_ffi.structural_walk(module["f"].body, (tirx.For, visit))
    return found


def test_parts_get_the_threads_of_the_largest():
    fused = FuseKernels()(two_kernels((32, 64), ("threadIdx.x", "threadIdx.x")))
    assert bound_extents(fused) == {"blockIdx.x": [-1], "threadIdx.x": [64, 64]}
    source = cuda_source(two_kernels((32, 64), ("threadIdx.x", "threadIdx.x")))
    assert len(kernels_in(source)) == 1
    assert "__launch_bounds__(64, 12)" in source
    cubin_of(source, "sm_80")


def test_parts_without_a_thread_axis_of_another_run_on_its_first_threads():
    fused = FuseKernels()(two_kernels((32, 16), ("threadIdx.x", "threadIdx.y")))
    assert bound_extents(fused) == {
        "blockIdx.x": [-1],
        "threadIdx.x": [32, 32],
        "threadIdx.y": [16, 16],
    }
    cubin_of(cuda_source(two_kernels((32, 16), ("threadIdx.x", "threadIdx.y"))), "sm_80")


def test_other_block_axes_are_refused():
    module = two_kernels((32, 32), ("threadIdx.x", "blockIdx.y"))
    with pytest.raises(SparseProgramError, match=r"bound to blockIdx\.y"):
        FuseKernels()(module)

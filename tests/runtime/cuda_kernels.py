"""A CUDA kernel for tests of the host's side, and what stands for it where there is no GPU."""

from __future__ import annotations

from tvm.s_tir import Schedule
from tvm.script import tirx as T

import tvm_sparse
from tvm_sparse import SparseSchedule, schedules
from tvm_sparse.runtime import lower

#: SpMM in C, as `tests.cuda.recorder` runs it in place of :func:`spmm`'s kernel.
SPMM_IN_C = """
#include <stdint.h>
void spmm_kernel(void** args, const unsigned* grid, const unsigned* block) {
  float *a = *(float**)args[0], *b = *(float**)args[1], *c = *(float**)args[2];
  int *indices = *(int**)args[3], *indptr = *(int**)args[4];
  int64_t f = *(int64_t*)args[5];
  for (unsigned i = 0; i < grid[0]; ++i)
    for (int64_t k = 0; k < f; ++k) {
      float sum = 0;
      for (int p = indptr[i]; p < indptr[i + 1]; ++p) sum += a[p] * b[indices[p] * f + k];
      c[i * f + k] = sum;
    }
}
"""


def spmm_schedule(program=None, rows="blockIdx.x", features="blockIdx.y", threads=32):
    """SpMM with rows and features bound as said: one kernel, `spmm_kernel`."""
    sch = Schedule(lower(program or schedules.spmm.program()))
    sch.work_on("spmm")
    (row,) = sch.get_loops(sch.get_sblock("spmm_0"))
    entry, feature = sch.get_loops(sch.get_sblock("spmm_1"))
    outer, inner = sch.split(feature, [None, threads])
    sch.reorder(outer, inner, entry)
    for loop, axis in ((row, rows), (outer, features), (inner, "threadIdx.x")):
        sch.bind(loop, axis)
    return sch


def spmm(target="cuda", **bindings):
    """SpMM compiled for CUDA."""
    return tvm_sparse.compile(spmm_schedule(**bindings), target)


def sddmm(fmt, target="cuda"):
    """SDDMM into a result of a format, compiled for CUDA: a block of threads for each first axis."""
    sparse = SparseSchedule(schedules.sddmm.program())
    sparse.decompose_format("sddmm", "C", fmt)
    sch = sparse.lower()
    sch.work_on("sddmm")
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        sch.bind(sch.get_loops(block)[0], "blockIdx.x")
    return tvm_sparse.compile(sch, target)


@T.prim_func(s_tir=True)
def reversed_block(x: T.handle, y: T.handle):
    """Reverse 64 KiB in shared memory of dynamic size."""
    X = T.match_buffer(x, (16384,), "float32")
    Y = T.match_buffer(y, (16384,), "float32")
    with T.sblock("root"):
        S = T.sblock_alloc_buffer((16384,), "float32", scope="shared.dyn")
        for t in T.thread_binding(1024, thread="threadIdx.x"):
            for i in range(16):
                with T.sblock("load"):
                    v = T.axis.spatial(16384, i * 1024 + t)
                    S[v] = X[v]
            for j in range(16):
                with T.sblock("store"):
                    v = T.axis.spatial(16384, j * 1024 + t)
                    Y[v] = S[16383 - v]

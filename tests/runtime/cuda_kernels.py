"""A CUDA kernel for tests of the host's side, and what stands for it where there is no GPU."""

from __future__ import annotations

from tvm.s_tir import Schedule

import tvm_sparse
from tvm_sparse import schedules
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

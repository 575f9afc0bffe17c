"""Merged loops in CUDA kernels, one row a thread."""

from __future__ import annotations

import pytest
from tvm.s_tir import Schedule

from tests.cuda.source import cubin_of, cuda_source, kernels_in
from tests.execution import lower
from tests.programs.merged import program


@pytest.mark.parametrize("kind", ["union", "intersect"])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("values", ["float32", "float16"])
def test_rows_are_bound_to_threads(kind, count, values):
    members = ", ".join(f"J{k}" for k in range(count))
    body = f"""
with S.sp_iter([I, S.{kind}({members})], "SR", "merged") as [i, j]:
    with S.init():
        Y[i] = S.cast(0, "{values}")
    Y[i] = Y[i] + A0[i, j] * A{count - 1}[i, j]
"""
    sch = Schedule(lower(program(count, body, "(I,)", values=values)))
    sch.work_on("program")
    pending = sch.get_child_blocks(sch.get_sblock("root"))
    for block in pending:
        outer, inner = sch.split(sch.get_loops(block)[0], [None, 128])
        sch.bind(outer, "blockIdx.x")
        sch.bind(inner, "threadIdx.x")
    source = cuda_source(sch.mod)
    assert len(kernels_in(source)) == len(pending)
    assert len(cubin_of(source, "sm_80")) > 1000

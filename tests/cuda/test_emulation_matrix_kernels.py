"""Matrix kernels of TVM's tensor intrinsics under the emulator, whole and with each wait taken out."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.s_tir.tensor_intrin import cuda as intrinsics
from tvm.script import tirx as T

from tests.cuda.emulation import EmulationError, emulated, emulated_source

ROWS, WIDTH, DEPTH = 32, 64, 64


@T.prim_func(s_tir=True)
def matmul(
    A: T.Buffer((32, 64), "float16"),
    B: T.Buffer((64, 64), "float16"),
    C: T.Buffer((32, 64), "float32"),
):
    for i, j, k in T.grid(32, 64, 64):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vk, vj])


def staged(held: list[str], scope: str, lanes: int) -> tuple[Schedule, dict[str, SBlockRV]]:
    """Tiles of 16 by 16 by 16, one a warp; operands go through shared memory to where `held` says."""
    sch = Schedule(matmul)
    i, j, k = sch.get_loops(sch.get_sblock("C"))
    (i0, i1), (j0, j1), (k0, k1) = (sch.split(loop, [None, 16]) for loop in (i, j, k))
    sch.reorder(i0, j0, k0, i1, j1, k1)
    body = sch.blockize(i1)
    sch.bind(i0, "blockIdx.x")
    sch.bind(j0, "threadIdx.y")
    result = sch.cache_write(body, 0, held[2])
    sch.reverse_compute_at(result, j0)
    shared = [sch.cache_read(body, operand, scope) for operand in (0, 1)]
    loads = [sch.cache_read(body, operand, held[operand]) for operand in (0, 1)]
    for copy in (*loads, *shared):
        sch.compute_at(copy, k0)
    for copy in shared:
        fused = sch.fuse(*sch.get_loops(copy)[-2:])
        _, y, x, lane = sch.split(fused, [None, 4, 32, lanes])
        sch.bind(y, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
        sch.vectorize(lane)
    init = sch.decompose_reduction(body, k0)
    blocks = {"a": loads[0], "b": loads[1], "result": result}
    blocks |= {"init": sch.get_child_blocks(init)[0], "update": sch.get_child_blocks(body)[0]}
    return sch, blocks | {"depth": k0}


def tensorize(sch: Schedule, blocks: dict[str, SBlockRV], names: list[str]) -> None:
    for (key, loops), name in zip(
        {"a": 2, "b": 2, "init": 2, "update": 3, "result": 2}.items(), names
    ):
        sch.tensorize(sch.get_loops(blocks[key])[-loops], name)


def by_wmma(scope: str, stages: list[int] | None = None, is_async: bool = False) -> Schedule:
    sch, blocks = staged(["wmma.matrix_a", "wmma.matrix_b", "wmma.accumulator"], scope, 2)
    dyn = "_dyn" if scope == "shared.dyn" else ""
    names = [f"wmma_load_16x16x16_f16_a_shared{dyn}", f"wmma_load_16x16x16_f16_b_shared{dyn}"]
    names += [
        "wmma_fill_16x16x16_f32",
        "wmma_sync_16x16x16_f16f16f32",
        "wmma_store_16x16x16_f32_global",
    ]
    tensorize(sch, blocks, names)
    if stages:
        sch.annotate(blocks["depth"], "software_pipeline_stage", stages)
        sch.annotate(blocks["depth"], "software_pipeline_order", [0, 2, 1, 3, 4])
    if is_async:
        sch.annotate(blocks["depth"], "software_pipeline_async_stages", [0])
    return sch


def by_mma() -> Schedule:
    sch, blocks = staged(["warp", "warp", "warp"], "shared", 2)
    group = intrinsics.get_mma_intrin_group(
        "shared", "global", "float16", "float32", False, False, not_use_mma_store_intrinic=False
    )

    def spread(i, j):
        return i // 16, j // 16, *intrinsics.shared_16x16_to_ldmatrix_32x8_layout(i % 16, j % 16)

    for key, side in (("a", "write"), ("b", "write"), ("result", "read")):
        sch.transform_layout(blocks[key], (side, 0), spread)
    tensorize(sch, blocks, [group[key] for key in ("load_a", "load_b", "init", "compute", "store")])
    return sch


SCHEDULES = {
    "wmma": lambda: by_wmma("shared"),
    "wmma, dynamic shared memory": lambda: by_wmma("shared.dyn"),
    "wmma, two stages": lambda: by_wmma("shared.dyn", [0, 1, 0, 1, 1]),
    "wmma, two stages, asynchronous": lambda: by_wmma("shared.dyn", [0, 1, 0, 1, 1], True),
    "ldmatrix and mma": by_mma,
}


@pytest.fixture(scope="module")
def kernels() -> dict:
    with tvm.transform.PassContext(config={"tirx.use_async_copy": True}):
        made = emulated([schedule() for schedule in SCHEDULES.values()], tir_pipeline="s_tir")
    return dict(zip(SCHEDULES, made))


def operands() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    a, b = (
        random.standard_normal(shape).astype("float16") for shape in ((ROWS, DEPTH), (DEPTH, WIDTH))
    )
    return a, b, np.full((ROWS, WIDTH), np.nan, "float32")


@pytest.mark.parametrize("name", SCHEDULES)
def test_tensor_intrinsics_multiply(kernels, name):
    a, b, c = operands()
    kernels[name](a, b, c)
    np.testing.assert_allclose(c, a.astype("float64") @ b.astype("float64"), rtol=1e-5, atol=2e-5)
    source = kernels[name].inspect_source()
    assert ("cp.async" in source) == ("asynchronous" in name)
    assert ("mma.sync" in source) == ("mma" in name and "wmma" not in name)


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_wait_of_a_generated_kernel_can_be_left_out(kernels, name):
    source = kernels[name].inspect_source()
    start = source.rindex("__global__")
    wait = re.compile(r"__syncthreads\(\);|\w+_wait_group_\d\(\);")
    waits = list(wait.finditer(source, start))
    assert len(waits) >= 2
    for match in waits:
        shortened = source[: match.start()] + source[match.end() :]
        with pytest.raises(
            EmulationError, match=r"data race|uninitialised read|before the asynchronous copy"
        ):
            emulated_source(shortened)["matmul_kernel"](2, (32, 4), 16384, *operands())

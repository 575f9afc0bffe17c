"""Fragments of tensor cores: machine code, banks of shared memory, and faults that are seen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest

from tests.cuda.block_cases import (
    Kernel,
    build,
    check_spmm,
    entries,
    kernel_name,
    operand,
    scheduled,
    tf32,
)
from tests.cuda.emulation import EmulationError
from tests.cuda.shared_banks import shared_reads
from tests.cuda.source import cubin_of, cuda_source
from tvm_sparse.formats import BSR, SRBCRS
from tvm_sparse.schedules.cuda.block_tiles import DotBlockTile

DEFAULTS = [
    Kernel("spmm", BSR(16, 16), features=128),
    Kernel("spmm", BSR(64, 64), "bfloat16", features=64),
    Kernel("spmm", BSR(8, 8), "float16", "float32"),
    Kernel("spmm", SRBCRS(8, 16), features=64),
    Kernel("spmm", SRBCRS(8, 32), "bfloat16", features=128),
    Kernel("spmm", BSR(16, 16), "float32", features=128, tile=tf32(16, 16)),
    Kernel("spmm", SRBCRS(8, 32), "float32", features=128, tile=tf32(8, 32)),
    Kernel("sddmm", BSR(16, 16), "float16", "float32", features=64),
    Kernel(
        "sddmm", BSR(16, 16), "float32", tile=DotBlockTile.default((16, 16), "float32"), features=64
    ),
    Kernel("sddmm", BSR(64, 64), scaled=True),
    Kernel("sddmm", BSR(8, 8), "bfloat16", features=64),
]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("kernel", DEFAULTS, ids=kernel_name)
def test_defaults_copy_vectors_ahead_and_keep_all_in_registers(kernel, arch):
    from benchmarks.cuda_report.cubin import read_resources
    from benchmarks.cuda_report.sass import disassemble

    source = cuda_source(scheduled(kernel).mod, arch)
    assert "cp.async.cg.shared.global [%0], [%1], 16, %2;" in source
    assert "st.global.v4.b32" in source
    assert "cp_async_wait_group" in source[source.rindex("__global__") :]
    cubin = cubin_of(source, arch)
    (resources,) = read_resources(cubin).values()
    assert resources.stack == 0 and resources.registers <= 170
    (code,) = disassemble(cubin).values()
    instructions = Counter(instruction.name for instruction in code)
    assert instructions["HMMA"] and instructions["LDGSTS"]
    # Fragments come out of shared memory by matrices, or are at least known to lie there.
    assert instructions["LD"] == 0
    by_values = kernel.dtype == "float32" and kernel.operator == "spmm"
    assert instructions["LDSM"] or (by_values and instructions["LDS"])
    widest = {instruction.bits for instruction in code if instruction.is_async_copy}
    assert 128 in widest if kernel.features is None else widest == {128}


def steps_of(kernel: Kernel) -> str:
    """The loop of a kernel over steps, as CUDA C."""
    source = cuda_source(scheduled(kernel).mod)
    body = source[source.rindex("__global__") :]
    return body[body.index("for (int turn") : body.index("\n", body.rindex("_mma_sync_"))]


@pytest.mark.parametrize("features", [None, 100, 64])
def test_a_step_waits_at_one_barrier(features):
    for kernel in (
        Kernel("spmm", BSR(16, 16), features=features),
        Kernel("spmm", BSR(16, 16), "float32", features=features, tile=tf32(16, 16)),
        Kernel("sddmm", BSR(16, 16), features=features),
    ):
        assert steps_of(kernel).count("__syncthreads") == 1


@pytest.mark.parametrize("kernel", DEFAULTS, ids=kernel_name)
def test_fragments_are_loaded_without_conflicts_of_banks(kernel):
    steps = steps_of(kernel)
    assert steps.count("_mma_sync_") >= 2
    for warp in range(4):
        reads = shared_reads(steps, warp)
        assert len(reads) >= 2 and {read.passes for read in reads} == {1}
        assert all(read.by_matrices for read in reads) or kernel.dtype == "float32"


def without(number: int) -> Callable[[str], str]:
    """Leave out a wait of a kernel."""

    def edited(source: str) -> str:
        start = source.rindex("__global__")
        waits = list(re.finditer(r"__syncthreads\(\);|\w+_wait_group_\d\(\);", source[start:]))
        assert len(waits) == 4
        match = waits[number]
        return source[: start + match.start()] + source[start + match.end() :]

    return edited


def check_one(call, kernel: Kernel) -> None:
    # Four steps of 32 columns: the last is read where sums are stored afterwards.
    tensor = entries(70, 110, 0.3, kernel.dtype)
    check_spmm(call, kernel, tensor, operand(110, 40, kernel.dtype))


@pytest.mark.parametrize("number", range(4))
def test_no_wait_can_be_left_out(number):
    kernel = Kernel("spmm", BSR(16, 16), "bfloat16", "float32")
    (call,) = build([kernel], without(number))
    with pytest.raises(
        EmulationError, match=r"data race|uninitialised read|before the asynchronous copy"
    ):
        check_one(call, kernel)


NARROW = r"narrow_ptr\[0\], narrow_ptr\[1\], sums"


@pytest.mark.parametrize(
    "kernel, fault, replacement",
    [
        (Kernel("spmm", BSR(16, 16), "bfloat16"), r"x4\.trans\.shared", "x4.shared"),
        (Kernel("spmm", BSR(16, 16), "bfloat16"), r"x4\.shared", "x4.trans.shared"),
        (Kernel("spmm", BSR(8, 8)), r"x2\.shared", "x2.trans.shared"),
        (Kernel("spmm", BSR(8, 8)), NARROW, "narrow_ptr[1], narrow_ptr[0], sums"),
        (
            Kernel("spmm", SRBCRS(8, 32), "float32", tile=tf32(8, 32)),  # values are not rounded
            r"\w+_cvt_tf32\w+\((narrow|wide)_ptr.*\);",
            "",
        ),
    ],
)
def test_what_is_wrong_with_fragments_is_seen(kernel, fault, replacement):
    def wrong(source: str) -> str:
        changed, number = re.subn(fault, replacement, source)
        assert number
        return changed

    check_one(build([kernel])[0], kernel)
    with pytest.raises(AssertionError):
        check_one(build([kernel], wrong)[0], kernel)


@pytest.mark.parametrize("operator", ["spmm", "sddmm"])
def test_rows_that_are_a_multiple_of_8_bytes_are_copied_by_as_many(operator):
    source = cuda_source(scheduled(Kernel(operator, BSR(16, 16), features=100)).mod)
    assert "cp.async.ca.shared.global [%0], [%1], 8, %2;" in source

"""The report on CUDA kernels: what it reads out of cubins, and when it fails."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import json

import pytest

pytest.importorskip("cuda.bindings.nvrtc")
pytest.importorskip("nvidia")

from benchmarks import cuda_kernels
from benchmarks.cuda_report import __main__ as command
from benchmarks.cuda_report import measure as measuring
from benchmarks.cuda_report.compilers import compilers, nvrtc
from benchmarks.cuda_report.cubin import read_resources
from benchmarks.cuda_report.flow import busiest_paths, running
from benchmarks.cuda_report.loops import entry_cost
from benchmarks.cuda_report.occupancy import occupancy
from benchmarks.cuda_report.sass import accesses, disassemble

ARCHS = ("sm_80", "sm_90")

# Sums of 64 accumulators, each from its own column, that all live until the end.
MANY_REGISTERS = """
extern "C" __global__ void k(const float* x, float* y, int n) {
  float sum[64];
#pragma unroll
  for (int c = 0; c < 64; ++c) sum[c] = 0;
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int c = 0; c < 64; ++c) sum[c] += x[i * 64 + c] * x[i + c * 77];
#pragma unroll
  for (int c = 0; c < 64; ++c) y[c * 32 + threadIdx.x] = sum[c];
}
"""


# At most 32 registers a thread fit into a multiprocessor twice.
FEW_REGISTERS = MANY_REGISTERS.replace("void k", "void __launch_bounds__(1024, 2) k")


def listing(source: str, arch: str = "sm_90"):
    return disassemble(nvrtc(source, arch))["k"]


@pytest.mark.parametrize("arch", ARCHS)
def test_spilled_registers_are_seen_as_stack_and_as_local_accesses(arch):
    roomy, tight = (
        nvrtc(MANY_REGISTERS, arch),
        nvrtc(FEW_REGISTERS, arch),
    )
    assert read_resources(roomy)["k"].stack == 0
    assert read_resources(roomy)["k"].registers > 64
    assert read_resources(tight)["k"].stack > 0
    assert read_resources(tight)["k"].registers == 32
    free, spilt = (accesses(disassemble(cubin)["k"]) for cubin in (roomy, tight))
    assert (free.spill_loads, free.spill_stores) == (0, 0)
    assert spilt.spill_loads > 0
    assert spilt.spill_stores > 0


def test_static_shared_memory_is_that_of_each_kernel():
    source = """
    extern "C" __global__ void small(float* y) {
      __shared__ float s[64]; s[threadIdx.x] = y[threadIdx.x]; __syncthreads();
      y[threadIdx.x] = s[63 - threadIdx.x];
    }
    extern "C" __global__ void large(float* y) {
      __shared__ float s[1024]; s[threadIdx.x] = y[threadIdx.x]; __syncthreads();
      y[threadIdx.x] = s[9 ^ threadIdx.x];
    }
    extern "C" __global__ void none(float* y) { y[threadIdx.x] = 0; }
    """
    found = read_resources(nvrtc(source, "sm_80"))
    assert {name: one.shared for name, one in found.items()} == {
        "small": 256,
        "large": 4096,
        "none": 0,
    }


def test_what_is_no_cubin_is_refused():
    with pytest.raises(ValueError, match="expected a 64-bit ELF file"):
        read_resources(b"ld.global.f32")


def test_the_log_of_a_refused_kernel_is_the_error():
    with pytest.raises(RuntimeError, match="undefined"):
        nvrtc('extern "C" __global__ void k(float* y) { y[0] = nothing; }', "sm_90")


# From NVIDIA's occupancy tables for compute capability 8.0 and 9.0.
@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "share"),
    [
        ("sm_80", 256, 32, 0, 1.0),
        ("sm_80", 256, 33, 0, 0.75),  # 40 registers a thread are taken: 48 warps
        ("sm_90", 256, 64, 0, 0.5),
        ("sm_90", 1024, 64, 0, 0.5),
        ("sm_90", 1024, 65, 0, 0.0),  # does not fit at all
        ("sm_90", 32, 20, 0, 0.5),  # 32 blocks at most
        ("sm_90", 128, 255, 0, 0.125),
        ("sm_80", 128, 32, 48 * 1024, 3 * 4 / 64),  # 49 KiB each of 164
        ("sm_90", 128, 32, 48 * 1024, 4 * 4 / 64),
        ("sm_80", 128, 32, 164 * 1024, 0.0),
        ("sm_90", 128, 32, 227 * 1024, 4 / 64),
    ],
)
def test_occupancy(arch, threads, registers, shared, share):
    assert occupancy(arch, threads, registers, shared) == share


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("kind", "bits"), [("float4", 128), ("float2", 64), ("float", 32)])
def test_the_width_of_global_accesses_is_seen(kind, bits, arch):
    source = f"""
    extern "C" __global__ void k(const {kind}* x, {kind}* y) {{ y[threadIdx.x] = x[threadIdx.x]; }}
    """
    found = accesses(listing(source, arch))
    assert found.loads == {bits: 1}
    assert found.stores == {bits: 1}


@pytest.mark.parametrize("arch", ARCHS)
def test_tensor_cores_and_asynchronous_copies_are_seen_only_where_they_are(arch):
    source = """
    extern "C" __global__ void k(const unsigned* a, float* c, const float4* g) {
      __shared__ float4 s[32];
      unsigned to = (unsigned)__cvta_generic_to_shared(s + threadIdx.x);
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(g + threadIdx.x));
      asm volatile("cp.async.wait_all;");
      __syncthreads();
      float d[4] = {s[31 - threadIdx.x].x, 0, 0, 0};
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},"
                   "{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                   : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]));
      c[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
    }
    """
    found = accesses(listing(source, arch))
    assert sum(found.tensor_cores.values()) == 1
    assert found.async_copies == {128: 1}
    assert not accesses(listing(MANY_REGISTERS, arch)).tensor_cores
    assert not accesses(listing(MANY_REGISTERS, arch)).async_copies


# Row groups of blockDim.x lanes, four features a lane, `f` features.
SPMM = """
extern "C" __global__ void k(const float* __restrict__ a, const float* __restrict__ b, float* c,
                             const int* __restrict__ indptr, const int* __restrict__ indices) {{
  int row = blockIdx.x * blockDim.y + threadIdx.y;
  for (int tile = 0; tile < {f}; tile += {lanes} * 4) {{
    float4 sum = make_float4(0, 0, 0, 0);
    #pragma unroll {unroll}
    for (int p = indptr[row]; p < indptr[row + 1]; ++p) {{
      float4 x = *(const float4*)(b + (long long)indices[p] * {f} + tile + threadIdx.x * 4);
      float v = a[p]{extra};
      sum.x += v * x.x; sum.y += v * x.y; sum.z += v * x.z; sum.w += v * x.w;
    }}
    *(float4*)(c + row * {f} + tile + (int)threadIdx.x * 4) = sum;
  }}
}}
"""


def spmm_cost(f: int, lanes: int, unroll: int = 4, extra: str = "", arch: str = "sm_90"):
    code = listing(SPMM.format(f=f, lanes=lanes, unroll=unroll, extra=extra), arch)
    return entry_cost(code, lanes, f, index_bytes=4)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("unroll", [1, 4, 8])
def test_an_entry_costs_the_same_bytes_however_the_loop_is_unrolled(unroll, arch):
    cost = spmm_cost(128, 32, unroll, arch=arch)
    assert cost.entries == unroll
    assert cost.loaded_bytes == 4 + 4 + 128 * 4
    assert cost.kinds["multiply"] == 4
    assert cost.kinds["load"] >= 3


@pytest.mark.parametrize("lanes", [4, 8, 16, 25])
def test_lanes_of_a_row_group_load_an_index_once(lanes):
    cost = spmm_cost(4 * lanes, lanes)
    assert cost.groups == 32 / lanes
    assert cost.loaded_bytes == pytest.approx(4 + 4 + 4 * lanes * 4)
    assert cost.kinds["multiply"] == pytest.approx(4 / cost.groups)


def test_entries_that_are_gone_over_twice_cost_their_index_and_value_twice():
    cost = spmm_cost(256, 32)
    assert cost.passes == 2
    assert cost.loaded_bytes == 2 * (4 + 4) + 256 * 4


def test_bytes_that_are_not_needed_are_seen():
    cost = spmm_cost(128, 32, extra=" * a[p + 7777]")
    assert cost.loaded_bytes == 4 + 4 + 4 + 128 * 4


def test_a_kernel_that_gathers_nothing_has_no_cost():
    assert entry_cost(listing(MANY_REGISTERS), 32, 64, index_bytes=4) is None


def test_only_what_may_run_is_counted_and_code_out_of_line_is_no_loop():
    # Shuffles where lanes may have diverged have a copy, lane by lane, that jumps back.
    source = """
    extern "C" __global__ void k(const float* x, float* y, int n) {
      float sum = 0;
      for (int i = 0; i < n; ++i) {
        int p = blockIdx.x * 256 + i * 32 + threadIdx.y;
        if (p < n) {
          float v = x[p * 8 + threadIdx.x];
          v += __shfl_down_sync(0xffffffffu, v, 4, 8);
          v += __shfl_down_sync(0xffffffffu, v, 2, 8);
          if (threadIdx.x == 0) y[p] = v;
        }
        for (int j = 0; j < i; ++j) sum = sum * x[j] + 1.0f;
      }
      y[threadIdx.x + 77777] = sum;
    }
    """
    code = listing(source)
    running_places = {one.place for one in running(code)}
    assert any(one.name == "BRA" and "DIV" in one.modifiers for one in code)
    assert len(running_places) < len(code)
    loops = busiest_paths(code, lambda one: one.name == "FFMA")
    assert loops  # over j, unrolled and what is left over
    for loop in (path.body for path in loops if path.repeats):
        assert {one.place for one in loop} <= running_places
        assert not any(one.name == "SHFL" for one in loop)
        assert any(one.name == "FFMA" for one in loop)


def test_of_two_ways_the_one_that_does_more_counts():
    source = """
    extern "C" __global__ void k(const float* x, float* y, int n) {
      float a = x[threadIdx.x], b = x[n], c = x[n + 1];
      if (n > 7) {
        #pragma unroll
        for (int i = 0; i < 24; ++i) a = a * b + c;
        y[threadIdx.x + 999] = a;
      } else {
        #pragma unroll
        for (int i = 0; i < 5; ++i) a = a * c + b;
        y[threadIdx.x] = a;
      }
      __threadfence();
      y[n] = 1;
    }
    """
    (straight,) = busiest_paths(listing(source), lambda one: one.name == "FFMA")
    assert sum(one.name == "FFMA" for one in straight.body) == 24
    assert sum(one.is_global_store for one in straight.body) == 2


def hyb_case(**claims) -> cuda_kernels.KernelCase:
    case = cuda_kernels.find_kernel("spmm/hyb/f64/float32/int32")
    return dataclasses.replace(case, **claims)


def test_claims_that_do_not_hold_are_failures():
    simple = 'extern "C" __global__ void k(float* y) { y[threadIdx.x] = 0; }'
    launch = measuring.Launch((32, 1, 1))
    code = measuring.DeviceCode(simple, {"k": launch})
    case = hyb_case(wide_loads=True, tensor_cores=True, bounded=True)
    facts = measuring.kernel_facts(code, nvrtc(simple, "sm_90"), "sm_90", case)
    assert measuring.failures(case, facts) == [
        "no 128-bit load",
        "no tensor-core instruction",
        "no inner loop over entries found",
    ]
    spilt = measuring.DeviceCode(MANY_REGISTERS, {"k": launch})
    cubin = nvrtc(FEW_REGISTERS, "sm_90")
    (failure,) = measuring.failures(
        hyb_case(wide_loads=False, bounded=False),
        measuring.kernel_facts(spilt, cubin, "sm_90", hyb_case(wide_loads=False, bounded=False)),
    )
    assert "bytes of stack" in failure


def test_an_inner_loop_far_from_the_minimum_is_a_failure():
    wasteful = SPMM.format(
        f=128, lanes=32, unroll=4, extra="".join(f" + a[p * 3 + {i}] * 1.5f" for i in range(5))
    )
    launch = measuring.Launch((32, 8, 1))
    case = hyb_case(features=128, wide_loads=True, bounded=True)
    for source, fine in (
        (wasteful, False),
        (SPMM.format(f=128, lanes=32, unroll=8, extra=""), True),
    ):
        code = measuring.DeviceCode(source, {"k": launch})
        facts = measuring.kernel_facts(code, nvrtc(source, "sm_90"), "sm_90", case)
        assert (measuring.failures(case, facts) == []) is fine


def test_the_command_writes_tables_and_fails_when_a_claim_does_not_hold(tmp_path, monkeypatch):
    only = ["--op", "spmm", "--features", "64", "--dtype", "float32", "--index-dtype", "int32"]
    only += ["--arch", "sm_90", "--compiler", "nvrtc", "--out", str(tmp_path)]
    right = [hyb_case(wide_loads=False, bounded=False)]
    monkeypatch.setattr(command, "default_kernels", lambda *_: right)
    monkeypatch.setattr(measuring, "find_kernel", lambda _: right[0])
    assert command.main(only) == 0
    (row,) = json.loads((tmp_path / "cuda_report.json").read_text())
    assert row["kernels"][0]["registers"] > 0
    assert f"| {row['name']}" in (tmp_path / "cuda_report.md").read_text()

    right[0] = hyb_case(tensor_cores=True, wide_loads=False, bounded=False)
    assert command.main(only) == 1
    assert "no tensor-core instruction" in (tmp_path / "cuda_report.md").read_text()


_DEFAULTS = [
    *cuda_kernels.default_kernels(None, [128], ["float32"], ["int32"]),
    *cuda_kernels.default_kernels(["bsr_spmm", "bsr_sddmm"], [128], ["float16"], ["int32"]),
]


@pytest.mark.parametrize("name", [case.name for case in _DEFAULTS])
def test_default_kernels_do_not_spill_and_hold_their_claims(name):
    (row,) = measuring.measure_named((name, ["sm_90"], ["nvrtc"]))
    assert row["failures"] == []


def test_names_of_cases_are_distinct_and_found():
    cases = cuda_kernels.default_kernels()
    assert len({case.name for case in cases}) == len(cases)
    assert cuda_kernels.find_kernel(cases[-1].name) == cases[-1]
    with pytest.raises(KeyError, match="no CUDA kernel"):
        cuda_kernels.find_kernel("spmm/none")


def test_nvrtc_is_among_the_compilers():
    assert "nvrtc" in compilers()


@pytest.mark.parametrize("name", ["bounds", "occupancy"])
def test_examples_in_docstrings_hold(name):
    module = importlib.import_module(f"benchmarks.cuda_report.{name}")
    assert doctest.testmod(module).attempted > 0
    assert doctest.testmod(module).failed == 0

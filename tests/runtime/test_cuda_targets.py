"""CUDA code is made for the architectures of a target, without a GPU, or an error says what is missing."""

import pytest
import tvm
from cuda_kernels import spmm, spmm_schedule

import tvm_sparse
from tests.workspace.programs import ADD, BY_ROWS
from tvm_sparse import SparseProgramError, schedules
from tvm_sparse.runtime import architectures, cuda_compiler, minimal, resolve_target
from tvm_sparse.runtime.cuda_compiler import compile_device_code, make_fat_binary
from tvm_sparse.script import from_source

SM_80 = {"kind": "cuda", "arch": "sm_80"}
NOTHING = 'extern "C" __global__ void nothing() {}'


@pytest.fixture
def nvrtc():
    """Skip where NVRTC is not installed."""
    pytest.importorskip("cuda.bindings.nvrtc")
    if cuda_compiler._nvrtc() is None:
        pytest.skip("needs NVRTC")


def test_without_an_architecture_and_a_gpu_the_error_says_to_state_one(monkeypatch):
    monkeypatch.setattr(architectures, "load_cuda_runtime", lambda: "has no NVIDIA driver")
    for target in ("cuda", {"kind": "cuda"}, '{"kind": "cuda"}'):
        with pytest.raises(
            ValueError,
            match=r'"arch": "sm_90"\}, found none, and this machine has no NVIDIA driver',
        ):
            tvm_sparse.compile(spmm_schedule(), target)


@pytest.mark.parametrize("arch", ["banana", "sm_9", "sm_90x", "90", ["sm_80", 3], "gfx90a"])
def test_what_is_no_architecture_is_refused(arch):
    with pytest.raises(ValueError, match=r'arch: expected a CUDA architecture such as "sm_90"'):
        spmm({"kind": "cuda", "arch": arch})


@pytest.mark.parametrize("arch", [[], 90, {"sm_90": 1}])
def test_arch_is_a_name_or_a_list(arch):
    with pytest.raises(ValueError, match=r'arch: expected an architecture such as "sm_90" or a l'):
        spmm({"kind": "cuda", "arch": arch})


@pytest.mark.parametrize("arch", ["sm_50", "sm_99", ["sm_80", "compute_99"]])
def test_architectures_that_the_compiler_does_not_know_are_refused(nvrtc, arch):
    with pytest.raises(
        ValueError, match=r"that NVRTC \d+\.\d+ compiles for \(sm_.*sm_90.*\), found"
    ):
        spmm({"kind": "cuda", "arch": arch})


def test_code_for_several_architectures_is_generated_for_the_smallest():
    target = resolve_target({"kind": "cuda", "arch": ["compute_90", "sm_90", "sm_80"]})
    assert target.attrs["arch"] == "sm_80"
    for given in (target, {"kind": "cuda", "arch": ["compute_90", "sm_90", "sm_80"]}):
        kernel = spmm(given)  # a target that was read is passed on, as builders do
        assert kernel.metadata["architectures"] == ["sm_80", "sm_90", "compute_90"]
        assert kernel.metadata["target"]["kind"] == "cuda"
        assert kernel.metadata["target"]["arch"] == "sm_80"
    assert (
        resolve_target({"kind": "cuda", "arch": ["sm_90", "compute_80"]}).attrs["arch"] == "sm_80"
    )


def test_tags_and_targets_of_tvm_are_taken():
    assert spmm("nvidia/nvidia-a100").metadata["architectures"] == ["sm_80"]
    assert spmm(tvm.target.Target(SM_80)).metadata["architectures"] == ["sm_80"]


def test_a_kernel_shows_its_architectures_and_code():
    kernel = spmm({"kind": "cuda", "arch": ["sm_80", "sm_90"]})
    assert repr(kernel).endswith("nnz) for cuda sm_80, sm_90>")
    source = kernel.inspect_source("cuda")
    assert "__global__ void" in source and "spmm_kernel" in source
    assert kernel.inspect_source() == source
    assert "ModuleID" in kernel.inspect_source("ll")
    assert str(resolve_target("llvm").kind.name) == "llvm"
    with pytest.raises(ValueError, match="expected 'll' or 'asm' of code for a CPU, found 'cuda'"):
        schedules.spmm.build().inspect_source("cuda")


QUOTIENT = """
@S.prim_func
def f(a: S.handle, c: S.handle):
    I = S.dense_fixed(256)
    A = S.match_sparse_buffer(a, (I,), "float32")
    C = S.match_sparse_buffer(c, (I,), "float32")
    with S.sp_iter([I], "S", "f") as [i]:
        C[i] = S.exp(A[i]) / S.sqrt(A[i] + 1.0)
"""


@pytest.mark.parametrize("fast", [None, False, True])
def test_arithmetic_is_ieee_unless_fast_math_is_asked_for(nvrtc, fast):
    sch = tvm.s_tir.Schedule(tvm_sparse.runtime.lower(from_source(QUOTIENT)))
    sch.work_on("f")
    sch.bind(sch.get_loops(sch.get_sblock("f_0"))[0], "threadIdx.x")
    target = SM_80 | ({} if fast is None else {"fast-math": fast})
    kernel = tvm_sparse.compile(sch, target)
    assert kernel.metadata["fast_math"] is bool(fast)
    text = kernel.inspect_source("ptx")
    assert ("div.rn.f32" in text) is not bool(fast)
    assert ("sqrt.rn.f32" in text) is not bool(fast)
    assert ("div.approx.ftz.f32" in text) is bool(fast)
    assert ("add.ftz.f32" in text) is bool(fast)


def test_fast_math_is_a_truth_value():
    with pytest.raises(TypeError, match="fast-math: expected a bool, found 'yes'"):
        spmm(SM_80 | {"fast-math": "yes"})


def test_without_a_compiler_code_can_be_seen_and_the_error_names_the_packages(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(cuda_compiler, "_nvrtc", lambda: None)
    monkeypatch.setattr(cuda_compiler, "_toolkit_program", lambda name: None)
    kernel = spmm(SM_80)
    assert "spmm_kernel" in kernel.inspect_source("cuda")
    for mode, found in (("", "neither NVRTC nor nvcc"), ("nvrtc", "no NVRTC"), ("nvcc", "no nvcc")):
        monkeypatch.setenv(cuda_compiler.MODE_VARIABLE, mode)
        with pytest.raises(
            RuntimeError,
            match=rf"for sm_80: expected a CUDA compiler, found {found}; install .*cuda\]",
        ):
            kernel.export_library(tmp_path / "k.so")
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv(cuda_compiler.MODE_VARIABLE, "clang")
    with pytest.raises(ValueError, match="expected 'nvrtc' or 'nvcc', found 'clang'"):
        kernel.export_library(tmp_path / "k.so")


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("crt/mma.h", "nvidia-cuda-crt"),
        ("cuda_fp16.h", "nvidia-cuda-runtime"),
        ("cuda/std/cstdint", "nvidia-cuda-cccl"),
    ],
)
def test_a_missing_header_is_named_with_its_package(nvrtc, monkeypatch, name, package):
    assert compile_device_code(f'#include "{name}"\n{NOTHING}', "sm_80").startswith(b"\x7fELF")
    monkeypatch.setattr(cuda_compiler, "_header_folders", list)
    with pytest.raises(
        RuntimeError, match=f"expected CUDA's header {name}, found none; install {package}"
    ):
        compile_device_code(f'#include "{name}"\n{NOTHING}', "sm_80")


def test_what_the_compiler_refuses_is_shown(nvrtc):
    with pytest.raises(RuntimeError, match=r"(?s)CUDA code for sm_80 failed:.*incomplete type"):
        compile_device_code("void f(", "sm_80")


def test_nvcc_compiles_where_it_is_asked_for(monkeypatch):
    if cuda_compiler._toolkit_program("nvcc") is None:
        pytest.skip("needs nvcc")
    monkeypatch.setenv(cuda_compiler.MODE_VARIABLE, "nvcc")
    source = spmm(SM_80).inspect_source("cuda")
    assert compile_device_code(source, "sm_80").startswith(b"\x7fELF")
    assert b".target sm_80" in compile_device_code(source, "compute_80")
    with pytest.raises(ValueError, match=r"that nvcc compiles for \(.*sm_80.*\), found 'sm_50'"):
        compile_device_code(source, "sm_50")


def test_fat_binaries_need_nvfatbin_or_the_toolkit(nvrtc, monkeypatch):
    images = {name: compile_device_code(NOTHING, name) for name in ("sm_80", "compute_90")}
    assert make_fat_binary(images)[:4] == bytes.fromhex("50ed55ba")

    def missing(_images):
        raise ImportError("no nvfatbin")

    monkeypatch.setattr(cuda_compiler, "_join_with_nvfatbin", missing)
    if cuda_compiler._toolkit_program("fatbinary") is not None:
        assert make_fat_binary(images)[:4] == bytes.fromhex("50ed55ba")
    monkeypatch.setattr(cuda_compiler, "_toolkit_program", lambda name: None)
    with pytest.raises(
        RuntimeError, match=r"code for sm_80, compute_90: .*\(no nvfatbin\); install"
    ):
        make_fat_binary(images)


@pytest.mark.parametrize(
    ("architecture", "runs", "fails"),
    [
        ("sm_80", ["8.0", "8.6", "8.9"], ["7.5", "9.0", "10.0"]),
        ("sm_86", ["8.6", "8.9"], ["8.0", "9.0"]),
        ("sm_90", ["9.0"], ["8.9", "10.0"]),
        ("sm_90a", ["9.0"], ["8.9", "10.0"]),
        ("sm_100f", ["10.0", "10.3"], ["9.0", "11.0", "12.0"]),
        ("compute_80", ["8.0", "9.0", "12.1"], ["7.5"]),
        ("compute_90a", ["9.0"], ["8.0", "10.0"]),
        ("compute_100f", ["10.0", "10.3"], ["9.0", "12.0"]),
    ],
)
def test_cubins_run_on_their_major_version_and_ptx_on_later_ones(architecture, runs, fails):
    assert [v for v in runs + fails if minimal.runs_on(architecture, v)] == runs


def test_unbound_loops_are_refused_naming_the_buffer():
    message = r"function spmm: buffer '\w+' is (read|written) outside of a kernel; bind the loops"
    with pytest.raises(SparseProgramError, match=message) as raised:
        tvm_sparse.compile(schedules.spmm.program(), SM_80)
    assert len(str(raised.value)) < 300


def test_a_sparse_result_is_computed_by_a_cpu():
    text = BY_ROWS.replace("UPDATE", ADD).replace("VALUE", "float32").replace("INDEX", "int32")
    with pytest.raises(ValueError, match=r"expected a CPU .* S\.sparse_output, found cuda"):
        tvm_sparse.compile(from_source(text), SM_80)

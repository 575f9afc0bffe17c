"""Generated CUDA C, and its compilation without a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tvm

__all__ = ["cubin_of", "cuda_source", "kernels_in"]


def cuda_source(module: tvm.IRModule, arch: str = "sm_80") -> str:
    """Compile a scheduled module and return its device code."""
    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    built = tvm.compile(module, target=target, tir_pipeline="tvm_sparse")
    return built.mod.imports[0].inspect_source()


def kernels_in(source: str) -> list[str]:
    """Return the names of the kernels that a source defines."""
    return re.findall(
        r"__global__\s+void\s+(?:__launch_bounds__\([\d, ]+\)\s*)?(\w+)\([^;{]*\)\s*\{", source
    )


def cubin_of(source: str, arch: str) -> bytes:
    """Compile device code with NVRTC; skip the test where it is not installed."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")

    def check(result, *values):
        assert result == nvrtc.nvrtcResult.NVRTC_SUCCESS, result
        return values[0] if values else None

    program = check(*nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], []))
    options = [f"--gpu-architecture={arch}".encode(), *_include_options()]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * check(*nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise AssertionError(log.decode())
    cubin = b" " * check(*nvrtc.nvrtcGetCUBINSize(program))
    check(*nvrtc.nvrtcGetCUBIN(program, cubin))
    return cubin


def _include_options() -> list[bytes]:
    """Where the headers lie that NVIDIA's packages install."""
    nvidia = pytest.importorskip("nvidia")
    roots = [Path(root) for root in nvidia.__path__]
    found = {path.parents[2] for root in roots for path in root.glob("**/cuda/std/cstdint")}
    found |= {path.parent for root in roots for path in root.glob("**/cuda_runtime.h")}
    return [f"--include-path={folder}".encode() for folder in sorted(found)]

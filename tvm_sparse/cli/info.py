"""Print versions, targets and CPU features."""

from __future__ import annotations

import argparse
import os
import platform
from importlib import metadata

import tvm
from rich.console import Console
from rich.table import Table
from tvm.target import codegen

from ..runtime import get_num_threads, openmp_runtime, resolve_target
from ..runtime.cuda_compiler import supported_architectures
from ..runtime.minimal import compute_capabilities, load_cuda_runtime

__all__ = ["add_parser", "run"]

_PACKAGES = ("tvm_sparse", "apache-tvm", "apache-tvm-ffi", "numpy", "scipy", "torch", "xgboost")


def add_parser(_parser: argparse.ArgumentParser) -> None:
    """The command takes no arguments."""


def run(_arguments: argparse.Namespace) -> int:
    """Print the tables."""
    console = Console(soft_wrap=True)
    table = Table("what", "found", title="tvm_sparse")
    table.add_row("Python", platform.python_version())
    for package in _PACKAGES:
        table.add_row(package, _version(package))
    target = resolve_target("llvm")
    features = [str(f) for f in codegen.llvm_get_cpu_features(target)]
    table.add_row("LLVM", str(codegen.llvm_version_major()))
    table.add_row("default target", str(target.attrs.get("mcpu", "generic")))
    table.add_row("targets enabled", ", ".join(_enabled_targets()))
    table.add_row("cores, threads of kernels", f"{os.cpu_count()}, {get_num_threads()}")
    table.add_row("OpenMP runtime loaded", str(openmp_runtime() or "none"))
    table.add_row("GPUs of CUDA", _gpus())
    table.add_row("CUDA code compiled for", ", ".join(supported_architectures()) or "no compiler")
    console.print(table)
    console.print("CPU features: " + " ".join(features))
    return 0


def _gpus() -> str:
    missing = load_cuda_runtime()
    if missing is not None:
        return f"none: this machine {missing}"
    return ", ".join(f"sm_{found.replace('.', '')}" for found in compute_capabilities()) or "none"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _enabled_targets() -> list[str]:
    return [
        kind
        for kind in ("llvm", "c", "cuda", "rocm", "vulkan", "metal", "opencl")
        if tvm.get_global_func(f"target.build.{kind}", allow_missing=True) is not None
    ]

"""CUDA C to a cubin with each of the compilers that the package itself uses; no GPU is needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tvm_sparse.runtime.cuda_compiler import (
    MODE_VARIABLE,
    compile_device_code,
    supported_architectures,
)

__all__ = ["compilers", "nvcc", "nvrtc"]


def compilers() -> dict[str, Callable[[str, str], bytes]]:
    """Return the compilers that are installed, by name.

    Raises
    ------
    RuntimeError
        If there is none.
    """
    found = {}
    for name, compiler in (("nvrtc", nvrtc), ("nvcc", nvcc)):
        with _mode(name):
            if supported_architectures():
                found[name] = compiler
    if not found:
        raise RuntimeError('found no CUDA compiler; pip install "tvm_sparse[cuda]"')
    return found


def nvrtc(source: str, arch: str) -> bytes:
    """Compile CUDA C with NVRTC for an architecture such as ``"sm_90"``; return the cubin.

    Raises
    ------
    RuntimeError
        If the compiler refuses the source; the message is its log.
    """
    with _mode("nvrtc"):
        return compile_device_code(source, arch)


def nvcc(source: str, arch: str) -> bytes:
    """Compile CUDA C with nvcc; as :func:`nvrtc`."""
    with _mode("nvcc"):
        return compile_device_code(source, arch)


@contextmanager
def _mode(name: str) -> Iterator[None]:
    """Let the package compile with a compiler of this name."""
    before = os.environ.get(MODE_VARIABLE)
    os.environ[MODE_VARIABLE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[MODE_VARIABLE]
        else:
            os.environ[MODE_VARIABLE] = before

"""CUDA C to a cubin, with NVRTC from PyPI and with nvcc where there is one; no GPU is needed.

Both get the options that TVM's own build passes, since these decide on registers.
"""

from __future__ import annotations

import functools
import importlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["CompileError", "compilers", "nvcc", "nvrtc"]

_SHARED_OPTIONS = (
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT16_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT162_OPERATORS__",
    "-U__CUDA_NO_BFLOAT162_CONVERSIONS__",
    "--use_fast_math",
)
_ASSEMBLER_OPTION = "--ptxas-options=--register-usage-level=10"


class CompileError(RuntimeError):
    """A compiler refused a kernel; the message is its log."""


def compilers() -> dict[str, Callable[..., bytes]]:
    """Return the compilers that are installed, by name.

    Raises
    ------
    RuntimeError
        If there is none.
    """
    found: dict[str, Callable[..., bytes]] = {}
    if _nvrtc_module() is not None and _include_folders():
        found["nvrtc"] = nvrtc
    if _nvcc_path() is not None:
        found["nvcc"] = nvcc
    if not found:
        raise RuntimeError(
            "found no CUDA compiler; pip install cuda-bindings nvidia-cuda-nvrtc nvidia-cuda-cccl "
            "nvidia-cuda-runtime"
        )
    return found


def nvrtc(source: str, arch: str, options: tuple[str, ...] = ()) -> bytes:
    """Compile with NVRTC.

    Parameters
    ----------
    source : str
        CUDA C.
    arch : str
        Such as ``"sm_90"``.
    options : tuple of str
        Passed as well, such as ``"--maxrregcount=16"``.

    Returns
    -------
    bytes
        A cubin.

    Raises
    ------
    CompileError
        If NVRTC refuses the source.
    """
    library = _nvrtc_module()
    status, program = library.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], [])
    _check(library, status)
    given = [
        f"--gpu-architecture={arch}",
        "-default-device",
        "--device-int128",
        *(f"--include-path={folder}" for folder in _include_folders()),
        *_SHARED_OPTIONS,
        _ASSEMBLER_OPTION,
        *options,
    ]
    try:
        (status,) = library.nvrtcCompileProgram(
            program, len(given), [option.encode() for option in given]
        )
        if status != library.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(_log(library, program))
        status, size = library.nvrtcGetCUBINSize(program)
        _check(library, status)
        cubin = bytearray(size)
        _check(library, *library.nvrtcGetCUBIN(program, cubin))
        return bytes(cubin)
    finally:
        library.nvrtcDestroyProgram(program)


def nvcc(source: str, arch: str, options: tuple[str, ...] = ()) -> bytes:
    """Compile with nvcc; as :func:`nvrtc`."""
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "kernels.cu", Path(folder) / "kernels.cubin"
        given.write_text(source)
        command = [
            str(_nvcc_path()),
            "--cubin",
            "-O3",
            f"-arch={arch}",
            *_SHARED_OPTIONS,
            _ASSEMBLER_OPTION,
            *options,
            "-o",
            str(made),
            str(given),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileError(done.stdout + done.stderr)
        return made.read_bytes()


@functools.cache
def _nvrtc_module():
    try:
        return importlib.import_module("cuda.bindings.nvrtc")
    except ImportError:
        return None


@functools.cache
def _nvcc_path() -> Path | None:
    places = [shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"]
    return next((Path(place) for place in places if place and Path(place).exists()), None)


@functools.cache
def _include_folders() -> tuple[Path, ...]:
    """Where the headers lie that NVIDIA's packages install."""
    try:
        roots = [Path(root) for root in importlib.import_module("nvidia").__path__]
    except ImportError:
        return ()
    found = {path.parents[2] for root in roots for path in root.glob("**/cuda/std/cstdint")}
    found |= {path.parent for root in roots for path in root.glob("**/cuda_runtime.h")}
    return tuple(sorted(found))


def _check(library, status) -> None:
    if status != library.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC: {status}")


def _log(library, program) -> str:
    status, size = library.nvrtcGetProgramLogSize(program)
    _check(library, status)
    log = bytearray(size)
    _check(library, *library.nvrtcGetProgramLog(program, log))
    return log.decode(errors="replace").rstrip("\0")

"""CUDA C compiled to device code, with no GPU: by NVRTC, or by nvcc.

In: the CUDA C that TVM generated, and architectures. Out: a cubin or PTX for each, and several of these
in one fat binary, of which the driver takes the one that fits the device. NVRTC and the headers come
from PyPI (``pip install "tvm_sparse[cuda]"``) or from a CUDA toolkit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .minimal import parse_architecture

__all__ = [
    "check_architectures",
    "compile_device_code",
    "make_fat_binary",
    "supported_architectures",
]

#: TVM's own switch: "nvrtc" (the default) or "nvcc".
MODE_VARIABLE = "TVM_CUDA_COMPILE_MODE"

_INSTALL = (
    'install what `pip install "tvm_sparse[cuda]"` names (cuda-bindings, nvidia-cuda-nvrtc, '
    "nvidia-cuda-runtime, nvidia-cuda-cccl, nvidia-cuda-crt), or a CUDA toolkit whose folder CUDA_HOME "
    "names"
)
# Headers that generated code includes, each with a package that brings it.
_HEADERS = {
    "cuda_fp16.h": "nvidia-cuda-runtime",
    "cuda/std/cstdint": "nvidia-cuda-cccl",
    "crt/mma.h": "nvidia-cuda-crt",
}
# Half types with all operators, as TVM compiles them.
_DEFINITIONS = [
    *(
        f"-U__CUDA_NO_{kind}_{what}__"
        for kind in ("HALF", "BFLOAT16", "BFLOAT162")
        for what in ("OPERATORS", "CONVERSIONS")
    ),
]
# vector_types.h marks deprecated types with these, which NVRTC's own headers leave undefined.
_NVRTC_DEFINITIONS = [
    f"-D__NV_SILENCE_{scope}DEPRECATION_{end}="
    for scope in ("", "HOST_")
    for end in ("BEGIN", "END")
]


def compile_device_code(source: str, architecture: str, fast_math: bool = False) -> bytes:
    """Compile CUDA C for one architecture.

    NVRTC is used where it is installed, else nvcc; the environment variable
    ``TVM_CUDA_COMPILE_MODE`` (``nvrtc`` or ``nvcc``), TVM's own, chooses.

    Parameters
    ----------
    source : str
        CUDA C.
    architecture : str
        ``"sm_90"`` for a cubin, ``"compute_90"`` for PTX.
    fast_math : bool
        Whether division, square root and functions may be approximate and denormal numbers zero
        (``--use_fast_math``).

    Returns
    -------
    bytes
        The cubin, or PTX text.

    Raises
    ------
    RuntimeError
        If no compiler or a header of CUDA is missing, or the compiler refuses the source.
    ValueError
        If the compiler does not know the architecture.

    Examples
    --------
    >>> from tvm_sparse.runtime.cuda_compiler import compile_device_code, supported_architectures
    >>> if "sm_80" in supported_architectures():
    ...     cubin = compile_device_code('extern "C" __global__ void nothing() {}', "sm_80")
    ...     assert cubin.startswith(b"\\x7fELF")
    """
    parse_architecture(architecture)
    check_architectures([architecture])
    mode = os.environ.get(MODE_VARIABLE, "").lower()
    if mode not in ("", "nvrtc", "nvcc"):
        raise ValueError(f"{MODE_VARIABLE}: expected 'nvrtc' or 'nvcc', found {mode!r}")
    nvrtc = _nvrtc() if mode != "nvcc" else None
    if nvrtc is not None:
        return _compile_with_nvrtc(nvrtc, source, architecture, fast_math)
    nvcc = _toolkit_program("nvcc") if mode != "nvrtc" else None
    if nvcc is None:
        tried = {"": "neither NVRTC nor nvcc", "nvrtc": "no NVRTC", "nvcc": "no nvcc"}[mode]
        raise RuntimeError(
            f"compiling CUDA code for {architecture}: expected a CUDA compiler, found {tried}; {_INSTALL}"
        )
    return _compile_with_nvcc(nvcc, source, architecture, fast_math)


def check_architectures(architectures: Iterable[str]) -> None:
    """Refuse architectures that the compiler in use does not know; without one, nothing is known.

    Raises
    ------
    ValueError
        Names the compiler, what it compiles for, and what was found.
    """
    known = supported_architectures()
    for name in architectures:
        number = name.split("_")[1]
        if known and not {f"sm_{number}", f"sm_{number.rstrip('af')}"} & set(known):
            raise ValueError(
                f"arch: expected an architecture that {_compiler_name()} compiles for "
                f"({', '.join(known)}), found {name!r}"
            )


def supported_architectures() -> list[str]:
    """Return the architectures that the compiler in use makes cubins for, none if there is no compiler.

    Examples
    --------
    >>> from tvm_sparse.runtime.cuda_compiler import supported_architectures
    >>> all(name.startswith("sm_") for name in supported_architectures())
    True
    """
    nvrtc = _nvrtc() if os.environ.get(MODE_VARIABLE, "").lower() != "nvcc" else None
    if nvrtc is not None:
        return [f"sm_{number}" for number in _checked(nvrtc, *nvrtc.nvrtcGetSupportedArchs())]
    nvcc = _toolkit_program("nvcc")
    if nvcc is None:
        return []
    listed = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=False)
    return listed.stdout.split()


def make_fat_binary(images: Mapping[str, bytes]) -> bytes:
    """Put device code for several architectures into one image, as the driver loads it.

    Parameters
    ----------
    images : dict of str to bytes
        Cubins and PTX by architecture.

    Returns
    -------
    bytes
        The fat binary.

    Raises
    ------
    RuntimeError
        If neither nvFatbin nor the program ``fatbinary`` is installed.
    """
    try:
        return _join_with_nvfatbin(images)
    except (ImportError, OSError, RuntimeError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
    program = _toolkit_program("fatbinary")
    if program is None:
        raise RuntimeError(
            f"joining device code for {', '.join(images)}: expected nvFatbin or the program `fatbinary`, "
            f'found none ({reason[0]}); install what `pip install "tvm_sparse[cuda]"` names '
            "(cuda-bindings, nvidia-nvfatbin), or a CUDA toolkit whose folder CUDA_HOME names"
        )
    return _join_with_fatbinary(program, images)


# --- NVRTC ---------------------------------------------------------------------------------------


def _nvrtc() -> Any:
    """The bindings of NVRTC, None where they or the library are missing."""
    try:
        from cuda.bindings import nvrtc  # noqa: PLC0415 (optional)

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError):  # the bindings load the library when first used
        return None
    return nvrtc


def _compiler_name() -> str:
    nvrtc = _nvrtc() if os.environ.get(MODE_VARIABLE, "").lower() != "nvcc" else None
    if nvrtc is None:
        return "nvcc"
    return "NVRTC " + ".".join(map(str, _checked(nvrtc, *nvrtc.nvrtcVersion())))


def _compile_with_nvrtc(nvrtc: Any, source: str, architecture: str, fast_math: bool) -> bytes:
    program = _checked(
        nvrtc, *nvrtc.nvrtcCreateProgram(source.encode(), b"tvm_sparse.cu", 0, [], [])
    )
    options = [
        f"--gpu-architecture={architecture}",
        "--std=c++17",
        "-default-device",
        "--device-int128",
        *_NVRTC_DEFINITIONS,
        *_DEFINITIONS,
        *(f"--include-path={folder}" for folder in _header_folders()),
        *(["--use_fast_math"] if fast_math else []),
    ]
    try:
        encoded = [option.encode() for option in options]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytearray(_checked(nvrtc, *nvrtc.nvrtcGetProgramLogSize(program)))
            nvrtc.nvrtcGetProgramLog(program, log)
            raise _refused(architecture, log.decode(errors="replace").rstrip("\0 \n"))
        is_ptx = architecture.startswith("compute_")
        size = nvrtc.nvrtcGetPTXSize if is_ptx else nvrtc.nvrtcGetCUBINSize
        read = nvrtc.nvrtcGetPTX if is_ptx else nvrtc.nvrtcGetCUBIN
        code = bytearray(_checked(nvrtc, *size(program)))
        _checked(nvrtc, *read(program, code))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return bytes(code)


def _checked(nvrtc: Any, result: Any, *values: Any) -> Any:
    """Return what a function of NVRTC gave, after its status."""
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC: {nvrtc.nvrtcGetErrorString(result)[1].decode()}")
    return values[0] if len(values) == 1 else values


def _header_folders() -> list[str]:
    """Folders of CUDA's headers: for each, that of PyPI's packages, else that of a toolkit."""
    try:
        from cuda.pathfinder import locate_nvidia_header_directory as locate  # noqa: PLC0415
    except ImportError:
        packaged = []
    else:
        packaged = [found.abs_path for name in ("cudart", "cccl") if (found := locate(name))]
    candidates = [*map(Path, packaged)]
    for home in _toolkits():
        candidates += [home / "include", home / "include" / "cccl"]
    chosen = (next((c for c in candidates if (c / name).is_file()), None) for name in _HEADERS)
    return [str(folder) for folder in dict.fromkeys(chosen) if folder is not None]


# --- Toolkit -------------------------------------------------------------------------------------


def _toolkits() -> list[Path]:
    """Folders of CUDA toolkits, the preferred one first."""
    named = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    nvcc = shutil.which("nvcc")
    found = [Path(nvcc).resolve().parents[1]] if nvcc else []
    return [*map(Path, named), *found, Path("/usr/local/cuda")]


def _toolkit_program(name: str) -> str | None:
    for home in _toolkits():
        path = home / "bin" / name
        if path.is_file():
            return str(path)
    return None


def _compile_with_nvcc(nvcc: str, source: str, architecture: str, fast_math: bool) -> bytes:
    kind = "ptx" if architecture.startswith("compute_") else "cubin"
    with tempfile.TemporaryDirectory() as folder:
        source_path, result_path = Path(folder) / "tvm_sparse.cu", Path(folder) / f"code.{kind}"
        source_path.write_text(source)
        options = [f"-arch={architecture}", "-std=c++17", "--expt-relaxed-constexpr"]
        options += [*_DEFINITIONS, *(["--use_fast_math"] if fast_math else [])]
        done = subprocess.run(
            [nvcc, f"--{kind}", *options, "-o", str(result_path), str(source_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise _refused(architecture, done.stdout + done.stderr)
        return result_path.read_bytes()


def _refused(architecture: str, log: str) -> RuntimeError:
    missing = next((name for name in _HEADERS if f'"{name}"' in log and "open" in log), None)
    if missing is not None:
        return RuntimeError(
            f"compiling CUDA code for {architecture}: expected CUDA's header {missing}, found none; "
            f"install {_HEADERS[missing]}, or {_INSTALL.removeprefix('install ')}"
        )
    return RuntimeError(f"compiling CUDA code for {architecture} failed:\n{log}")


# --- Fat binaries --------------------------------------------------------------------------------


def _join_with_nvfatbin(images: Mapping[str, bytes]) -> bytes:
    from cuda.bindings import nvfatbin  # noqa: PLC0415 (optional)

    options = ["-64", "-cuda"]
    handle = nvfatbin.create(options, len(options))
    try:
        for architecture, code in images.items():
            name, number = architecture.split("_")
            if name == "compute":
                nvfatbin.add_ptx(handle, code, len(code), number, "tvm_sparse", "")
            else:
                nvfatbin.add_cubin(handle, code, len(code), number, "tvm_sparse")
        joined = bytearray(nvfatbin.size(handle))
        nvfatbin.get(handle, joined)
    finally:
        nvfatbin.destroy(handle)
    return bytes(joined)


def _join_with_fatbinary(program: str, images: Mapping[str, bytes]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        parts = []
        for architecture, code in images.items():
            name, number = architecture.split("_")
            kind = "ptx" if name == "compute" else "elf"
            path = Path(folder) / architecture
            path.write_bytes(code)
            parts.append(f"--image3=kind={kind},sm={number},file={path}")
        joined = Path(folder) / "joined.fatbin"
        subprocess.run(
            [program, "-64", f"--create={joined}", *parts], capture_output=True, check=True
        )
        return joined.read_bytes()

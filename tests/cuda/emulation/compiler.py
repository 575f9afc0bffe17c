"""The host's C++ compiler: kernels become shared libraries, kept by a hash of what they are made of.

``TVM_SPARSE_EMULATION_DIR`` names the folder that keeps them; without it, one of the session.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import tvm_ffi

__all__ = ["compile_kernels", "runtime_library"]

_HERE = Path(__file__).parent
_RUNTIME = (
    "fiber.cpp",
    "scheduler.cpp",
    "checks.cpp",
    "launch.cpp",
    "overflow.cpp",
    "async_copies.cpp",
)
#: Time that one call of the compiler may take; kernels take a small part of it.
_SECONDS = 300
_COMMON = ["-std=c++17", "-fPIC", "-w", "-ffp-contract=off", "-fno-strict-aliasing"]
_KERNEL = [
    *_COMMON,
    "-O1",
    "-ftrivial-auto-var-init=pattern",
    "-fsanitize=signed-integer-overflow,integer-divide-by-zero,shift-exponent,bounds",
    "-fno-sanitize-recover",
]


def compile_kernels(source: str) -> Future[Path]:
    """Begin to compile a C++ text, beside at most one other; the result is the shared library."""
    runtime_library()
    _precompiled_header()
    return _workers().submit(_compile, source)


@functools.cache
def runtime_library() -> ctypes.CDLL:
    """Compile and load what all kernels share: the scheduler and the checks."""
    library = _runtime_path()
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}.so")
        sources = [str(_HERE / name) for name in _RUNTIME]
        _run([*_COMMON, "-O2", "-shared", *_includes(), *sources, *_libraries(), "-o", str(made)])
        made.replace(library)
    loaded = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    loaded.emulation_array.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]
    loaded.emulation_set_order.argtypes = [ctypes.c_int, ctypes.c_uint64]
    loaded.emulation_set_blocks.argtypes = [ctypes.c_uint64]
    return loaded


@functools.cache
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2)


def _compile(source: str) -> Path:
    library = _folder() / f"kernels_{_hash(source, *_KERNEL, _header_hash())}.so"
    if library.exists():
        return library
    stem = library.with_suffix(f".{os.getpid()}_{threading.get_ident()}")
    text, unit, made = (stem.with_suffix(suffix) for suffix in (".cpp", ".o", ".made"))
    text.write_text(source)
    header = ["-I", str(_precompiled_header().parent), "-include", "emulation.h"]
    _run([*_KERNEL, *header, *_includes(), "-c", str(text), "-o", str(unit)])
    # The runtime has the functions that the checks of arithmetic call: no library of the compiler's.
    _run(["-shared", str(unit), str(_runtime_path()), *_libraries(), "-o", str(made)])
    unit.unlink()
    made.replace(library)
    return library


@functools.cache
def _precompiled_header() -> Path:
    folder = _folder() / f"header_{_hash(*_KERNEL, _header_hash())}"
    folder.mkdir(exist_ok=True)
    compiled = folder / "emulation.h.gch"
    if not compiled.exists():
        made = folder / f"{os.getpid()}.gch"
        header = str(_HERE / "emulation.h")
        _run([*_KERNEL, *_includes(), "-x", "c++-header", header, "-o", str(made)])
        made.replace(compiled)
    return compiled


def _runtime_path() -> Path:
    texts = [(_HERE / name).read_text() for name in _RUNTIME]
    return _folder() / f"runtime_{_hash(*_COMMON, *texts, _header_hash())}.so"


@functools.cache
def _header_hash() -> str:
    headers = [*sorted(_HERE.glob("*.h")), *sorted(_HERE.glob("include/*.h"))]
    return _hash(*(header.read_text() for header in headers))


def _hash(*texts: str) -> str:
    return hashlib.sha256("\0".join([_compiler(), *texts]).encode()).hexdigest()[:24]


@functools.cache
def _folder() -> Path:
    named = os.environ.get("TVM_SPARSE_EMULATION_DIR")
    if named:
        Path(named).mkdir(parents=True, exist_ok=True)
        return Path(named)
    folder = Path(tempfile.mkdtemp(prefix="tvm_sparse_emulation_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _compiler() -> str:
    found = shutil.which(os.environ.get("CXX", "g++"))
    if found is None:
        raise RuntimeError(
            "emulation: expected a C++ compiler (g++, or the one that CXX names), found none"
        )
    return found


def _includes() -> list[str]:
    folders = [_HERE, _HERE / "include", *map(Path, tvm_ffi.libinfo.include_paths())]
    return [option for folder in folders for option in ("-I", str(folder))]


def _libraries() -> list[str]:
    library = str(tvm_ffi.libinfo.find_libtvm_ffi())
    return [library, f"-Wl,-rpath,{Path(library).parent}"]


def _run(arguments: list[str]) -> None:
    started = subprocess.Popen(
        [_compiler(), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with started:
        try:
            _, complaints = started.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired as error:
            os.killpg(started.pid, signal.SIGKILL)  # with the compiler proper, which g++ starts
            raise RuntimeError(
                f"emulation: the C++ compiler took more than {_SECONDS} seconds; is an array too large?"
            ) from error
    if started.returncode:
        raise RuntimeError(f"emulation: the C++ compiler refused\n{complaints[:6000]}")

"""Run an exported kernel library without the compiler: a loader that is this one file.

In: a shared library written by ``Executable.export_library``. Out: its functions, callable with
NumPy arrays or any DLPack tensors. Needs Python, NumPy, ``apache-tvm-ffi`` and the file
``libtvm_runtime.so`` of an ``apache-tvm`` wheel; neither TVM's Python package nor ``tvm_sparse``
is imported, so the file can be copied into another project::

    import minimal

    library = minimal.load("spmm.so", runtime="/opt/tvm/libtvm_runtime.so")
    library["spmm"](data, b, c, indptr, indices, m, n, f, nnz)  # every parameter, in order
    library.metadata["functions"]["spmm"]["args"]  # their names, dtypes and shapes

A kernel with a sparse result is ``library.result``: it takes its operands by name, and returns pointers,
columns and values. A library for CUDA takes arrays on the GPU (PyTorch, CuPy or any DLPack tensors), and
needs ``libtvm_runtime_cuda.so`` beside the other file.

Without ``runtime=``, the file is taken from the environment variable ``TVM_SPARSE_RUNTIME``, from
beside this file, or from an installed ``apache-tvm``. The full package (``tvm_sparse.load``) adds
what is left out here: inferred sizes, allocated results, SciPy and PyTorch matrices, checks of
the structure.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import os
import platform
import re
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

RUNTIME_VARIABLE = "TVM_SPARSE_RUNTIME"
LAUNCHER_FUNCTION = "tvm_sparse_launcher"
SET_LAUNCHER_FUNCTION = "tvm_sparse_set_launcher"
METADATA_FUNCTION = "tvm_sparse_metadata"

# LLVM's name of a CPU feature -> the kernel's name in /proc/cpuinfo. Features that no
# generated code depends on by itself (tuning hints, system instructions, AMX) are not checked.
_X86_FLAGS = {
    "sse3": "pni",
    "ssse3": "ssse3",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "sse4a": "sse4a",
    "popcnt": "popcnt",
    "lzcnt": "abm",
    "movbe": "movbe",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "adx": "adx",
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "fma4": "fma4",
    "f16c": "f16c",
    "gfni": "gfni",
    "aes": "aes",
    "vaes": "vaes",
    "pclmul": "pclmulqdq",
    "vpclmulqdq": "vpclmulqdq",
    "avxvnni": "avx_vnni",
    "avxifma": "avx_ifma",
    "avx512f": "avx512f",
    "avx512cd": "avx512cd",
    "avx512bw": "avx512bw",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
}
_AARCH64_FLAGS = {
    "neon": "asimd",
    "fullfp16": "asimdhp",
    "dotprod": "asimddp",
    "bf16": "bf16",
    "i8mm": "i8mm",
    "lse": "atomics",
    "sve": "sve",
    "sve2": "sve2",
}
_ARCHITECTURES = {"amd64": "x86_64", "x64": "x86_64", "x86-64": "x86_64", "arm64": "aarch64"}
# The machine field of an ELF header.
_ELF_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 3: "i386", 40: "arm"}
KNOWN_ARCHITECTURES = frozenset(_ELF_MACHINES.values())


# --- Loading -----------------------------------------------------------------------------------


def load(path: str | os.PathLike, runtime: str | os.PathLike | None = None) -> Library:
    """Load an exported kernel library.

    Parameters
    ----------
    path : path-like
        The library that ``export_library`` wrote.
    runtime : path-like, optional
        ``libtvm_runtime.so``; found as the module docstring says when not given.

    Returns
    -------
    Library
        Its functions by name, and its metadata.

    Raises
    ------
    ValueError
        If the file is missing, is no kernel library, or was compiled for another processor or GPU.
    """
    load_runtime(runtime)
    module, metadata = open_library(path)
    check_target(metadata, path)
    refusal = cuda_refusal(metadata)
    if refusal is not None:
        raise ValueError(f"path: {path} {refusal}")
    attach_launcher(module)
    return Library(module, metadata)


class Library:
    """The functions of a loaded kernel library.

    Attributes
    ----------
    metadata : dict
        ``{"version", "functions", "target", "cpu_features"}``; ``functions[name]["args"]`` lists
        the parameters in order.
    """

    def __init__(self, module: tvm_ffi.Module, metadata: dict) -> None:
        self._module = module
        self.metadata = metadata

    @property
    def result(self) -> SparseResult | None:
        """The kernel with a sparse result that the library holds, None if it holds none."""
        found = self.metadata.get("result")
        return None if found is None else SparseResult(self, found)

    def __getitem__(self, name: str) -> LibraryFunction:
        if name not in self.metadata["functions"]:
            found = ", ".join(self.metadata["functions"])
            raise KeyError(f"no function {name!r} in this library, which holds: {found}")
        function = self._module.get_function(name)
        on_gpu, has_scratch = "architectures" in self.metadata, self.metadata.get("scratch", False)
        return LibraryFunction(function, self.metadata["functions"][name], on_gpu, has_scratch)


class LibraryFunction:
    """One function of a library; called with every parameter, in order."""

    def __init__(
        self,
        function: tvm_ffi.Function,
        metadata: dict,
        on_gpu: bool = False,
        has_scratch: bool = False,
    ) -> None:
        self._function = function
        self._on_gpu, self._has_scratch = on_gpu, has_scratch
        self._names = [arg["name"] for arg in metadata["args"]]
        self._written = [arg.get("role") in ("output", "inout") for arg in metadata["args"]]

    def __call__(self, *args: Any) -> None:
        if len(args) != len(self._names):
            names = ", ".join(self._names)
            raise TypeError(f"expected {len(self._names)} arguments ({names}), found {len(args)}")
        if self._on_gpu:
            self._launch(args)
            return
        ready = list(args)
        for position, (value, name) in enumerate(zip(args, self._names)):
            if isinstance(value, np.ndarray):
                label = f"argument {name!r} (position {position})"
                ready[position] = array_to_tensor(value, self._written[position], label)
        self._function(*ready)

    def _launch(self, args: tuple) -> None:
        """Run on the GPU that holds the arrays, on the current stream of their framework."""
        places = [position for position, value in enumerate(args) if hasattr(value, "__dlpack__")]
        labels = {place: f"argument {self._names[place]!r} (position {place})" for place in places}
        devices = {place: tuple(map(int, args[place].__dlpack_device__())) for place in places}
        for place, (kind, _) in devices.items():
            if kind != _CUDA:
                raise ValueError(
                    f"{labels[place]}: expected an array on a GPU, found one elsewhere"
                )
        device = next((number for _, number in devices.values()), 0)
        stream = current_stream([args[place] for place in places], device)
        ready = list(args)
        for place in places:
            ready[place] = tensor = cuda_tensor(args[place], stream)
            if tensor.data_ptr() % CUDA_ALIGNMENT:
                raise cuda_alignment_error(labels[place], tensor.data_ptr())
        with CurrentDevice(device), on_stream(device, stream):
            if self._has_scratch:
                wait_for_scratch(device, stream)
            self._function(*ready)


class SparseResult:
    """A kernel whose result is sparse: runs its phases, and allocates the result between them.

    Attributes
    ----------
    names : list of str
        The operands and sizes, in order, that a call takes by name.
    """

    def __init__(self, library: Library, description: dict) -> None:
        self._library, self._own = library, description
        args = library.metadata["functions"][description["symbols"]["work"]]["args"]
        self.names = [arg["name"] for arg in args[:-1]]  # all phases begin with the operands

    def __call__(self, **operands: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compute the result.

        Returns
        -------
        indptr, places, values : numpy.ndarray
            Where the entries of each row begin and end; places in the row (for a matrix by rows, the
            columns), in order and each once; values. The dense levels that the result begins with make the
            rows, the others the places, row-major.

        Raises
        ------
        TypeError
            If an argument is missing or unknown.
        MemoryError
            If the entries of a row do not fit into the scratch of a bounded policy.
        """
        if set(operands) != set(self.names):
            found, names = ", ".join(operands), ", ".join(self.names)
            raise TypeError(f"expected the arguments {names}, found {found}")
        own = self._own
        shape = [_evaluated(text, operands) for text in own["shape"]]
        rows, length = (
            int(np.prod(part, dtype=np.int64))
            for part in (shape[: own["hoisted"]], shape[own["hoisted"] :])
        )
        work, counts = np.empty(rows, np.int64), np.empty(rows, np.int64)
        bounds = np.array([0, rows])
        known = {"work": work, "counts": counts, "tasks": 1, "task_rows": bounds, "ordered": 1}
        self._run("work", operands, known)
        most = int(work.max(initial=0))
        room = 16 * min(most, length) + 64
        sizes = {
            "length": length,
            "most": most,
            "room": room,
            "min": min,
            "max": max,
            "pow2": _power,
        }
        for name, scratch in own["scratch"].items():
            dtype = own["dtype"] if scratch["dtype"] == "value" else scratch["dtype"]
            fill = own["neutral"] if scratch["fill"] is None else scratch["fill"]
            known[f"{name}_size"] = size = _evaluated(scratch["size"], sizes)
            known[f"workspace_{name}"] = np.full(size, fill, dtype)
        self._run("count", operands, known)
        if counts.min(initial=0) < 0:
            raise MemoryError(f"workspace {own['policy']!r}: no room for a row")
        indptr = np.append(0, np.cumsum(counts))
        places = np.empty(indptr[-1], own["place_dtype"])
        values = np.empty(indptr[-1], own["dtype"])
        result = {"result_indptr": indptr, "result_indices": places, "result_values": values}
        known |= result | {"result_nnz": int(indptr[-1])}
        self._run("fill", operands, known)
        return indptr, places, values

    def _run(self, phase: str, operands: dict[str, Any], known: dict[str, Any]) -> None:
        symbol = self._own["symbols"][phase]
        args = self._library.metadata["functions"][symbol]["args"][len(self.names) :]
        given = [operands[name] for name in self.names]
        self._library[symbol](*given, *(known[arg["name"]] for arg in args))


def _evaluated(text: str, known: dict[str, Any]) -> int:
    """Evaluate a size that the library's metadata gives."""
    return int(eval(text, {"__builtins__": {}}, known))


def _power(size: int) -> int:
    """The next power of two, at least 1."""
    return 1 << max(0, int(size) - 1).bit_length()


def load_runtime(path: str | os.PathLike | None = None) -> None:
    """Load ``libtvm_runtime.so`` into the process, unless it is there already."""
    if _global_function("runtime.TVMTensorCreateView") is not None:
        return
    found = Path(path) if path is not None else _find_runtime()
    if not found.is_file():
        raise ValueError(f"runtime: expected the file libtvm_runtime.so, found no file at {found}")
    ctypes.CDLL(str(found), mode=ctypes.RTLD_GLOBAL)


def open_library(path: str | os.PathLike) -> tuple[tvm_ffi.Module | None, dict]:
    """Load the shared library at `path`, with readable errors.

    Returns
    -------
    module : tvm_ffi.Module or None
        None for CUDA code on a machine that has no GPU.
    metadata : dict
        What the library says about itself.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path: expected the path of a library, found {path!r}")
    path = Path(path)
    if path.is_dir() or not path.exists():
        what = "a directory" if path.is_dir() else "no file"
        raise ValueError(f"path: expected an exported kernel library, found {what} at {path}")
    if sys.platform == "linux":
        _check_elf(path)
    if path.suffix not in (".so", ".dylib", ".dll"):  # the suffix chooses the loader
        raise ValueError(
            f"path: expected an exported kernel library, whose name ends in .so, found {path}"
        )
    try:
        # The dynamic linker knows libraries by name: under a new one it looks at the file again, so
        # that a library exported anew to the same path is not mistaken for the old one.
        with tempfile.TemporaryDirectory() as folder:
            link = Path(folder) / path.name
            link.symlink_to(path.resolve())
            metadata = _read_metadata(ctypes.CDLL(str(link)))
            # TVM's loader refuses a library with CUDA code where its CUDA runtime is not loaded.
            is_foreign = "architectures" in (metadata or {}) and load_cuda_runtime() is not None
            module = None if is_foreign else tvm_ffi.load_module(str(link))
    except Exception as error:
        raise ValueError(
            f"path: expected an exported kernel library, found {path}, which the dynamic linker "
            f"refuses (truncated, or no library of this system): {error}"
        ) from error
    if metadata is None:
        raise ValueError(
            f"path: expected a library written by export_library, found {path}, which holds no "
            "tvm_sparse metadata"
        )
    return module, metadata


class _Result(ctypes.Structure):
    """What a function of a library returns: TVM's ``TVMFFIAny`` with a pointer."""

    _fields_ = (("type_index", ctypes.c_int32), ("size", ctypes.c_uint32), ("v", ctypes.c_void_p))


def _read_metadata(library: ctypes.CDLL) -> dict | None:
    """Read the metadata that a library holds, None if it holds none."""
    find = getattr(library, f"__tvm_ffi_{METADATA_FUNCTION}", None)
    if find is None:
        return None
    result = _Result()
    find(None, None, 0, ctypes.byref(result))
    return json.loads(ctypes.string_at(result.v).decode())


def _find_function(module: tvm_ffi.Module, name: str) -> tvm_ffi.Function | None:
    try:
        return module.get_function(name)
    except AttributeError:
        return None


def check_target(metadata: dict, path: str | os.PathLike) -> None:
    """Refuse a library whose CPU features this processor lacks."""
    missing = missing_cpu_features(metadata.get("cpu_features") or [])
    if missing:
        raise ValueError(f"path: {path} {describe_missing(metadata, missing)}")


def describe_missing(metadata: dict, missing: list[str]) -> str:
    """Say what a processor without the CPU features `missing` means for a library."""
    target = metadata.get("target", {})
    return (
        f"was compiled for {target.get('mcpu', 'another processor')!r} and needs CPU features that "
        f"this processor lacks: {', '.join(missing)}; compile it for this machine, or with a "
        "smaller mcpu in the target"
    )


def missing_cpu_features(features: list[str]) -> list[str]:
    """Return those of LLVM's CPU feature names that this machine certainly lacks.

    Features that can't be looked up on this system are taken as present.
    """
    names = _AARCH64_FLAGS if host_architecture() == "aarch64" else _X86_FLAGS
    flags = _host_cpu_flags()
    if not flags:
        return []
    return sorted(name for name in features if name in names and names[name] not in flags)


def host_architecture() -> str:
    """Return the processor family of this machine in LLVM's spelling."""
    machine = platform.machine().lower()
    return _ARCHITECTURES.get(machine, machine)


def _host_cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return set(match.group(1).split()) if match else set()


def _check_elf(path: Path) -> None:
    """Refuse a file that is no ELF library of this machine, before the dynamic linker sees it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or header[:4] != b"\x7fELF":
        raise ValueError(
            f"path: expected an exported kernel library, found {path} ({size} bytes), which is no "
            "shared library"
        )
    machine = int.from_bytes(header[18:20], "little")
    found, host = _ELF_MACHINES.get(machine, f"machine {machine}"), host_architecture()
    if found != host and host in KNOWN_ARCHITECTURES:
        raise ValueError(f"path: {path} was compiled for {found}, and this machine is {host}")
    # A 64-bit file ends with its table of sections: mapping a shorter one would kill the process.
    table, entry, count = (
        int.from_bytes(header[40:48], "little"),
        int.from_bytes(header[58:60], "little"),
        int.from_bytes(header[60:62], "little"),
    )
    if table + entry * count > size:
        raise ValueError(
            f"path: {path} is truncated: expected {table + entry * count} bytes, found {size}"
        )


def _find_runtime() -> Path:
    name = "libtvm_runtime.so"
    candidates = []
    if os.environ.get(RUNTIME_VARIABLE):
        candidates.append(Path(os.environ[RUNTIME_VARIABLE]))
    candidates.append(Path(__file__).with_name(name))
    spec = importlib.util.find_spec("tvm")  # finds the package without importing it
    for folder in (spec and spec.submodule_search_locations) or []:
        candidates += [Path(folder) / name, Path(folder) / "lib" / name]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ValueError(
        f"runtime: found no {name}; expected its path as the argument `runtime`, in the "
        f"environment variable {RUNTIME_VARIABLE}, or at one of: "
        + ", ".join(str(candidate) for candidate in candidates)
    )


# --- CUDA --------------------------------------------------------------------------------------

#: Kernels may load vectors of 16 bytes.
CUDA_ALIGNMENT = 16
_CUDA = 2  # DLPack's number of CUDA devices
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
# The CUDA runtime that `libtvm_runtime_cuda.so` of the wheel is linked with.
_CUDART = "libcudart.so.13"


def parse_architecture(name: str) -> tuple[str, int, int, str]:
    """Split ``"sm_90a"`` into ``("sm", 9, 0, "a")``; ``"compute_90"`` means PTX."""
    match = _ARCHITECTURE.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise ValueError(
            f'arch: expected a CUDA architecture such as "sm_90", or "compute_90" for PTX, found {name!r}'
        )
    kind, major, minor, suffix = match.groups()
    return kind, int(major), int(minor), suffix


def runs_on(architecture: str, capability: str) -> bool:
    """Tell whether device code for an architecture runs on a device of a compute capability.

    Cubins run on devices of the same major version whose minor one is not smaller, PTX on all later
    devices; an ``a`` binds either to one version, an ``f`` PTX to one major version.
    """
    kind, major, minor, suffix = parse_architecture(architecture)
    device = tuple(map(int, capability.split(".")[:2]))
    if suffix == "a":
        return device == (major, minor)
    if kind == "compute" and suffix != "f":
        return device >= (major, minor)
    return device[0] == major and device[1] >= minor


def cuda_refusal(metadata: dict, device: int | None = None) -> str | None:
    """Say why no GPU of this machine (or not the one given) runs a library; None if one does.

    Of a library with code for a CPU, None.
    """
    held = metadata.get("architectures")
    if not held:
        return None
    holds = f"holds CUDA code for {', '.join(held)}"
    reason = load_cuda_runtime()
    if reason is not None:
        return f"{holds}, and this machine {reason}"
    found = compute_capabilities()
    if not found:
        return f"{holds}, and this machine has no GPU that CUDA can use"
    asked = found if device is None else found[device : device + 1]
    if any(runs_on(name, capability) for name in held for capability in asked):
        return None
    gpus = ", ".join(f"sm_{capability.replace('.', '')}" for capability in asked)
    what = "this machine's GPU" if device is None else f"the device cuda:{device}"
    return f"{holds}, and {what} is {gpus or 'missing'}; compile it for that"


def load_cuda_runtime() -> str | None:
    """Load TVM's CUDA runtime into the process, unless it is there; return what is missing for it."""
    if _global_function("device_api.cuda") is not None:
        return None
    path = _runtime_folder() / "libtvm_runtime_cuda.so"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "has no NVIDIA driver (libcuda.so.1)"
    if not path.is_file():
        return f"lacks TVM's CUDA runtime: found no {path}"
    try:
        _load_cudart()
        ctypes.CDLL(str(path))
    except OSError as error:
        return (
            f"lacks a library of CUDA ({error}); install {_CUDART}: pip install nvidia-cuda-runtime"
        )
    return None


def _load_cudart() -> None:
    """Load CUDA's runtime, from where the dynamic linker looks or from PyPI's package."""
    try:
        ctypes.CDLL(_CUDART, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        folders = (Path(entry) / "nvidia" for entry in sys.path if entry)
        found = [path for folder in folders for path in folder.glob(f"*/lib/{_CUDART}")]
        if not found:
            raise
        ctypes.CDLL(str(found[0]), mode=ctypes.RTLD_GLOBAL)


def _runtime_folder() -> Path:
    """Where the process's ``libtvm_runtime.so`` lies."""
    mapped = _mapped_libraries()
    found = [Path(path) for path in mapped if os.path.basename(path) == "libtvm_runtime.so"]
    return (found[0] if found else _find_runtime()).parent


def compute_capabilities() -> list[str]:
    """Return the compute capability of each GPU, none unless TVM's CUDA runtime is loaded."""
    return _capabilities() if _global_function("device_api.cuda") is not None else []


@functools.cache
def _capabilities() -> list[str]:
    attribute = tvm_ffi.get_global_func("runtime.GetDeviceAttr")
    found: list[str] = []
    while attribute(_CUDA, len(found), 0):  # 0 asks whether it exists, 4 for its version
        found.append(str(attribute(_CUDA, len(found), 4)))
    return found


def current_stream(arrays: Sequence[Any], device: int) -> int:
    """Return the stream on which the framework of arrays works now: PyTorch's, CuPy's, else TVM's."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    tensor, ndarray = getattr(torch, "Tensor", ()), getattr(cupy, "ndarray", ())
    if any(isinstance(array, tensor) and array.is_cuda for array in arrays):
        return torch.cuda.current_stream(device).cuda_stream
    if any(isinstance(array, ndarray) for array in arrays):
        return cupy.cuda.get_current_stream(device).ptr
    return tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", device))


def cuda_tensor(array: Any, stream: int) -> Any:
    """View an array on a GPU as TVM takes it, without a copy, once it is ready on a stream."""
    torch = sys.modules.get("torch")
    if isinstance(array, (tvm_ffi.Tensor, getattr(torch, "Tensor", tvm_ffi.Tensor))):
        return array  # of PyTorch's tensors, TVM takes the stream as well
    try:  # 1 is the default stream, which 0 would leave open
        capsule = array.__dlpack__(stream=stream or 1)
    except TypeError:
        capsule = array.__dlpack__()
    return tvm_ffi.from_dlpack(capsule)


_scratch = threading.local()


def wait_for_scratch(device: int, stream: int) -> None:
    """Wait for the GPU if the last call with temporary arrays, from this thread, was on another stream.

    TVM gives the temporary arrays of one call to the next one, which a stream keeps in order.
    """
    if not hasattr(_scratch, "streams"):
        _scratch.streams = {}
    if _scratch.streams.setdefault(device, stream) != stream:
        ctypes.CDLL("libcuda.so.1").cuCtxSynchronize()
        _scratch.streams[device] = stream


def on_stream(device: int, stream: int) -> Any:
    """Return a context in which kernels are launched on a stream of a device."""
    return tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", device), stream)


class CurrentDevice:
    """A context in which a GPU is the current one; afterwards, that is the one which was so before.

    Compiled code, TVM's memory and CuPy work on the current GPU, or make theirs the current one.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._before: int | None = None

    def __enter__(self) -> None:
        if len(compute_capabilities()) > 1:
            self._before = _current_device()
            _set_device(self._device)

    def __exit__(self, *error: Any) -> None:
        if self._before is not None:
            _set_device(self._before)


def _set_device(device: int) -> None:
    if device != _current_device():
        tvm_ffi.get_global_func("__tvm_set_device")(_CUDA, device, None)


def _current_device() -> int:
    device = ctypes.c_int(0)
    ctypes.CDLL("libcuda.so.1").cuCtxGetDevice(ctypes.byref(device))  # without a context, stays 0
    return device.value


def cuda_alignment_error(label: str, address: int) -> ValueError:
    """What to say of an array whose address kernels can't load vectors from."""
    return ValueError(
        f"{label}: expected an array whose address is a multiple of {CUDA_ALIGNMENT} bytes, found a view "
        f"at {address % CUDA_ALIGNMENT} bytes beyond one; pass a copy"
    )


# --- Arrays ------------------------------------------------------------------------------------


def array_to_tensor(
    array: np.ndarray, written: bool = False, label: str = "argument"
) -> tvm_ffi.Tensor:
    """View a C-contiguous NumPy array as a tensor, without a copy.

    Also takes what DLPack export refuses or misdescribes: read-only arrays (unless `written`),
    arrays without elements, bfloat16 and other types of ``ml_dtypes``.

    Raises
    ------
    ValueError
        If the array is not contiguous, or is read-only and `written`.
    """
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{label}: expected a contiguous array, found strides {array.strides} for shape "
            f"{array.shape}; call np.ascontiguousarray"
        )
    if not array.flags.writeable:
        if written:
            raise ValueError(f"{label}: expected a writable array, found a read-only one")
        array = _writable_alias(array)
    if array.size and array.dtype.kind in "biufc":
        return tvm_ffi.from_dlpack(array)
    raw = np.empty(64, np.uint8) if not array.size else array.reshape(-1).view(np.uint8)
    return _view_tensor(tvm_ffi.from_dlpack(raw), array.shape, array.dtype.name)


def _writable_alias(array: np.ndarray) -> np.ndarray:
    """Alias the memory of a read-only array; only for arguments that a kernel reads."""
    if array.dtype.kind not in "biufc":
        return _writable_alias(array.view(f"u{array.dtype.itemsize}")).view(array.dtype)
    return np.asarray(_ArrayInterface(array))


class _ArrayInterface:
    def __init__(self, array: np.ndarray) -> None:
        self._array = array  # keeps the memory alive
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def _view_tensor(tensor: tvm_ffi.Tensor, shape: tuple[int, ...], dtype: str) -> tvm_ffi.Tensor:
    create_view = tvm_ffi.get_global_func("runtime.TVMTensorCreateView")
    return create_view(tensor, tvm_ffi.Shape(shape), tvm_ffi.dtype(dtype), 0)


def _global_function(name: str) -> tvm_ffi.Function | None:
    return tvm_ffi.get_global_func(name, allow_missing=True)


# --- Threads -----------------------------------------------------------------------------------


class ThreadControl(ctypes.Structure):
    """State shared by the launchers of all kernels of a process (see ``_launcher_ir``).

    Zero in `num_threads` means the default: what the OpenMP runtime in use says, else the number
    of processors that the process may run on.
    """

    _fields_ = (
        ("num_threads", ctypes.c_int32),
        ("tasks_per_thread", ctypes.c_int32),
        ("omp_parallel", ctypes.c_void_p),
        ("omp_thread_num", ctypes.c_void_p),
        ("omp_max_threads", ctypes.c_void_p),
        ("library_changes", ctypes.c_uint64),
        ("refresh", ctypes.c_void_p),
        ("serial", ctypes.c_int32),
        ("default_threads", ctypes.c_int32),
        ("omp_team_size", ctypes.c_void_p),
        ("avoid_openmp_until", ctypes.c_int64),
        ("own_pool", ctypes.c_uint8 * (256 + 256 * 128 - 72)),
    )


_OPENMP_FUNCTIONS = (
    "omp_get_thread_num",
    "omp_get_num_threads",
    "omp_get_max_threads",
    "GOMP_parallel",
)
_OPENMP_NAME = re.compile(r"lib(gomp|iomp5|omp)[-.\w]*\.so[.\d]*$")


def attach_launcher(module: tvm_ffi.Module, launcher: tvm_ffi.Module | None = None) -> bool:
    """Let the parallel loops of `module` run on the process's OpenMP threads.

    The launcher is taken from `launcher`, else from `module` itself. Returns False, and changes
    nothing, for a module without the entry points; its loops then run on TVM's thread pool.
    """
    source = launcher if launcher is not None else module
    find_launcher = _find_function(source, LAUNCHER_FUNCTION)
    set_launcher = _find_function(module, SET_LAUNCHER_FUNCTION)
    if find_launcher is None or set_launcher is None:
        return False
    set_launcher(find_launcher(ctypes.addressof(thread_control())))
    # Sleeping pool threads return into the launcher's code: it must never be unloaded.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(source))
    return True


@functools.cache
def thread_control() -> ThreadControl:
    """Return the control block of this process, made at the first call."""
    control = ThreadControl(tasks_per_thread=8, default_threads=_usable_processors())
    callback = ctypes.CFUNCTYPE(None)(lambda: _choose_openmp(control) and None)
    control.refresh = ctypes.cast(callback, ctypes.c_void_p).value
    for kept in (control, callback):  # machine code uses them until the process ends
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    # In a forked child no worker thread exists, and OpenMP would wait for them for ever.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: setattr(control, "serial", 1))
    _choose_openmp(control)
    return control


def refresh_openmp() -> str | None:
    """Look for the OpenMP runtime to use; return its path.

    The launcher does the same when the process has loaded or unloaded a library.
    """
    return _choose_openmp(thread_control())


def _choose_openmp(control: ThreadControl) -> str | None:
    for path in loaded_openmp():
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
            addresses = [
                ctypes.cast(getattr(library, name), ctypes.c_void_p).value
                for name in _OPENMP_FUNCTIONS
            ]
        except (OSError, AttributeError):
            continue
        control.omp_thread_num, control.omp_team_size, control.omp_max_threads = addresses[:3]
        control.omp_parallel = addresses[3]  # last: it switches the others on
        return path
    control.omp_parallel = None
    return None


def loaded_openmp() -> list[str]:
    """Return the paths of the OpenMP runtimes in the process, the one to use first.

    PyTorch's comes first, as the likeliest to be busy; then the others in the order of the
    process's memory map.
    """
    paths = _mapped_libraries()
    found = [path for path in paths if _OPENMP_NAME.search(os.path.basename(path))]
    return sorted(found, key=lambda path: "torch" not in Path(path).parts)


def _mapped_libraries() -> list[str]:
    """Paths of the libraries in the process, in the order of its memory map."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    return list(
        dict.fromkeys(line.split(None, 5)[5] for line in maps.splitlines() if ".so" in line)
    )


def _usable_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

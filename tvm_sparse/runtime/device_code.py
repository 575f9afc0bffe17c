"""The device code of compiled CUDA kernels: its source, its images, and how TVM holds it.

In: what ``tvm.compile`` made for CUDA: host code, and CUDA C with a table of its kernels. Out: the module
that TVM's CUDA runtime launches kernels from, and the bytes that a library holds. TVM would compile the
source at once, for one architecture, with ``--use_fast_math``; here that is done when an image is
needed, for all architectures of the target, and as the target says.
"""

from __future__ import annotations

import contextlib
import functools
import struct
import threading
from collections.abc import Callable, Iterator, Mapping

import tvm
import tvm_ffi
from tvm.target import Target

from .architectures import CudaTarget, read_target
from .cuda_compiler import compile_device_code, make_fat_binary

__all__ = ["DeviceCode", "building_for_cuda", "compiling_for_cuda"]

_COMPILE_CALLBACK = "tvm_callback_cuda_compile"
_NOT_COMPILED = b"// compiled later"  # looks like PTX, and is never loaded
_building = threading.local()


class DeviceCode:
    """The kernels of a compiled module, as CUDA C and as device code.

    Parameters
    ----------
    source : str
        CUDA C.
    target : CudaTarget
        What device code is made for.
    kernels : bytes
        TVM's table of the kernels: their names, parameters and launch dimensions, serialised.
    """

    def __init__(self, source: str, target: CudaTarget, kernels: bytes) -> None:
        self.source = source
        self.target = target
        self._kernels = kernels

    @classmethod
    def take_from(cls, host: tvm_ffi.Module, target: CudaTarget) -> DeviceCode | None:
        """Take the device code out of a host module, which keeps none; None if it has none."""
        imported = [module for module in host.imports if module.kind == "cuda"]
        if not imported:
            return None
        if len(imported) > 1:
            raise ValueError(f"target: expected one module of device code, found {len(imported)}")
        source = imported[0].inspect_source("cuda")
        kernels = _table_of_kernels(_serialized(host), source)
        host.clear_imports()
        return cls(source, target, kernels)

    def image(self, architecture: str) -> bytes:
        """Return the device code for one architecture: ``"sm_90"`` a cubin, ``"compute_90"`` PTX."""
        return compile_device_code(self.source, architecture, self.target.fast_math)

    @functools.cached_property
    def images(self) -> Mapping[str, bytes]:
        """The device code for each architecture of the target, compiled once."""
        return {name: self.image(name) for name in self.target.architectures}

    def serialized(self) -> bytes:
        """Return what TVM's CUDA runtime loads: the images, and the table of kernels."""
        images = self.images
        if len(images) > 1:
            return _text("fatbin") + self._kernels + _text(make_fat_binary(images))
        ((name, code),) = images.items()
        return _text("ptx" if name.startswith("compute") else "cubin") + self._kernels + _text(code)

    def load(self) -> tvm_ffi.Module:
        """Return a module whose kernels can be launched; needs TVM's CUDA runtime."""
        return tvm.get_global_func("ffi.Module.load_from_bytes.cuda")(self.serialized())

    def library_binary(self) -> bytes:
        """Return the contents of ``__tvm_ffi__library_bin``, where TVM looks for device code."""
        numbers = [
            3,
            0,
            1,
            1,
            1,
            1,
        ]  # host code imports device code: indptr [0, 1, 1], children [1]
        tree = struct.pack(f"<{len(numbers)}Q", *numbers)
        stream = tree + _text("_lib") + _text("cuda") + _text(self.serialized())
        return struct.pack("<Q", len(stream)) + stream


def building_for_cuda() -> contextlib.AbstractContextManager[None]:
    """Return a context in which TVM generates CUDA C and leaves it as it is.

    Where its CUDA runtime is loaded, TVM compiles the source as soon as it is generated, by a function
    that this replaces, for the thread that is in the context.
    """
    return _compiling_by(lambda source: _NOT_COMPILED)


def compiling_for_cuda(target: Target) -> contextlib.AbstractContextManager[None]:
    """Return a context in which TVM's own builds compile CUDA C as this package does.

    For builds that do not go through ``tvm_sparse.compile``, as MetaSchedule's of candidates: they get the
    options of the kernel that is compiled in the end.

    Parameters
    ----------
    target : tvm.target.Target
        What is built for; of another kind than CUDA, nothing changes.
    """
    if target.kind.name != "cuda":
        return contextlib.nullcontext()
    cuda = read_target(target)
    architecture = str(target.attrs["arch"])
    return _compiling_by(lambda source: compile_device_code(source, architecture, cuda.fast_math))


@contextlib.contextmanager
def _compiling_by(compiler: Callable[[str], bytes]) -> Iterator[None]:
    _intercept_compiler()
    before = getattr(_building, "compiler", None)
    _building.compiler = compiler
    try:
        yield
    finally:
        _building.compiler = before


@functools.cache
def _intercept_compiler() -> None:
    compile_as_before = tvm.get_global_func(_COMPILE_CALLBACK)

    def compile_source(source: str) -> bytes:
        compiler = getattr(_building, "compiler", None) or compile_as_before
        return compiler(source)

    tvm_ffi.register_global_func(_COMPILE_CALLBACK, compile_source, override=True)


def _serialized(host: tvm_ffi.Module) -> bytes:
    """Return what TVM writes for the device module of a host module."""
    packed = tvm.get_global_func("runtime.ModulePackImportsToTensor")(host).numpy().tobytes()
    marker = _text("_lib") + _text("cuda")
    begin = packed.index(marker) + len(marker)
    (size,) = struct.unpack_from("<Q", packed, begin)
    return packed[begin + 8 : begin + 8 + size]


def _table_of_kernels(module: bytes, source: str) -> bytes:
    """Return what stands in a serialised CUDA module between the format of its code and the code."""
    (size,) = struct.unpack_from("<Q", module)
    for code in (source.encode(), _NOT_COMPILED):
        if module.endswith(_text(code)):
            return module[8 + size : -len(_text(code))]
    raise ValueError("expected a CUDA module that ends with its code, found other bytes")


def _text(content: str | bytes) -> bytes:
    """Bytes as TVM's streams write them: their size first."""
    raw = content.encode() if isinstance(content, str) else content
    return struct.pack("<Q", len(raw)) + raw

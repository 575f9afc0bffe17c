"""Compiled kernels as Python callables.

In: a compiled TVM module, and the metadata that says what each parameter is. Out:
:class:`Executable`, whose functions are called with arrays of any framework, on the host or on a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from .cuda_compiler import compile_device_code
from .device_binding import Launcher
from .device_code import DeviceCode
from .device_kernel import DeviceKernelFunction
from .export import copy_library, export_library
from .kernel_function import KernelFunction, check_level
from .minimal import (
    KNOWN_ARCHITECTURES,
    cuda_refusal,
    describe_missing,
    host_architecture,
    missing_cpu_features,
)
from .threads import attach_process_launcher, module_header


class Executable:
    """Compiled sparse kernels.

    Made by ``tvm_sparse.compile`` and ``tvm_sparse.load``. An executable of one function is
    called itself; ``executable[name]`` gives each function as a :class:`KernelFunction`, where
    calling is described.

    Parameters
    ----------
    module : tvm.runtime.Executable or tvm_ffi.Module
        What ``tvm.compile`` returned, or a loaded library.
    metadata : dict
        ``{"version": 1, "functions": {name: {"args": [...], "axes": [...]}}, "target": {...},
        "cpu_features": [...]}``.
    validate : {"cheap", "full"}
        How often the structure of sparse arguments is checked unless a call says otherwise.
        ``"cheap"`` reads every index of an index array when the array is first seen, and later
        only the two ends of each ``indptr``; ``"full"`` reads every index at each call. Both
        check rank, shape, dtype, device and overlap of every argument.
    path : path-like, optional
        The library that `module` was loaded from.
    device_code : DeviceCode, optional
        The CUDA kernels of a compiled module; those of a library are in `module`.
    """

    def __init__(
        self,
        module: tvm.runtime.Executable | tvm_ffi.Module | None,
        metadata: dict,
        validate: str = "cheap",
        path: Path | None = None,
        device_code: DeviceCode | None = None,
    ) -> None:
        check_level(validate)
        if not metadata.get("functions"):
            raise ValueError("metadata: expected at least one function, found none")
        metadata = dict(metadata)
        source = metadata.pop("device_source", None)
        self._cuda_source = source if device_code is None else device_code.source
        self.metadata = metadata
        self.validate = validate
        # Held open: what is at the path may be replaced, the library in use is still this one.
        self._file = open(path, "rb") if path is not None else None  # noqa: SIM115
        self._compiled = module if isinstance(module, tvm.runtime.Executable) else None
        self._device_code = device_code
        #: None for a library with CUDA code on a machine without a GPU.
        self.module = self._compiled.jit() if self._compiled is not None else module
        refusal = _refusal(self.module, metadata)
        if refusal is None and self.module.kind == "llvm":
            attach_process_launcher(self.module)
        if refusal is None and device_code is not None:
            self.module.import_module(device_code.load())
        #: Why this machine can't run the functions, which may still be exported; None if it can.
        self.refusal = refusal
        self._functions = {
            name: self._kernel(name, function) for name, function in metadata["functions"].items()
        }
        names = list(self._functions)
        self._default = self._functions["main" if "main" in names else names[0]]

    def _kernel(self, name: str, described: dict) -> KernelFunction:
        refusal = self.refusal
        function = self.module.get_function(name) if refusal is None else _refusing(refusal)
        if "architectures" in self.metadata:
            launcher = Launcher(function, described, self.metadata)
            return DeviceKernelFunction(name, launcher, described, self.validate, refusal)
        return KernelFunction(name, function, described, self.validate)

    @property
    def functions(self) -> list[str]:
        """Names of the functions."""
        return list(self._functions)

    def __getitem__(self, name: str) -> KernelFunction:
        if name not in self._functions:
            raise KeyError(f"no function {name!r}, found {', '.join(self._functions)}")
        return self._functions[name]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function ``main``, else the first one; see :class:`KernelFunction`."""
        return self._default(*args, **kwargs)

    def export_library(self, path: str | os.PathLike, **options: Any) -> Path:
        """Write code and metadata into one shared library; see ``tvm_sparse.load``.

        Parameters
        ----------
        path : path-like
            A file name that ends in ``.so``, in an existing folder.
        **options
            For TVM's ``export_library``, such as ``cc="aarch64-linux-gnu-gcc"`` when the target
            is another processor family.

        Returns
        -------
        pathlib.Path
            `path`.

        Raises
        ------
        ValueError
            If the suffix is wrong, the folder is missing, or no C compiler is found for linking.
        """
        if self._compiled is None:
            if self._file is None:
                raise ValueError("export_library: expected a compiled module, found a bare one")
            return copy_library(self._file, path)
        return export_library(self._compiled, self.metadata, path, self._device_code, **options)

    def __reduce__(self) -> tuple:
        raise TypeError(
            "an Executable holds machine code of this process: pass it on as a file, by "
            "export_library(path) and tvm_sparse.load(path)"
        )

    def inspect_source(self, language: str = "") -> str:
        """Return generated code.

        Parameters
        ----------
        language : str
            ``"ll"`` for LLVM IR, ``"asm"`` for assembly (for CUDA kernels, of the host code). For CUDA
            kernels ``"cuda"``, also the default, for CUDA C, and ``"ptx"`` for what it is compiled to, for
            the first of several architectures.

        Returns
        -------
        str
            The code.

        Raises
        ------
        ValueError
            If there is no such code: a library holds no LLVM IR, code for a CPU no CUDA C.
        """
        known = ("", "ll", "asm", "cuda", "ptx")
        if language not in known:
            raise ValueError(
                f"language: expected one of {', '.join(known[1:])}, found {language!r}"
            )
        if language in ("cuda", "ptx") or ("architectures" in self.metadata and not language):
            return self._generated_cuda(language)
        if self.module is None:
            raise ValueError(f"language: expected 'cuda' of a loaded library, found {language!r}")
        return self.module.inspect_source(language)

    def _generated_cuda(self, language: str) -> str:
        if self._cuda_source is None:
            raise ValueError(
                f"language: expected 'll' or 'asm' of code for a CPU, found {language!r}"
            )
        if language != "ptx":
            return self._cuda_source
        architecture = self.metadata["architectures"][0].replace("sm_", "compute_")
        code = compile_device_code(self._cuda_source, architecture, self.metadata["fast_math"])
        return code.rstrip(b"\0").decode()

    def __repr__(self) -> str:
        target = self.metadata.get("target", {})
        kind = " ".join(str(target[key]) for key in ("kind", "mcpu") if key in target)
        kind = " ".join([kind, ", ".join(self.metadata.get("architectures", []))]).strip()
        functions = ", ".join(function.heading for function in self._functions.values())
        return f"<Executable {functions} for {kind or 'an unnamed target'}>"


def _refusal(module: tvm_ffi.Module | None, metadata: dict) -> str | None:
    """Say why this machine can't run `module`, which may still be exported; None if it can."""
    if module is not None and module.kind == "llvm":
        foreign = _foreign_processor(module, metadata)
        if foreign is not None:
            return foreign
    return cuda_refusal(metadata)


def _foreign_processor(module: tvm_ffi.Module, metadata: dict) -> str | None:
    family = module_header(module)[1].split("-")[0]
    if family in KNOWN_ARCHITECTURES and family != host_architecture():
        return f"was compiled for {family}, and this machine is {host_architecture()}; export it"
    missing = missing_cpu_features(metadata.get("cpu_features") or [])
    host = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")() if missing else {}
    missing = [name for name in missing if not host.get(name)]
    return describe_missing(metadata, missing) if missing else None


def _refusing(reason: str) -> Callable[..., None]:
    def refuse(*args: Any) -> None:
        raise ValueError(f"the kernel {reason}")

    return refuse

"""Compiled kernels as Python callables.

In: a compiled TVM module, and the metadata that says what each parameter is. Out:
:class:`Executable`, called with arrays of any framework. A call with a complete list of ready
arrays takes a short path (a few microseconds); everything else, and every call that the compiled
code refuses, goes through :class:`~tvm_sparse.runtime.binding.Binding`, which repairs what may be
repaired and names the argument, the expected and the found otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from .binding import Binding
from .cuda_compiler import compile_device_code
from .device_code import DeviceCode
from .export import copy_library, export_library
from .minimal import (
    KNOWN_ARCHITECTURES,
    cuda_refusal,
    describe_missing,
    host_architecture,
    missing_cpu_features,
)
from .prepared_tensors import PreparedTensors
from .signature import Signature
from .threads import attach_process_launcher, module_header

_VALIDATION_LEVELS = ("cheap", "full")


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
        _check_level(validate)
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
            name: KernelFunction(
                name,
                self.module.get_function(name) if refusal is None else _refusing(refusal),
                function,
                self.validate,
            )
            for name, function in metadata["functions"].items()
        }
        names = list(self._functions)
        self._default = self._functions["main" if "main" in names else names[0]]

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
            kernels ``"cuda"``, also the default, for CUDA C, and ``"ptx"`` for what it is compiled to.

        Returns
        -------
        str
            The code.

        Raises
        ------
        ValueError
            If there is no such code: a library holds no LLVM IR, code for a CPU no CUDA C.
        """
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


class KernelFunction:
    """One compiled function.

    **Arguments.** Positional arguments follow the parameter order: all parameters, or all
    buffers, or only the inputs; keywords name parameters (or buffers). A SciPy sparse matrix or
    PyTorch sparse tensor passed for a sparse buffer also supplies the pointers and indices of its
    axes. Sizes that are left out are inferred from shapes. Outputs that are left out (or None) are
    allocated: as PyTorch tensors if an input is one, as TVM tensors if all inputs are, else as
    NumPy arrays. A sparse matrix passed for an output gives its structure, and the result is a
    new matrix.

    **Arrays** are NumPy, PyTorch, TVM or other DLPack arrays in host memory. Dtypes must match.
    Inputs may be read-only; views that are strided, unaligned or byte-swapped are copied, and
    strided outputs are written through a copy, so gaps keep their content. A flat array may
    stand for a buffer of several dimensions if other arguments determine all its sizes. An output
    may not overlap another argument.

    **Checks.** Always: rank, shape relations, dtype, device, overlap, and the two ends of each
    ``indptr`` (first 0, last the number of stored entries; spare capacity is refused). When index
    arrays are first seen: every pointer and coordinate, in range and ordered as the axes declare.
    The array objects that passed are remembered (the last 64 of each axis), and later calls with
    them skip this check. *A change in place of a remembered array is not noticed:* pass
    ``validate="full"``, which checks at each call, or a new array. Sparse matrices are checked at
    each call, and sorted in a copy where an axis asks for it.

    **Packed tensors** are passed by keyword. Their arrays are made ready at the first call and kept as
    long as the tensor lives: later calls share these arrays, so new values in them are seen, and notice
    arrays that were replaced.

    Returns
    -------
    array or tuple of arrays or None
        The outputs, as passed or allocated.

    Raises
    ------
    TypeError, ValueError
        If an argument is missing, superfluous or unfit; the message names it, the expected and
        the found.
    """

    def __init__(
        self, name: str, function: tvm_ffi.Function, metadata: dict, validate: str = "cheap"
    ) -> None:
        self.name = name
        self.metadata = metadata
        self.validate = validate
        self._function = function
        self._signature = Signature(name, metadata)
        self._is_ready = self._signature.ready_check()
        self._prepared = PreparedTensors(self._signature)
        self._completions = {
            len(given): self._signature.completion(given)
            for given in (self._signature.inputs, [p["name"] for p in self._signature.buffers])
        }

    def __call__(self, *args: Any, validate: str | None = None, **kwargs: Any) -> Any:
        """Run the kernel."""
        level = validate or self.validate
        if level == "cheap":
            if not kwargs:
                complete = self._completions.get(len(args))
                ready = args if complete is None else complete(args)
                if ready is not None and self._is_ready(ready) and self._accepts(ready):
                    return self._signature.results(ready)
            elif not args:
                prepared = self._prepared.find(kwargs)
                ready = None if prepared is None else prepared.complete(kwargs)
                if ready is not None and self._accepts(ready):
                    return prepared.results(ready)
        _check_level(level)
        binding = Binding(self._signature, args, kwargs)
        results = binding.run(self._function, level)
        if binding.packed:
            self._prepared.remember(binding)
        return results

    def _accepts(self, ready: Sequence[Any]) -> bool:
        """Run the compiled code, unless it refuses the arguments, before anything is written."""
        try:
            self._function(*ready)
        except (TypeError, ValueError, BufferError):
            return False  # the binding repairs or explains
        return True

    def arguments(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the complete list of ready arguments that a call would pass, fully validated."""
        ready: list[Any] = []
        Binding(self._signature, args, kwargs).run(lambda *all_: ready.extend(all_), "full")
        return ready

    @property
    def signature(self) -> Signature:
        """What its arguments are."""
        return self._signature

    @property
    def heading(self) -> str:
        """Name and parameters, such as ``"spmv(a, x, y, indptr, indices, m, n, nnz)"``."""
        return f"{self.name}({', '.join(self._signature.names)})"

    def __repr__(self) -> str:
        return f"<KernelFunction {self.heading}>"


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


def _check_level(level: str) -> None:
    if level not in _VALIDATION_LEVELS:
        raise ValueError(f"validate: expected 'cheap' or 'full', found {level!r}")

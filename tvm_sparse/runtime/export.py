"""Export a compiled module and its argument metadata to one shared library.

In: what ``tvm.compile`` returned, and the metadata. Out: a ``.so`` file. Loading it is in
`library`, and, for a process without the compiler, in `minimal`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import tvm
import tvm_ffi
from tvm.support import cc as system_compiler

from ._launcher_ir import library_binary_source, metadata_source
from .device_code import DeviceCode
from .threads import load_ir, load_launcher, module_header

_SUFFIXES = (".so", ".dylib", ".dll")


def export_library(
    executable: tvm.runtime.Executable,
    metadata: dict,
    path: str | os.PathLike,
    device_code: DeviceCode | None = None,
    **options: Any,
) -> Path:
    """Write `executable` and its metadata into one shared library.

    Parameters
    ----------
    executable : tvm.runtime.Executable
        What ``tvm.compile`` returned.
    metadata : dict
        The argument metadata to embed.
    path : path-like
        A file name that ends in ``.so``, in an existing folder. An existing file is replaced as a
        whole, so that a process that has it loaded is not disturbed.
    device_code : DeviceCode, optional
        CUDA kernels, which are compiled for all architectures of their target.
    **options
        Passed to TVM's ``export_library``: ``fcompile=`` or ``cc=`` choose a (cross) compiler.

    Returns
    -------
    pathlib.Path
        `path`.

    Raises
    ------
    ValueError
        If the suffix is wrong, the folder is missing, or no C compiler is found for linking.
    RuntimeError
        If there are CUDA kernels, and no compiler of CUDA.
    """
    path = _check_export_path(path)
    if not options and system_compiler.get_cc() is None:
        raise ValueError(
            "export_library: expected a C compiler for linking, found none; install gcc or "
            "clang, or set the environment variable CXX"
        )
    with tempfile.TemporaryDirectory() as folder:
        launcher = Path(folder) / "tvm_sparse_launcher.o"
        layout, triple = module_header(executable.mod)
        if device_code is None:
            added = load_launcher(layout, triple, metadata)
        else:
            added = _device_part(layout, triple, metadata, device_code)
        added.write_to_file(str(launcher), "o")
        partial = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
        try:
            executable.export_library(str(partial), addons=[str(launcher)], **options)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    return path


def _device_part(
    layout: str, triple: str, metadata: dict, device_code: DeviceCode
) -> tvm_ffi.Module:
    """Build a module with the metadata, and with device code where TVM's loader looks for it."""
    described = metadata | {"device_source": device_code.source}
    return load_ir(
        [
            f'target datalayout = "{layout}"',
            f'target triple = "{triple}"',
            metadata_source(described),
            library_binary_source(device_code.library_binary()),
        ]
    )


def copy_library(source: BinaryIO, path: str | os.PathLike) -> Path:
    """Write a loaded library, held open since, to another path; it needs no linking again."""
    path = _check_export_path(path)
    partial = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    source.seek(0)
    with open(partial, "wb") as target:
        shutil.copyfileobj(source, target)
    os.replace(partial, path)
    return path


def _check_export_path(path: str | os.PathLike) -> Path:
    path = Path(path)
    if path.suffix not in _SUFFIXES:
        raise ValueError(
            f"path: expected a file name ending in .so, found {path.name!r}; "
            f"write {path.name + '.so'!r}"
        )
    if path.is_dir():
        raise ValueError(f"path: expected a file name, found the folder {path}")
    if not path.parent.is_dir():
        raise ValueError(f"path: expected an existing folder, found no folder {path.parent}")
    return path

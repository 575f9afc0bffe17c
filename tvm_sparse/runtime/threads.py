"""Threads of compiled kernels, shared with the OpenMP runtime of the process.

TVM's own pool keeps its worker spinning for a core on which the workers of PyTorch's OpenMP spin
too, and pins the calling thread to one core when its size differs from the number of processors.
So the parallel loops of kernels are started by a launcher of ours (`_launcher_ir`): on the
OpenMP threads that the process has already, else on a small pool that sleeps between loops.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
import tempfile
from pathlib import Path

import tvm
import tvm_ffi
from tvm import ir, tirx

from . import _launcher_ir
from .minimal import (
    SET_LAUNCHER_FUNCTION,
    attach_launcher,
    refresh_openmp,
    thread_control,
)

__all__ = ["add_launcher_entry", "get_num_threads", "openmp_runtime", "set_num_threads"]


def set_num_threads(count: int | None) -> None:
    """Set how many threads the parallel loops of compiled kernels use, process-wide.

    Parameters
    ----------
    count : int or None
        From 1 to 256; None returns to the default, which is what the OpenMP runtime in use says
        (``torch.set_num_threads``, ``OMP_NUM_THREADS``), else the number of processors that the
        process may run on.

    Examples
    --------
    >>> from tvm_sparse.runtime import get_num_threads, set_num_threads
    >>> set_num_threads(2)
    >>> get_num_threads()
    2
    >>> set_num_threads(None)
    """
    if count is None:
        thread_control().num_threads = 0
        return
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"count: expected an int or None, found {type(count).__name__}")
    if not 1 <= count <= _launcher_ir.MAX_THREADS:
        raise ValueError(f"count: expected 1 to {_launcher_ir.MAX_THREADS} threads, found {count}")
    thread_control().num_threads = count


_CountThreads = ctypes.CFUNCTYPE(ctypes.c_int)


@functools.lru_cache(maxsize=1)
def _look_for_openmp(modules: int) -> None:
    """Look for the OpenMP runtime, once for each number of modules that are imported."""
    del modules
    refresh_openmp()


def get_num_threads() -> int:
    """Return how many threads the next parallel loop uses.

    Examples
    --------
    >>> from tvm_sparse.runtime import get_num_threads
    >>> get_num_threads() >= 1
    True
    """
    control = thread_control()
    if control.serial:
        return 1
    if control.num_threads:
        return control.num_threads
    _look_for_openmp(len(sys.modules))  # an import may have loaded one
    if not control.omp_parallel:
        return control.default_threads
    return _CountThreads(control.omp_max_threads)()


def openmp_runtime() -> str | None:
    """Return the path of the OpenMP runtime whose threads kernels use, or None for the own pool.

    Examples
    --------
    >>> from tvm_sparse.runtime.threads import openmp_runtime
    >>> path = openmp_runtime()
    >>> path is None or "omp" in path
    True
    """
    return refresh_openmp()


def add_launcher_entry(mod: tvm.IRModule) -> tvm.IRModule:
    """Return `mod` with a function that sets the launcher of its parallel loops.

    TVM's code generator calls parallel loops through a pointer that only the same LLVM module
    sees; the function added here, one to compile with the kernels, exchanges it.

    Examples
    --------
    >>> import tvm
    >>> from tvm_sparse.runtime.threads import add_launcher_entry
    >>> [var.name_hint for var in add_launcher_entry(tvm.IRModule()).functions]
    ['tvm_sparse_set_launcher']
    """
    if SET_LAUNCHER_FUNCTION in {var.name_hint for var in mod.functions}:
        return mod
    address = tirx.Var("address", "int64")
    exchange = tirx.call_extern("int64", "tvm_sparse_exchange_launcher", address)
    body = tirx.AttrStmt(
        tirx.IntImm("int32", 0),
        "pragma_import_llvm",
        ir.StringImm(_launcher_ir.EXCHANGE_SOURCE),
        tirx.Return(exchange),
    )
    function = tirx.PrimFunc([address], body, ret_type=ir.PrimType("int64"))
    extended = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    extended[SET_LAUNCHER_FUNCTION] = function.with_attr("global_symbol", SET_LAUNCHER_FUNCTION)
    return extended


def attach_process_launcher(module: tvm_ffi.Module) -> bool:
    """Point the parallel loops of a loaded module to the process's launcher.

    Parameters
    ----------
    module : tvm_ffi.Module
        A module in memory, or one that TVM's own ``export_library`` wrote (as MetaSchedule's
        builders do), compiled with :func:`add_launcher_entry` for this machine.

    Returns
    -------
    bool
        False for modules without the entry, and on other systems than Linux; their loops run on
        TVM's own pool.
    """
    layout, triple = module_header(module) if module.kind == "llvm" else _host_header()
    if "linux" not in triple:
        return False
    return attach_launcher(module, _process_launcher(layout, triple))


@functools.cache
def _process_launcher(layout: str, triple: str) -> tvm_ffi.Module:
    return load_launcher(layout, triple)


def load_launcher(layout: str, triple: str, metadata: dict | None = None) -> tvm_ffi.Module:
    """Build an LLVM module for a target, with the launcher and the metadata."""
    parts = [f'target datalayout = "{layout}"', f'target triple = "{triple}"']
    if "linux" in triple:
        parts.append(_launcher_ir.launcher_source())
    if metadata is not None:
        parts.append(_launcher_ir.metadata_source(metadata))
    return load_ir(parts)


def load_ir(parts: list[str]) -> tvm_ffi.Module:
    """Build an LLVM module from the parts of its IR."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "launcher.ll"
        path.write_text("\n".join(parts))
        return tvm.get_global_func("ffi.Module.load_from_file.ll")(str(path), "ll")


def module_header(module: tvm_ffi.Module) -> tuple[str, str]:
    """Return the data layout and the target triple of an LLVM module."""
    source = module.inspect_source("ll")
    found = (
        re.search(rf'^target {name} = "(.*)"$', source, re.MULTILINE)
        for name in ("datalayout", "triple")
    )
    layout, triple = (match.group(1) if match else "" for match in found)
    return layout, triple


@functools.cache
def _host_header() -> tuple[str, str]:
    nothing = tirx.PrimFunc([], tirx.Evaluate(tirx.IntImm("int32", 0)))
    module = tvm.IRModule({"nothing": nothing.with_attr("global_symbol", "nothing")})
    return module_header(tvm.compile(module, target="llvm").mod)

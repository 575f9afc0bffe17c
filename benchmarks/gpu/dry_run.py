"""The kit without a GPU: packed with tiny sizes and run with NumPy in place of the GPU's libraries.

The kernels are those of the kit, run by the emulation of CUDA that the tests have; the script, its
problems, checks, tables and files are those that run on a GPU.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tvm

from tvm_sparse.runtime import Executable
from tvm_sparse.runtime.minimal import array_to_tensor

from ..cuda_kernels import KernelCase, default_kernels, tile_grid
from .pack import manifest_entry, pack

__all__ = ["dry_run", "dry_run_kernels", "emulated_kernels", "loads_by_itself"]

# What is installed here is hidden, as it is missing there.
_ALONE = """
import importlib.metadata, sys
from pathlib import Path

def missing(name):
    raise importlib.metadata.PackageNotFoundError(name)

importlib.metadata.distribution = missing
from kit.library import Libraries

here = Path.cwd()
found = Libraries(here).listed
import tvm_ffi
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "libtvm" in line}
assert mapped and all(Path(path).is_relative_to(here / "runtime") for path in mapped), mapped
assert Path(tvm_ffi.__file__).is_relative_to(here / "runtime"), tvm_ffi.__file__
assert not {"tvm", "tvm_sparse", "benchmarks", "scipy"} & set(sys.modules)
assert found and all((here / "kernels" / kernel.file).is_file() for kernel in found)
"""

Emulate = Callable[[list[tvm.IRModule]], list[Executable]]


def dry_run_kernels() -> list[KernelCase]:
    """Return few kernels that suit the tiny sizes: each operator and variant, and other tile sizes."""
    rows = default_kernels(["spmv", "spmm", "sddmm", "segment_sum"], [32], ["float32"], ["int32"])
    blocks = default_kernels(["bsr_spmm", "bsr_sddmm", "srbcrs_spmm"], [64], ["float16"], ["int32"])
    in_float32 = default_kernels(["bsr_spmm"], [64], ["float32"], ["int32"])
    small = [case for case in [*blocks, *in_float32] if case.block in ((16, 16), (8, 32))]
    tiles = [case for case in tile_grid(["spmv"]) if case.tile][:1]
    return [*rows, *small, *tiles]


def dry_run(
    folder: Path, cases: Sequence[KernelCase], emulate: Emulate, arch: str = "sm_90"
) -> dict:
    """Pack a kit into a folder, run it there, and return its results.

    Parameters
    ----------
    folder : pathlib.Path
        New or empty.
    cases : sequence of KernelCase
        The kernels, few of them.
    emulate : callable
        Makes executables for NumPy arrays from scheduled modules.
    arch : str
        What the packed kernels are compiled for.

    Raises
    ------
    RuntimeError
        If the script fails, or one of our kernels is wrong or was not measured.
    """
    pack(folder, cases, arch=arch)
    loads_by_itself(folder)
    out = folder / "results.json"
    with _imported(folder) as kit:
        kernels = emulated_kernels(kit, cases, emulate)
        kit_main = importlib.import_module("kit.__main__")
        status = kit_main.main(["--tiny", "--host", "--out", str(out)], kernels=kernels)
    results = json.loads(out.read_text())
    rows = [row for section in results["sections"].values() for row in section["rows"]]
    refused = [row for row in rows if "refused" in row]
    ours = {row["operator"] for row in rows if row["kind"] == "ours"}
    missing = {case.operator for case in cases} - ours
    if status or refused or missing:
        refused = {(row["operator"], row["contender"], row["refused"]) for row in refused}
        raise RuntimeError(f"dry run: status {status}, refused {refused}, {missing}")
    return results


def loads_by_itself(folder: Path) -> None:
    """Check in a fresh process that the kit finds its runtime and its kernels in its own folder.

    Raises
    ------
    RuntimeError
        If it does not, or imports more of TVM or of this package.
    """
    command = [sys.executable, "-c", _ALONE]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the kit does not load by itself: {done.stderr}")


def emulated_kernels(kit: ModuleType, cases: Sequence[KernelCase], emulate: Emulate) -> Any:
    """Return the kernels of some cases, as the kit's script takes them, under an emulation."""
    executables = emulate([case.build() for case in cases])
    by_name = {case.name: own for case, own in zip(cases, executables)}

    class Emulated(kit.library.Kernels):
        """Kernels that are called with NumPy arrays."""

        def bind(self, kernel: Any, arrays: Mapping[str, Any]) -> Callable[[], None]:
            executable = by_name[kernel.name]
            (name,) = executable.functions
            function = executable.module.get_function(name)
            given = [arrays[arg["name"]] for arg in executable.metadata["functions"][name]["args"]]
            ready = [
                array_to_tensor(value) if isinstance(value, np.ndarray) else value
                for value in given
            ]
            return lambda: function(*ready)

    return Emulated([manifest_entry(case, "", "") for case in cases])


@contextmanager
def _imported(folder: Path) -> Iterator[ModuleType]:
    """Import the packed script, and forget it afterwards."""
    sys.path.insert(0, str(folder))
    try:
        kit = importlib.import_module("kit")
        importlib.import_module("kit.library")
        yield kit
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == "kit"]:
            del sys.modules[name]

"""TVM's CUDA runtime on a machine without a GPU: its calls of CUDA are answered by two small libraries.

:class:`Recorder` compiles them and runs Python in a process that finds them in place of CUDA's. The memory
of the "GPU" is the host's, kernels are C functions or nothing, and a record says on which device and
stream, with which grid and shared memory, each was launched. What is tested so is the host's side: what
is loaded, launched and copied, and where.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["Recorder", "Run"]

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[2]


@dataclass
class Run:
    """What a process wrote, and the calls of CUDA that it made."""

    output: str
    record: list[str]

    def calls(self, *kinds: str) -> list[str]:
        """Calls of some kinds: ``"launch"``, ``"load"``, ``"device"``, ``"copy"``, ``"allocate"``, ..."""
        return [line for line in self.record if line.split()[0] in kinds]


class Recorder:
    """Stand-ins for ``libcuda.so.1`` and ``libcudart.so.13`` in a folder.

    Parameters
    ----------
    folder : pathlib.Path
        Where they are made.
    """

    def __init__(self, folder: Path) -> None:
        self.compiler = shutil.which("cc") or shutil.which("gcc")
        if self.compiler is None or sys.platform != "linux":
            pytest.skip("needs a C compiler on Linux")
        self.folder = folder
        script = folder / "versions"
        script.write_text("libcudart.so.13 { global: *; };\n")
        driver = self._library("libcuda.so.1", _HERE / "driver.c")
        self._library(
            "libcudart.so.13",
            _HERE / "runtime.c",
            str(driver),
            f"-Wl,--version-script={script}",
        )

    def _library(self, name: str, source: Path, *options: str) -> Path:
        path = self.folder / name
        shared = ["-shared", "-fPIC", "-O1", f"-Wl,-soname,{name}"]
        command = [self.compiler, *shared, str(source), *options, "-o", str(path)]
        subprocess.run(command, check=True, capture_output=True)
        return path

    def kernels(self, source: str) -> Path:
        """Compile what stands for kernels: ``void f(void** args, unsigned* grid, unsigned* block)``."""
        path = self.folder / "kernels.c"
        path.write_text(source)
        return self._library("kernels.so", path)

    def run(
        self, script: str, *arguments: str, devices: str = "9.0", kernels: Path | None = None
    ) -> Run:
        """Run Python on a machine that has GPUs of these compute capabilities."""
        record = self.folder / "record"
        record.write_text("")
        environment = os.environ | {
            "LD_LIBRARY_PATH": str(self.folder),
            "CUDA_RECORD": str(record),
            "CUDA_DEVICES": devices,
            "CUDA_KERNELS": str(kernels or ""),
            "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return Run(done.stdout, record.read_text().splitlines())

"""TVM's CUDA runtime on a machine without a GPU: its calls of CUDA are answered by two small libraries.

:class:`Recorder` compiles them and runs Python in processes that find them in place of CUDA's. The memory
of the "GPU" is the host's, kernels are C functions or nothing, and a record says on which device and
stream, with which grid and shared memory, each was launched. What is tested so is the host's side: what
is loaded, launched and copied, and where.
"""

from __future__ import annotations

import json
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
# Runs scripts that come as JSON, one a line, each with names of its own.
_WORKER = """
import contextlib, io, json, os, sys, traceback
replies = sys.stdout
for line in sys.stdin:
    script, sys.argv, os.environ["CUDA_KERNELS"] = json.loads(line)
    written, error = io.StringIO(), None
    with contextlib.redirect_stdout(written):
        try:
            exec(compile(script, "script", "exec"), {"__name__": "script"})
        except BaseException:
            error = traceback.format_exc()
    print(json.dumps([written.getvalue(), error]), file=replies, flush=True)
"""


@dataclass
class Run:
    """What a script wrote, and the calls of CUDA that it made."""

    output: str
    record: list[str]

    def calls(self, *kinds: str) -> list[str]:
        """Calls of some kinds: ``"launch"``, ``"load"``, ``"device"``, ``"copy"``, ``"allocate"``, ..."""
        return [line for line in self.record if line.split()[0] in kinds]


class Recorder:
    """Stand-ins for ``libcuda.so.1`` and ``libcudart.so.13`` in a folder, and processes that use them.

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
        self._record = folder / "record"
        self._workers: dict[str, subprocess.Popen] = {}
        script = folder / "versions"
        script.write_text("libcudart.so.13 { global: *; };\n")
        driver = self._library("libcuda.so.1", _HERE / "driver.c")
        self._library(
            "libcudart.so.13",
            _HERE / "runtime.c",
            str(driver),
            f"-Wl,--version-script={script}",
        )

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers.values():
            worker.stdin.close()
            worker.wait(timeout=30)

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
        self,
        script: str,
        *arguments: object,
        devices: str = "9.0",
        kernels: Path | None = None,
        alone: bool = False,
    ) -> Run:
        """Run a script on a machine that has GPUs of these compute capabilities.

        Scripts for the same GPUs share a process, in which they come one after another; one that runs
        `alone` has its own.
        """
        self._record.write_text("")
        worker = self._worker(devices, alone)
        request = [textwrap.dedent(script), ["script", *map(str, arguments)], str(kernels or "")]
        worker.stdin.write(json.dumps(request) + "\n")
        worker.stdin.flush()
        reply = worker.stdout.readline()
        if not reply:
            self._workers.pop(devices, None)
            raise AssertionError(f"the process ended with status {worker.wait(timeout=30)}")
        output, error = json.loads(reply)
        if alone:
            worker.stdin.close()
            worker.wait(timeout=30)
        assert error is None, f"{error}\n{output}"
        return Run(output, self._record.read_text().splitlines())

    def _worker(self, devices: str, alone: bool) -> subprocess.Popen:
        if not alone and devices in self._workers:
            return self._workers[devices]
        environment = os.environ | {
            "LD_LIBRARY_PATH": str(self.folder),
            "CUDA_RECORD": str(self._record),
            "CUDA_DEVICES": devices,
            "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        worker = subprocess.Popen(
            [sys.executable, "-c", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        if not alone:
            self._workers[devices] = worker
        return worker

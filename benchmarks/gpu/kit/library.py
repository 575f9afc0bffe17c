"""The kernels of the kit: what each is, and how to call it with arrays of the machine.

The kernels' libraries are loaded by the package's one-file loader, ``minimal.py``, on the TVM runtime that
lies in the kit; neither TVM's compiler nor the package is needed.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Kernel", "Kernels", "Libraries"]


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel.

    Parameters
    ----------
    name, operator, variant : str
        Such as ``"spmm/hyb/f64/float32/int32"``, ``"spmm"`` and ``"hyb"``.
    dtype : str
        Of values.
    features : int or None
        Width of the dense operands.
    tile : dict of str to int
        Tile sizes that differ from the defaults.
    layout : dict
        What its format needs to be packed: widths of buckets, size of blocks.
    file, function : str
        Where it is.
    """

    name: str
    operator: str
    variant: str
    dtype: str
    features: int | None
    tile: Mapping[str, int]
    layout: Mapping[str, Any]
    file: str
    function: str

    @property
    def is_default(self) -> bool:
        """Whether all tile sizes are the defaults."""
        return not self.tile

    @property
    def label(self) -> str:
        """What tables call it."""
        sizes = ", ".join(f"{key} {value}" for key, value in self.tile.items())
        return f"{self.variant} ({sizes})" if sizes else self.variant


class Kernels:
    """The kernels that a manifest lists; subclasses know how one is called."""

    def __init__(self, listed: Iterable[Mapping[str, Any]]) -> None:
        self.listed = [Kernel(**entry) for entry in listed]

    def choose(self, operator: str, **wanted: Any) -> list[Kernel]:
        """Return the kernels of an operator with some attributes, defaults first."""
        found = [
            kernel
            for kernel in self.listed
            if kernel.operator == operator
            and all(getattr(kernel, key) == value for key, value in wanted.items())
        ]
        return sorted(found, key=lambda kernel: not kernel.is_default)

    def bind(self, kernel: Kernel, arrays: Mapping[str, Any]) -> Callable[[], None]:
        """Return a call of a kernel without arguments.

        Parameters
        ----------
        kernel : Kernel
            One of those listed.
        arrays : dict
            Arrays of the machine, and sizes, by the names of parameters; more may be there.
        """
        raise NotImplementedError


class Libraries(Kernels):
    """Kernels in libraries that the package exported.

    Parameters
    ----------
    folder : pathlib.Path
        The kit: ``manifest.json``, ``kernels`` and ``runtime`` lie in it.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(json.loads((folder / "manifest.json").read_text())["kernels"])
        self._folder = folder
        self._loaded: dict[str, Any] = {}
        self._minimal = _load_runtime(folder / "runtime")

    def bind(self, kernel: Kernel, arrays: Mapping[str, Any]) -> Callable[[], None]:
        import tvm_ffi  # noqa: PLC0415 (lies in the kit)

        if kernel.file not in self._loaded:
            path = self._folder / "kernels" / kernel.file
            self._loaded[kernel.file] = self._minimal.load(path)
        library = self._loaded[kernel.file]
        names = [arg["name"] for arg in library.metadata["functions"][kernel.function]["args"]]
        function = library[kernel.function]
        given = []
        for name in names:
            value = arrays[name]
            if isinstance(value, np.ndarray):
                value = self._minimal.array_to_tensor(value)
            elif not isinstance(value, int | float):
                value = tvm_ffi.from_dlpack(value)
            given.append(value)
        return lambda: function(*given)


def _load_runtime(folder: Path) -> Any:
    """Load TVM's runtime, with CUDA where there is a driver, and return the one-file loader."""
    packages = folder / f"python{sys.version_info.major}.{sys.version_info.minor}"
    if packages.is_dir():
        sys.path.insert(0, str(packages))
    os.environ.setdefault("TVM_SPARSE_RUNTIME", str(folder / "libtvm_runtime.so"))
    try:
        from . import minimal  # noqa: PLC0415 (copied beside this file when the kit is packed)
    except ImportError as error:
        offered = ", ".join(sorted(path.name for path in folder.glob("python*")))
        raise ImportError(f"{error}; the kit holds tvm_ffi for {offered}") from error
    minimal.load_runtime(folder / "libtvm_runtime.so")
    if _has_driver():
        _load_cuda_runtime()
        ctypes.CDLL(str(folder / "libtvm_runtime_cuda.so"), mode=ctypes.RTLD_GLOBAL)
    return minimal


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _load_cuda_runtime() -> None:
    """Bring ``libcudart.so.13`` into the process, if the loader does not find it by itself."""
    name = "libcudart.so.13"
    folders = [Path(entry) for entry in sys.path if entry]
    found = (str(path) for folder in folders for path in folder.glob(f"nvidia/*/lib/{name}"))
    for candidate in (name, *found, f"/usr/local/cuda/lib64/{name}"):
        try:
            ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return

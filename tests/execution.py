"""Compile and call programs in tests: arrays in, arrays out, outputs pre-filled with NaN."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import tvm
import tvm_ffi

import tvm_sparse.transform.pipeline  # noqa: F401 (registers the lowering pipeline)
from tvm_sparse.ir import SparseFunc
from tvm_sparse.runtime.minimal import array_to_tensor
from tvm_sparse.transform.lower_sparse_buffer import LowerSparseBuffer
from tvm_sparse.transform.lower_sparse_iteration import LowerSparseIteration

__all__ = ["Kernel", "build", "lower", "poisoned", "run", "stage_two"]


@functools.cache
def host_target() -> tvm.target.Target:
    """Return the LLVM target with this machine's vector instructions."""
    cpu = tvm_ffi.get_global_func("target.llvm_get_system_cpu")()
    return tvm.target.Target({"kind": "llvm", "mcpu": str(cpu)})


def stage_two(func: SparseFunc) -> tvm.IRModule:
    """Lower a program to stage II."""
    return LowerSparseIteration()(tvm.IRModule({func.name: func}))


def lower(func: SparseFunc) -> tvm.IRModule:
    """Lower a program to stage III."""
    return LowerSparseBuffer()(stage_two(func))


def poisoned(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return an array of NaN, or of a conspicuous number where the type has no NaN."""
    kind = np.dtype(dtype).kind
    return np.full(shape, np.nan if kind == "f" else 1 if kind == "b" else 77, dtype)


class Kernel:
    """A compiled program, called with arrays and scalars by the names of its parameters."""

    def __init__(self, func: SparseFunc, module: tvm.IRModule | None = None) -> None:
        self.names = list(func.arg_names)
        module = stage_two(func) if module is None else module
        executable = tvm.compile(module, target=host_target(), tir_pipeline="tvm_sparse")
        self._call = executable[func.name]

    def __call__(
        self, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, int]
    ) -> dict[str, np.ndarray]:
        """Call with copies of ``arrays`` and return all of them as they are afterwards."""
        guarded = {name: _Guarded(arrays[name]) for name in self.names if name in arrays}
        self._call(*(guarded[n].tensor if n in guarded else int(scalars[n]) for n in self.names))
        for name, array in guarded.items():
            assert array.is_intact(), f"{name}: written outside of the array"
        return {name: array.values for name, array in guarded.items()}


class _Guarded:
    """A copy of an array between two stretches of memory that nobody may write to."""

    def __init__(self, array: np.ndarray) -> None:
        self._zone = 256 // array.itemsize
        self._memory = np.zeros(array.size + 2 * self._zone, array.dtype)
        self._memory.view("uint8")[:] = 0xA5
        self.values = self._memory[self._zone : self._zone + array.size].reshape(array.shape)
        self.values[...] = array
        self.tensor = array_to_tensor(self.values, written=True)

    def is_intact(self) -> bool:
        """Whether the stretches around the array are as they were."""
        around = self._memory[: self._zone], self._memory[len(self._memory) - self._zone :]
        return all((zone.view("uint8") == 0xA5).all() for zone in around)


def build(func: SparseFunc, module: tvm.IRModule | None = None) -> Kernel:
    """Compile a program; ``module`` is its lowered, perhaps scheduled, form."""
    return Kernel(func, module)


def run(
    func: SparseFunc,
    arrays: Mapping[str, np.ndarray],
    scalars: Mapping[str, int] | None = None,
    outputs: tuple[str, ...] = (),
) -> dict[str, np.ndarray]:
    """Compile and call; the arrays named in ``outputs`` are poisoned before the call."""
    filled = dict(arrays)
    for name in outputs:
        filled[name] = poisoned(arrays[name].shape, str(arrays[name].dtype))
    return build(func)(filled, scalars or {})

"""Emulated kernels as Python callables."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from tvm_sparse.runtime import lower
from tvm_sparse.runtime.compile import describe_functions, resolve_target
from tvm_sparse.runtime.executable import Executable
from tvm_sparse.runtime.minimal import array_to_tensor
from tvm_sparse.transform import PIPELINE_NAME

from .compiler import compile_kernels, runtime_library
from .entries import kernel_module
from .errors import EmulationError
from .host import build_host, split

__all__ = [
    "EmulatedSource",
    "EmulationError",
    "emulated",
    "emulated_source",
    "running_last",
    "running_order",
]

_one_call = threading.Lock()  # the emulator knows the arrays of one call

DEFAULT_TARGET = {"kind": "cuda", "arch": "sm_80"}


def emulated(
    program: Any,
    target: Any = None,
    *,
    tir_pipeline: str = PIPELINE_NAME,
    edited: Callable[[str], str] | None = None,
) -> Any:
    """Compile a CUDA kernel to run on the CPU.

    Parameters
    ----------
    program : SparseFunc, tvm.tirx.PrimFunc, tvm.IRModule, SparseSchedule, tvm.s_tir.Schedule, or a list
        Scheduled for CUDA. The kernels of a list are compiled at the same time.
    target : str, dict or tvm.target.Target
        A CUDA target; ``{"kind": "cuda", "arch": "sm_80"}`` unless given.
    tir_pipeline : str
        The lowering; that of the package unless given.
    edited : function of str, optional
        Changes the CUDA C before it is compiled: to see that a fault of it is found.

    Returns
    -------
    tvm_sparse.runtime.executable.Executable or list of them
        Called as kernels for the CPU are, with arrays in host memory.

    Raises
    ------
    EmulationError
        From the call, not from here: see this package.
    """
    if isinstance(program, list | tuple):
        return _emulated(list(program), target, tir_pipeline, edited)
    return _emulated([program], target, tir_pipeline, edited)[0]


def _emulated(
    programs: list[Any],
    target: Any,
    tir_pipeline: str,
    edited: Callable[[str], str] | None,
) -> list[Executable]:
    resolved = resolve_target(DEFAULT_TARGET if target is None else target)
    arch = str(dict(resolved.attrs).get("arch", "sm_80"))
    started = []
    for program in programs:  # the compiler works on one while the next is lowered
        module = lower(program)
        parts = split(module, resolved, tir_pipeline)
        if edited is not None:
            parts.source = edited(parts.source)
        text, _ = kernel_module(parts.source, arch, parts.tags)
        started.append((module, parts, build_host(parts), compile_kernels(text)))
    made = []
    for module, parts, host, library in started:
        host.import_module(tvm_ffi.load_module(str(library.result())))
        functions = describe_functions(module)
        metadata = {
            "version": 1,
            "functions": functions,
            "target": {"kind": "emulated cuda", "arch": arch},
            "cpu_features": [],
        }
        made.append(Executable(_EmulatedModule(parts.source, host, functions), metadata))
    return made


class _EmulatedModule:
    """What an :class:`Executable` asks of a module."""

    kind = "emulation"

    def __init__(self, source: str, host: tvm_ffi.Module, functions: dict[str, dict]) -> None:
        self._source = source
        self._host = host
        self._functions = functions

    def get_function(self, name: str) -> Callable[..., None]:
        """Return a function of the host that tells the emulator which arrays its call has."""
        function = self._host.get_function(name)
        names = [arg.get("buffer", arg["name"]) for arg in self._functions[name]["args"]]

        def call(*arguments: Any) -> None:
            with _explained(self._source), _known_arrays(names, arguments):
                function(*arguments)

        return call

    def inspect_source(self, _language: str = "") -> str:
        """Return the CUDA C."""
        return self._source


class EmulatedSource:
    """The kernels of a CUDA C text; ``source[name](grid, block, shared_bytes, *arguments)`` runs one."""

    def __init__(self, source: str, library: str, names: Sequence[str]) -> None:
        self._source = source
        self._module = tvm_ffi.load_module(library)
        self.names = list(names)

    def __getitem__(self, name: str) -> Callable[..., None]:
        if name not in self.names:
            raise KeyError(f"no kernel {name!r}, found {', '.join(self.names)}")
        function = self._module.get_function(name)

        def launch(grid: Any, block: Any, shared_bytes: int, *arguments: Any) -> None:
            passed = [array_to_tensor(a) if isinstance(a, np.ndarray) else a for a in arguments]
            extents = [*_three(grid), *_three(block), shared_bytes]
            with _explained(self._source):
                function(*passed, *extents)

        return launch

    def __call__(
        self, name: str, grid: Any, block: Any, shared_bytes: int, *arguments: Any
    ) -> None:
        """Run a kernel."""
        self[name](grid, block, shared_bytes, *arguments)


def emulated_source(source: str, arch: str = "sm_80") -> EmulatedSource:
    """Compile CUDA C to run on the CPU.

    Parameters
    ----------
    source : str
        CUDA C, in the style of what TVM generates.
    arch : str
        Sets how much shared memory there is.

    Returns
    -------
    EmulatedSource
        Its kernels, by name.

    Examples
    --------
    >>> import numpy as np
    >>> kernels = emulated_source('''
    ... extern "C" __global__ void twice(float* __restrict__ x) { x[threadIdx.x] *= 2.0f; }''')
    >>> x = np.ones(4, "float32")
    >>> kernels["twice"](1, 4, 0, x)
    >>> x
    array([2., 2., 2., 2.], dtype=float32)
    >>> kernels["twice"](1, 5, 0, x)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    tests.cuda.emulation.errors.EmulationError: kernel twice: out-of-bounds read of x: index 4 ...
    """
    text, kernels = kernel_module(source, arch)
    library = str(compile_kernels(text).result())
    return EmulatedSource(source, library, [kernel.name for kernel in kernels])


@contextlib.contextmanager
def running_order(order: str, seed: int = 0) -> Iterator[None]:
    """Run blocks and threads ``"forward"``, in ``"reverse"``, or the blocks ``"shuffled"`` by a seed."""
    orders = ["forward", "reverse", "shuffled"]
    runtime_library().emulation_set_order(orders.index(order), seed)
    try:
        yield
    finally:
        runtime_library().emulation_set_order(0, 0)


@contextlib.contextmanager
def running_last(blocks: int) -> Iterator[None]:
    """Run the last blocks of each grid only: for grids that are too large to be run as a whole."""
    runtime_library().emulation_set_blocks(blocks)
    try:
        yield
    finally:
        runtime_library().emulation_set_blocks(2**64 - 1)


@contextlib.contextmanager
def _known_arrays(names: Sequence[str], arguments: Sequence[Any]) -> Iterator[None]:
    """Tell the emulator the arrays of a call."""
    runtime = runtime_library()
    _one_call.acquire()
    for name, argument in zip(names, arguments):
        if not isinstance(argument, int | float | np.number):
            runtime.emulation_array(name.encode(), *_extent(argument))
    try:
        yield
    finally:
        runtime.emulation_forget_arrays()
        _one_call.release()


def _extent(array: Any) -> tuple[int, int]:
    """Return the address and the bytes of an array of any framework."""
    if isinstance(array, np.ndarray):
        return array.ctypes.data, array.nbytes
    tensor = array if isinstance(array, tvm_ffi.Tensor) else tvm_ffi.from_dlpack(array)
    elements = int(np.prod(tuple(tensor.shape), dtype=np.int64))
    return tensor.data_ptr(), elements * tvm.DataType(str(tensor.dtype)).itemsize


@contextlib.contextmanager
def _explained(source: str) -> Iterator[None]:
    """Quote the lines of the source that an error names."""
    try:
        yield
    except EmulationError as error:
        lines = source.splitlines()
        message = str(error)
        quoted = dict.fromkeys(int(number) for number in re.findall(r"at line (\d+)", message))
        for number in quoted:
            if 1 <= number <= len(lines):
                message += f"\n  line {number}: {lines[number - 1].strip()}"
        raise EmulationError(message) from None


def _three(extents: Any) -> list[int]:
    values = [int(extent) for extent in np.atleast_1d(np.asarray(extents, dtype=np.int64))]
    return [*values, 1, 1][: max(3, len(values))]

"""The CUDA C of a scheduled module, and how its kernels are launched.

In: a module of stage II or III with threads bound. Out: its device code, and for each kernel the threads
of a block and the dynamic shared memory that the host code asks for. Nothing is run, and no GPU is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target
from tvm.tirx.build import codegen_build, split_host_device_mods

from tvm_sparse.transform import PIPELINE_NAME

__all__ = ["DeviceCode", "Launch", "device_code"]

_AXES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
_DYNAMIC_SHARED = "tirx.use_dyn_shared_memory"


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched.

    Parameters
    ----------
    threads : tuple of int
        Threads of a block along x, y and z.
    dynamic_shared : int
        Bytes of dynamic shared memory.
    """

    threads: tuple[int, int, int]
    dynamic_shared: int = 0

    @property
    def block_size(self) -> int:
        """Threads of a block."""
        x, y, z = self.threads
        return x * y * z


@dataclass(frozen=True)
class DeviceCode:
    """CUDA C of a module, and the launches of its kernels by name."""

    source: str
    launches: dict[str, Launch]


def device_code(module: tvm.IRModule, arch: str) -> DeviceCode:
    """Lower a scheduled module and generate its device code.

    Parameters
    ----------
    module : tvm.IRModule
        Of stage II or III; its loops are bound to threads.
    arch : str
        Such as ``"sm_90"``.

    Raises
    ------
    ValueError
        If the module has no kernel, or the size of a block is not constant.
    """
    target = Target({"kind": "cuda", "arch": arch}).with_host(Target("llvm"))
    pipeline, _, finalize_device = tirx.get_tir_pipeline(PIPELINE_NAME)
    with target:
        lowered = pipeline(tirx.transform.BindTarget(target)(module))
        host, devices = split_host_device_mods(lowered)
        sources = [
            codegen_build(finalize_device()(device), own).inspect_source()
            for own, device in devices.items()
        ]
    if len(sources) != 1:
        raise ValueError(f"module: expected kernels for one target, found {len(sources)}")
    return DeviceCode(sources[0], _launches(host))


def _launches(host: tvm.IRModule) -> dict[str, Launch]:
    found: dict[str, Launch] = {}

    def note(call: tvm.ir.Call) -> None:
        if not str(getattr(call.op, "name", "")).endswith("call_ffi_kernel"):
            return
        names = [str(name) for name in call.attrs.launch_params]
        values = dict(zip(names, list(call.args)[-len(names) :]))
        threads = tuple(_constant(values.get(axis, 1), axis) for axis in _AXES)
        shared = _constant(values.get(_DYNAMIC_SHARED, 0), "dynamic shared memory")
        found[str(call.args[0].value)] = Launch(threads, shared)

    for func in host.functions.values():
        tvm_ffi.structural_walk(func.body, (tvm.ir.Call, note))
    return found


def _constant(value: object, what: str) -> int:
    if isinstance(value, int):
        return value
    if not isinstance(value, tirx.IntImm):
        raise ValueError(f"module: expected a constant {what}, found {value}")
    return int(value)

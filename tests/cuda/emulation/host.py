"""The host part of a CUDA module, as a module for the CPU that launches emulated kernels.

In: a scheduled module and a CUDA target. Out: the CUDA C that TVM generates, how each kernel is
launched, and the host's functions with their checks and grid computations, for arrays in host memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule
from tvm.target import Target
from tvm.tirx.build import split_host_device_mods

from tvm_sparse.runtime.device_code import building_for_cuda

__all__ = ["SplitModule", "build_host", "split"]

_CUDA, _CPU = 2, 1


@dataclass
class SplitModule:
    """Both parts of a lowered module."""

    host: IRModule
    target_host: Target
    source: str
    tags: dict[str, list[str]]


def split(module: IRModule, target: Target, tir_pipeline: str) -> SplitModule:
    """Lower a module for CUDA and generate its device code, as ``tvm.compile`` does."""
    target_host = Target(target.host if target.host is not None else "llvm")
    module = tirx.transform.BindTarget(target.with_host(target_host))(module)
    pipeline, finalize_host, finalize_device = tirx.get_tir_pipeline(tir_pipeline)
    host, devices = split_host_device_mods(pipeline(module))
    source, tags = "", {}
    for device_target, device in devices.items():
        device = finalize_device()(device)
        for var, func in device.functions.items():
            symbol = str(func.attrs.get("global_symbol") or var.name_hint)
            params = func.attrs.get("tirx.kernel_launch_params")
            if params is not None:
                tags[symbol] = [str(tag) for tag in params]
        with building_for_cuda():
            built = tvm.get_global_func("target.build.cuda")(device, device_target)
        source += built.inspect_source()
    return SplitModule(_for_host_memory(finalize_host()(host)), target_host, source, tags)


def build_host(parts: SplitModule) -> tvm_ffi.Module:
    """Compile the host part; it launches kernels of the modules that it is made to import."""
    return tvm.get_global_func("target.build.llvm")(parts.host, parts.target_host)


def _for_host_memory(module: IRModule) -> IRModule:
    """Take arrays and workspaces in host memory where the module takes those of a device."""
    rewritten = IRModule(attrs=module.attrs)
    for var, func in module.functions.items():
        body = tvm_ffi.structural_map(
            func.body, [(tirx.AssertStmt, _accept_host), (tvm.ir.Call, _call)]
        )
        rewritten[var] = func.with_body(body)
    return rewritten


def _accept_host(assertion: tirx.AssertStmt) -> tirx.AssertStmt:
    """Expect the device type of the host in the check of an argument's."""
    condition = assertion.condition
    if not isinstance(condition, tirx.EQ) or not _is_device_type(condition.a):
        return assertion
    expected = tirx.EQ(condition.a, tirx.const(_CPU, "int32"))
    return tirx.AssertStmt(expected, assertion.error_kind, assertion.message_parts, assertion.span)


def _is_device_type(expression: tirx.PrimExpr) -> bool:
    """Whether it reads the device type of an array: field 10 of a DLTensor, for TVM."""
    return (
        isinstance(expression, tvm.ir.Call)
        and _name(expression) == "tirx.tvm_struct_get"
        and int(expression.args[2]) == 10
    )


def _call(call: tvm.ir.Call) -> tvm.ir.Call:
    """Allocate workspaces where their extents are noted, and leave out the choice of a device."""
    name = _name(call)
    if name == "tirx.TVMBackendAllocWorkspace" and int(call.args[0]) == _CUDA:
        return tirx.call_extern(call.ty, "emulation_allocate", call.args[2])
    if name == "tirx.TVMBackendFreeWorkspace" and int(call.args[0]) == _CUDA:
        return tirx.call_extern("int32", "emulation_free", call.args[2])
    if name == "tirx.tvm_call_packed_lowered" and str(call.args[0].value) == "__tvm_set_device":
        return tirx.const(0, "int32")
    return call


def _name(call: tvm.ir.Call) -> str:
    return str(getattr(call.op, "name", ""))

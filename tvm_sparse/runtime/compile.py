"""From a program at any stage to an :class:`Executable`."""

from __future__ import annotations

import functools
import json
import platform
from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule
from tvm.target import Target, codegen

from ..errors import SparseProgramError
from ..ir import SparseFunc
from ..ir.contents import buffers_stored
from ..schedule import SparseSchedule
from ..transform import PIPELINE_NAME, LowerSparseBuffer, LowerSparseIteration
from ..transform._layout import read_layout, size_text
from ..workspace import Policy, assemble, automatic_policies, find_policy, sparse_result
from .adaptive_results import AdaptiveResultKernel
from .architectures import CudaTarget, cuda_target, read_target
from .cuda_compiler import check_architectures
from .device_code import DeviceCode, building_for_cuda
from .executable import Executable
from .sparse_results import SparseResultKernel
from .threads import add_launcher_entry

__all__ = ["compile", "describe_functions", "lower", "resolve_target"]


def compile(
    program: Any,
    target: Any = "llvm",
    *,
    workspace: str | Policy = "auto",
    workspace_bytes: int | None = None,
) -> Executable | SparseResultKernel:
    """Compile a sparse program.

    Parameters
    ----------
    program : SparseFunc, tvm.tirx.PrimFunc, tvm.IRModule, SparseSchedule or tvm.s_tir.Schedule
        A program at any stage, scheduled or not; what is left to do is done.
    target : str, dict or tvm.target.Target
        ``"llvm"`` means the host's CPU with all its features; give ``mcpu`` to compile for another.
        ``"cuda"`` means this machine's first GPU; ``{"kind": "cuda", "arch": "sm_90"}`` needs none, and
        ``"arch"`` may be a list, of which ``"compute_90"`` stands for PTX. Device code is compiled by
        NVRTC, else by nvcc: at once where a GPU is there to run it, else by ``export_library``. It keeps
        IEEE arithmetic (division, square root, denormal numbers) unless ``"fast-math": True`` stands in
        the dict, which means ``--use_fast_math``.
    workspace : str or Policy
        For a function with a result over ``S.sparse_output``: how its entries are collected, the name of a
        policy of :mod:`tvm_sparse.workspace` or a policy. ``"auto"`` chooses at each call; a policy is
        compiled when it is first chosen.
    workspace_bytes : int, optional
        Most bytes of scratch memory of a call of such a function, beside its result.

    Returns
    -------
    Executable or SparseResultKernel
        Call it with arrays in the order of the program's parameters. The latter, for a function with a
        result over ``S.sparse_output``, returns that as a new sparse matrix.

    Raises
    ------
    SparseProgramError
        If the program has no meaning.
    TypeError
        If ``program`` is of another kind.
    ValueError
        If the target is unknown, or its architecture is not said and there is no GPU.
    RuntimeError
        If CUDA's compiler is needed and missing; the message names what to install.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp, tvm_sparse
    >>> kernel = tvm_sparse.compile(tvm_sparse.schedules.spmm.program())
    >>> a = sp.csr_matrix(np.array([[0, 2], [0, 0]], "float32"))
    >>> kernel(a=a, b=np.ones((2, 3), "float32"))
    array([[2., 2., 2.],
           [0., 0., 0.]], dtype=float32)
    """
    func = _function_with_sparse_result(program)
    if func is not None:
        return _with_sparse_result(func, target, workspace, workspace_bytes)
    return _compile(program, target, {})


def _with_sparse_result(
    func: SparseFunc, target: Any, workspace: str | Policy, workspace_bytes: int | None
) -> SparseResultKernel:
    """Compile the first policy of a choice, and let the kernel compile others."""

    resolved = resolve_target(target)
    if resolved.kind.name != "llvm":
        raise ValueError(
            f"target: expected a CPU (llvm) for a function with a result over S.sparse_output, found "
            f"{resolved.kind.name}"
        )
    target = _without_guesses(resolved)

    def build(policy: Policy, windowed: bool) -> tuple[Executable, dict]:
        with target:
            module, description = assemble(func, policy, windowed)
        return _compile(module, target, {"result": description}), description

    policies = [find_policy(workspace)] if workspace != "auto" else automatic_policies(func)
    return AdaptiveResultKernel(
        policies, build, lambda chosen: build(chosen[0], False)[0], workspace_bytes
    )


def _compile(program: Any, target: Any, extra: dict) -> Executable:
    module = lower(program)
    cuda = _cuda_target(target)
    resolved = resolve_target(target) if cuda is None else cuda.target
    metadata = {
        "version": 1,
        "functions": describe_functions(module),
        "target": {str(k): str(v) for k, v in _target_attrs(resolved).items()},
        "cpu_features": _cpu_features(resolved),
        **extra,
    }
    if cuda is not None:
        return _compile_for_cuda(module, cuda, metadata)
    _refuse_gpu_threads(module, resolved)
    with_launcher = add_launcher_entry(module) if resolved.kind.name == "llvm" else module
    return Executable(
        tvm.compile(with_launcher, target=resolved, tir_pipeline=PIPELINE_NAME), metadata
    )


def _refuse_gpu_threads(module: IRModule, target: Target) -> None:
    """Refuse loops that are bound to threads of a GPU in code for a CPU."""
    if target.kind.name != "llvm":
        return

    def refuse(loop: tirx.For) -> None:
        if loop.kind == tirx.ForKind.THREAD_BINDING:
            raise ValueError(
                f"target: expected a GPU, as loop {loop.loop_var.name} is bound to "
                f"{loop.thread_binding.thread_tag}, found {target.kind.name}; pass target={{'kind': "
                "'cuda', 'arch': 'sm_90'}, say"
            )

    for func in module.functions.values():
        tvm_ffi.structural_walk(func, (tirx.For, refuse))


def _compile_for_cuda(module: IRModule, cuda: CudaTarget, metadata: dict) -> Executable:
    """Generate host code and CUDA C; device code is compiled when it is needed."""
    check_architectures(cuda.architectures)
    try:
        with building_for_cuda():
            built = tvm.compile(module, target=cuda.target, tir_pipeline=PIPELINE_NAME)
    except SparseProgramError as error:  # TVM's passes add the whole module to the message
        raise SparseProgramError(str(error).split("\n\nError in pass: ")[0]) from None
    code = DeviceCode.take_from(built.mod, cuda)
    metadata = metadata | {
        "architectures": list(cuda.architectures),
        "fast_math": cuda.fast_math,
        "scratch": "TVMBackendAllocWorkspace" in built.mod.inspect_source("ll"),
    }
    return Executable(built, metadata, device_code=code)


def _function_with_sparse_result(program: Any) -> SparseFunc | None:
    """The function of a program whose result the kernel allocates, None if there is none."""
    if isinstance(program, SparseSchedule):
        program = program.mod
    functions = [program] if isinstance(program, SparseFunc) else []
    if isinstance(program, IRModule):
        functions = [f for f in program.functions.values() if isinstance(f, SparseFunc)]
    found = [func for func in functions if sparse_result(func) is not None]
    if found and len(functions) > 1:
        raise SparseProgramError(
            f"function {found[0].name}: compile a function with a result over S.sparse_output by itself"
        )
    return found[0] if found else None


def lower(program: Any) -> IRModule:
    """Bring a program to stage III.

    Parameters
    ----------
    program : SparseFunc, tvm.tirx.PrimFunc, tvm.IRModule, SparseSchedule or tvm.s_tir.Schedule
        A program at any stage.

    Returns
    -------
    tvm.IRModule
        Stock TensorIR over flat buffers.
    """
    if isinstance(program, tvm.s_tir.Schedule | SparseSchedule):
        program = program.mod
    if isinstance(program, SparseFunc | tirx.PrimFunc):
        symbol = program.attrs.get("global_symbol") if program.attrs else None
        program = IRModule({str(symbol or "main"): program})
    if not isinstance(program, IRModule):
        raise TypeError(
            "program: expected a SparseFunc, PrimFunc, IRModule, SparseSchedule or Schedule, found "
            f"{type(program).__name__}"
        )
    try:
        return LowerSparseBuffer()(LowerSparseIteration()(program))
    except SparseProgramError as error:
        raise error.with_traceback(None) from None  # the passes' own frames tell a user nothing


def describe_functions(module: IRModule) -> dict[str, dict]:
    """Return what the arguments of each function of a lowered module are, by its symbol.

    Parameters
    ----------
    module : tvm.IRModule
        Of stage III, as :func:`lower` returns it.
    """
    return {
        _symbol(module, var.name_hint): _entry(func, read_layout(func))
        for var, func in module.functions.items()
    }


def resolve_target(target: Any) -> Target:
    """Return a target, with ``mcpu`` set to the host's CPU for a bare ``"llvm"``.

    For ``"cuda"``, ``arch`` is that of the first GPU. Of several it is the smallest, for which code is
    generated.

    Parameters
    ----------
    target : str, dict or tvm.target.Target
        A kind (``"llvm"``), a tag of TVM (``"nvidia/nvidia-a100"``), the JSON text of a dict, a dict, or a
        target.

    Raises
    ------
    ValueError
        If the kind, the CPU or the GPU's architecture is unknown.
    """
    cuda = _cuda_target(target)
    if cuda is not None:
        return cuda.target
    if isinstance(target, Target):
        return target
    attrs = _target_mapping(target)
    if attrs.get("kind") == "llvm" and "mcpu" not in attrs and "mtriple" not in attrs:
        attrs["mcpu"] = codegen.llvm_get_system_cpu()
        attrs.setdefault("mattr", _masked_features(attrs["mcpu"]))
    resolved = _known_target(attrs)
    cpu = attrs.get("mcpu")
    if cpu and attrs.get("kind") == "llvm" and not _is_known_cpu(str(cpu), attrs.get("mtriple")):
        raise ValueError(f"target: LLVM knows no CPU {cpu!r}")
    return resolved


def _cuda_target(target: Any) -> CudaTarget | None:
    """Read a target of the kind CUDA, None if it is of another kind."""
    if isinstance(target, Target):
        return read_target(target) if target.kind.name == "cuda" else None
    attrs = _target_mapping(target)
    return cuda_target(attrs) if attrs.get("kind") == "cuda" else None


def _target_mapping(target: Any) -> dict[str, Any]:
    """Return a target as its attributes: of a kind, a tag of TVM, JSON text, or a dict."""
    if not isinstance(target, str | Mapping):
        raise TypeError(
            f'target: expected a kind such as "llvm", a dict or a tvm.target.Target, found {target!r}'
        )
    if isinstance(target, Mapping):
        return dict(target)
    if target.lstrip().startswith("{"):
        return dict(json.loads(target))
    return _target_attrs(_known_target(target)) if "/" in target else {"kind": target}


def _known_target(target: str | dict) -> Target:
    try:
        return Target(target)
    except ValueError as error:
        raise ValueError(
            f'target: expected a kind such as "llvm", or a dict such as {{"kind": "llvm", "mcpu": '
            f'"x86-64-v3"}}, found {target!r}: {str(error).splitlines()[0]}'
        ) from error


def _without_guesses(target: Target) -> Target:
    """Keep LLVM from making branches of selections, which it expects to be easy to predict.

    Where coordinates of two operands meet they are not.
    """
    attrs = _target_attrs(target)
    triple = str(attrs.get("mtriple") or platform.machine())
    if target.kind.name != "llvm" or not triple.lower().startswith(("x86", "amd64", "i686")):
        return target
    options = [*map(str, attrs.get("cl-opt") or []), "-x86-cmov-converter:bool=false"]
    return Target(attrs | {"cl-opt": options})


def _is_known_cpu(cpu: str, triple: str | None) -> bool:
    probe = {"kind": "llvm", **({"mtriple": triple} if triple else {})}
    return cpu in {str(name) for name in codegen.llvm_get_cpu_archlist(Target(probe))}


@functools.cache
def _masked_features(cpu: str) -> list[str]:
    """Features that this CPU's model has but this machine, a virtual one perhaps, does not offer."""
    named = {str(f) for f in codegen.llvm_get_cpu_features(Target({"kind": "llvm", "mcpu": cpu}))}
    host = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    offered = {str(feature): bool(present) for feature, present in host.items()}
    return [f"-{feature}" for feature in sorted(named) if not offered.get(feature, True)]


def _symbol(module: IRModule, name: str) -> str:
    func = module[name]
    symbol = func.attrs.get("global_symbol") if func.attrs else None
    return str(symbol or name)


def _target_attrs(target: Target) -> dict:
    return {"kind": target.kind.name, **dict(target.attrs)}


def _cpu_features(target: Target) -> list[str]:
    if target.kind.name != "llvm":
        return []
    return [str(feature) for feature in codegen.llvm_get_cpu_features(target)]


def _entry(func: tirx.PrimFunc, layout: dict | None) -> dict:
    """Argument metadata of one function; without a layout, from the signature itself."""
    if layout is not None:
        return {key: layout[key] for key in ("args", "axes", "tensors", "formats")}
    written = buffers_stored(func.body)
    args = []
    for param in func.params:
        if tirx.is_buffer_var(param):
            args.append(
                {
                    "name": param.name,
                    "kind": "buffer",
                    "buffer": param.name,
                    "dtype": str(param.ty.dtype),
                    "shape": [size_text(size, {}) for size in param.ty.shape],
                    "role": "inout" if param in written else "input",
                }
            )
        else:
            args.append({"name": param.name, "kind": "scalar", "dtype": str(param.ty.dtype)})
    return {"args": args, "axes": []}

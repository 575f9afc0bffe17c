"""What host code checks before it launches kernels: that the grid is neither empty nor too large.

TVM launches one block where a grid has none, which would read and write what does not exist, and passes on
sizes that CUDA refuses, or cuts them to 32 bits.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

import tvm
import tvm_ffi
from tvm import DataType, tirx
from tvm.ir import Call, Expr, StringImm, TensorLoad, Var
from tvm.sym import Analyzer

from ..errors import SparseProgramError
from ..ir.contents import loads_in
from ._targets import is_for_cuda
from ._tile_loops import dtype_of

__all__ = ["CheckLaunches"]

#: Most blocks of a grid along each axis.
_MOST_BLOCKS = {"blockIdx.x": 2**31 - 1, "blockIdx.y": 65535, "blockIdx.z": 65535}
#: Most threads of a block along each axis, and together.
_MOST_THREADS = {"threadIdx.x": 1024, "threadIdx.y": 1024, "threadIdx.z": 64}
_THREADS_OF_A_BLOCK = 1024
_MOST_NARROW = 2**31 - 1
#: Most bytes of shared memory of a block, by compute capability (CUDA C++ Programming Guide).
_MOST_SHARED = {
    **dict.fromkeys((70, 72), 96 << 10),
    75: 64 << 10,
    **dict.fromkeys((80, 87), 163 << 10),
    **dict.fromkeys((86, 89, 120, 121), 99 << 10),
    **dict.fromkeys((90, 100, 101, 103, 110), 227 << 10),
}
_SHARED = "tirx.use_dyn_shared_memory"

_OPERATIONS = {
    tirx.Add: operator.add,
    tirx.Sub: operator.sub,
    tirx.Mul: operator.mul,
    tirx.FloorDiv: tirx.floordiv,
    tirx.FloorMod: tirx.floormod,
    tirx.Min: tirx.min,
    tirx.Max: tirx.max,
}


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.CheckLaunches")
class CheckLaunches:
    """Launch no empty grid, refuse one that is too large, and host code that reads the device's memory.

    Follows ``SplitHostDevice``. Before::

        def spmm(..., m: T.int32, f: T.int32):
            T.call_ffi_kernel("spmm_kernel", ..., m * f, 256, launch_params=["blockIdx.x", "threadIdx.x"])

    After::

        def spmm(..., m: T.int32, f: T.int32):
            assert T.int64(m) * T.int64(f) <= 2147483647, ("ValueError", ["spmm: expected at most ..."])
            if m * f > 0:
                T.call_ffi_kernel("spmm_kernel", ..., m * f, 256, launch_params=[...])

    The extents are checked in 64 bits, for one that overflows would pass for an empty grid.

    Raises
    ------
    SparseProgramError
        If an extent is too large for any arguments, or a loop over arrays of the device is bound to no
        threads.
    """

    def transform_module(self, module: tvm.IRModule, _context) -> tvm.IRModule:
        """Rewrite the host functions of all targets that have devices."""
        rewritten = tvm.IRModule(attrs=module.attrs, global_infos=module.global_infos)
        for var, func in module.functions.items():
            launches = isinstance(func, tirx.PrimFunc) and _launches(func)
            rewritten[var] = _checked(func, var.name_hint) if launches else func
        return rewritten


def _launches(func: tirx.PrimFunc) -> bool:
    """Whether a function is the host's part of one for a GPU."""
    return is_for_cuda(func) and "tirx.kernel_launch_params" not in (func.attrs or {})


def _checked(func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    _refuse_host_access(func.body, name)
    bound: dict[Var, Expr] = {}

    def note(bind: tirx.Bind) -> None:
        bound[bind.var] = bind.value

    tvm_ffi.structural_walk(func.body, (tirx.Bind, note))
    conditions: list[tirx.Stmt] = []
    architecture = str(func.attrs["target"].attrs.get("arch", ""))

    def guard(stmt: tirx.Evaluate) -> tirx.Stmt:
        extents = _launch_extents(stmt.value)
        if not extents:
            return stmt
        kernel = str(stmt.value.args[0].value)
        _check_shared(f"{name}: kernel {kernel}", stmt.value, architecture)
        conditions.extend(_conditions(f"{name}: kernel {kernel}", extents, bound))
        return _unless_empty(stmt, list(extents.values()))

    body = tvm_ffi.structural_map(func.body, (tirx.Evaluate, guard))
    return func.with_body(tirx.SeqStmt([*conditions, body]) if conditions else body)


def _refuse_host_access(body: tirx.Stmt, name: str) -> None:
    """Refuse loads and stores outside of kernels: the host can't reach the memory of the device."""

    def refuse(access: TensorLoad | tirx.BufferStore) -> None:
        loads = isinstance(access, TensorLoad)
        buffer = access.source if loads else access.buffer
        rounded = "" if loads else _rounded(access)
        raise SparseProgramError(
            f"function {name}: buffer {buffer.name!r} is {'read' if loads else 'written'} outside of a "
            f"kernel{rounded}; bind the loops of each block to threads of the GPU, as in "
            'schedule.bind(loop, "blockIdx.x")'
        )

    handlers = [(TensorLoad, refuse), (tirx.BufferStore, refuse)]
    tvm_ffi.structural_walk(body, handlers, order="pre")


def _rounded(store: tirx.BufferStore) -> str:
    """Say which sums a store rounds to half precision: blocks that no program has do that."""
    loads = loads_in(store.value)
    if len(loads) != 1 or DataType(str(store.buffer.ty.dtype)).itemsize != 2:
        return ""
    sums = loads[0].source
    if str(sums.ty.dtype) != "float32":
        return ""
    return f", by the block that rounds it, which follows the sums in float32, {sums.name!r}"


def _launch_extents(value: Expr) -> dict[str, Expr]:
    """Return the extents of a launch by axis, none if it is no launch."""
    tags = [str(tag) for tag in getattr(getattr(value, "attrs", None), "launch_params", ())]
    if not isinstance(value, Call) or not tags:
        return {}
    found = zip(tags, list(value.args)[len(value.args) - len(tags) :])
    return {tag: extent for tag, extent in found if tag in _MOST_BLOCKS | _MOST_THREADS}


def _check_shared(label: str, launch: Call, architecture: str) -> None:
    """Refuse more shared memory than a block of threads may have."""
    number = architecture.removeprefix("sm_").rstrip("af")
    most = _MOST_SHARED.get(int(number)) if number.isdigit() else None
    tags = [str(tag) for tag in launch.attrs.launch_params]
    wanted = dict(zip(tags, list(launch.args)[len(launch.args) - len(tags) :])).get(_SHARED)
    if most is not None and isinstance(wanted, tirx.IntImm) and int(wanted) > most:
        raise SparseProgramError(
            f"{label}: expected at most {most} bytes of shared memory of a block for {architecture}, found "
            f"{int(wanted)}; take smaller tiles, or fewer stages"
        )


def _unless_empty(launch: tirx.Stmt, extents: list[Expr]) -> tirx.Stmt:
    positive = [e > tirx.const(0, dtype_of(e)) for e in extents if not isinstance(e, tirx.IntImm)]
    if not positive:
        return launch
    return tirx.IfThenElse(tirx.all(*positive), launch, None)


def _conditions(
    label: str, extents: Mapping[str, Expr], bound: Mapping[Var, Expr]
) -> list[tirx.Stmt]:
    """Return assertions that the extents are what CUDA takes; none where that is known."""
    wide = {tag: _widened(extent, bound) for tag, extent in extents.items()}
    found = []
    for tag, extent in wide.items():
        most = _MOST_BLOCKS.get(tag) or _MOST_THREADS[tag]
        what = f"{'blocks' if tag in _MOST_BLOCKS else 'threads'} along {tag[-1]}"
        found.append((extent <= most, f"at most {most} {what}"))
    threads = [extent for tag, extent in wide.items() if tag in _MOST_THREADS]
    if len(threads) > 1:
        total = threads[0]
        for extent in threads[1:]:
            total = total * extent
        found.append(
            (total <= _THREADS_OF_A_BLOCK, f"at most {_THREADS_OF_A_BLOCK} threads a block")
        )
    for extent in extents.values():
        for step in _narrow_steps(_unbound(extent, bound)):
            found.append(
                (_widened(step, bound) <= _MOST_NARROW, "sizes whose sums and products fit 32 bits")
            )
    return [stmt for condition, what in found for stmt in _assertion(label, condition, what)]


def _narrow_steps(extent: Expr) -> list[Expr]:
    """Sums and products on the way to an extent that are computed in 32 bits.

    TVM takes it that they fit, and would simplify a comparison with the same in 64 bits away.
    """
    found: list[Expr] = []

    def note(step: Expr) -> None:
        if dtype_of(step) == "int32":
            found.append(step)

    tvm_ffi.structural_walk(extent, [(tirx.Add, note), (tirx.Mul, note)])
    return found


def _assertion(label: str, condition: Expr, expected: str) -> list[tirx.Stmt]:
    condition = Analyzer().simplify(condition)
    if isinstance(condition, tirx.IntImm):
        if int(condition):
            return []
        raise SparseProgramError(f"{label}: expected {expected}, found more; bind smaller loops")
    text = f"{label}: expected {expected}, found more; the arrays are too large for its schedule"
    return [tirx.AssertStmt(condition, StringImm("ValueError"), [StringImm(text)])]


def _widened(expr: Expr, bound: Mapping[Var, Expr]) -> Expr:
    """Compute an extent in 64 bits, from the arguments of the function."""
    if isinstance(expr, tirx.IntImm):
        return tirx.IntImm("int64", int(expr))
    if isinstance(expr, tirx.Cast):
        return _widened(expr.value, bound)
    if isinstance(expr, Var) and expr in bound:
        return _widened(bound[expr], bound)
    operation = _OPERATIONS.get(type(expr))
    if operation is not None:
        return operation(_widened(expr.a, bound), _widened(expr.b, bound))
    return _unbound(expr, bound).astype("int64")


def _unbound(expr: Expr, bound: Mapping[Var, Expr]) -> Expr:
    """Write an expression without the variables that the function binds."""
    return tvm_ffi.structural_map(
        expr, (Var, lambda var: _unbound(bound[var], bound) if var in bound else var)
    )

"""Have the host check that arguments of CUDA kernels lie where vectors of them can be moved.

CUDA reads and writes a vector at multiples of its size only: elsewhere it is an error after which the
process can't use the device any more. Views that frameworks make may begin anywhere.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, PointerType, PrimType, StringImm, TensorLoad, Var
from tvm.tirx.buffer import buffer_data

from ._layout import read_layout
from ._targets import is_for_cuda
from .align_vectors import vector_bytes

__all__ = ["CheckAlignment"]

#: TVM's number of the value in a word that arguments of packed functions are passed in.
_VALUE = 15
#: Bytes of the widest load or store.
_MOST_BYTES = 16


def CheckAlignment() -> tvm.transform.Pass:
    """Build the pass that has the host check the addresses of arguments that vectors are moved of.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs for CUDA whose vectors are lowered, right before host and device are split.

    Notes
    -----
    Before::

        with T.launch_thread("blockIdx.x", m) as i:
            b[0:8] = B[j * 64 : j * 64 + 8]

    and after::

        assert address_of(B) & 15 == 0, ("ValueError", ["argument 'b': expected ..."])
        with T.launch_thread("blockIdx.x", m) as i:
            b[0:8] = B[j * 64 : j * 64 + 8]

    Examples
    --------
    >>> from tvm_sparse.transform import CheckAlignment
    >>> CheckAlignment().info.name
    'tvm_sparse.CheckAlignment'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        if not is_for_cuda(func):
            return func
        checks = _checks(func)
        return func.with_body(tirx.SeqStmt([*checks, func.body])) if checks else func

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.CheckAlignment")


def _checks(func: tirx.PrimFunc) -> list[tirx.Stmt]:
    needed = _needed(func.body)
    args = (read_layout(func) or {}).get("args", [{}] * len(func.params))
    word = Var("word", PointerType(PrimType("void")))
    checks = [
        check
        for param, arg in zip(func.params, args)
        if tirx.is_buffer_var(param)
        and needed.get(param, 1) > tvm.DataType(str(param.ty.dtype)).itemsize
        for check in _check(param, arg.get("name", param.name), needed[param], word)
    ]
    stack = tirx.Bind(word, tirx.tvm_stack_alloca("tvm_ffi_any", 1))
    return [stack, *checks] if checks else []


def _needed(body: tirx.Stmt) -> dict[Var, int]:
    """Bytes that the address of each buffer has to be a multiple of."""
    needed = vector_bytes(body)
    aliases = _aliases(body)
    followed = [address for _, _, address in aliases if address is not None]
    for buffer in _addressed(body, followed):
        needed[buffer] = _MOST_BYTES
    for alias, buffer, _ in reversed(aliases):
        needed[buffer] = max(needed.get(buffer, 1), needed.get(alias, 1))
    return needed


def _aliases(body: tirx.Stmt) -> list[tuple[Var, Var, Call | None]]:
    """Buffers declared over others, those, and the address in them where the former begin.

    Aliases of aliases come after what they stand for.
    """
    found: list[tuple[Var, Var, Call | None]] = []
    pointers: dict[Var, Call] = {}

    def note_pointer(bind: tirx.Bind) -> None:
        addresses: list[Call] = []
        tvm_ffi.structural_walk(
            bind.value, (Call, lambda call: addresses.append(call) if _is_address(call) else None)
        )
        if len(addresses) == 1 and isinstance(bind.var.ty, PointerType):
            pointers[bind.var] = addresses[0]

    def note(stmt: tirx.DeclBuffer) -> None:
        if isinstance(stmt.data, Call) and _name(stmt.data) == "tirx.buffer_data":
            found.append((stmt.buffer, stmt.data.args[0], None))
        elif stmt.data in pointers:
            address = pointers[stmt.data]
            found.append((stmt.buffer, address.args[0].source, address))

    tvm_ffi.structural_walk(body, (tirx.Bind, note_pointer))
    tvm_ffi.structural_walk(body, (tirx.DeclBuffer, note))
    return found


def _addressed(body: tirx.Stmt, followed: list[Call]) -> list[Var]:
    """Buffers whose addresses intrinsics take, which may move vectors of them; but for those followed."""
    found: list[Var] = []

    def note(call: Call) -> None:
        if _is_address(call) and not any(call.same_as(other) for other in followed):
            found.append(call.args[0].source)
        passed = [arg for arg in call.args if isinstance(arg, Call)]
        found.extend(arg.args[0] for arg in passed if _name(arg) == "tirx.buffer_data")

    tvm_ffi.structural_walk(body, (Call, note))
    return found


def _is_address(call: Call) -> bool:
    return _name(call) == "tirx.address_of" and isinstance(call.args[0], TensorLoad)


def _name(call: Call) -> str:
    return str(getattr(call.op, "name", ""))


def _check(param: Var, name: str, alignment: int, word: Var) -> list[tirx.Stmt]:
    """Put the address into a word of the stack, for TVM makes no number of a pointer, and look at it."""
    address = tirx.tvm_struct_get(word, 0, _VALUE, "int64")
    remainder = tirx.bitwise_and(address, tirx.const(alignment - 1, "int64"))
    text = (
        f"argument '{name}': expected an array whose address is a multiple of {alignment} bytes, found a "
        "view that begins elsewhere; pass a copy"
    )
    holds = tirx.EQ(remainder, tirx.const(0, "int64"))
    return [
        tirx.Evaluate(tirx.tvm_struct_set(word, 0, _VALUE, buffer_data(param))),
        tirx.AssertStmt(holds, StringImm("ValueError"), [StringImm(text)]),
    ]

"""Compute what a thread adds to all places of an array once, as a pointer.

A lane reads ``B[col[j] * f + lane * 4]`` for every entry ``j``. The compiler adds the lane before it scales
the sum to bytes: three instructions of 64 bits for each entry. With the lane in the pointer it is one
multiply-add.
"""

from __future__ import annotations

from collections.abc import Iterable

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, PointerType, PrimType, TensorLoad, Var

from ..ir.contents import has_loads, variables_of

__all__ = ["HoistBases"]

_OPAQUE = "tvm_sparse_base"
#: NVIDIA's compiler would put the sum together again, did it know where the pointer comes from.
_SOURCE = """
template <typename Pointer>
__forceinline__ __device__ Pointer tvm_sparse_base(Pointer place) {
#ifdef __CUDA_ARCH__
  asm("" : "+l"(place));
  __builtin_assume(__isGlobal(place));
#endif
  return place;
}
"""


def HoistBases() -> tvm.transform.Pass:
    """Build the pass that moves what depends on the thread alone from indices into pointers.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs of flat buffers, with threads.

    Notes
    -----
    Before::

        for j in range(n):
            b[0:4] = B[col[j] * f + lane * 4 : col[j] * f + lane * 4 + 4]

    and after::

        B_at = T.address_of(B[lane * 4])
        for j in range(n):
            b[0:4] = B_at[col[j] * f : col[j] * f + 4]

    Loads whose place is looked up in memory are rewritten; the first of them decides for each array and
    thread part.

    Examples
    --------
    >>> from tvm_sparse.transform import HoistBases
    >>> HoistBases().info.name
    'tvm_sparse.HoistBases'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        def kernel(node: tirx.AttrStmt, mutator) -> tirx.Stmt:
            if node.attr_key != "thread_extent" or _has_threads(node.body):
                return mutator.default_mutate(node)
            body = _hoist(node.body, _threads(func.body))
            return tirx.AttrStmt(node.node, node.attr_key, node.value, body, node.span)

        return func.with_body(tvm_ffi.structural_mutate(func.body, [(tirx.AttrStmt, kernel)]))

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.HoistBases")


def _threads(body: tirx.Stmt) -> set[Var]:
    """The variables of ``threadIdx`` of all kernels."""
    found: set[Var] = set()

    def note(node: tirx.AttrStmt) -> None:
        if node.attr_key == "thread_extent" and str(node.node.thread_tag).startswith("threadIdx"):
            found.add(node.node.var)

    tvm_ffi.structural_walk(body, (tirx.AttrStmt, note))
    return found


def _has_threads(body: tirx.Stmt) -> bool:
    found: list[tirx.AttrStmt] = []

    def note(node: tirx.AttrStmt) -> None:
        if node.attr_key == "thread_extent":
            found.append(node)

    tvm_ffi.structural_walk(body, (tirx.AttrStmt, note))
    return bool(found)


def _hoist(body: tirx.Stmt, threads: set[Var]) -> tirx.Stmt:
    made: list[tuple[Var, Expr, Var]] = []
    statements: list[tirx.Stmt] = []

    def moved(buffer: Var, base: Expr) -> Var:
        for known, part, alias in made:
            if known.same_as(buffer) and tvm_ffi.structural_equal(part, base):
                return alias
        dtype = str(buffer.ty.dtype)
        pointer = Var(f"{buffer.name}_at", PointerType(PrimType(dtype), "global"))
        alias = tirx.decl_buffer(
            buffer.ty.shape, dtype, f"{buffer.name}_at", data=None, scope="global"
        )
        place = tirx.address_of(tirx.BufferLoad(buffer, [base]))
        value = tirx.call_intrin(pointer.ty, "tirx.cuda.func_call", _OPAQUE, place, _SOURCE)
        statements.append(tirx.Bind(pointer, value))
        statements.append(tirx.DeclBuffer(alias, data=pointer))
        made.append((buffer, base, alias))
        return alias

    def load(node: TensorLoad, mutator) -> Expr:
        node = mutator.default_mutate(node)
        if node.source.ty.storage_scope != "global" or len(node.indices) != 1:
            return node
        index = node.indices[0]
        first = index.base if isinstance(index, tirx.Ramp) else index
        base, rest = _split(first, threads)
        if base is None or rest is None or not has_loads(rest):
            return node
        place = tirx.Ramp(rest, index.stride, index.lanes) if isinstance(index, tirx.Ramp) else rest
        return tirx.BufferLoad(moved(node.source, base), [place])

    rewritten = tvm_ffi.structural_mutate(body, [(TensorLoad, load)])
    return tirx.SeqStmt([*statements, rewritten]) if statements else body


def _split(index: Expr, threads: set[Var]) -> tuple[Expr | None, Expr | None]:
    """The terms of a sum that threads and constants make up, if threads do, and the others."""
    own, others = [], []
    for term in _terms(index):
        (own if variables_of(term) and variables_of(term) <= threads else others).append(term)
    return _sum(own), _sum(others)


def _terms(expr: Expr) -> Iterable[Expr]:
    if isinstance(expr, tirx.Add):
        yield from _terms(expr.a)
        yield from _terms(expr.b)
    else:
        yield expr


def _sum(terms: list[Expr]) -> Expr | None:
    total = None
    for term in terms:
        total = term if total is None else total + term
    return total

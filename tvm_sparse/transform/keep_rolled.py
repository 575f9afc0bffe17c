"""Keep LLVM from unrolling short loops: what it gains on long rows it loses several times on short ones.

LLVM unrolls a loop whose number of steps it can compute cheaply, and runs the steps left over in a second
loop. Rows of a few tiles each, all different, then take branches that the processor cannot guess. A step
whose size LLVM does not know makes the number of steps a division, too dear to compute.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

from ._tile_loops import dtype_of

__all__ = ["ROLLED", "KeepRolled"]

#: Annotation of loops that stay as they are.
ROLLED = "tvm_sparse.rolled"


def KeepRolled() -> tvm.transform.Pass:
    """Build the pass that hides the step of annotated serial loops from LLVM.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs of plain loops, the last one that looks at their steps.

    Notes
    -----
    Before::

        for t in T.serial(n, annotations={"tvm_sparse.rolled": True}):
            y[0:4] += x[t * 4 : t * 4 + 4]

    and after::

        step = T.cast(T.call_llvm_pure_intrin("float32", "llvm.arithmetic.fence", 4.0), "int32")
        for t in T.serial(n * 4, step=step):
            y[0:4] += x[t : t + 4]

    Examples
    --------
    >>> from tvm_sparse.transform import KeepRolled
    >>> KeepRolled().info.name
    'tvm_sparse.KeepRolled'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        steps: dict[tuple[int, str], tirx.Var] = {}
        target = func.attrs.get("target")
        for_llvm = target is not None and target.kind.name == "llvm"

        def rewrite(loop: tirx.For) -> tirx.For:
            if ROLLED not in loop.annotations:
                return loop
            if for_llvm and loop.kind == tirx.ForKind.SERIAL and loop.step is None:
                return _keep_rolled(loop, steps)
            return _loop(loop, loop.extent, loop.body, loop.step)

        body = tvm_ffi.structural_map(func.body, (tirx.For, rewrite))
        bindings = [tirx.Bind(var, _hidden(*number)) for number, var in steps.items()]
        return func.with_body(tirx.SeqStmt([*bindings, body]) if bindings else body)

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.KeepRolled")


def _keep_rolled(loop: tirx.For, steps: dict[tuple[int, str], tirx.Var]) -> tirx.For:
    """Step by the number that the loop variable is multiplied with, or by one."""
    var, dtype = loop.loop_var, dtype_of(loop.loop_var)
    factors: list[int] = []
    uses: list[tirx.Var] = []

    def note_product(product: tirx.Mul) -> None:
        if product.a.same_as(var) and isinstance(product.b, tirx.IntImm):
            factors.append(int(product.b))

    def note_use(used: tirx.Var) -> None:
        if used.same_as(var):
            uses.append(used)

    tvm_ffi.structural_walk(loop.body, [(tirx.Mul, note_product), (tirx.Var, note_use)])
    if len(set(factors)) != 1 or len(factors) != len(uses):
        return _loop(loop, loop.extent, loop.body, _step(steps, 1, dtype))
    body = tvm_ffi.structural_map(
        loop.body, (tirx.Mul, lambda product: var if product.a.same_as(var) else product)
    )
    return _loop(loop, loop.extent * factors[0], body, _step(steps, factors[0], dtype))


def _step(steps: dict[tuple[int, str], tirx.Var], size: int, dtype: str) -> tirx.Var:
    return steps.setdefault((size, dtype), tirx.Var(f"step_{size}", dtype))


def _hidden(value: int, dtype: str) -> tvm.ir.Expr:
    """A number that LLVM must take for any number."""
    number = tirx.call_llvm_pure_intrin(
        "float32", "llvm.arithmetic.fence", tirx.const(float(value), "float32")
    )
    return number.astype(dtype)


def _loop(loop: tirx.For, extent, body: tirx.Stmt, step) -> tirx.For:
    annotations = {key: value for key, value in loop.annotations.items() if key != ROLLED}
    return tirx.For(
        loop.loop_var,
        loop.min,
        extent,
        loop.kind,
        body,
        loop.thread_binding,
        annotations,
        step,
        loop.span,
    )

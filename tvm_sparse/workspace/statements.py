"""Short ways to write TensorIR: local variables, loops, bit operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.ir import Expr, Var
from tvm.target import Target, codegen

__all__ = [
    "Local",
    "bit_length",
    "count_bits",
    "has_feature",
    "int64",
    "loop",
    "minimum",
    "sequence",
    "trailing_zeros",
    "when",
]


class Local:
    """A variable of a generated program: one element in a register.

    Parameters
    ----------
    name : str
        Its name.
    dtype : str
        Its type.
    """

    def __init__(self, name: str, dtype: str) -> None:
        self.dtype = dtype
        self._buffer = tirx.decl_buffer((1,), dtype, name, scope="global")

    @property
    def value(self) -> Expr:
        """What it holds."""
        return tirx.BufferLoad(self._buffer, [tirx.const(0, "int32")])

    def set(self, value: Expr | int) -> tirx.Stmt:
        """Return the statement that stores a value."""
        value = tirx.const(value, self.dtype) if isinstance(value, int) else value
        return tirx.BufferStore(self._buffer, value, [tirx.const(0, "int32")])

    def declare(self, value: Expr | int) -> list[tirx.Stmt]:
        """Return the statements that make it and store its first value."""
        return [tirx.AllocBuffer(self._buffer), self.set(value)]


def sequence(*parts: tirx.Stmt | Sequence[tirx.Stmt]) -> tirx.Stmt:
    """Return statements one after another."""
    flat: list[tirx.Stmt] = []
    for part in parts:
        for stmt in [part] if isinstance(part, tirx.Stmt) else part:
            flat += list(stmt.seq) if isinstance(stmt, tirx.SeqStmt) else [stmt]
    return flat[0] if len(flat) == 1 else tirx.SeqStmt(flat)


def int64(value: int) -> Expr:
    """Return a constant."""
    return tirx.const(value, "int64")


def minimum(first: Expr, second: Expr) -> Expr:
    """Return the smaller of two."""
    return tirx.Min(first, second)


def when(condition: Expr, then: tirx.Stmt, otherwise: tirx.Stmt | None = None) -> tirx.IfThenElse:
    """Return a statement for each case."""
    return tirx.IfThenElse(condition, then, otherwise)


def loop(
    name: str,
    begin: Expr,
    end: Expr,
    body: Callable[[Var], tirx.Stmt],
    kind: int = tirx.ForKind.SERIAL,
) -> tirx.For:
    """Return a loop over ``begin .. end - 1``."""
    var = Var(name, str(end.ty.dtype))
    return tirx.For(var, begin, end - begin, kind, body(var))


def trailing_zeros(word: Expr) -> Expr:
    """Return the place of the lowest bit of a word of 64 bits that is set; it has one."""
    return tirx.call_llvm_pure_intrin("int64", "llvm.cttz.i64", word, tirx.const(True, "bool"))


def bit_length(number: Expr) -> Expr:
    """Return how many bits a number that is not negative takes, 0 for 0."""
    zeros = tirx.call_llvm_pure_intrin("int64", "llvm.ctlz.i64", number, tirx.const(False, "bool"))
    return int64(64) - zeros


def count_bits(word: Expr) -> Expr:
    """Return how many bits of a word of 64 bits are set."""
    return tirx.call_llvm_pure_intrin("int64", "llvm.ctpop.i64", word)


def has_feature(name: str) -> bool:
    """Whether the target in scope is a CPU with a feature, by LLVM's name."""
    target = Target.current(allow_none=True)
    if target is None or target.kind.name != "llvm":
        return False
    return name in {str(feature) for feature in codegen.llvm_get_cpu_features(target)}

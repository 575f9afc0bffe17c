"""Loads into registers stand under the conditions of their use, in whatever form those are written."""

from __future__ import annotations

import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

from tvm_sparse.ir.contents import loads_from
from tvm_sparse.transform import GuardLoads


def program(use: str) -> tirx.PrimFunc:
    """A loop over entries that loads four values of a row into registers, and uses them."""
    return tvm.script.from_source(
        f"""
@T.prim_func(s_tir=True)
def f(col: T.Buffer((8,), "int32"), A: T.Buffer((8,), "int32"), B: T.Buffer((64,), "int32"),
      C: T.Buffer((4,), "int32")):
    b = T.alloc_buffer((4,), "int32", scope="local")
    for j in range(8):
        for k in T.vectorized(4):
            b[k] = B[col[j] * 4 + k]
        for k in T.unroll(4):
            {use}
""",
        extra_vars={"T": T},
    )


def conditions_of_loads(func: tirx.PrimFunc) -> list[str]:
    """Return the conditions of statements around the load from B."""
    guarded = GuardLoads()(tvm.IRModule({"f": func}))["f"]
    source = next(p for p in guarded.params if p.name == "B")
    found: list[str] = []

    def descend(stmt) -> None:
        if isinstance(stmt, tirx.IfThenElse) and loads_from(stmt.then_case, source):
            found.append(str(stmt.condition))
            descend(stmt.then_case)
        elif isinstance(stmt, tirx.For):
            descend(stmt.body)
        elif isinstance(stmt, tirx.SeqStmt):
            for each in stmt.seq:
                descend(each)
        elif hasattr(stmt, "block"):
            descend(stmt.block.body)

    descend(guarded.body)
    return found


@pytest.mark.parametrize(
    "use, expected",
    [
        ("if col[j] >= 0:\n                C[k] = C[k] + A[j] * b[k]", ["col[j] >= 0"]),
        ("C[k] = C[k] + A[j] * T.if_then_else(col[j] >= 0, b[k], 0)", ["col[j] >= 0"]),
        ("C[k] = C[k] + A[j] * T.Select(col[j] >= 0, b[k], 0)", ["col[j] >= 0"]),
        ("C[k] = C[k] + A[j] * T.if_then_else(col[j] < 0, 0, b[k])", ["not col[j] < 0"]),
        (
            "if A[j] != 0:\n                C[k] = C[k] + T.if_then_else(col[j] >= 0, b[k], 0)",
            ["A[j] != 0", "col[j] >= 0"],
        ),
        ("C[k] = C[k] + T.if_then_else(col[j] + k < 9, b[k], 0)", ["col[j] + k < 9"]),
        ("C[k] = C[k] + T.if_then_else(col[j] >= 0, b[k], b[k] + 1)", []),
        ("C[k] = C[k] + A[j] * b[k]", []),
    ],
)
def test_loads_stand_under_the_conditions_of_their_use(use, expected):
    assert conditions_of_loads(program(use)) == expected

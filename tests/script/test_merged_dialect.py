"""Programs with merged axes print text that parses back to an equal program."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi

from tests.programs.merged import program
from tvm_sparse.script import from_source

EXTRA = """
F = S.dense_fixed(4)
T0 = S.alloc_sparse_buffer((I, N), "float64")
"""
AXES = {
    "union": "I, S.union(J0, J1)",
    "intersection of three": "I, S.intersect(J0, J1, J2)",
    "with all columns": "I, S.union(N, J1)",
    "with an attached member": "I, S.intersect(J0, S.attach(J1, M))",
    "attached twice": "I, S.union(S.attach(J0, M), S.attach(J0, I))",
    "attached to a union": "S.union(I, M), S.attach(J0, S.union(I, M))",
    "merged with one that is attached to a union": (
        "S.union(I, M), S.intersect(J1, S.attach(J0, S.union(I, M)))"
    ),
}


@pytest.mark.parametrize("name", AXES)
def test_printed_programs_parse_back(name):
    axes = AXES[name]
    first = "M, " if "M)" in axes and not axes.startswith("S.union") else ""
    variables, kinds = ("h, i, j", "SSS") if first else ("i, j", "SS")
    result = "(M, I, N)" if first else "(I, N)"
    at = variables
    body = f"""
with S.sp_iter([{first}{axes}], "{kinds}", "merged") as [{variables}]:
    Y[{at}] = A0[i, j] + A1[i, j]
"""
    func = program(3, body, result, extra=EXTRA)
    text = func.script()
    assert axes.split(", ", 1)[1] in text or axes in text
    again = from_source(text)
    assert tvm_ffi.structural_equal(again, func)
    assert again.script() == text
    assert tvm_ffi.structural_equal(tvm.ir.load_json(tvm.ir.save_json(func)), func)


def test_unions_and_intersections_differ():
    body = 'with S.sp_iter([I, S.KIND(J0, J1)], "SS", "x") as [i, j]:\n    Y[i, j] = A0[i, j]'
    both = [program(2, body.replace("KIND", kind)) for kind in ("union", "intersect")]
    assert not tvm_ffi.structural_equal(*both)

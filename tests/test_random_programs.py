"""Compiled random programs give what the interpreter of stage I gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from tests.execution import run
from tests.interpreter import interpret
from tests.random_programs import Program, programs
from tvm_sparse.script import from_source


def check(program: Program) -> None:
    func = from_source(program.text)
    expected = interpret(func, program.arrays, program.scalars)
    results = run(func, program.arrays, program.scalars, tuple(program.outputs))
    for name, array in results.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


@given(programs())
def test_compiled_programs_agree_with_the_interpreter(program):
    check(program)

"""The interpreter of stage I agrees with the NumPy references of the nineteen programs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.interpreter import interpret
from tests.programs.references import REFERENCES, STRUCTURES, Draw
from tests.programs.scripts import PROGRAMS, parse


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_interpreter_agrees_with_the_reference(name, structure):
    case = REFERENCES[name](Draw(structure, "int32", seed=len(name)))
    results = interpret(parse(name), case.arrays, case.sizes)
    for output, expected in case.expected.items():
        np.testing.assert_allclose(results[output], expected, rtol=1e-6, atol=1e-6)

"""Each of SparseTIR's test programs parses, round-trips, lowers, compiles and is right."""

from __future__ import annotations

import functools
import zlib

import numpy as np
import pytest
import tvm
import tvm_ffi

from tests.execution import Kernel, build, lower, poisoned, stage_two
from tests.programs.references import REFERENCES, STRUCTURES, Case, Draw
from tests.programs.scripts import PROGRAMS, SIZES, parse
from tvm_sparse.ir import SparseFunc
from tvm_sparse.script import from_source

NAMES = tuple(PROGRAMS)
INDEX_TYPES = (("int32", "int32"), ("int64", "int32"), ("int64", "int64"))


def _draw(name: str, structure: str, index: str) -> Case:
    seed = zlib.crc32(f"{name} {structure}".encode())
    return REFERENCES[name](Draw(structure, index, seed))


def _check(kernel: Kernel, case: Case, sizes: dict[str, int]) -> None:
    arrays = dict(case.arrays)
    for name in case.expected:
        arrays[name] = poisoned(arrays[name].shape, str(arrays[name].dtype))
    results = kernel(arrays, sizes)
    for name, expected in case.expected.items():
        np.testing.assert_allclose(results[name], expected, rtol=1e-5, atol=1e-5)
    for name in set(arrays) - set(case.expected):
        np.testing.assert_array_equal(results[name], case.arrays[name])


@functools.cache
def _symbolic(name: str, index: str, size: str) -> tuple[SparseFunc, Kernel]:
    func = parse(name, index, size=size)
    return func, build(func)


def test_all_nineteen_programs_are_here():
    assert len(NAMES) == 19
    assert set(NAMES) == set(SIZES) == set(REFERENCES)


@pytest.mark.parametrize("name", NAMES)
def test_print_parses_back_to_an_equal_program(name):
    for index, size in INDEX_TYPES:
        func = parse(name, index, size=size)
        assert tvm_ffi.structural_equal(from_source(func.script()), func)
    literal = parse(name, literal={size: 6 for size in SIZES[name].split()})
    assert tvm_ffi.structural_equal(from_source(literal.script()), literal)


@pytest.mark.parametrize("name", NAMES)
def test_both_lowered_stages_are_well_formed_and_print(name):
    for index, size in INDEX_TYPES:
        func = parse(name, index, size=size)
        for module in (stage_two(func), lower(func)):
            assert tvm.s_tir.analysis.verify_well_formed(module)
            assert "sblock" in module.script()


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("index, size", INDEX_TYPES)
@pytest.mark.parametrize("name", NAMES)
def test_symbolic_sizes_one_kernel_serves_every_structure(name, index, size, structure):
    _, kernel = _symbolic(name, index, size)
    case = _draw(name, structure, index)
    _check(kernel, case, case.sizes)


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("name", NAMES)
def test_specialized_sizes_give_the_same_numbers(name, index):
    func, _ = _symbolic(name, index, "int32")
    case = _draw(name, "empty_rows", index)
    narrow = func.specialize(case.sizes)
    assert not set(narrow.arg_names) & set(case.sizes)
    _check(build(narrow), case, {})


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", NAMES)
def test_literal_sizes_give_the_same_numbers(name, structure):
    index = "int64" if structure in ("no_entries", "one_column") else "int32"
    case = _draw(name, structure, index)
    _check(build(parse(name, index, literal=case.sizes)), case, {})

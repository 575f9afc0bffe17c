"""The layout of a format describes the arrays that the format makes."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx

from tests.execution import build
from tests.formats.cases import CASES, Case
from tests.formats.densify import densify_program, densify_with
from tests.formats.tensors import reference
from tvm_sparse.formats import Entries, Packed
from tvm_sparse.ir.buffer import storage_sizes
from tvm_sparse.script import from_source

#: Shapes by rank, and how many entries, repeated ones included, are drawn in them.
STRUCTURES = {
    1: [((7,), 5), ((7,), 0), ((0,), 0), ((1,), 1)],
    2: [((6, 5), 14), ((9, 4), 3), ((1, 7), 5), ((7, 1), 5), ((3, 3), 0), ((0, 4), 0), ((4, 0), 0)],
    3: [((4, 5, 3), 20), ((3, 1, 6), 4), ((3, 4, 5), 0), ((0, 2, 3), 0), ((2, 0, 3), 0)],
    4: [((3, 2, 4, 3), 20), ((2, 2, 2, 2), 0), ((2, 0, 2, 0), 0)],
}
#: Types of index arrays and of the sizes of the tensor.
INDEX_TYPES = (("int32", "int32"), ("int64", "int64"), ("int64", "int32"))


def _draw(case: Case, shape: tuple[int, ...], count: int) -> Entries:
    rng = np.random.default_rng([count, *shape])
    arrays = tuple(rng.integers(0, extent, count) for extent in shape)
    values = rng.integers(1, 9, count).astype(np.float32)
    return case.arrange(Entries(arrays, values, shape))


def _poison_padding(packed: Packed) -> None:
    """Padding that no value marks lies outside of the tensor, so it does not matter what it holds."""
    padding = np.ones(packed.values.size, bool)
    padding[packed.storage.slots] = False
    packed.values.reshape(-1)[padding] = np.nan


@pytest.mark.parametrize("index_dtype, size_dtype", INDEX_TYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_iterating_a_layout_visits_what_was_packed(case: Case, index_dtype, size_dtype):
    kernel = build(densify_program(case.format, index_dtype, size_dtype=size_dtype))
    for shape, count in STRUCTURES[case.format.rank]:
        tensor = _draw(case, shape, count)
        packed = case.format.pack(tensor, index_dtype)
        if not case.format.marks_padding:
            _poison_padding(packed)
        expected = np.zeros(shape, np.float32)
        entries = reference(tensor, keeps_duplicates=False)
        expected[entries.coordinates] = entries.values
        np.testing.assert_array_equal(densify_with(kernel, packed), expected, str((shape, count)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_packed_arrays_have_the_shapes_and_names_of_the_layout(case: Case):
    sizes = [tirx.Var(f"n{dim}", "int32") for dim in range(case.format.rank)]
    layout = case.format.layout("a", sizes, "int32")
    axes = [stored.axis for stored in layout.axes]
    for shape, count in STRUCTURES[case.format.rank]:
        packed = case.format.pack(_draw(case, shape, count))
        storage = packed.storage
        assert set(layout.params) == {*storage.arrays, *storage.sizes}
        values = dict(zip(sizes, shape))
        values |= {layout.params[name]: size for name, size in storage.sizes.items()}
        parents = {axis.parent_axis for axis in axes}
        leaves = [axis for axis in axes if axis not in parents]
        natural = [size for axis in leaves for size in storage_sizes(axis)]
        assert packed.values.shape == tuple(_evaluate(size, values) for size in natural)
        for name, array in storage.arrays.items():
            axis = next(
                (a for a in axes if getattr(a, "indices", None) == layout.params[name]), None
            )
            expected = layout.params[name].ty.shape if axis is None else storage_sizes(axis)
            assert array.shape == tuple(_evaluate(size, values) for size in expected), name


@pytest.mark.parametrize("case", CASES, ids=str)
def test_maps_between_coordinates_are_inverse(case: Case):
    sizes = [tirx.Var(f"n{dim}", "int32") for dim in range(case.format.rank)]
    layout = case.format.layout("a", sizes)
    assert sorted({dim for stored in layout.axes for dim in stored.dims}) == list(
        range(case.format.rank)
    )
    if layout.from_tensor is None:
        return
    coordinates = [tirx.Var(f"x{dim}", "int32") for dim in range(case.format.rank)]
    analyzer = tvm.sym.Analyzer()
    back = layout.to_tensor(layout.from_tensor(coordinates))
    for found, given in zip(back, coordinates, strict=True):
        assert tvm_ffi.structural_equal(analyzer.simplify(found), given)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_program_over_a_layout_prints_and_parses_back(case: Case):
    program = densify_program(case.format)
    assert tvm_ffi.structural_equal(from_source(program.script()), program)


def _evaluate(size, values: dict) -> int:
    bound = tvm_ffi.structural_map(
        size, [(tirx.Var, lambda v: tirx.const(values[v], str(v.ty.dtype)))]
    )
    return int(tvm.sym.Analyzer().simplify(bound))

"""Unions and intersections give what the interpreter of stage I gives, into dense results."""

from __future__ import annotations

import ml_dtypes  # noqa: F401 (bfloat16 for NumPy)
import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from tvm.s_tir import Schedule

from tests.execution import Kernel, build, host_target, lower, poisoned, run, stage_two
from tests.interpreter import interpret
from tests.programs.merged import check, operands, program, random_rows, rows_of, structures

KINDS = ("union", "intersect")
COLUMNS = 40
THREE = [random_rows(12, COLUMNS, density, seed) for seed, density in enumerate((0.3, 0.5, 0.1))]
FOUR = [*THREE, random_rows(12, COLUMNS, 0.8, 9)]


def names(count: int) -> str:
    return ", ".join(f"J{k}" for k in range(count))


def total(count: int, operator: str = "+") -> str:
    return f" {operator} ".join(f"A{k}[i, j]" for k in range(count))


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_entries_are_stored_at_their_coordinates(kind, count):
    body = f"""
with S.sp_iter([I, S.{kind}({names(count)})], "SS", "merged") as [i, j]:
    Y[i, j] = {total(count)}
"""
    check(program(count, body), *operands(FOUR[:count], COLUMNS), (12, COLUMNS))


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_reductions_start_from_their_init(kind, count):
    body = f"""
with S.sp_iter([I, S.{kind}({names(count)})], "SR", "merged") as [i, j]:
    with S.init():
        Y[i] = 2.0
    Y[i] = Y[i] + {total(count, "+" if kind == "union" else "*")}
"""
    check(program(count, body, "(I,)"), *operands(FOUR[:count], COLUMNS), (12,))


def test_the_largest_of_a_union_starts_from_minus_infinity():
    body = """
with S.sp_iter([I, S.union(J0, J1)], "SR", "merged") as [i, j]:
    with S.init():
        Y[i] = S.float64("-inf")
    Y[i] = S.max(Y[i], S.max(A0[i, j], A1[i, j]))
"""
    func = program(2, body, "(I,)", default=', default=S.float64("-inf")')
    found = check(func, *operands(THREE[:2], COLUMNS), (12,))
    assert found[3] == -np.inf and np.isfinite(found[0])


def test_reductions_without_init_add_to_what_is_there():
    body = """
with S.sp_iter([I, S.union(J0, J1)], "SR", "merged") as [i, j]:
    Y[i] = Y[i] + A0[i, j] - A1[i, j]
"""
    func = program(2, body, "(I,)")
    arrays, scalars = operands(THREE[:2], COLUMNS)
    arrays["y"] = np.arange(12.0)
    expected = interpret(func, arrays, scalars)["y"]
    np.testing.assert_array_equal(run(func, arrays, scalars)["y"], expected)


@pytest.mark.parametrize("kind", KINDS)
@given(structures())
@settings(max_examples=60)
def test_any_structure(kind, drawn):
    rows, columns = drawn
    arrays, scalars = operands(rows, columns)
    func, kernel = _any_structure(kind)
    arguments = arrays | {"y": poisoned((len(rows[0]), columns), "float64")}
    expected = interpret(func, arguments, scalars)["y"]
    np.testing.assert_array_equal(kernel(arguments, scalars)["y"], expected)


_kernels: dict[str, tuple] = {}


def _any_structure(kind: str) -> tuple:
    if kind not in _kernels:
        body = f"""
with S.sp_iter([I, S.{kind}(J0, J1)], "SS", "merged") as [i, j]:
    Y[i, j] = 2.0 * A0[i, j] - A1[i, j]
"""
        func = program(2, body)
        _kernels[kind] = func, build(func)
    return _kernels[kind]


def test_runs_of_shared_coordinates_between_other_ones():
    """Eight that both store are taken at once, also if others follow or the arrays end."""
    shared = list(range(3, 40))
    rows = [
        [shared, shared, [0, *shared], shared[:8], shared[:7], [1, *shared[:16]], shared],
        [shared, [*shared[:20], *shared[21:]], shared, shared[:8], shared[:7], shared[:16], []],
    ]
    for kind in KINDS:
        func, kernel = _any_structure(kind)
        arrays, scalars = operands(rows, 60)
        arguments = arrays | {"y": poisoned((7, 60), "float64")}
        expected = interpret(func, arguments, scalars)["y"]
        np.testing.assert_array_equal(kernel(arguments, scalars)["y"], expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("longer", [0, 1])
def test_an_axis_that_is_much_longer_is_searched(kind, longer):
    rng = np.random.default_rng(0)
    every = [
        list(range(5000)),
        sorted({int(c) for c in rng.integers(0, 5000, 2500)}),
        list(range(900)),
    ]
    some = [[0, 17, 18, 4999], [4999], [899, 900, 901, 4000]]
    func, kernel = _any_structure(kind)
    arrays, scalars = operands([every, some] if longer == 0 else [some, every], 5000)
    arguments = arrays | {"y": poisoned((3, 5000), "float64")}
    expected = interpret(func, arguments, scalars)["y"]
    np.testing.assert_array_equal(kernel(arguments, scalars)["y"], expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "rows",
    [
        [[], []],
        [rows_of("", "", ""), rows_of("", "", "")],
        [rows_of("", "1 5"), rows_of("0 5", "")],
        [rows_of("7"), rows_of("7")],
    ],
    ids=["no rows", "no entries", "one side", "last column"],
)
def test_empty_rows_and_matrices(kind, rows):
    func, kernel = _any_structure(kind)
    arrays, scalars = operands(rows, 8)
    arguments = arrays | {"y": poisoned((len(rows[0]), 8), "float64")}
    expected = interpret(func, arguments, scalars)["y"]
    np.testing.assert_array_equal(kernel(arguments, scalars)["y"], expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("indices", [("int64",), ("int32", "int64"), ("int64", "int32")])
@pytest.mark.parametrize("count", [2, 3])
def test_wide_and_mixed_index_types(kind, indices, count):
    body = f"""
with S.sp_iter([I, S.{kind}({names(count)})], "SS", "merged") as [i, j]:
    Y[i, j] = {total(count)} + S.cast(j, "float64")
"""
    func = program(count, body, indices=indices)
    check(func, *operands(FOUR[:count], COLUMNS, indices=indices), (12, COLUMNS))


@pytest.mark.parametrize("values", ["float16", "bfloat16", "float32", "int8", "int64"])
@pytest.mark.parametrize("kind", KINDS)
def test_types_of_values(kind, values):
    body = f"""
with S.sp_iter([I, S.{kind}(J0, J1)], "SS", "merged") as [i, j]:
    Y[i, j] = A0[i, j] * S.cast(2, "{values}") + A1[i, j]
"""
    func = program(2, body, values=values)
    check(func, *operands(THREE[:2], COLUMNS, values), (12, COLUMNS))


@pytest.mark.parametrize("values", ["float16", "bfloat16", "int8"])
def test_reductions_of_short_types(values):
    body = f"""
with S.sp_iter([I, S.union(J0, J1)], "SR", "merged") as [i, j]:
    with S.init():
        Y[i] = S.cast(0, "{values}")
    Y[i] = Y[i] + A0[i, j] - A1[i, j]
"""
    func = program(2, body, "(I,)", values=values)
    check(func, *operands(THREE[:2], COLUMNS, values), (12,))


@pytest.mark.parametrize("kind, operator", [("union", "or"), ("intersect", "and")])
def test_truth_values(kind, operator):
    body = f"""
with S.sp_iter([I, S.{kind}(J0, J1)], "SS", "merged") as [i, j]:
    Y[i, j] = A0[i, j] {operator} A1[i, j]
"""
    func = program(2, body, values="bool")
    check(func, *operands(THREE[:2], COLUMNS, "bool"), (12, COLUMNS))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("member", [0, 1])
def test_results_over_a_member_hold_its_entries_alone(kind, member):
    """Storing elsewhere does nothing; entries that are not visited hold the default."""
    body = f"""
with S.sp_iter([I, S.{kind}(J0, J1)], "SS", "merged") as [i, j]:
    Y[i, j] = A0[i, j] - A1[i, j]
"""
    arrays, scalars = operands(THREE[:2], COLUMNS)
    func = program(2, body, f"(I, J{member})")
    check(func, arrays, scalars, (scalars[f"z{member}"],))


@pytest.mark.parametrize("kind", KINDS)
def test_conditions_and_arithmetic_in_the_body(kind):
    body = f"""
with S.sp_iter([I, S.{kind}(J0, J1)], "SS", "merged") as [i, j]:
    if j % 3 != 1:
        Y[i, j] = S.if_then_else(j > i, A0[i, j], A1[i, j]) + A0[i, j // 2] * A1[i // 2, j]
    else:
        Y[i, j] = S.cast(i * 100 + j, "float64")
"""
    check(program(2, body), *operands(THREE[:2], COLUMNS), (12, COLUMNS))


@pytest.mark.parametrize("kind", KINDS)
def test_a_third_operand_is_searched_at_the_coordinates(kind):
    body = f"""
with S.sp_iter([I, S.{kind}(J0, J1)], "SS", "merged") as [i, j]:
    Y[i, j] = (A0[i, j] + A1[i, j]) * A2[i, j]
"""
    check(program(3, body), *operands(THREE, COLUMNS), (12, COLUMNS))


@pytest.mark.parametrize("kind", KINDS)
def test_axes_after_a_merged_one(kind):
    body = f"""
with S.sp_iter([I, S.{kind}(J0, J1), F], "SRS", "merged") as [i, j, f]:
    with S.init():
        Y[i, f] = 0.0
    Y[i, f] = Y[i, f] + (A0[i, j] + A1[i, j]) * S.cast(f + j, "float64")
"""
    func = program(2, body, "(I, F)", extra="F = S.dense_fixed(5)")
    check(func, *operands(THREE[:2], COLUMNS), (12, 5))


@pytest.mark.parametrize("kinds", ["SSR", "SSS", "SRR"])
@pytest.mark.parametrize("kind", KINDS)
def test_merged_axes_follow_one_another(kind, kinds):
    at = {"SSR": "i, j", "SSS": "i, j, k", "SRR": "i"}[kinds]
    result = {"SSR": "(I, N)", "SSS": "(I, N, L)", "SRR": "(I,)"}[kinds]
    init = f"    with S.init():\n        Y[{at}] = 1.0\n" if "R" in kinds else ""
    old = f"Y[{at}] + " if "R" in kinds else ""
    body = f"""
with S.sp_iter([I, S.{kind}(J0, J1), S.union(J2, J3)], "{kinds}", "merged") as [i, j, k]:
{init}    Y[{at}] = {old}(A0[i, j] + A1[i, j]) * (A2[i, k] - A3[i, k])
"""
    rows = [random_rows(5, 9, density, seed) for seed, density in enumerate((0.3, 0.5, 0.1, 0.6))]
    shape = {"SSR": (5, 9), "SSS": (5, 9, 9), "SRR": (5,)}[kinds]
    check(program(4, body, result, extra="L = S.dense_fixed(n)"), *operands(rows, 9), shape)


@pytest.mark.parametrize("kind", KINDS)
def test_iterations_inside_of_the_body(kind):
    body = f"""
with S.sp_iter([I, S.{kind}(J0, J1)], "SS", "outer") as [i, j]:
    with S.sp_iter([J2], "R", "inner") as [k]:
        with S.init():
            Y[i, j] = A0[i, j] - A1[i, j]
        Y[i, j] = Y[i, j] + A2[i, k]
"""
    check(program(3, body), *operands(THREE, COLUMNS), (12, COLUMNS))


def test_several_iterations_in_one_function():
    body = """
with S.sp_iter([I, S.union(J0, J1)], "SS", "first") as [i, j]:
    T0[i, j] = A0[i, j] + A1[i, j]
with S.sp_iter([I, S.intersect(J0, J2)], "SS", "second") as [i, j]:
    T0[i, j] = T0[i, j] * A0[i, j] * A2[i, j]
with S.sp_iter([I, N], "SS", "third") as [i, j]:
    Y[i, j] = T0[i, j] + 1.0
"""
    extra = 'T0 = S.alloc_sparse_buffer((I, N), "float64")'
    check(program(3, body, extra=extra), *operands(THREE, COLUMNS), (12, COLUMNS))


@pytest.mark.parametrize("kind", KINDS)
def test_init_is_not_repeated_where_rows_share_a_place(kind):
    body = f"""
with S.sp_iter([I, S.{kind}(J0, J1)], "SR", "merged") as [i, j]:
    with S.init():
        Y[i // 3] = 1.0
    Y[i // 3] = Y[i // 3] + A0[i, j] + A1[i, j]
"""
    check(program(2, body, "(I,)"), *operands(THREE[:2], COLUMNS), (12,))


INNER_PRODUCTS = """
with S.sp_iter([M, I, S.intersect(J0, S.attach(J1, M))], "SSR", "products") as [h, i, j]:
    with S.init():
        Y[i, h] = 0.0
    Y[i, h] = Y[i, h] + A0[i, j] * A1[h, j]
"""


def test_inner_products_of_rows():
    check(program(2, INNER_PRODUCTS, "(I, M)"), *operands(THREE[:2], COLUMNS), (12, 12))


@pytest.mark.parametrize("kind", KINDS)
def test_two_rows_of_one_operand(kind):
    body = f"""
with S.sp_iter([I, M, S.{kind}(J0, S.attach(J0, M))], "SSR", "pairs") as [i, h, j]:
    with S.init():
        Y[i, h] = 0.0
    Y[i, h] = Y[i, h] + A0[i, j] - 2.0 * A0[h, j]
"""
    check(program(1, body, "(I, M)"), *operands(THREE[:1], COLUMNS), (12, 12))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, 3])
def test_both_lowered_stages_are_well_formed_and_rows_may_run_in_parallel(kind, count):
    body = f"""
with S.sp_iter([I, S.{kind}({names(count)})], "SR", "merged") as [i, j]:
    with S.init():
        Y[i] = 0.0
    Y[i] = Y[i] + {total(count)}
"""
    func = program(count, body, "(I,)")
    for module in (stage_two(func), lower(func)):
        assert tvm.s_tir.analysis.verify_well_formed(module)
    sch = Schedule(lower(func))
    sch.work_on("program")
    (loop,) = sch.get_loops(sch.get_sblock("merged_0"))
    outer, _ = sch.split(loop, [None, 4])
    sch.parallel(outer)
    assert "T.parallel" in sch.mod.script()
    arrays, scalars = operands(FOUR[:count], COLUMNS)
    arguments = arrays | {"y": poisoned((12,), "float64")}
    expected = interpret(func, arguments, scalars)["y"]
    found = Kernel(func, sch.mod)(arguments, scalars)["y"]
    np.testing.assert_array_equal(found, expected)
    tvm.compile(lower(func), target=host_target())  # with TVM's own passes


@pytest.mark.parametrize("kind", KINDS)
def test_literal_sizes_give_the_same_numbers(kind):
    func, _ = _any_structure(kind)
    arrays, scalars = operands(THREE[:2], COLUMNS)
    arguments = arrays | {"y": poisoned((12, COLUMNS), "float64")}
    expected = interpret(func, arguments, scalars)["y"]
    found = build(func.specialize(scalars))(arguments, {})["y"]
    np.testing.assert_array_equal(found, expected)

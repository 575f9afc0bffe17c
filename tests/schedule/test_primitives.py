"""Schedule primitives on coordinates: what they make of a program, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import tvm
import tvm_ffi

import tvm_sparse
from tvm_sparse import SparseProgramError, SparseSchedule
from tvm_sparse.formats import CSR, DCSR
from tvm_sparse.ir import SparseFunc
from tvm_sparse.schedule import IterationHandle, IteratorHandle, Sample
from tvm_sparse.script import from_source

HEAD = """
@S.prim_func
def {name}(
    a: T.handle, b: T.handle, c: T.handle, indptr: T.handle, indices: T.handle, m: T.int32, n: T.int32,
    f: T.int32, nnz: T.int32
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    Jd = S.dense_fixed(n)
    F = S.dense_fixed(f)
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (Jd, F), "float32")
    C = S.match_sparse_buffer(c, (I, F), "float32")
"""
PRODUCT = """
        with T.init():
            C[i, k] = T.float32(0)
        C[i, k] = C[i, k] + A[i, j] * B[j, k]
"""


def program(loops: str, body: str = PRODUCT, name: str = "spmm") -> SparseFunc:
    return from_source(HEAD.format(name=name) + f"    with S.sp_iter({loops}:" + body)


SPMM = program('[I, J, F], "SRS", "spmm") as [i, j, k]')
rng = np.random.default_rng(0)
dense = sp.random(7, 9, 0.3, dtype="float32", random_state=1).toarray()
dense[2], dense[5] = 0, rng.standard_normal(9)
A = sp.csr_matrix(dense)
B = rng.standard_normal((9, 5)).astype("float32")
PRODUCT_OF_A_AND_B = dense.astype("float64") @ B


def the_only_function(sch: SparseSchedule) -> SparseFunc:
    (func,) = sch.mod.functions.values()
    return func


def assert_program(sch: SparseSchedule, expected: SparseFunc) -> None:
    assert tvm_ffi.structural_equal(the_only_function(sch), expected), sch.mod.script()
    again = from_source(the_only_function(sch).script())
    assert tvm_ffi.structural_equal(again, expected)


def assert_numbers(sch: SparseSchedule) -> None:
    """The compiled program gives the product, whatever the result held before."""
    guarded = np.full((9, 5), np.nan, "float32")
    result = tvm_sparse.compile(sch)(a=A, b=B, c=guarded[1:-1])
    np.testing.assert_allclose(result, PRODUCT_OF_A_AND_B, rtol=1e-5, atol=1e-6)
    assert np.isnan(guarded[[0, -1]]).all()


def refuses(error: type[Exception], *parts: str):
    """Expect an error whose message names all of these."""
    return pytest.raises(error, match="".join(f"(?=.*{part})" for part in parts))


# --- handles -----------------------------------------------------------------------------------


def test_iterations_and_iterators_have_handles():
    sch = SparseSchedule(SPMM)
    spmm = sch.get_sparse_iteration("spmm")
    assert spmm == IterationHandle("spmm", "spmm")
    assert sch.get_axes(spmm) == [IteratorHandle(name, "spmm") for name in "ijk"]
    assert sch.get_axes("spmm") == sch.get_axes(spmm)
    assert tvm_ffi.structural_equal(the_only_function(sch), SPMM)


def test_a_schedule_takes_modules_that_hold_other_functions():
    other = tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0)).with_attr("global_symbol", "other")
    sch = SparseSchedule(tvm.IRModule({"spmm": SPMM, "other": other}))
    sch.sparse_reorder("spmm", ["i", "k", "j"])
    assert sch.mod["other"].same_as(other)


@pytest.mark.parametrize(
    "program", [None, 3, "spmm", [SPMM], tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0))]
)
def test_what_is_no_program_is_refused(program):
    with refuses(TypeError, "program: expected a SparseFunc or an IRModule"):
        SparseSchedule(program)


def test_modules_without_stage_one_functions_are_refused():
    stock = tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0)).with_attr("global_symbol", "stock")
    for module in (tvm.IRModule({}), tvm.IRModule({"stock": stock})):
        with refuses(ValueError, "expected a stage-I function", "found none"):
            SparseSchedule(module)


@pytest.mark.parametrize("name", ["sddmm", "", "Spmm"])
def test_unknown_iterations_are_refused_with_the_known_ones(name):
    sch = SparseSchedule(SPMM)
    for call in (
        lambda: sch.get_sparse_iteration(name),
        lambda: sch.get_axes(name),
        lambda: sch.sparse_reorder(name, ["i", "j", "k"]),
        lambda: sch.sparse_fuse(name, ["i", "j"]),
        lambda: sch.annotate(name, "key", 1),
        lambda: sch.decompose_format(name, "A", CSR()),
        lambda: sch.sparse_split(name, "j", 4),
    ):
        with refuses(SparseProgramError, "function spmm", f"named {name!r}", "found spmm"):
            call()
    assert sch.trace.entries == []


@pytest.mark.parametrize("iteration", [None, 3, ["spmm"], b"spmm"])
def test_iterations_of_wrong_types_are_refused(iteration):
    sch = SparseSchedule(SPMM)
    with refuses(TypeError, "name: expected that of an iteration"):
        sch.get_sparse_iteration(iteration)
    for call in (
        lambda: sch.get_axes(iteration),
        lambda: sch.sparse_reorder(iteration, ["i", "j", "k"]),
        lambda: sch.sparse_fuse(iteration, ["i", "j"]),
        lambda: sch.annotate(iteration, "key", 1),
        lambda: sch.decompose_format(iteration, "A", CSR()),
        lambda: sch.sparse_split(iteration, "j", 4),
    ):
        with refuses(TypeError, "iteration: expected a handle or a name"):
            call()


def test_iterations_that_share_a_name_are_refused():
    twice = from_source(
        HEAD.format(name="twice")
        + f'    with S.sp_iter([I, J, F], "SRS", "x") as [i, j, k]:{PRODUCT}'
        + '    with S.sp_iter([I, F], "SS", "x") as [i, k]:\n        C[i, k] = C[i, k] * 2.0\n'
    )
    with refuses(SparseProgramError, "function twice", "2 sparse iterations named 'x'"):
        SparseSchedule(twice).get_sparse_iteration("x")


def _two_functions() -> SparseSchedule:
    first = program('[I, J, F], "SRS", "same") as [i, j, k]', name="first")
    second = from_source(
        HEAD.format(name="second")
        + f'    with S.sp_iter([I, J, F], "SRS", "same") as [i, j, k]:{PRODUCT}'
        + '    with S.sp_iter([I, F], "SS", "own") as [i, k]:\n        C[i, k] = C[i, k] * 2.0\n'
    )
    return SparseSchedule(tvm.IRModule({"first": first, "second": second}))


def test_one_of_several_functions_is_found_by_the_iteration_or_named():
    sch = _two_functions()
    assert sch.get_sparse_iteration("own").function == "second"
    same = sch.get_sparse_iteration("same", "second")
    sch.sparse_reorder(same, ["i", "k", "j"])
    loops = {
        name: sch.get_axes(sch.get_sparse_iteration("same", name)) for name in ("first", "second")
    }
    assert [axis.name for axis in loops["first"]] == ["i", "j", "k"]
    assert [axis.name for axis in loops["second"]] == ["i", "k", "j"]


def test_ambiguous_and_unknown_functions_are_refused():
    sch = _two_functions()
    for call in (lambda: sch.get_sparse_iteration("same"), lambda: sch.get_axes("same")):
        with refuses(
            SparseProgramError, "'same' is in 2 of the functions first, second", "function="
        ):
            call()
    with refuses(SparseProgramError, "'none' is in 0 of the functions first, second"):
        sch.get_axes("none")
    with refuses(SparseProgramError, "function: expected one of first, second, found 'third'"):
        sch.get_sparse_iteration("same", "third")
    with refuses(SparseProgramError, "function: expected one of first, second, found 'third'"):
        sch.get_axes(IterationHandle("same", "third"))


# --- reorder -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order, loops",
    [
        ("ikj", '[I, F, J], "SSR", "spmm") as [i, k, j]'),
        ("kij", '[F, I, J], "SSR", "spmm") as [k, i, j]'),
        ("ijk", '[I, J, F], "SRS", "spmm") as [i, j, k]'),
    ],
)
@pytest.mark.parametrize("by_handles", [False, True])
def test_reorder_exchanges_loops_with_their_kinds(order, loops, by_handles):
    sch = SparseSchedule(SPMM)
    handles = {handle.name: handle for handle in sch.get_axes("spmm")}
    sch.sparse_reorder("spmm", [handles[name] if by_handles else name for name in order])
    assert_program(sch, program(loops))
    assert_numbers(sch)


def test_reorder_moves_fused_iterators_together():
    sch = SparseSchedule(SPMM)
    sch.sparse_fuse("spmm", ["i", "j"])
    sch.sparse_reorder("spmm", ["k", "i", "j"])
    assert_program(sch, program('[F, S.fuse(I, J)], "SSR", "spmm") as [k, i, j]'))
    assert_numbers(sch)


@pytest.mark.parametrize(
    "order, parts",
    [
        (
            ["j", "i", "k"],
            [r"axis J \(iterator j\)", r"under axis I \(iterator i\)", "come before"],
        ),
        (["k", "j", "i"], [r"axis J \(iterator j\)", r"under axis I \(iterator i\)"]),
        (["i", "j"], ["every iterator once", "i, j, k", "found i, j"]),
        (["i", "j", "k", "k"], ["every iterator once", "found i, j, k, k"]),
        (["i", "j", "j"], ["every iterator once", "found i, j, j"]),
        ([], ["every iterator once", "found none"]),
        (["i", "j", "f"], ["one of the iterators i, j, k", "found 'f'"]),
    ],
)
def test_reorder_refuses_other_orders(order, parts):
    sch = SparseSchedule(SPMM)
    with refuses(SparseProgramError, "sparse_reorder: iteration spmm", *parts):
        sch.sparse_reorder("spmm", order)
    assert tvm_ffi.structural_equal(the_only_function(sch), SPMM)
    assert sch.trace.entries == []


@pytest.mark.parametrize("order", [["i", "k", "j"], ["j", "i", "k"]])
def test_reorder_refuses_to_part_fused_iterators(order):
    sch = SparseSchedule(SPMM)
    sch.sparse_fuse("spmm", ["i", "j"])
    with refuses(SparseProgramError, "sparse_reorder: iteration spmm", "fused"):
        sch.sparse_reorder("spmm", order)


@pytest.mark.parametrize(
    "iterators", [None, 3, "ijk", [1, 2, 3], ["i", None, "k"], [["i", "j"], "k"]]
)
def test_iterators_of_wrong_types_are_refused(iterators):
    sch = SparseSchedule(SPMM)
    for call in (sch.sparse_reorder, sch.sparse_fuse):
        with refuses(
            TypeError, f"{call.__name__}: iteration spmm: expected (a list of )?handles or names"
        ):
            call("spmm", iterators)


def test_iterators_of_another_iteration_are_refused():
    sch = SparseSchedule(SPMM)
    foreign = [IteratorHandle(name, "other") for name in "ikj"]
    with refuses(SparseProgramError, "iterators of iteration spmm, found i of iteration other"):
        sch.sparse_reorder("spmm", foreign)


def test_reorder_refuses_iterations_that_read_what_other_entries_store():
    running = program(
        '[I, F], "SS", "running") as [i, k]', "\n        C[i, k] = C[i - 1, k + 1] + A[i, k]\n"
    )
    sch = SparseSchedule(running)
    with refuses(
        SparseProgramError, "sparse_reorder: iteration running", r"C\[i - 1, k \+ 1\]", "order"
    ):
        sch.sparse_reorder("running", ["k", "i"])
    sch.sparse_reorder("running", ["i", "k"])  # as it is


DENSE_REDUCTIONS = '[F, Jd, I], "RRS", "last") as [k, j, i]'


def test_reorder_refuses_to_exchange_reductions_where_the_last_one_wins():
    last = program(DENSE_REDUCTIONS, "\n        C[i, 0] = B[j, k]\n")
    sch = SparseSchedule(last)
    with refuses(SparseProgramError, "sparse_reorder: iteration last", r"expected C\[...\] = op"):
        sch.sparse_reorder("last", ["j", "k", "i"])
    sch.sparse_reorder("last", ["i", "k", "j"])  # each result still sees its entries in their order
    assert_program(
        sch, program('[I, F, Jd], "SRR", "last") as [i, k, j]', "\n        C[i, 0] = B[j, k]\n")
    )


def test_reorder_exchanges_reductions_that_accumulate():
    body = "\n        C[i, 0] = T.max(C[i, 0], B[j, k])\n"
    sch = SparseSchedule(program(DENSE_REDUCTIONS, body))
    sch.sparse_reorder("last", ["j", "i", "k"])
    assert_program(sch, program('[Jd, I, F], "RSR", "last") as [j, i, k]', body))


# --- fuse --------------------------------------------------------------------------------------


def test_fuse_makes_one_loop_over_stored_entries():
    sch = SparseSchedule(SPMM)
    i, j, _ = sch.get_axes("spmm")
    sch.sparse_fuse("spmm", [i, j])
    assert_program(sch, program('[S.fuse(I, J), F], "SRS", "spmm") as [i, j, k]'))
    assert_numbers(sch)
    assert [axis.name for axis in sch.get_axes("spmm")] == ["i", "j", "k"]


def test_fuse_takes_chains_of_more_than_two():
    sch = SparseSchedule(SPMM)
    (handle,) = [h for h in sch.decompose_format("spmm", "A", DCSR()) if "dcsr" in h.name]
    rows, row, column, _ = sch.get_axes(handle)
    sch.sparse_fuse(handle, [rows, row, column])
    packed = DCSR().pack(A)
    result = tvm_sparse.compile(sch)(a=packed, b=B, c=np.full((7, 5), np.nan, "float32"))
    np.testing.assert_allclose(result, PRODUCT_OF_A_AND_B, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "axes, parts",
    [
        (["j", "k"], [r"axis F \(iterator k\) is no child of axis J \(iterator j\)"]),
        (["i", "k"], ["neighbours", "found i, k in i, j, k", "sparse_reorder"]),
        (["j", "i"], ["neighbours", "outermost first", "found j, i"]),
        (["i", "i"], ["different iterators", "found i, i"]),
        (["i"], ["two or more iterators, found 1"]),
        ([], ["two or more iterators, found 0"]),
        (["i", "f"], ["one of the iterators i, j, k", "found 'f'"]),
    ],
)
def test_fuse_refuses_other_axes(axes, parts):
    sch = SparseSchedule(SPMM)
    with refuses(SparseProgramError, "sparse_fuse: iteration spmm", *parts):
        sch.sparse_fuse("spmm", axes)
    assert tvm_ffi.structural_equal(the_only_function(sch), SPMM)


def test_fuse_refuses_neighbours_that_do_not_nest():
    sch = SparseSchedule(SPMM)
    sch.sparse_reorder("spmm", ["i", "k", "j"])
    with refuses(SparseProgramError, r"axis F \(iterator k\) is no child of axis I \(iterator i\)"):
        sch.sparse_fuse("spmm", ["i", "k"])


@pytest.mark.parametrize("axes", [["i", "j"], ["j", "k"], ["i", "j", "k"]])
def test_fuse_refuses_what_is_fused_already(axes):
    sch = SparseSchedule(SPMM)
    sch.sparse_fuse("spmm", ["i", "j"])
    with refuses(
        SparseProgramError, "sparse_fuse: iteration spmm", ", ".join(axes), "fused already"
    ):
        sch.sparse_fuse("spmm", axes)


# --- annotate ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [1, -3, 1.5, True, "text", None, [1, 2], ["a", [1]], {"x": 1, "y": [2.0]}, np.int64(7), (1, 2)],
)
def test_annotations_are_printed_and_change_no_numbers(value):
    sch = SparseSchedule(SPMM)
    sch.annotate("spmm", "note", value)
    func = the_only_function(sch)
    assert "S.sp_iter_attr({'note': " in func.script()
    assert tvm_ffi.structural_equal(from_source(func.script()), func)
    assert_numbers(sch)


def test_annotations_reach_the_blocks():
    sch = SparseSchedule(SPMM)
    sch.annotate("spmm", "note", 3)
    sch.annotate("spmm", "other", "text")
    sch.annotate("spmm", "note", 4)
    lowered = sch.lower()
    lowered.work_on("spmm")
    annotations = lowered.get(lowered.get_sblock("spmm_1")).annotations
    assert (annotations["note"], annotations["other"]) == (4, "text")


@pytest.mark.parametrize(
    "key, value, error, parts",
    [
        (None, 1, TypeError, ["key: expected a name", "None"]),
        (3, 1, TypeError, ["key: expected a name", "3"]),
        ("", 1, ValueError, ["key: expected a name"]),
        ("note", object(), TypeError, ["value: expected numbers", "object"]),
        ("note", np.zeros(2), TypeError, ["value: expected numbers", "array"]),
        ("note", {1: 2}, TypeError, ["value: expected numbers", r"\{1: 2\}"]),
        ("note", [1, {2}], TypeError, ["value: expected numbers", r"\{2\}"]),
        ("note", CSR(), TypeError, ["value: expected numbers", "CSR"]),
    ],
)
def test_annotations_of_other_kinds_are_refused(key, value, error, parts):
    sch = SparseSchedule(SPMM)
    with refuses(error, *parts):
        sch.annotate("spmm", key, value)
    assert sch.trace.entries == []


# --- sample ------------------------------------------------------------------------------------


def test_a_sample_is_the_integer_that_the_decision_names():
    sch = SparseSchedule(SPMM)
    sample = sch.sample_categorical([2, 4, 8], decision=1)
    assert isinstance(sample, Sample) and sample == 4 and sample.label == "v0"
    assert sch.sample_categorical(np.array([5]), np.array([1.0])).label == "v1"


def test_samples_follow_seed_and_weights():
    def draw(seed: int) -> list[int]:
        sch = SparseSchedule(SPMM, seed=seed)
        return [int(sch.sample_categorical([0, 1, 2], [1, 0, 3])) for _ in range(200)]

    drawn = draw(0)
    assert drawn == draw(0)
    assert drawn != draw(1)
    assert set(drawn) == {0, 2}
    assert 100 < drawn.count(2) < 190


@pytest.mark.parametrize(
    "arguments, error, parts",
    [
        (dict(candidates=[]), ValueError, ["candidates: expected at least one integer"]),
        (dict(candidates=None), TypeError, ["candidates: expected a list of integers", "None"]),
        (dict(candidates=3), TypeError, ["candidates: expected a list of integers", "3"]),
        (dict(candidates="12"), TypeError, ["candidates: expected a list of integers", "'12'"]),
        (dict(candidates=["a"]), TypeError, ["candidates: expected integers", "'a'"]),
        (dict(candidates=[1.0]), TypeError, ["candidates: expected integers", "1.0"]),
        (dict(candidates=[True]), TypeError, ["candidates: expected integers", "True"]),
        (dict(probs=[1]), ValueError, ["probs: expected 2 numbers, found 1"]),
        (dict(probs=[1, -1]), ValueError, ["probs: expected finite numbers of at least 0", "-1"]),
        (dict(probs=[1, np.nan]), ValueError, ["probs: expected finite numbers", "nan"]),
        (dict(probs=[1, np.inf]), ValueError, ["probs: expected finite numbers", "inf"]),
        (dict(probs=[0, 0]), ValueError, ["probs: expected a number above 0"]),
        (dict(probs=["a", "b"]), TypeError, ["probs: expected numbers", "'a'"]),
        (dict(probs="ab"), TypeError, ["probs: expected a list of numbers", "'ab'"]),
        (dict(probs=0.5), TypeError, ["probs: expected a list of numbers", "0.5"]),
        (dict(decision=2), ValueError, [r"decision: expected 0..1, found 2"]),
        (dict(decision=-1), ValueError, [r"decision: expected 0..1, found -1"]),
        (dict(decision="a"), TypeError, ["decision: expected the index of a candidate", "'a'"]),
        (dict(decision=0.0), TypeError, ["decision: expected the index of a candidate", "0.0"]),
        (dict(decision=True), TypeError, ["decision: expected the index of a candidate", "True"]),
    ],
)
def test_choices_that_are_none_are_refused(arguments, error, parts):
    sch = SparseSchedule(SPMM)
    with refuses(error, *parts):
        sch.sample_categorical(**{"candidates": [1, 2], **arguments})
    assert sch.trace.entries == []


# --- the whole ---------------------------------------------------------------------------------


def test_a_schedule_leaves_its_program_alone():
    module = tvm.IRModule({"spmm": SPMM})
    sch = SparseSchedule(module)
    sch.sparse_fuse("spmm", ["i", "j"])
    assert module["spmm"].same_as(SPMM)
    assert not tvm_ffi.structural_equal(the_only_function(sch), SPMM)


def test_a_copy_goes_its_own_way():
    sch = SparseSchedule(SPMM, seed=3)
    sch.sparse_reorder("spmm", ["i", "k", "j"])
    copy = sch.copy()
    drawn = [int(s.sample_categorical(list(range(1000)))) for s in (sch, copy)]
    assert drawn[0] == drawn[1]
    copy.sparse_reorder("spmm", ["k", "i", "j"])
    assert [axis.name for axis in sch.get_axes("spmm")] == ["i", "k", "j"]
    assert [axis.name for axis in copy.get_axes("spmm")] == ["k", "i", "j"]


def test_lower_gives_a_stock_schedule():
    sch = SparseSchedule(SPMM)
    sch.sparse_reorder("spmm", ["i", "k", "j"])
    lowered = sch.lower()
    assert isinstance(lowered, tvm.s_tir.Schedule)
    assert tvm.s_tir.analysis.verify_well_formed(lowered.mod)
    lowered.work_on("spmm")
    lowered.parallel(lowered.get_loops(lowered.get_sblock("spmm_0"))[0])
    result = tvm_sparse.compile(lowered)(a=A, b=B, c=np.full((7, 5), np.nan, "float32"))
    np.testing.assert_allclose(result, PRODUCT_OF_A_AND_B, rtol=1e-5, atol=1e-6)


def test_show_prints_the_program(capsys):
    SparseSchedule(SPMM).show()
    assert "with S.sp_iter([I, J, F], 'SRS', 'spmm') as [i, j, k]:" in capsys.readouterr().out

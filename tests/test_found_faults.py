"""Faults that the random programs found, each as the smallest program that showed it."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi

from tests.execution import host_target, lower, run, stage_two
from tests.interpreter import interpret
from tvm_sparse.script import from_source


def check(text: str, arrays, scalars=None, outputs=("y",)) -> None:
    """Compare the compiled program with the interpreter of stage I."""
    func = from_source(text)
    expected = interpret(func, arrays, scalars or {})
    results = run(func, arrays, scalars or {}, outputs)
    for name, array in results.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_regions_do_not_use_search_results_made_inside_the_block():
    func = from_source(
        """
@S.prim_func
def f(x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle, n: T.int32, nnz: T.int32):
    I = S.dense_fixed(n)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    Jd = S.dense_fixed(n)
    X = S.match_sparse_buffer(x, (I, J), "float32")
    Y = S.match_sparse_buffer(y, (I, Jd), "float32")
    with S.sp_iter([I, Jd], "SS", "expand") as [i, j]:
        Y[i, j] = X[i, j]
"""
    )
    for module in (stage_two(func), lower(func)):
        assert tvm.s_tir.analysis.verify_well_formed(module)


def test_axis_that_stands_twice_in_a_buffer_has_two_places():
    check(
        """
@S.prim_func
def f(y: T.handle, n: T.int32):
    I = S.dense_fixed(n)
    K = S.dense_fixed(n)
    Y = S.match_sparse_buffer(y, (I, I), "float64")
    with S.sp_iter([I, K], "SS", "index") as [i, k]:
        Y[i, k] = T.cast(i * 10 + k, "float64")
""",
        {"y": np.zeros((3, 3))},
        {"n": 3},
    )


@pytest.mark.parametrize("wide", ["int32", "int64"])
def test_searched_coordinates_may_be_wider_than_the_index_array(wide):
    check(
        f"""
@S.prim_func
def f(x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle, n: T.int32, nnz: T.int32):
    I = S.dense_fixed(n, "{wide}")
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    X = S.match_sparse_buffer(x, (I, J), "float64")
    Y = S.match_sparse_buffer(y, (I,), "float64")
    with S.sp_iter([I], "S", "near_diagonal") as [i]:
        Y[i] = X[i, i] + X[i, i % 2] - X[i // 2, i + 1]
""",
        {
            "x": np.array([1.0, 2.0, 3.0, 4.0]),
            "y": np.zeros(3),
            "indptr": np.array([0, 2, 2, 4], "int32"),
            "indices": np.array([0, 1, 0, 2], "int32"),
        },
        {"n": 3, "nnz": 4},
    )


RAGGED = {
    "p": np.array([0, 2, 2, 5], "int32"),
    "indptr": np.array([0, 1, 1, 3], "int32"),
    "indices": np.array([2, 0, 1], "int32"),
    "x": np.array([1.0, 2.0, 3.0]),
}


def test_init_does_not_repeat_the_searches_of_the_update():
    """A search in the row of an axis that follows the reduction was declared twice."""
    check(
        """
@S.prim_func
def f(x: T.handle, y: T.handle, p: T.handle, indptr: T.handle, indices: T.handle, n: T.int32):
    I = S.dense_fixed(n)
    K = S.dense_fixed(n)
    R = S.dense_variable(I, (4, 5), p, "int32")
    J = S.sparse_variable(I, (n, 3), (indptr, indices), "int32")
    X = S.match_sparse_buffer(x, (I, J), "float64")
    Y = S.match_sparse_buffer(y, (I, R), "float64")
    with S.sp_iter([I, K, R], "SRS", "ragged") as [i, k, r]:
        with T.init():
            Y[i, r] = T.float64(4)
        Y[i, r] = Y[i, r] + X[i, r] * X[k, r]
""",
        {**RAGGED, "y": np.zeros(5)},
        {"n": 3},
    )


def test_init_follows_owner_searches_of_a_fused_axis_after_the_reduction():
    check(
        """
@S.prim_func
def f(x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle, n: T.int32):
    I = S.dense_fixed(n)
    K = S.dense_fixed(n)
    J = S.sparse_variable(I, (n, 3), (indptr, indices), "int32")
    X = S.match_sparse_buffer(x, (I, J), "float64")
    Y = S.match_sparse_buffer(y, (I, J), "float64")
    with S.sp_iter([K, S.fuse(I, J)], "RSS", "sampled") as [k, i, j]:
        with T.init():
            Y[i, j] = T.float64(i)
        Y[i, j] = Y[i, j] + X[k, j] * X[i, k]
""".replace("T.float64(i)", 'T.cast(i, "float64")'),
        {k: v for k, v in RAGGED.items() if k != "p"} | {"y": np.zeros(3)},
        {"n": 3},
    )


def test_spatial_axis_fused_with_a_reduction_owns_another_spatial_axis():
    check(
        """
@S.prim_func
def f(x: T.handle, y: T.handle, p: T.handle, indptr: T.handle, indices: T.handle, n: T.int32):
    I = S.dense_fixed(n)
    R = S.dense_variable(I, (4, 5), p, "int32")
    J = S.sparse_variable(I, (n, 3), (indptr, indices), "int32")
    X = S.match_sparse_buffer(x, (I, J), "float64")
    Y = S.match_sparse_buffer(y, (I, R), "float64")
    with S.sp_iter([S.fuse(I, J), R], "SRS", "rows") as [i, j, r]:
        with T.init():
            Y[i, r] = T.float64(1)
        Y[i, r] = Y[i, r] + X[i, j]
""",
        {**RAGGED, "y": np.zeros(5)},
        {"n": 3},
    )


def test_fused_axis_without_any_slot_does_not_divide_by_zero():
    check(
        """
@S.prim_func
def f(x: T.handle, y: T.handle, indices: T.handle, n: T.int32):
    I = S.dense_fixed(n)
    E = S.sparse_fixed(I, (n, 0), indices, "int32")
    X = S.match_sparse_buffer(x, (I, E), "float64")
    Y = S.match_sparse_buffer(y, (I,), "float64")
    with S.sp_iter([S.fuse(I, E)], "SR", "rows") as [i, e]:
        with T.init():
            Y[i] = T.float64(1)
        Y[i] = Y[i] + X[i, e]
""",
        {
            "x": np.zeros((3, 0)),
            "y": np.zeros(3),
            "indices": np.zeros((3, 0), "int32"),
        },
        {"n": 3},
    )


def test_stock_buffer_that_is_written_in_part_is_zero_elsewhere():
    """It kept what the caller's array held before."""
    check(
        """
@S.prim_func
def f(x: T.handle, y: T.handle, n: T.int32, m: T.int32):
    I = S.dense_fixed(n)
    X = S.match_sparse_buffer(x, (I,), "float64")
    Y = S.match_buffer(y, (m, 2), "float64")
    with S.sp_iter([I], "S", "scatter") as [i]:
        Y[i + 1, i % 2] = X[i]
""",
        {"x": np.array([1.0, 2.0]), "y": np.zeros((4, 2))},
        {"n": 2, "m": 4},
    )


def test_temporary_that_is_read_while_it_is_written_starts_as_its_default():
    check(
        """
@S.prim_func
def f(x: T.handle, y: T.handle, n: T.int32):
    I = S.dense_fixed(n)
    K = S.dense_fixed(n)
    X = S.match_sparse_buffer(x, (I, K), "float64")
    W = S.alloc_sparse_buffer((I, K), "float64", default=7)
    Y = S.match_sparse_buffer(y, (I, K), "float64")
    with S.sp_iter([I, K], "SS", "running") as [i, k]:
        W[i, k] = X[i, k]
        Y[i, k] = W[k, i]
""",
        {"x": np.arange(9.0).reshape(3, 3), "y": np.zeros((3, 3))},
        {"n": 3},
    )


def test_reduction_of_constant_extent_around_a_search_compiles():
    check(
        """
@S.prim_func
def f(x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle, n: T.int32):
    K = S.dense_fixed(3)
    I = S.dense_fixed(n)
    J = S.sparse_variable(I, (n, 3), (indptr, indices), "int32")
    R = S.dense_fixed(n)
    X = S.match_sparse_buffer(x, (I, J), "float64")
    Y = S.match_sparse_buffer(y, (I,), "float64")
    with S.sp_iter([K, I, R], "RSR", "rows") as [k, i, r]:
        with T.init():
            Y[i] = T.float64(0)
        Y[i] = Y[i] + X[i, r]
""",
        {k: v for k, v in RAGGED.items() if k != "p"} | {"y": np.zeros(3)},
        {"n": 3},
    )


def test_program_with_a_constant_search_and_a_temporary_has_one_root_block():
    func = from_source(
        """
@S.prim_func
def f(x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle, n: T.int32, nnz: T.int32):
    I = S.dense_fixed(n)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    X = S.match_sparse_buffer(x, (I, J), "float64")
    W = S.alloc_sparse_buffer((I,), "float64")
    Y = S.match_sparse_buffer(y, (I,), "float64")
    with S.sp_iter([I], "S", "corner") as [i]:
        W[i] = X[1, 2]
    with S.sp_iter([I], "S", "copy") as [i]:
        Y[i] = W[i]
"""
    )
    sch = tvm.s_tir.Schedule(lower(func))
    sch.work_on("f")
    assert [sch.get(b).name_hint for b in sch.get_child_blocks(sch.get_sblock("root"))] == [
        "corner_0",
        "copy_0",
    ]


def test_absent_parents_are_not_followed_to_their_children():
    """Row pointers were read at a row that is none, and their values followed."""
    check(
        """
@S.prim_func
def f(x: T.handle, y: T.handle, p: T.handle, q: T.handle, n: T.int32, m: T.int32):
    I = S.dense_fixed(n)
    R = S.dense_variable(I, (4, 5), p, "int32")
    Q = S.dense_variable(R, (4, 6), q, "int32")
    K = S.dense_fixed(m)
    X = S.match_sparse_buffer(x, (I, R, Q), "float64", default=1)
    Y = S.match_sparse_buffer(y, (K, K), "float64")
    L = S.dense_fixed(m)
    with S.sp_iter([K, L], "SS", "far") as [k, l]:
        Y[k, l] = X[k * 100000, l, l // 2]
""",
        {
            "x": np.arange(6.0),
            "y": np.zeros((40, 40)),
            "p": RAGGED["p"],
            "q": np.array([0, 1, 1, 3, 3, 6], "int32"),
        },
        {"n": 3, "m": 40},
    )


@pytest.mark.parametrize("padding", [3, 2**30, -1])
def test_padding_slots_are_not_followed_by_searches_and_attached_axes(padding):
    """Their coordinate is none, whatever number stands there."""
    check(
        """
@S.prim_func
def f(
    x: T.handle, y: T.handle, z: T.handle, e: T.handle, indptr: T.handle, indices: T.handle,
    n: T.int32
):
    I = S.dense_fixed(n)
    E = S.sparse_fixed(I, (n, 2), e, "int32", sorted=False)
    D = S.dense_fixed(n)
    J = S.sparse_variable(D, (n, 3), (indptr, indices), "int32")
    X = S.match_sparse_buffer(x, (D, J), "float64")
    Y = S.match_sparse_buffer(y, (I,), "float64")
    Z = S.match_sparse_buffer(z, (I,), "float64")
    with S.sp_iter([I, E], "SR", "searched") as [i, e]:
        with T.init():
            Y[i] = T.float64(0)
        Y[i] = Y[i] + X[e, i]
    with S.sp_iter([I, E, S.attach(J, E)], "SRR", "attached") as [i, e, j]:
        with T.init():
            Z[i] = T.float64(0)
        Z[i] = Z[i] + X[e, j]
""",
        {
            **{k: v for k, v in RAGGED.items() if k != "p"},
            "e": np.array([[0, padding], [padding, 2], [padding, padding]], "int32"),
            "y": np.zeros(3),
            "z": np.zeros(3),
        },
        {"n": 3},
        ("y", "z"),
    )


def test_levels_below_an_attached_axis_are_those_of_its_entries():
    check(
        """
@S.prim_func
def f(
    a: T.handle, x: T.handle, y: T.handle, a_indptr: T.handle, a_indices: T.handle,
    j_indptr: T.handle, j_indices: T.handle, k_indptr: T.handle, k_indices: T.handle, n: T.int32
):
    I = S.dense_fixed(n)
    E = S.sparse_variable(I, (n, 4), (a_indptr, a_indices), "int32")
    D = S.dense_fixed(n)
    J = S.sparse_variable(D, (n, 3), (j_indptr, j_indices), "int32")
    K = S.sparse_variable(J, (n, 5), (k_indptr, k_indices), "int32")
    A = S.match_sparse_buffer(a, (I, E), "float64")
    X = S.match_sparse_buffer(x, (D, J, K), "float64")
    Y = S.match_sparse_buffer(y, (I, D), "float64")
    with S.sp_iter([I, D], "SS", "empty") as [i, d]:
        Y[i, d] = T.float64(0)
    with S.sp_iter([I, E, S.attach(J, E), K], "SRRR", "paths") as [i, e, j, k]:
        Y[i, k] = Y[i, k] + A[i, e] * X[e, j, k]
""",
        {
            "a": np.arange(1.0, 5),
            "x": np.arange(10.0, 15),
            "y": np.zeros((3, 3)),
            "a_indptr": np.array([0, 2, 2, 4], "int32"),
            "a_indices": np.array([0, 2, 1, 2], "int32"),
            "j_indptr": np.array([0, 2, 2, 3], "int32"),
            "j_indices": np.array([0, 2, 1], "int32"),
            "k_indptr": np.array([0, 2, 3, 5], "int32"),
            "k_indices": np.array([0, 1, 2, 0, 2], "int32"),
        },
        {"n": 3},
    )


@pytest.mark.parametrize("place", ["i + r", "0, r"])
def test_scatter_along_a_ragged_axis_can_be_scheduled(place):
    """Its region has a start with bounds and a loaded extent, which TVM cannot bound."""
    axes = "(M,)" if place == "i + r" else "(I, R)"
    func = from_source(
        f"""
@S.prim_func
def f(y: T.handle, p: T.handle, n: T.int64, m: T.int64, k: T.int64):
    K = S.dense_fixed(k)
    I = S.dense_fixed(n)
    R = S.dense_variable(I, (n, 5), p, "int32")
    M = S.dense_fixed(m)
    Y = S.match_sparse_buffer(y, {axes}, "float64")
    with S.sp_iter([K, I, R], "R{"S" if axes == "(M,)" else "R"}S", "diagonals") as [k, i, r]:
        with T.init():
            Y[{place}] = T.float64(0)
        Y[{place}] = Y[{place}] + T.float64(1)
"""
    )
    assert tvm.s_tir.Schedule(lower(func)).mod is not None


SEARCHED = {
    "x": np.array([1.0, 2.0, 3.0]),
    "indptr": np.array([0, 1, 1, 3], "int32"),
    "indices": np.array([2, 0, 1], "int32"),
    "e": np.array([1, 1, 0], "int32"),
    "y": np.zeros(3),
}


@pytest.mark.parametrize("kind", ["T.let", "T.int32"])
def test_search_for_a_local_variable_stands_behind_its_definition(kind):
    check(
        f"""
@S.prim_func
def f(x: T.handle, y: T.handle, e: T.handle, indptr: T.handle, indices: T.handle, n: T.int32):
    I = S.dense_fixed(n)
    J = S.sparse_variable(I, (n, 3), (indptr, indices), "int32")
    X = S.match_sparse_buffer(x, (I, J), "float64")
    E = S.match_sparse_buffer(e, (I,), "int32")
    Y = S.match_sparse_buffer(y, (I,), "float64")
    with S.sp_iter([I], "S", "searched") as [i]:
        v: {kind} = E[i] + 1
        if X[i, v] > T.float64(1):
            Y[i] = X[i, v]
""",
        SEARCHED,
        {"n": 3},
    )


def test_search_for_a_stored_coordinate_sees_what_was_stored():
    """The search stood before the statement that stores its input."""
    check(
        """
@S.prim_func
def f(x: T.handle, y: T.handle, e: T.handle, indptr: T.handle, indices: T.handle, n: T.int32):
    I = S.dense_fixed(n)
    J = S.sparse_variable(I, (n, 3), (indptr, indices), "int32")
    X = S.match_sparse_buffer(x, (I, J), "float64")
    E = S.match_sparse_buffer(e, (I,), "int32")
    W = S.alloc_sparse_buffer((I,), "int32")
    Y = S.match_sparse_buffer(y, (I,), "float64")
    with S.sp_iter([I], "S", "searched") as [i]:
        W[i] = E[i]
        Y[i] = X[i, W[i]]
        W[i] = E[i] + 1
        Y[i] = Y[i] * 10.0 + X[i, W[i]]
""",
        SEARCHED,
        {"n": 3},
    )


def test_stock_buffer_is_not_read_at_padding():
    """A search whose coordinate it gives ran in padding slots too."""
    check(
        """
@S.prim_func
def f(
    x: T.handle, y: T.handle, p: T.handle, s: T.handle, indptr: T.handle, indices: T.handle,
    n: T.int32
):
    I = S.dense_fixed(n)
    E = S.sparse_fixed(I, (n, 2), s, "int32", sorted=False)
    J = S.sparse_variable(I, (n, 3), (indptr, indices), "int32")
    X = S.match_sparse_buffer(x, (I, J), "float64")
    P = S.match_buffer(p, (n,), "int32")
    Y = S.match_sparse_buffer(y, (I,), "float64")
    with S.sp_iter([I, E], "SR", "searched") as [i, e]:
        with T.init():
            Y[i] = T.float64(0)
        Y[i] = Y[i] + X[i, P[e]] + X[e // 2, i]
""",
        {
            **{k: v for k, v in SEARCHED.items() if k != "e"},
            "p": np.array([2, 0, 1], "int32"),
            "s": np.array([[0, 2**30], [2**30, 2], [2, 0]], "int32"),
        },
        {"n": 3},
    )


def test_buffers_of_one_element_are_printed_with_their_index():
    func = from_source(
        """
@S.prim_func
def f(x: T.handle, p: T.handle, y: T.handle):
    I = S.dense_fixed(1)
    X = S.match_sparse_buffer(x, (I,), "float64")
    P = S.match_buffer(p, (1,), "float64")
    Y = S.match_sparse_buffer(y, (I,), "float64")
    with S.sp_iter([I], "S", "one") as [i]:
        Y[i] = X[0] + P[0]
"""
    )
    assert tvm_ffi.structural_equal(from_source(func.script()), func)


@pytest.mark.parametrize("offset", range(8))
def test_dense_arguments_need_no_more_alignment_than_their_elements(offset):
    func = from_source(
        """
@S.prim_func
def f(p: T.handle, y: T.handle, n: T.int32):
    I = S.dense_fixed(n)
    P = S.match_buffer(p, (n,), "float64")
    Y = S.match_sparse_buffer(y, (I,), "float64")
    with S.sp_iter([I], "S", "shift") as [i]:
        Y[i] = P[i] + 1.0
"""
    )
    call = tvm.compile(stage_two(func), target=host_target(), tir_pipeline="tvm_sparse")["f"]
    memory = np.arange(1008.0)
    given, result = memory[offset : offset + 1000], np.full(1008, np.nan)[offset : offset + 1000]
    call(tvm_ffi.from_dlpack(given), tvm_ffi.from_dlpack(result), 1000)
    np.testing.assert_array_equal(result, given + 1)


@pytest.mark.parametrize("condition", ["i % 2 == 0", "i < 1", "i != j"])
def test_init_runs_where_a_condition_leaves_out_the_update(condition):
    check(
        f"""
@S.prim_func
def f(x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle, n: T.int32):
    I = S.dense_fixed(n)
    J = S.sparse_variable(I, (n, 3), (indptr, indices), "int32")
    X = S.match_sparse_buffer(x, (I, J), "float64")
    Y = S.match_sparse_buffer(y, (I,), "float64")
    with S.sp_iter([I, J], "SR", "rows") as [i, j]:
        with T.init():
            Y[i] = T.float64(4)
        if {condition}:
            Y[i] = Y[i] + X[i, j]
""",
        {k: v for k, v in RAGGED.items() if k != "p"} | {"y": np.zeros(3)},
        {"n": 3},
    )


FUSED_SUM = """
@S.prim_func
def f(indptr: T.handle, indices: T.handle, x: T.handle, y: T.handle):
    I = S.dense_fixed({rows})
    J = S.sparse_variable(I, (4, {stored}), (indptr, indices), "int32")
    X = S.match_sparse_buffer(x, (I,), "float64")
    Y = S.match_sparse_buffer(y, (I,), "float64")
    T1 = S.alloc_sparse_buffer((I,), "{dtype}")
    with S.sp_iter([S.fuse(I, J)], "SR", "sum") as [i, j]:
        with T.init():
            T1[i] = T.{dtype}(4)
        for t in range({times}):
            T1[i] = T1[i] + T.cast(X[i], "{dtype}")
    with S.sp_iter([I], "S", "copy") as [i]:
        Y[i] = T.cast(T1[i], "float64")
"""


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("times", [0, 2])
def test_loops_of_no_steps_leave_nothing_that_later_passes_miss(rows, times):
    """The search of a loop over nothing was dropped, and what read its result was not."""
    stored = min(rows, 3)
    check(
        FUSED_SUM.format(rows=rows, stored=stored, times=times, dtype="float64"),
        {
            "indptr": np.minimum(np.arange(rows + 1), stored).astype("int32"),
            "indices": np.arange(stored, dtype="int32"),
            "x": np.arange(1.0, rows + 1),
            "y": np.zeros(rows),
        },
    )


def test_half_sums_that_no_result_holds_are_one_statement():
    """The wide sum of a temporary needs no copy and no cast around the one iteration."""
    text = FUSED_SUM.format(rows=3, stored=3, times=1, dtype="float16")
    alone = text[: text.index('    with S.sp_iter([I], "S", "copy")')]
    func = from_source(alone)
    assert lower(func) is not None


@pytest.mark.parametrize("axis", ["D", "S.union(D, E)"])
@pytest.mark.parametrize("declared", ["S.match_sparse_buffer(y, (I,)", "S.match_buffer(y, (n,)"])
def test_init_of_a_place_that_rows_share_precedes_all_of_them(axis, declared):
    """In a plain buffer, each row started the place again."""
    check(
        f"""
@S.prim_func
def f(x: T.handle, y: T.handle, n: T.int32, m: T.int32):
    I = S.dense_fixed(n)
    D = S.dense_fixed(m)
    E = S.dense_fixed(m)
    X = S.match_sparse_buffer(x, (I, D), "float64")
    Y = {declared}, "float64")
    with S.sp_iter([I, {axis}], "SR", "halves") as [i, d]:
        with T.init():
            Y[i // 2] = 0.0
        Y[i // 2] = Y[i // 2] + X[i, d]
""",
        {"x": np.arange(12.0).reshape(4, 3), "y": np.zeros(4)},
        {"n": 4, "m": 3},
    )


def test_temporaries_without_room_are_left_out():
    """TVM moved their allocation into loops whose counters it then renamed."""
    check(
        """
@S.prim_func
def f(p: T.handle, x: T.handle, y: T.handle):
    D = S.dense_fixed(0)
    E = S.dense_fixed(0)
    C = S.dense_variable(D, (0, 0), p, "int32")
    X = S.match_sparse_buffer(x, (D,), "float64")
    T0 = S.alloc_sparse_buffer((D, C), "float64")
    Y = S.match_sparse_buffer(y, (D,), "float64")
    with S.sp_iter([S.union(D, E)], "S", "outer") as [d]:
        with S.sp_iter([C], "S", "inner") as [c]:
            if d < 0:
                T0[d, c] = X[d]
    with S.sp_iter([D], "S", "copy") as [d]:
        Y[d] = X[d]
""",
        {"p": np.zeros(1, "int32"), "x": np.zeros(0), "y": np.zeros(0)},
    )

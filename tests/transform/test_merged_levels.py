"""Merged axes over levels of tensors: axes below members, attached members, other kinds of axes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.execution import poisoned, run
from tests.interpreter import interpret
from tests.programs.merged import check, operands, program, random_rows
from tvm_sparse.script import from_source

KINDS = ("union", "intersect")
ROWS = [random_rows(9, 9, density, seed) for seed, density in enumerate((0.3, 0.5, 0.3))]


def columns_of(rows) -> dict[str, np.ndarray]:
    """Arrays of an operand B over R and K, whose rows are coordinates."""
    indices = np.array([c for row in rows for c in row], "int32")
    values = np.random.default_rng(1).integers(1, 7, indices.size).astype("float64")
    return {"b": values, "bp": np.cumsum([0, *map(len, rows)]).astype("int32"), "bq": indices}


PARAMS = "b: S.handle, bp: S.handle, bq: S.handle, bz: S.int32"
BELOW = """
R = S.dense_fixed(n)
K = S.sparse_variable(R, (n, bz), (bp, bq), "int32")
B = S.match_sparse_buffer(b, (R, K), "float64")
"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("member", [None, 0, 1])
def test_rows_attached_to_a_merged_axis_or_a_member(kind, member):
    merged = f"S.{kind}(J0, J1)"
    owner = merged if member is None else f"J{member}"
    body = f"""
with S.sp_iter([I, {merged}, S.attach(K, {owner})], "SRS", "rows") as [i, j, k]:
    with S.init():
        Y[i, k] = 0.0
    Y[i, k] = Y[i, k] + (A0[i, j] - A1[i, j]) * B[j, k]
"""
    func = program(2, body, extra=BELOW, params=PARAMS)
    arrays, scalars = operands(ROWS[:2], 9)
    arrays |= columns_of(ROWS[2])
    check(func, arrays, scalars | {"bz": arrays["b"].size}, (9, 9))


def test_rows_attached_to_an_axis_are_merged_with_others():
    body = """
with S.sp_iter([I, J0, S.union(S.attach(K, J0), J1)], "SRS", "rows") as [i, h, j]:
    with S.init():
        Y[i, j] = 1.0
    Y[i, j] = Y[i, j] + A0[i, h] * B[h, j] - A1[i, j]
"""
    func = program(2, body, extra=BELOW, params=PARAMS)
    arrays, scalars = operands(ROWS[:2], 9)
    arrays |= columns_of(ROWS[2])
    check(func, arrays, scalars | {"bz": arrays["b"].size}, (9, 9))


def test_reductions_outside_of_a_merged_axis_start_once():
    """The init stood inside of the loop over all h."""
    body = """
with S.sp_iter([I, N, S.intersect(J0, J1)], "SRR", "sums") as [i, h, j]:
    with S.init():
        Y[i] = 1.0
    Y[i] = Y[i] + A0[i, j] * A1[i, j] * S.cast(h, "float64")
"""
    check(program(2, body, "(I,)"), *operands(ROWS[:2], 9), (9,))


@pytest.mark.parametrize("kinds", ["RR", "RRR"])
def test_everything_is_reduced(kinds):
    axes = "I, S.union(J0, J1)" + (", N" if len(kinds) == 3 else "")
    names = "i, j" + (", h" if len(kinds) == 3 else "")
    body = f"""
with S.sp_iter([{axes}], "{kinds}", "sums") as [{names}]:
    with S.init():
        Y[0] = 1.0
    Y[0] = Y[0] + A0[i, j] - A1[i, j]
"""
    check(program(2, body, "(I,)"), *operands(ROWS[:2], 9), (9,))


def test_rows_below_a_member_of_what_a_reduction_owns():
    """What hangs on one member is visited again for each row that the other one belongs to."""
    body = """
with S.sp_iter([I, S.union(R, J0), K], "RSS", "rows") as [i, j, k]:
    with S.init():
        Y[j, k] = 1.0
    Y[j, k] = Y[j, k] + (A0[i, j] - B[j, k])
"""
    func = program(1, body, "(N, N)", extra=BELOW, params=PARAMS)
    arrays, scalars = operands(ROWS[:1], 9)
    arrays |= columns_of(ROWS[2])
    check(func, arrays, scalars | {"bz": arrays["b"].size}, (9, 9))


TENSORS = """
@S.prim_func
def program(a: S.handle, ap: S.handle, aq: S.handle, as_: S.handle, at: S.handle, b: S.handle, bp: S.handle,
            bq: S.handle, bs: S.handle, bt: S.handle, y: S.handle, m: S.int32, n: S.int32, l: S.int32,
            az: S.int32, aw: S.int32, bz: S.int32, bw: S.int32):
    I = S.dense_fixed(m)
    N = S.dense_fixed(n)
    L = S.dense_fixed(l)
    JA = S.sparse_variable(I, (n, az), (ap, aq), "int32")
    KA = S.sparse_variable(JA, (l, aw), (as_, at), "int32")
    JB = S.sparse_variable(I, (n, bz), (bp, bq), "int32")
    KB = S.sparse_variable(JB, (l, bw), (bs, bt), "int32")
    A = S.match_sparse_buffer(a, (I, JA, KA), "float64")
    B = S.match_sparse_buffer(b, (I, JB, KB), "float64")
    Y = S.match_sparse_buffer(y, RESULT, "float64")
"""


def tensors() -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Two tensors of three levels, with empty fibres."""
    arrays, scalars = {}, {"m": 5, "n": 6, "l": 7}
    for seed, name in enumerate("ab"):
        rows = random_rows(5, 6, 0.5, seed)
        fibres = random_rows(sum(map(len, rows)), 7, 0.5, seed + 7)
        row, _ = operands([rows], 6)
        fibre, _ = operands([fibres], 7)
        second = ("as_", "at") if name == "a" else ("bs", "bt")
        arrays |= {f"{name}p": row["p0"], f"{name}q": row["q0"], name: fibre["a0"]}
        arrays |= {second[0]: fibre["p0"], second[1]: fibre["q0"]}
        scalars |= {f"{name}z": row["q0"].size, f"{name}w": fibre["q0"].size}
    return arrays, scalars


@pytest.mark.parametrize("outer", KINDS)
@pytest.mark.parametrize("inner", KINDS)
def test_levels_of_tensors_are_merged_one_under_another(outer, inner):
    """Where a member has no entry, what is below it has none either."""
    text = (
        TENSORS.replace("RESULT", "(I, N, L)")
        + f"""
    with S.sp_iter([I, S.{outer}(JA, JB), S.{inner}(KA, KB)], "SSS", "levels") as [i, j, k]:
        Y[i, j, k] = 2.0 * A[i, j, k] - B[i, j, k]
"""
    )
    check(from_source(text), *tensors(), (5, 6, 7))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "kinds, result", [("SSS", "(I, N, L)"), ("SRS", "(I, L)"), ("RRS", "(L,)")]
)
def test_entries_below_one_member(kind, kinds, result):
    """The init of what is below a reduced member covers all coordinates."""
    at = {"SSS": "i, j, k", "SRS": "i, k", "RRS": "k"}[kinds]
    reduces = "R" in kinds
    text = (
        TENSORS.replace("RESULT", result)
        + f"""
    with S.sp_iter([I, S.{kind}(JA, JB), KB], "{kinds}", "levels") as [i, j, k]:
        {f"with S.init():{chr(10)}            Y[{at}] = 3.0" if reduces else ""}
        Y[{at}] = {f"Y[{at}] + " if reduces else ""}B[i, j, k] - A[i, j, k]
"""
    )
    shape = {"SSS": (5, 6, 7), "SRS": (5, 7), "RRS": (7,)}[kinds]
    check(from_source(text), *tensors(), shape)


def test_results_over_the_levels_of_one_member():
    text = (
        TENSORS.replace("RESULT", "(I, JB, KB)")
        + """
    with S.sp_iter([I, S.union(JA, JB), S.union(KA, KB)], "SSS", "levels") as [i, j, k]:
        Y[i, j, k] = A[i, j, k] - B[i, j, k]
"""
    )
    arrays, scalars = tensors()
    check(from_source(text), arrays, scalars, arrays["b"].shape)


AXES = {
    "dense_fixed": ("", "S.dense_fixed(n)"),
    "dense_variable": ("bp: S.handle, ", 'S.dense_variable(I, (n, bz), bp, "int32")'),
    "sparse_fixed": ("bq: S.handle, ", 'S.sparse_fixed(I, (n, w), bq, "int32")'),
}


@pytest.mark.parametrize("other", AXES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["JA, JB", "JB, JA"])
def test_other_kinds_of_axes_are_merged(kind, other, order):
    """Padding is no entry; ELL rows are merged up to where it begins."""
    text = f"""
@S.prim_func
def program(a: S.handle, ap: S.handle, aq: S.handle, b: S.handle, {AXES[other][0]}y: S.handle,
            m: S.int32, n: S.int32, az: S.int32, bz: S.int32, w: S.int32):
    I = S.dense_fixed(m)
    N = S.dense_fixed(n)
    JA = S.sparse_variable(I, (n, az), (ap, aq), "int32")
    JB = {AXES[other][1]}
    A = S.match_sparse_buffer(a, (I, JA), "float64")
    B = S.match_sparse_buffer(b, (I, JB), "float64")
    Y = S.match_sparse_buffer(y, (I, N), "float64")
    with S.sp_iter([I, S.{kind}({order})], "SS", "merged") as [i, j]:
        Y[i, j] = A[i, j] - 2.0 * B[i, j]
"""
    m, n, width = 9, 9, 6
    left, scalars = operands(ROWS[:1], n)
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, width + 1, m)
    padded = np.full((m, width), n, "int32")
    for row, length in enumerate(lengths):
        padded[row, :length] = np.sort(rng.permutation(n)[:length])
        padded[row, length:] += rng.integers(0, 3)
    slots = {"dense_fixed": m * n, "dense_variable": lengths.sum(), "sparse_fixed": m * width}[
        other
    ]
    values = rng.integers(1, 7, slots).astype("float64")
    shapes = {"dense_fixed": (m, n), "dense_variable": (slots,), "sparse_fixed": (m, width)}
    arrays = {
        "a": left["a0"],
        "ap": left["p0"],
        "aq": left["q0"],
        "b": values.reshape(shapes[other]),
        "bp": np.append(0, np.cumsum(lengths)).astype("int32"),
        "bq": padded,
    }
    if other == "sparse_fixed":
        arrays["b"][padded >= n] = np.nan  # what padding holds does not count
    func = from_source(text)
    arrays = {name: array for name, array in arrays.items() if name in func.arg_names}
    sizes = {"m": m, "n": n, "az": scalars["z0"], "bz": int(lengths.sum()), "w": width}
    arguments = arrays | {"y": poisoned((m, n), "float64")}
    expected = interpret(func, arguments, sizes)["y"]
    found = run(func, arguments, sizes, ("y",))["y"]
    np.testing.assert_array_equal(found, expected)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_attached_to_padding_have_no_entries(kind):
    text = f"""
@S.prim_func
def program(h: S.handle, b: S.handle, bp: S.handle, bq: S.handle, c: S.handle, cp: S.handle, cq: S.handle,
            y: S.handle, m: S.int32, n: S.int32, bz: S.int32, cz: S.int32):
    I = S.dense_fixed(m)
    N = S.dense_fixed(n)
    H = S.sparse_fixed(I, (n, 3), h, "int32")
    R = S.dense_fixed(n)
    JB = S.sparse_variable(R, (n, bz), (bp, bq), "int32")
    JC = S.sparse_variable(R, (n, cz), (cp, cq), "int32")
    B = S.match_sparse_buffer(b, (R, JB), "float64")
    C = S.match_sparse_buffer(c, (R, JC), "float64")
    Y = S.match_sparse_buffer(y, (I, N), "float64")
    with S.sp_iter([I, H, S.{kind}(S.attach(JB, H), S.attach(JC, H))], "SRS", "rows") as [i, k, j]:
        with S.init():
            Y[i, j] = 0.0
        Y[i, j] = Y[i, j] + B[k, j] - 2.0 * C[k, j]
"""
    both, sizes = operands(ROWS[:2], 9)
    arrays = {
        "h": np.array([[0, 3, 8], [9, 9, 9], [5, 9, 1000], [8, 2**31 - 1, 2**31 - 1]], "int32"),
        **{name + end: both[f"{part}{k}"] for k, name in enumerate("bc") for end, part in ENDS},
    }
    scalars = {"m": 4, "n": 9, "bz": sizes["z0"], "cz": sizes["z1"]}
    check(from_source(text), arrays, scalars, (4, 9))


ENDS = (("", "a"), ("p", "p"), ("q", "q"))

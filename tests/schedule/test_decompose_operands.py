"""Several operands in formats, and bodies of several statements."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_sparse
from tests.schedule.decompositions import (
    FORMATS,
    LONG_ROW,
    assert_result,
    decomposed,
    poisoned_rows,
)
from tvm_sparse import SparseSchedule, schedules
from tvm_sparse.formats import COO, CSR, Entries, Hyb
from tvm_sparse.script import from_source

# --- several operands --------------------------------------------------------------------------

TWO = """
@S.prim_func
def two(
    a: T.handle, b: T.handle, x: T.handle, y: T.handle, p: T.handle, q: T.handle, r: T.handle, s: T.handle,
    m: T.int32, n: T.int32, o: T.int32, u: T.int32, v: T.int32
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, u), (p, q), "int32")
    Jd = S.dense_fixed(n)
    L = S.sparse_variable(Jd, (o, v), (r, s), "int32")
    Ld = S.dense_fixed(o)
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (Jd, L), "float32")
    X = S.match_sparse_buffer(x, (Ld,), "float32")
    Y = S.match_sparse_buffer(y, (I,), "float32")
    W = S.alloc_sparse_buffer((Jd,), "float32")
    with S.sp_iter([Jd, L], "SR", "first") as [j, l]:
        with T.init():
            W[j] = T.float32(0)
        W[j] = W[j] + B[j, l] * X[l]
    with S.sp_iter([I, J], "SR", "second") as [i, j]:
        with T.init():
            Y[i] = T.float32(1)
        Y[i] = Y[i] + A[i, j] * W[j]
"""


@pytest.mark.parametrize(
    "first, second",
    [
        ("csr", "csc"),
        ("coo", "bsr2x3"),
        ("hyb", "pieces"),
        ("user_diagonals", "entries_and_columns"),
    ],
)
def test_operands_are_decomposed_one_after_the_other(first: str, second: str):
    sch = SparseSchedule(from_source(TWO))
    sch.decompose_format("first", "B", FORMATS[first].formats)
    sch.decompose_format("second", "A", FORMATS[second].formats)
    kernel = tvm_sparse.compile(sch)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape) * (rng.random(shape) < 0.5) for shape in ((6, 5), (5, 7)))
    x = rng.integers(-2, 3, 7).astype("float32")
    packed = {
        name: FORMATS[fmt].packs.pack(
            Entries(
                tuple(c.astype("int32") for c in np.nonzero(dense)),
                dense[np.nonzero(dense)].astype("float32"),
                dense.shape,
            )
        )
        for name, fmt, dense in (("a", second, a), ("b", first, b))
    }
    whole, inner = poisoned_rows(6, (), "float32")
    kernel(**packed, x=x, y=inner)
    assert_result(whole, 1.0 + a @ (b @ x))


def test_one_matrix_may_be_held_in_formats_for_each_of_its_uses():
    twice = from_source(
        schedules.spmv.program().script()
        + """
    with S.sp_iter([I, J], "SR", "again") as [i, j]:
        Y[i] = Y[i] + A[i, j]
"""
    )
    sch = SparseSchedule(twice)
    sch.decompose_format("spmv", "A", {"x": CSR(), "y": COO()})
    sch.decompose_format("again", "A", {"z": Hyb(buckets=[1]).parts["w1"]})
    names = list(sch.mod["spmv"].arg_names)
    assert "a" not in names and "indptr" not in names
    assert {"a_x", "a_y", "a_z"} < set(names)


# --- statements --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body, expected",
    [
        ("v: T.let = A[i, j] * X[j]\n        Y[i] = Y[i] + v * v", lambda a, x: (a * x) ** 2),
        (
            "v: T.float32 = A[i, j] * X[j]\n        v = v + T.float32(1)\n        Y[i] = Y[i] + v",
            lambda a, x: a * x + 1,
        ),
        ("if A[i, j] > T.float32(0):\n            Y[i] = Y[i] + X[j]", lambda a, x: x * (a > 0)),
        (
            "for q in range(3):\n            Y[i] = Y[i] + A[i, j] * T.cast(q, 'float32')",
            lambda a, x: 3 * a,
        ),
        ("Y[i] = Y[i] + X[j]", lambda a, x: x),
        ("Y[i] = Y[i] + A[i, j]\n        Y[i] = Y[i] + X[j]", lambda a, x: a + x),
    ],
)
@pytest.mark.parametrize("name", ["csr", "bsr2x3", "entries_and_columns"])
def test_bodies_of_many_statements(name: str, body: str, expected):
    text = schedules.spmv.program().script()
    update = "Y[i] = Y[i] + A[i, j] * X[j]"
    kernel = tvm_sparse.compile(decomposed(from_source(text.replace(update, body)), "A", name))
    dense = np.array([[1, -2, 0, 3], [0, 0, 0, 0], [2, 1, 1, -1]], "float32")
    x = np.array([2, 1, -1, 3], "float32")
    places = np.nonzero(dense)
    tensor = Entries(tuple(c.astype("int32") for c in places), dense[places], dense.shape)
    whole, inner = poisoned_rows(3, (), "float32")
    kernel(a=FORMATS[name].packs.pack(tensor), x=x, y=inner)
    assert_result(whole, np.where(dense != 0, expected(dense, x), 0).sum(1))


def test_integers_are_held_in_blocks_where_zeros_add_nothing():
    kernel = tvm_sparse.compile(decomposed(schedules.spmv.program("int32"), "A", "bsr2x3"))
    packed = FORMATS["bsr2x3"].packs.pack(LONG_ROW.with_values(LONG_ROW.values.astype("int32")))
    assert kernel(a=packed, x=np.arange(7, dtype="int32")).tolist()[2] == 91

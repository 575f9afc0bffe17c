"""Half-precision reductions are summed in float32, whoever else writes or reads the result."""

from __future__ import annotations

import numpy as np

from tests.execution import run
from tvm_sparse.ir import SparseFunc
from tvm_sparse.script import from_source


def _program(body: str) -> SparseFunc:
    return from_source(f"""
@S.prim_func
def f(x: T.handle, y: T.handle, m: T.int32):
    I = S.dense_fixed(m)
    K = S.dense_fixed(4)
    L = S.dense_fixed(2 * m)
    X = S.match_sparse_buffer(x, (I, K), "float16")
    Y = S.match_sparse_buffer(y, (L,), "float16", default=9)
{body}""")


X = np.array([[1, 2, 3, 4], [0, 0, 0, 0], [2048, 1, 1, 1]], "float16")
EVEN = """
    with S.sp_iter([I, K], "SR", "even") as [i, k]:
        with T.init():
            Y[i * 2] = T.float16(0)
        Y[i * 2] = Y[i * 2] + X[i, k]
"""
SUMS = X.astype("float64").sum(1).astype("float16")


def _run(body: str, **arrays: np.ndarray) -> np.ndarray:
    arrays = {"x": X, "y": np.zeros(6, "float16"), **arrays}
    return run(_program(body), arrays, {"m": 3}, ("y",) if "y" not in arrays else ())["y"]


def test_iterations_that_write_parts_of_a_result_leave_each_other_alone():
    odd = (
        EVEN.replace("even", "odd").replace("i * 2", "i * 2 + 1").replace("X[i, k]", "T.float16(1)")
    )
    found = _run(EVEN + odd)
    np.testing.assert_array_equal(found[::2], SUMS)
    np.testing.assert_array_equal(found[1::2], 4)


def test_what_was_written_before_stays():
    before = """
    with S.sp_iter([L], "S", "before") as [l]:
        Y[l] = T.float16(7)
"""
    found = _run(before + EVEN)
    np.testing.assert_array_equal(found[::2], SUMS)
    np.testing.assert_array_equal(found[1::2], 7)


def test_the_rest_of_the_result_has_the_default():
    np.testing.assert_array_equal(_run(EVEN)[1::2], 9)


def test_later_iterations_read_the_sums():
    after = """
    with S.sp_iter([I], "S", "after") as [i]:
        Y[i * 2 + 1] = Y[i * 2] * T.float16(2)
"""
    np.testing.assert_array_equal(_run(EVEN + after)[1::2], 2 * SUMS)


def test_what_the_argument_holds_is_kept_where_the_program_reads_it():
    before = """
    with S.sp_iter([L], "S", "before") as [l]:
        Y[l] = Y[l] + T.float16(1)
"""
    found = _run(before + EVEN, y=np.full(6, 5, "float16"))
    np.testing.assert_array_equal(found[::2], SUMS)
    np.testing.assert_array_equal(found[1::2], 6)


def test_temporaries_are_summed_in_float32_too():
    body = """
    W = S.alloc_sparse_buffer((I,), "float16")
    with S.sp_iter([I, K], "SR", "sums") as [i, k]:
        with T.init():
            W[i] = T.float16(0)
        W[i] = W[i] + X[i, k]
    with S.sp_iter([I], "S", "copy") as [i]:
        Y[i] = W[i]
"""
    np.testing.assert_array_equal(_run(body)[:3], SUMS)

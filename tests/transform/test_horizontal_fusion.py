"""Row loops of parts without common rows share one parallel loop."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import Schedule

from tests.execution import build, lower
from tvm_sparse.script import from_source
from tvm_sparse.transform import (
    FuseRowLoops,
    HoistReductionInit,
    LowerSparseBuffer,
    MergeOuterLoops,
)

# Three sums over rows that have nothing to do with each other; the last has no row pointers.
PROGRAM = """
@S.prim_func
def f(
    a: S.handle, b: S.handle, x: S.handle, y: S.handle, z: S.handle,
    a_indptr: S.handle, b_indptr: S.handle, m: S.int32, n: S.int32, a_nnz: S.int32, b_nnz: S.int32,
):
    I = S.dense_fixed(m)
    J = S.dense_fixed(n)
    IA = S.dense_variable(I, (1000000, a_nnz), a_indptr, "int32")
    JB = S.dense_variable(J, (1000000, b_nnz), b_indptr, "int32")
    A = S.match_sparse_buffer(a, (I, IA), "float64")
    B = S.match_sparse_buffer(b, (J, JB), "float64")
    X = S.match_sparse_buffer(x, (I,), "float64")
    Y = S.match_sparse_buffer(y, (J,), "float64")
    Z = S.match_sparse_buffer(z, (J,), "float64")
    with S.sp_iter([I, IA], "SR", "first") as [i, k]:
        with S.init():
            X[i] = 0.0
        X[i] = X[i] + A[i, k]
    with S.sp_iter([J, JB], "SR", "second") as [j, k]:
        with S.init():
            Y[j] = 0.0
        Y[j] = Y[j] + B[j, k]
    with S.sp_iter([J], "S", "third") as [j]:
        Z[j] = S.cast(j, "float64")
"""


def scheduled(groups: tuple[str, str, str]) -> tvm.IRModule:
    sch = Schedule(lower(from_source(PROGRAM)))
    sch.work_on("f")
    for name, pointers, group in zip(
        ("first", "second", "third"), ("IA_indptr", "JB_indptr", ""), groups
    ):
        (row,) = sch.get_loops(sch.get_sblock(f"{name}_0"))
        sch.parallel(row)
        sch.annotate(row, "tvm_sparse.balance", pointers)
        sch.annotate(row, "tvm_sparse.together", group)
    return sch.mod


@pytest.mark.parametrize(
    ("groups", "count"), [(("p", "p", "p"), 1), (("p", "p", "q"), 2), (("p", "q", "p"), 3)]
)
def test_neighbours_of_one_group_become_one_loop(groups, count):
    to_loops = [
        LowerSparseBuffer(),
        HoistReductionInit(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LowerOpaqueBlock(),
    ]
    fused = FuseRowLoops()(tvm.transform.Sequential(to_loops)(scheduled(groups)))
    parallel: list[tirx.For] = []

    def note(loop: tirx.For) -> None:
        if loop.kind == tirx.ForKind.PARALLEL:
            parallel.append(loop)

    tvm_ffi.structural_walk(fused["f"].body, (tirx.For, note))
    assert len(parallel) == count


@pytest.mark.parametrize("groups", [("p", "p", "p"), ("p", "q", "q")])
@pytest.mark.parametrize(("rows", "columns"), [(0, 0), (1, 0), (0, 3), (7, 5), (3000, 2000)])
def test_fused_loops_give_what_each_would(groups, rows, columns):
    kernel = build(from_source(PROGRAM), scheduled(groups))
    a = sp.random(rows, 40, 0.3, "csr", random_state=1)
    b = sp.random(columns, 40, 0.3, "csr", random_state=2)
    arrays = {
        "a": a.data,
        "b": b.data,
        "x": np.full(rows, np.nan),
        "y": np.full(columns, np.nan),
        "z": np.full(columns, np.nan),
        "a_indptr": a.indptr.astype("int32"),
        "b_indptr": b.indptr.astype("int32"),
    }
    results = kernel(arrays, {"m": rows, "n": columns, "a_nnz": a.nnz, "b_nnz": b.nnz})
    np.testing.assert_allclose(results["x"], a.sum(axis=1).A1 if rows else [], rtol=1e-12)
    np.testing.assert_allclose(results["y"], b.sum(axis=1).A1 if columns else [], rtol=1e-12)
    np.testing.assert_array_equal(results["z"], np.arange(columns))


RANGES = """
@S.prim_func
def f(x: S.handle, y: S.handle, z: S.handle, m: S.int32):
    I = S.dense_fixed(3)
    J = S.dense_fixed(3)
    K = S.dense_fixed(m)
    X = S.match_sparse_buffer(x, (I, K), "float64")
    Y = S.match_sparse_buffer(y, (J, K), "float64")
    Z = S.match_sparse_buffer(z, (K,), "float64")
    with S.sp_iter([I, K], "SS", "first") as [i, k]:
        X[i, k] = S.cast(i + k, "float64")
    with S.sp_iter([J, K], "SS", "second") as [j, k]:
        Y[j, k] = S.cast(j * k, "float64")
    with S.sp_iter([K], "S", "third") as [k]:
        Z[k] = S.cast(k, "float64")
"""


@pytest.mark.parametrize(
    ("groups", "extents"), [(("p", "p"), [3]), (("p", "q"), [3, 3]), ((None, "p"), [3, 3])]
)
def test_outer_loops_of_one_group_are_merged(groups, extents):
    program = from_source(RANGES)
    sch = Schedule(lower(program))
    sch.work_on("f")
    for name, group in zip(("first", "second"), groups):
        outer, row = sch.get_loops(sch.get_sblock(f"{name}_0"))
        sch.parallel(row)
        if group is not None:
            sch.annotate(outer, "tvm_sparse.together", group)
    found: list[int] = []

    def note(loop: tirx.For) -> None:
        if loop.kind == tirx.ForKind.SERIAL and isinstance(loop.extent, tirx.IntImm):
            found.append(int(loop.extent))

    tvm_ffi.structural_walk(MergeOuterLoops()(sch.mod)["f"].body, (tirx.For, note))
    assert found == extents
    arrays = {"x": np.full((3, 5), np.nan), "y": np.full((3, 5), np.nan), "z": np.full(5, np.nan)}
    results = build(program, sch.mod)(arrays, {"m": 5})
    numbers = np.arange(5.0)
    np.testing.assert_array_equal(results["x"], np.arange(3.0)[:, None] + numbers)
    np.testing.assert_array_equal(results["y"], np.arange(3.0)[:, None] * numbers)
    np.testing.assert_array_equal(results["z"], numbers)

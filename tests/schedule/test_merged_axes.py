"""What schedules do with merged axes: the same numbers, or a refusal that names them."""

from __future__ import annotations

import pytest

from tests.programs.merged import check, operands, program, random_rows
from tvm_sparse import SparseSchedule
from tvm_sparse.errors import SparseProgramError
from tvm_sparse.formats import CSC, CSR, ELL, Hyb

ROWS = [random_rows(7, 7, density, seed) for seed, density in enumerate((0.4, 0.5, 0.3))]
SUMS = """
with S.sp_iter([I, N, S.union(J0, J1)], "SRR", "sums") as [i, h, j]:
    with S.init():
        Y[i] = 1.0
    Y[i] = Y[i] + (A0[i, j] - A1[i, h])
"""
PAIRS = """
with S.sp_iter([M, I, J2, S.intersect(J0, S.attach(J1, M))], "SSRR", "pairs") as [g, i, h, j]:
    with S.init():
        Y[i, g] = 0.0
    Y[i, g] = Y[i, g] + A0[i, j] * A1[g, j] * A2[i, h]
"""


def sums() -> SparseSchedule:
    return SparseSchedule(program(2, SUMS, "(I,)"))


def pairs() -> SparseSchedule:
    return SparseSchedule(program(3, PAIRS, "(I, M)"))


def scheduled(sch: SparseSchedule):
    return next(iter(sch.mod.functions.values()))


@pytest.mark.parametrize("order", [["i", "j", "h"], ["h", "i", "j"]])
def test_merged_loops_are_reordered(order):
    sch = sums()
    sch.sparse_reorder("sums", order)
    check(scheduled(sch), *operands(ROWS[:2], 7), (7,))


@pytest.mark.parametrize(
    "order", [["i", "g", "h", "j"], ["i", "g", "j", "h"], ["i", "h", "g", "j"]]
)
def test_loops_around_merged_ones_are_reordered(order):
    sch = pairs()
    sch.sparse_reorder("pairs", order)
    check(scheduled(sch), *operands(ROWS, 7), (7, 7))


def test_loops_around_merged_ones_are_fused():
    sch = pairs()
    sch.sparse_fuse("pairs", ["i", "h"])
    check(scheduled(sch), *operands(ROWS, 7), (7, 7))


@pytest.mark.parametrize("order", [["j", "i", "h"], ["h", "j", "i"]])
def test_members_stay_inside_of_their_owners(order):
    with pytest.raises(SparseProgramError, match=r"J0_J1 \(iterator j\) is stored under axis I"):
        sums().sparse_reorder("sums", order)


def test_attached_members_stay_inside_of_what_they_are_attached_to():
    with pytest.raises(SparseProgramError, match=r"\(iterator j\) is stored under axis M"):
        pairs().sparse_reorder("pairs", ["i", "h", "j", "g"])


@pytest.mark.parametrize("names", [["h", "j"], ["i", "h", "j"]])
def test_merged_loops_are_not_fused(names):
    with pytest.raises(SparseProgramError, match=r"is no child of axis"):
        sums().sparse_fuse("sums", names)


@pytest.mark.parametrize("form", [CSR(), CSC(), ELL(3), Hyb(1, [1, 2])])
def test_members_are_not_decomposed(form):
    with pytest.raises(
        SparseProgramError, match="axis J0 of operand A0 is merged with others in J0_J1"
    ):
        sums().decompose_format("sums", "A0", form)


def test_owners_of_members_are_not_decomposed():
    with pytest.raises(
        SparseProgramError, match=r"\(iterator j\) is stored under axis I of operand"
    ):
        pairs().decompose_format("pairs", "A2", CSC())


def test_merged_loops_are_not_split():
    with pytest.raises(SparseProgramError, match=r"found axis J0_J1 \(union\) of none"):
        sums().sparse_split("sums", "j", 4)


def test_traces_are_replayed():
    sch = pairs()
    sch.sparse_reorder("pairs", ["i", "h", "g", "j"])
    again = pairs()
    sch.trace.apply(again)
    assert scheduled(again).script() == scheduled(sch).script()

"""Detection answers the kernels of the literature: what needs a workspace, and over which variables."""

from __future__ import annotations

import pytest

from tvm_sparse import SparseProgramError
from tvm_sparse.workspace.detection import Fuse, Position, Split, detect, undo_scheduling

# name: loops, levels of the result, dimensions of the workspace, its variables, hoisted, permutation
KERNELS = {
    "product by inner products": ("ijk", "ij", 0, "", "ij", ()),
    "product by rows": ("ikj", "ij", 1, "j", "i", (0,)),
    "product by outer products": ("kij", "ij", 2, "ij", "", (0, 1)),
    "outer products, columns first": ("kji", "ij", 2, "ji", "", (1, 0)),
    "product by columns, stored by columns": ("jki", "ji", 1, "i", "j", (0,)),
    "product by rows, stored by columns": ("ikj", "ji", 2, "ij", "", (1, 0)),
    "transposition": ("ij", "ji", 2, "ij", "", (1, 0)),
    "copy": ("ij", "ij", 0, "", "ij", ()),
    "outer product of vectors": ("ij", "ij", 0, "", "ij", ()),
    "MTTKRP": ("klij", "ij", 2, "ij", "", (0, 1)),
    "MTTKRP by rows": ("iklj", "ij", 1, "j", "i", (0,)),
    "TTM": ("kijl", "ijl", 3, "ijl", "", (0, 1, 2)),
    "TTM, reduced last but one": ("ijkl", "ijl", 1, "l", "ij", (0,)),
    "TTM in the first mode": ("kijl", "kjl", 2, "jl", "k", (0, 1)),
    "TTV": ("ijk", "ij", 0, "", "ij", ()),
    "TTV, reduced first": ("kij", "ij", 2, "ij", "", (0, 1)),
    "contraction of two tensors": ("ijklm", "ijlm", 2, "lm", "ij", (0, 1)),
    "contraction over two modes": ("ijkl", "il", 1, "l", "i", (0,)),
    "contraction of the first modes": ("ijkl", "kl", 2, "kl", "", (0, 1)),
    "batched product": ("bikj", "bij", 1, "j", "bi", (0,)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name):
    loops, result, order, workspace, hoisted, permutation = KERNELS[name]
    found = detect(list(loops), list(result))
    assert found.order == order
    assert "".join(found.workspace) == workspace
    assert "".join(found.hoisted) == hoisted
    assert found.permutation == permutation
    assert found.accumulates == bool(set(loops) - set(result))


@pytest.mark.parametrize("name", KERNELS)
def test_the_closed_formula_agrees(name):
    loops, result, *_ = KERNELS[name]
    produced = [var for var in loops if var in result]
    prefix = 0
    while prefix < len(result) and produced[prefix] == result[prefix]:
        prefix += 1
    reduced = [var for var in loops if var not in result]
    outside = loops.index(reduced[0]) if reduced else len(result)
    assert detect(list(loops), list(result)).order == len(result) - min(prefix, outside)


def test_what_is_appended_summed_or_scattered_differs():
    assert detect("ij", "ij").strategy == "append"
    assert detect("ijk", "ij").strategy == "scalar"
    assert detect("ikj", "ij").strategy == "workspace"
    assert not detect("ij", "ji").accumulates


def test_levels_that_take_entries_anywhere_need_nothing():
    assert detect("kij", "ij", levels={"i": "dense", "j": "dense"}).strategy == "insert"
    assert detect("kij", "ij", levels={"i": "dense", "j": "hashed"}).strategy == "insert"
    assert detect("kij", "ij", levels={"i": "dense"}).order == 2
    assert detect("ikj", "ij", levels={"i": "dense"}).order == 1


def test_loops_out_of_order_share_no_level_that_needs_order():
    found = detect("ikj", "ij", unordered=["i"])
    assert found.order == 2
    assert found.accumulates
    assert detect("ikj", "ij", unordered=["i"], levels={"i": "dense"}).order == 1
    # Columns that repeat meet at one place though nothing is reduced.
    repeated = detect("ij", "ij", unordered=["j"])
    assert (repeated.workspace, repeated.accumulates) == (("j",), True)


@pytest.mark.parametrize(
    "loops, steps, expected",
    [
        (
            ["p0", "p1", "j"],
            [Fuse("i", "k", "f"), Position("f", "p"), Split("p", "p0", "p1")],
            "ikj",
        ),
        (["i0", "k", "i1", "j"], [Split("i", "i0", "i1")], "kij"),
        (["i0", "i1", "k", "j"], [Split("i", "i0", "i1")], "ikj"),
        (["k0", "i", "k1", "j"], [Split("k", "k0", "k1")], "kij"),
        (["i", "k1", "j", "k0"], [Split("k", "k0", "k1")], "ikj"),
        (["i", "j0", "k", "j1"], [Split("j", "j0", "j1")], "ikj"),
        (["f", "j"], [Fuse("i", "k", "f")], "ikj"),
        (["i", "k", "j"], [], "ikj"),
    ],
)
def test_scheduling_is_undone(loops, steps, expected):
    assert undo_scheduling(loops, steps, ["k"]) == list(expected)


def test_splits_change_what_is_needed():
    by_tiles = undo_scheduling(["i0", "k", "i1", "j"], [Split("i", "i0", "i1")], ["k"])
    assert detect(by_tiles, "ij").order == 2


@pytest.mark.parametrize(
    "loops, result, message",
    [
        ("ik", "ij", r"result: expected variables of the loops \(i, k\), found j"),
        ("iik", "i", "loops: expected each variable once, found i, i, k"),
        ("ik", "ii", "result: expected each variable once, found i, i"),
    ],
)
def test_what_makes_no_sense_is_refused(loops, result, message):
    with pytest.raises(SparseProgramError, match=message):
        detect(list(loops), list(result))


def test_steps_about_other_loops_are_refused():
    with pytest.raises(SparseProgramError, match="expected f among the loops i, k, found it not"):
        undo_scheduling(["i", "k"], [Fuse("i", "k", "f")], [])

"""The choice of a workspace: by what rows produce, overridden by name, lazily compiled, explained."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from tvm import tirx

import tvm_sparse
from tvm_sparse import SparseProgramError
from tvm_sparse.script import from_source
from tvm_sparse.workspace import (
    Policy,
    Scratch,
    Work,
    find_policy,
    known_policies,
    register_policy,
)
from tvm_sparse.workspace.choice import choose, more_windows, scratch_bytes
from tvm_sparse.workspace.statements import Local, int64, loop, sequence, when

from .programs import BY_OUTER_PRODUCTS, by_rows, check, product, sparse, total


def _candidates(*names: str):
    known = [own for own in known_policies() if not own.streams]
    policies = [own for own in known if not names or own.name in names]
    return [(own, {part.name: vars(part) for part in own.scratch}) for own in policies]


def _best(produced, length: int, **kwargs) -> str:
    return choose(Work.of(np.array(produced), length, 8), _candidates(), 1, **kwargs)[0].policy


@pytest.mark.parametrize(
    "produced, length, policies",
    [
        ([500] * 1000, 1000, {"dense", "list"}),
        ([4] * 100_000, 1 << 21, {"list", "sort"}),
        ([1 << 19], 1 << 20, {"bucket", "dense"}),
        ([1 << 19], 1 << 50, {"sort"}),
    ],
)
def test_what_rows_produce_decides(produced, length, policies):
    assert _best(produced, length) in policies


def test_a_limit_leaves_policies_that_fit():
    work = Work.of(np.array([10_000]), 1 << 30, 8)
    for limit in (1 << 22, 1 << 18, 1 << 15):
        found = choose(work, _candidates(), 2, limit)
        assert found
        assert all(own.bytes <= limit for own in found)
        assert [own.nanoseconds for own in found] == sorted(own.nanoseconds for own in found)
    assert choose(work, _candidates(), 2, 100) == []


def test_bytes_follow_the_declared_sizes():
    (_, dense), (_, table) = _candidates("dense", "hash")
    assert scratch_bytes(dense, 4, 6400, 10**9, 0) == 6400 * 4 + (101 + 2 + 1) * 64
    assert scratch_bytes(table, 8, 10**9, 100, 0) == 8 * (256 + 256 + 202 + 202 + 2049)


def test_windows_double_until_they_are_small():
    work = Work.of(np.array([1000]), 1024, 8)
    (choice,) = choose(work, _candidates("merge"), 1)
    widths = []
    while choice is not None:
        widths.append(choice.width)
        choice = more_windows(choice, work)
    assert widths[:3] == [1024, 512, 256]
    assert widths[-1] >= 8


def test_policies_are_compiled_when_chosen():
    kernel = tvm_sparse.compile(from_source(BY_OUTER_PRODUCTS))
    assert list(kernel._variants) == [("sort", False)]
    assert "none yet" in kernel.explain()
    a, b = sparse(300, 300, 30_000), sparse(300, 300, 30_000, seed=1)
    check(kernel(a=a.T.tocsr(), b=b), product(a, b))
    (name,) = {name for name, _ in kernel._variants} - {"sort"}
    assert kernel.explain().startswith(f"workspace of the last call: {name}: ")
    assert "instead of sort" in kernel.explain()
    assert "1 rows of 90000 places" in kernel.explain()


def test_a_name_or_a_policy_overrides_the_choice():
    a, b = sparse(30, 40, 100), sparse(40, 50, 100, seed=1)
    for workspace in ("hash", find_policy("hash")):
        kernel = by_rows(workspace)
        check(kernel(a=a, b=b), product(a, b))
        assert kernel.explain().startswith("workspace of the last call: hash: ")
    with pytest.raises(
        ValueError, match=r"expected one of auto, .*dense.*, or a Policy, found 'tree'"
    ):
        by_rows("tree")


def test_exported_kernels_hold_the_policy_that_was_chosen(tmp_path):
    a, b = sparse(30, 40, 100), sparse(40, 500, 400, seed=1)
    kernel = by_rows("dense")
    kernel(a=a, b=b)
    kernel.export_library(tmp_path / "product.so")
    loaded = tvm_sparse.load(tmp_path / "product.so")
    check(loaded(a=a, b=b), product(a, b))
    assert kernel.choices[0].policy in repr(loaded)
    assert loaded(a=a, b=b, prune=True, sorted=False).nnz == product(a, b).nnz
    with pytest.raises(ValueError, match="the only one that this library holds"):
        loaded(a=a, b=b, workspace_bytes=900)
    loaded.export_library(tmp_path / "copy.so")
    check(tvm_sparse.load(tmp_path / "copy.so").plan(a=a, b=b)(a=a, b=b), product(a, b))


class FlaggedRow(Policy):
    """The smallest policy: a dense row of values and flags."""

    name = "flagged_row"
    scratch = (
        Scratch("values", "value", "length", fill=None, symbolic=False),
        Scratch("flags", "bool", "length"),
    )

    def insert(self, memory, place, value, combine):
        own = memory["flags"].store(place, tirx.const(True, "bool"))
        if value is None:
            return own
        values = memory["values"]
        return sequence(own, values.store(place, combine(values[place], value)))

    def _each(self, memory, row, visit):
        flags = memory["flags"]
        clear = lambda place: flags.store(place, tirx.const(False, "bool"))  # noqa: E731
        return loop(
            "place",
            int64(0),
            row.length,
            lambda place: when(flags[place], sequence(visit(place), clear(place))),
        )

    def count(self, memory, row):
        held = Local("held", "int64")
        each = self._each(memory, row, lambda place: held.set(held.value + 1))
        return [*held.declare(0), each], held.value

    def drain(self, memory, row, emit):
        values = memory["values"]
        return self._each(
            memory,
            row,
            lambda place: sequence(emit(place, values[place]), values.store(place, row.neutral)),
        )


@pytest.fixture
def own_policy():
    from tvm_sparse.workspace import policy

    yield register_policy(FlaggedRow())
    del policy._POLICIES["flagged_row"]


def test_users_register_policies(own_policy):
    a, b = sparse(30, 40, 300), sparse(40, 50, 300, seed=1)
    kernel = by_rows("flagged_row")
    check(kernel(a=a, b=b), product(a, b))
    b = sparse(40, 500, 300)
    check(kernel(a=a, b=b, workspace_bytes=1000), product(a, b))
    assert kernel.choices[0].windows > 1
    with pytest.raises(ValueError, match="a name of its own, found 'flagged_row' again"):
        register_policy(FlaggedRow())


def test_policies_without_a_cost_are_not_chosen(own_policy):
    assert "flagged_row" not in repr(by_rows("auto", index="int64"))


def test_iterations_that_combine_differently_need_a_policy_that_combines_at_once():
    a, b = sparse(30, 40, 300), sparse(30, 40, 300, seed=1)
    check(total("auto", "A[i, j]")(a=a, b=b), (a + b).tocsr(), 1e-15)
    assert "sort" not in repr(total("auto", "A[i, j]"))
    with pytest.raises(SparseProgramError, match="combines entries by one operation"):
        total("sort", "A[i, j]")


def test_a_result_that_is_read_but_not_combined_is_refused():
    with pytest.raises(SparseProgramError, match="op one of"):
        total("dense", "A[i, j] - C[i, j] * C[i, j]")


def test_keys_past_63_bits_are_refused_by_name():
    outer = BY_OUTER_PRODUCTS.replace("S.int32", "S.int64").replace('"int32"', '"int64"')
    outer = outer.replace("S.dense_fixed(k)", 'S.dense_fixed(k, "int64")')
    outer = outer.replace("S.dense_fixed(m)", 'S.dense_fixed(m, "int64")')
    outer = outer.replace("(I_dense, n)", '(I_dense, n, "int64")')
    empty = sp.csr_matrix((3, 4))
    arrays = dict(a_indptr=np.zeros(4, np.int64), b_indptr=np.zeros(4, np.int64))
    arrays |= dict(a_indices=np.zeros(0, np.int64), b_indices=np.zeros(0, np.int64))
    kernel = tvm_sparse.compile(from_source(outer))
    with pytest.raises(
        ValueError, match=r"fewer than 2\*\*63 places, found m \* n = 4294967296 \* "
    ):
        kernel(a=empty.data, b=empty.data, **arrays, m=1 << 32, k=3, n=1 << 31)

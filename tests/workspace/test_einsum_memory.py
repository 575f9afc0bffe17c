"""Results of ``einsum`` that memory does not hold, or only the right workspace."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import tvm_sparse
from tests.workspace.einsum_oracle import check
from tvm_sparse.einsum import memory, step
from tvm_sparse.runtime import sparse_results

SMALL_MACHINE = 1 << 20


@pytest.fixture
def small_machine(monkeypatch):
    for module in (memory, step, sparse_results):
        monkeypatch.setattr(module, "memory_bytes", lambda: SMALL_MACHINE)


def vector(size, entries):
    places = np.linspace(0, size - 1, entries).astype(np.int64)
    return sp.coo_array((np.arange(1.0, entries + 1), (places,)), shape=(size,))


def test_pointers_of_rows_beyond_memory_are_refused():
    u, v = vector(2**40, 3), vector(2**40, 5)
    message = (
        "out: expected a result that fits into the .* GiB of this machine, found 'csr', which takes .* GiB "
        r"for the pointers of a result of 1099511627776 \(i\) x 1099511627776 \(j\); out='coo' and"
    )
    with pytest.raises(MemoryError, match=message):
        tvm_sparse.einsum("i,j->ij", u, v)
    with pytest.raises(MemoryError, match=r"found 'dense', which takes .* GiB for all places of"):
        tvm_sparse.einsum("i,j->ij", u, v, out="dense")
    check(tvm_sparse.einsum("i,j->ij", u, v, out="coo"), "i,j->ij", u, v)


def test_entries_beyond_memory_are_refused_before_they_are_counted():
    u = np.ones(10**7, np.float32)
    message = (
        "expected one that fits into the .* GiB of this machine, found 100000000000000 entries"
    )
    with pytest.raises(MemoryError, match=message):
        tvm_sparse.einsum("i,j->ij", u, u)


def test_entries_beyond_memory_are_refused_before_they_are_allocated(small_machine, monkeypatch):
    monkeypatch.setattr(sparse_results, "_MOST_ROOM", 1 << 16)  # counted first
    a = sp.csr_array(np.ones((600, 2)))
    with pytest.raises(
        MemoryError, match=r"found 360000 entries, which take .* GiB; compute it in par"
    ):
        tvm_sparse.einsum("ik,jk->ij", a, a)
    with pytest.raises(MemoryError, match="found 'dense'"):
        tvm_sparse.einsum("ik,jk->ij", a, a, out="dense")
    assert tvm_sparse.einsum("ki,kj->ij", a, a).nnz == 4
    assert tvm_sparse.einsum("ik,jk->", a, a) == 2 * 600**2


def test_rows_too_long_for_a_dense_workspace():
    """They are by default collected in another one."""
    rng = np.random.default_rng(0)
    shape = 300, 2_000_000
    operands = [
        sp.coo_array(
            (np.ones(900), tuple(rng.integers(0, size, 900) for size in shape)), shape=shape
        )
        for _ in range(3)
    ]
    plan = tvm_sparse.einsum_plan("ix,iy,iz->xyz", *operands)
    check(plan.first_result(), "ix,iy,iz->xyz", *operands)
    check(plan(*operands), "ix,iy,iz->xyz", *operands)


def test_the_first_of_several_policies_does_not_refuse_long_rows(small_machine):
    """Only a dense workspace that was asked for is: an automatic choice weighs memory itself."""
    rng = np.random.default_rng(0)
    dense = rng.random((1 << 18, 2))
    a = sp.random_array((3, 2), density=0.5, rng=rng, format="csr")
    mask = sp.random_array((3, 1 << 18), density=1e-4, rng=rng, format="csr")
    found = tvm_sparse.einsum("ik,jk->ij", a, dense, mask=mask)
    check(found, "ik,jk->ij", a, dense, mask=mask)
    with pytest.raises(
        ValueError, match="expected rows of the result that workspace 'dense' can hold"
    ):
        tvm_sparse.einsum("ik,jk->ij", a, dense, mask=mask, workspace="dense")

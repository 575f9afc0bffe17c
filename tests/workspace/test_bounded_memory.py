"""Calls keep to a limit of scratch memory, whatever that costs, and say so where they can't."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from .programs import by_outer_products, by_rows, check, product, sparse, total


@pytest.fixture
def operands():
    return sparse(60, 80, 900), sparse(80, 5000, 3000, seed=1)


def _with_capacity(kernel, capacity, monkeypatch):
    """Let the list of the merging policy hold so many entries, and the runs all of them."""
    sizes = {"places": 2 * capacity + 2, "run_places": 100_000, "spare_places": 100_000}
    variant = kernel._variant("merge", False)
    for name, size in sizes.items():
        for own in (name, name.replace("places", "values")):
            monkeypatch.setitem(variant.description["scratch"][own], "size", str(size))


@pytest.mark.parametrize("capacity", [1, 2, 3, 64, 1000, 10**6])
def test_runs_merge_whatever_the_capacity(capacity, operands, monkeypatch):
    a, b = operands
    kernel = by_rows("merge")
    _with_capacity(kernel, capacity, monkeypatch)
    check(kernel(a=a, b=b), product(a, b))


@pytest.mark.parametrize("capacity", [1, 2, 100])
def test_runs_of_a_workspace_of_two_dimensions_merge(capacity, monkeypatch):
    a, b = sparse(20, 30, 100), sparse(30, 20, 100, seed=1)
    kernel = by_outer_products("merge")
    _with_capacity(kernel, capacity, monkeypatch)
    check(kernel(a=a.T.tocsr(), b=b), product(a, b))


def test_repeated_places_meet_across_runs_in_order(monkeypatch):
    """All terms at few places, and values whose sum depends on the order."""
    a, b = sparse(3, 500, 1200), sparse(500, 2, 900, seed=1)
    a.data *= 10.0 ** np.random.default_rng(0).integers(-8, 9, a.nnz)
    kernel = by_rows("merge", "C[i, j] * (A[i, kk] - B[kk, j]) ")
    plain = kernel(a=a, b=b)
    _with_capacity(kernel, 7, monkeypatch)
    np.testing.assert_allclose(kernel(a=a, b=b).data, plain.data, rtol=1e-9)


def test_the_last_of_repeated_entries_stays_across_runs(monkeypatch, operands):
    a, b = operands
    kernel, update = by_rows("merge", "A[i, kk] * B[kk, j]"), "A[i, kk] * B[kk, j]"
    _with_capacity(kernel, 5, monkeypatch)
    check(kernel(a=a, b=b), by_rows("dense", update)(a=a, b=b))


@pytest.mark.parametrize("policy", ["dense", "list", "hash", "sort", "merge", "bucket"])
def test_scratch_keeps_to_the_limit(policy, operands, monkeypatch):
    a, b = operands
    kernel, expected = by_rows(policy), product(a, b)
    for limit in (1 << 20, 1 << 16, 1 << 15):
        try:
            found = kernel(a=a, b=b, workspace_bytes=limit)
        except ValueError as error:
            assert "workspace_bytes: expected enough for" in str(error)
            assert policy in ("sort", "bucket", "list", "hash", "merge")
            continue
        check(found, expected)
        assert kernel._last[0].bytes <= limit


@pytest.mark.parametrize("limit", [1 << 24, 1 << 17, 1 << 14, 2000])
def test_any_product_runs_under_a_limit(limit, operands):
    a, b = operands
    kernel = by_rows("auto")
    check(kernel(a=a, b=b, workspace_bytes=limit), product(a, b))
    assert kernel._last[0].bytes <= limit
    assert f"at most {limit} bytes" in kernel.explain()


def test_outer_products_run_under_a_limit():
    a, b = sparse(300, 50, 2000), sparse(50, 400, 2000, seed=1)
    kernel = by_outer_products("auto")
    for limit in (1 << 22, 1 << 18, 1 << 15):
        check(kernel(a=a.T.tocsr(), b=b, workspace_bytes=limit), product(a, b))


def test_rows_without_room_take_windows():
    """The estimate of distinct entries is too low where rows are of different kinds: windows double."""
    a, b = sparse(60, 80, 900), sparse(80, 5000, 30_000, seed=1)
    kernel = by_rows("merge")
    check(kernel(a=a, b=b, workspace_bytes=60_000), product(a, b))
    assert kernel._last[0].windows > 1
    assert "windows of" in kernel.explain()


def test_a_limit_of_the_kernel_holds_for_each_call(operands):
    a, b = operands
    kernel = by_rows("auto")
    kernel.workspace_bytes = 3000
    try:
        check(kernel(a=a, b=b), product(a, b))
        assert kernel._last[0].bytes <= 3000
        check(kernel.plan(a=a, b=b)(a=a, b=b), product(a, b))
    finally:
        kernel.workspace_bytes = None


def test_a_limit_that_nothing_keeps_is_refused(operands):
    a, b = operands
    with pytest.raises(ValueError, match="workspace_bytes: expected enough for"):
        by_rows("auto")(a=a, b=b, workspace_bytes=100)
    with pytest.raises(ValueError, match="workspace_bytes: expected a number of bytes, found -1"):
        total("dense")(a=a, b=a, workspace_bytes=-1)


def test_an_outer_product_of_200_000_rows_and_columns_keeps_to_two_gib():
    """A dense workspace of 4e10 places would take 320 GiB."""
    size, rng = 200_000, np.random.default_rng(0)
    a, b = (sparse(size, size, 400_000, seed=seed) for seed in (1, 2))
    kernel, limit = by_outer_products("auto"), 2 << 30
    transposed = a.T.tocsr()
    peak, found = _peak_bytes(lambda: kernel(a=transposed, b=b, workspace_bytes=limit))
    assert kernel.choices[0].bytes <= limit
    assert peak is None or peak < limit
    assert found.nnz > 700_000
    rows = np.sort(rng.choice(size, 500, replace=False))
    expected = a[rows] @ b
    expected.sort_indices()
    check(found[rows], expected)


def _peak_bytes(call):
    """Return by how much a call raises the resident memory, None where nobody knows, and its result."""
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if not reset.exists():
        return None, call()
    reset.write_text("5", encoding="ascii")
    before = _status(status, "VmRSS")
    result = call()
    return _status(status, "VmHWM") - before, result


def _status(path, name):
    (line,) = (own for own in path.read_text("ascii").splitlines() if own.startswith(f"{name}:"))
    return int(line.split()[1]) << 10


def test_short_calls_do_not_take_memory_for_long_rows():
    """A dense workspace of a result of two entries would take gigabytes, and be filled with -inf."""
    size = 2**29
    a = sp.csr_matrix(np.ones((1, 1)))
    b = sp.csr_matrix((np.ones(2), np.array([3, size - 5]), np.array([0, 2])), shape=(1, size))
    kernel = by_rows("auto", "S.max(C[i, j], A[i, kk] * B[kk, j])")
    check(kernel(a=a, b=b), b)
    assert kernel.choices[0].bytes < 1 << 20

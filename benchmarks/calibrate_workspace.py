"""Fit the constants by which a workspace is chosen: ``python -m benchmarks.calibrate_workspace``.

Products of random matrices whose rows produce few and many entries in short and long rows are computed
with each policy on one core; :class:`tvm_sparse.workspace.Costs` is what explains the times best, in
relative terms (non-negative least squares). Prints measured times, estimates, and the constants to be
written into ``tvm_sparse/workspace/costs.py``.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Iterator

import numpy as np
import scipy.optimize
import scipy.sparse as sp
from rich.console import Console
from rich.progress import track
from rich.table import Table

import tvm_sparse
from tvm_sparse.runtime.sparse_results import SparseResultKernel
from tvm_sparse.runtime.threads import set_num_threads
from tvm_sparse.script import from_source
from tvm_sparse.workspace import COSTS, Costs, Policy, Work, find_policy

POLICIES = ("dense", "list", "hash", "sort", "bucket")

PRODUCT = """
@S.prim_func
def product(a: S.handle, b: S.handle, c: S.handle, a_indptr: S.handle, a_indices: S.handle,
            b_indptr: S.handle, b_indices: S.handle,
            m: S.int32, k: S.int32, n: S.int32, a_nnz: S.int32, b_nnz: S.int32):
    I = S.dense_fixed(m)
    K = S.sparse_variable(I, (k, a_nnz), (a_indptr, a_indices), "int32")
    K_dense = S.dense_fixed(k)
    J = S.sparse_variable(K_dense, (n, b_nnz), (b_indptr, b_indices), "int32")
    JO = S.sparse_output(I, n)
    A = S.match_sparse_buffer(a, (I, K), "float64")
    B = S.match_sparse_buffer(b, (K_dense, J), "float64")
    C = S.match_sparse_buffer(c, (I, JO), "float64")
    with S.sp_iter([I, K, S.attach(J, K)], "SRS", "product") as [i, kk, j]:
        C[i, j] = C[i, j] + A[i, kk] * B[kk, j]
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """A product: rows of ``width`` places from ``terms`` rows of ``entries`` entries each."""

    rows: int
    terms: int
    entries: int
    width: int

    def operands(self) -> dict[str, sp.csr_matrix]:
        """Make the matrices."""
        rng = np.random.default_rng(0)
        inner = max(self.terms, min(1 << 12, (1 << 21) // self.entries))
        return {
            "a": _random(self.rows, inner, self.terms, rng),
            "b": _random(inner, self.width, self.entries, rng),
        }


def cases(quick: bool) -> Iterator[Case]:
    """Few and many terms, in short and long rows."""
    total = 1 << (16 if quick else 19)
    for terms, entries in ((2, 2), (4, 4), (8, 8), (16, 32), (64, 64), (256, 256)):
        for width in (1 << 8, 1 << 13, 1 << 17, 1 << 21):
            if entries <= width:
                yield Case(max(1, total // (terms * entries)), terms, entries, width)
    for width in (1 << 20, 1 << 25, 1 << 30):
        yield Case(1, 1 << 8, total >> 8, width)


class _Kept(SparseResultKernel):
    """A kernel that keeps its scratch between calls, so that only the phases are timed."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self._kept: dict[tuple, np.ndarray] = {}

    def _scratch(self, name, known):
        key = name, known[f"{name}_size"], known["tasks"]
        if key not in self._kept:
            self._kept = {own: kept for own, kept in self._kept.items() if own[0] != name}
            self._kept[key] = super()._scratch(name, known)
        return self._kept[key]


def measure(kernel: _Kept, case: Case, rounds: int) -> tuple[Work, float]:
    """Return what a call has to do, and the least processor time of its two phases in nanoseconds."""
    known = kernel._bind((), case.operands())
    shared = kernel._share(kernel._work(known))
    best = float("inf")
    for _ in range(rounds + 1):
        start = time.process_time()
        structure = kernel._structure(known, shared)
        kernel._fill(known, structure)
        best = min(best, time.process_time() - start)
    return Work.of(shared["work"], case.width, 8), best * 1e9


def fit(samples: list[tuple[Policy, Work, float]]) -> Costs:
    """Return the constants that explain the times best; estimates are linear in them."""
    names = [field.name for field in dataclasses.fields(Costs)]
    zero = Costs(**dict.fromkeys(names, 0.0))
    units = [dataclasses.replace(zero, **{name: 1.0}) for name in names]
    rows = [
        [policy.cost(dataclasses.replace(work, costs=unit)) / nanoseconds for unit in units]
        for policy, work, nanoseconds in samples
    ]
    found, _ = scipy.optimize.nnls(np.array(rows), np.ones(len(rows)))
    seen = np.any(np.array(rows) != 0, axis=0)
    fitted = {name: float(x) for name, x, was in zip(names, found, seen) if was}
    return dataclasses.replace(COSTS, **fitted)


def main() -> None:
    """Measure, fit, and print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small products, one round")
    quick = parser.parse_args().quick
    set_num_threads(1)
    program = from_source(PRODUCT)
    kernels = {}
    for name in POLICIES:
        compiled = tvm_sparse.compile(program, workspace=name)
        kernels[name] = _Kept(compiled.executable, compiled.description)
    samples, shown = [], []
    for case in track(list(cases(quick)), description="products"):
        for name, kernel in kernels.items():
            if name in ("dense", "list") and case.width > 1 << 28:
                continue
            work, nanoseconds = measure(kernel, case, 1 if quick else 7)
            samples.append((find_policy(name), work, nanoseconds))
            shown.append((case, name))
    costs = fit(samples)
    _print(samples, shown, costs)


def _print(samples: list, shown: list, costs: Costs) -> None:
    table = Table("rows", "terms", "width", *POLICIES, "chosen", "loss")
    for case in dict.fromkeys(own for own, _ in shown):
        mine = {n: s for (own, n), s in zip(shown, samples) if own == case}
        estimates = {
            n: policy.cost(dataclasses.replace(work, costs=costs))
            for n, (policy, work, _) in mine.items()
        }
        chosen = min(estimates, key=estimates.get)
        least = min(time for _, _, time in mine.values())
        times = [
            f"{mine[n][2] * 1e-6:.1f} ({estimates[n] * 1e-6:.1f})" if n in mine else "-"
            for n in POLICIES
        ]
        loss = f"{mine[chosen][2] / least:.2f}"
        terms = f"{case.terms} x {case.entries}"
        table.add_row(str(case.rows), terms, f"{case.width:,}", *times, chosen, loss)
    console = Console(width=140)
    console.print("milliseconds of one core, measured (estimated)", table)
    for field in dataclasses.fields(costs):
        console.print(f"    {field.name}: float = {getattr(costs, field.name):.3g}")


def _random(rows: int, columns: int, each: int, rng: np.random.Generator) -> sp.csr_matrix:
    """A matrix of so many entries in each row, at random columns."""
    places = rng.integers(0, columns, (rows, each))
    indptr = np.arange(rows + 1, dtype=np.int32) * each
    shape = rows, columns
    values = rng.random(rows * each)
    matrix = sp.csr_matrix((values, places.ravel().astype(np.int32), indptr), shape=shape)
    matrix.sum_duplicates()
    return matrix


if __name__ == "__main__":
    main()

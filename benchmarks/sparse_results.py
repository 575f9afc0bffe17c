"""Time kernels with sparse results: ``python -m benchmarks.sparse_results --data FOLDER``.

Products ``A A`` of square matrices, and sums ``A + A^T``. Peers are SciPy, with and without sorted
indices, MKL, with and without ``mkl_sparse_order``, and CSR of PyTorch; ours are always sorted. For each
product: multiply-adds F, distinct results Z, and their ratio. Contenders take turns, as in
``benchmarks.cpu``; results are compared with SciPy's in float64.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from .cpu import ENVIRONMENT, restart_with

_NAME = "tvm_sparse"
_SORTED = ("scipy sorted", "mkl sorted")
_UNSORTED = ("scipy", "mkl", "torch")
#: Products of more multiply-adds are left out.
_MOST_PRODUCED = 200_000_000


def main() -> None:
    """Run the benchmark; see ``--help``."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sparse_results", description=__doc__
    )
    add = parser.add_argument
    add("--data", type=Path, help="folder of .npz and .mtx files (default: generated matrices)")
    add("--matrices", nargs="+", help="only these matrices")
    add("--threads", type=int, nargs="+", default=[1, 2])
    add("--rounds", type=int, default=7, help="rounds over all contenders")
    add("--json", type=Path, help="write all results to this file")
    options = parser.parse_args()
    restart_with(ENVIRONMENT, "benchmarks.sparse_results")
    results = run(options)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def run(options: argparse.Namespace) -> dict:
    """Measure and return everything that was measured."""
    # Contenders read the environment when imported.
    from rich.console import Console  # noqa: PLC0415

    from tvm_sparse.runtime import set_num_threads  # noqa: PLC0415

    from . import matrices, peers  # noqa: PLC0415

    console = Console(width=160)
    found = matrices.from_folder(options.data) if options.data else matrices.generated()
    if options.matrices:
        found = {name: found[name] for name in options.matrices}
    results: dict[str, list] = {"products": [], "sums": []}
    for threads in options.threads:
        set_num_threads(threads)
        peers.set_threads(threads)
        for kind, measure in (("products", _product), ("sums", _sum)):
            cases = [measure(name, matrix, options.rounds) for name, matrix in found.items()]
            cases = [case | {"threads": threads} for case in cases if case is not None]
            console.print(_table(kind, cases, threads))
            results[kind] += cases
    return {"environment": ENVIRONMENT, **results}


def _product(name: str, matrix: sp.csr_matrix, rounds: int) -> dict | None:
    from . import peers  # noqa: PLC0415
    from .programs import product  # noqa: PLC0415

    produced = int(np.diff(matrix.indptr)[matrix.indices].sum())
    if produced > _MOST_PRODUCED:
        return None
    kernel = product()
    wide = matrix.astype(np.float64)
    _check(kernel(a=matrix, b=matrix), wide @ wide)
    del wide
    plan = kernel.plan(a=matrix, b=matrix)
    calls = {
        _NAME: lambda: kernel(a=matrix, b=matrix),
        "plan": lambda: plan(a=matrix, b=matrix),
        "scipy": lambda: matrix @ matrix,
        "scipy sorted": peers.scipy_sorted(lambda: matrix @ matrix),
        "mkl": peers.mkl_spgemm(matrix, matrix, ordered=False),
        "mkl sorted": peers.mkl_spgemm(matrix, matrix, ordered=True),
        "torch": peers.torch_spgemm(matrix, matrix),
    }
    return _timed(name, calls, rounds) | {"F": produced, "Z": plan.nnz}


def _sum(name: str, matrix: sp.csr_matrix, rounds: int) -> dict:
    from . import peers  # noqa: PLC0415
    from .programs import total  # noqa: PLC0415

    other = matrix.T.tocsr()
    kernel = total()
    expected = matrix.astype(np.float64) + other.astype(np.float64)
    result = kernel(a=matrix, b=other)
    _check(result, expected)
    calls = {
        _NAME: lambda: kernel(a=matrix, b=other),
        "scipy": lambda: matrix + other,
        "scipy sorted": peers.scipy_sorted(lambda: matrix + other),
    }
    return _timed(name, calls, rounds) | {"F": 2 * matrix.nnz, "Z": result.nnz}


def _check(found: sp.csr_matrix, expected: sp.csr_matrix) -> None:
    difference = abs(found.astype(np.float64) - expected)
    scale = abs(expected).max() if expected.nnz else 1.0
    if difference.nnz and difference.max() > 1e-4 * scale:
        raise RuntimeError(f"wrong result: differs by {difference.max()}")


def _timed(name: str, calls: dict, rounds: int) -> dict:
    from .timing import interleave  # noqa: PLC0415

    times = interleave(calls, _NAME, rounds, 3e-3)
    return {
        "matrix": name,
        "seconds": times.seconds,
        "speedups": times.speedups,
        "others_load": times.others_load,
    }


def _table(kind: str, cases: list[dict], threads: int):
    from rich.table import Table  # noqa: PLC0415

    from .timing import geometric_mean  # noqa: PLC0415

    peers = list(cases[0]["speedups"])
    bests = {
        "best sorted": [p for p in peers if p in _SORTED],
        "best unsorted": [p for p in peers if p in _UNSORTED],
    }
    table = Table("matrix", "F", "F/Z", "ms", *[f"{head} x" for head in [*peers, *bests]])
    table.title = f"{kind}, {threads} threads: time of each as a multiple of ours, sorted"
    ratios = []
    for case in cases:
        own = [case["speedups"][peer] for peer in peers]
        own += [min(case["speedups"][peer] for peer in group) for group in bests.values()]
        ratios.append(own)
        doubt = " (busy)" if case["others_load"] > 0.1 else ""
        table.add_row(
            case["matrix"] + doubt,
            f"{case['F']:,}",
            f"{case['F'] / max(1, case['Z']):.1f}",
            f"{case['seconds'][_NAME] * 1e3:.2f}",
            *[f"{ratio:.2f}" for ratio in own],
        )
    table.add_section()
    means = [geometric_mean(list(column)) for column in zip(*ratios)]
    table.add_row("geometric mean", "", "", "", *[f"{mean:.2f}" for mean in means])
    return table


if __name__ == "__main__":
    main()

"""Run the contenders on every matrix, check their results, and print tables."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
from rich.console import Console
from rich.table import Table

from tvm_sparse.runtime import set_num_threads

from . import matrices, ours, peers
from .cpu import ENVIRONMENT
from .limits import Bandwidth, compulsory_bytes
from .timing import Times, geometric_mean, interleave

__all__ = ["checked", "reference", "run"]

_NAME = "tvm_sparse"
_TOLERANCE = 1e-4
# Which peers a target names together: the best of them counts.
_BEST_OF = {
    "spmv": {"best of mkl and torch": ("mkl", "torch")},
    "sddmm": {"best of torch and numba": ("torch", "numba")},
    "segment_sum": {"best of scipy and numba": ("scipy", "numba")},
}


def run(options: argparse.Namespace) -> dict:
    """Measure and return everything that was measured."""
    console = Console(width=140)
    console.print("Environment of all contenders:", ENVIRONMENT)
    found = (
        matrices.from_folder(options.data) if options.data else matrices.generated(options.quick)
    )
    if options.matrices:
        found = {name: found[name] for name in options.matrices}
    rounds, slice_seconds = (3, 1e-3) if options.quick else (options.rounds, 3e-3)
    cases, limits = [], {}
    for threads in options.threads:
        set_num_threads(threads)
        peers.set_threads(threads)
        bandwidth = Bandwidth(threads)
        limits[threads] = bandwidth.bytes_per_second
        for operator in options.op:
            for features in [1] if operator == "spmv" else options.features:
                measured = []
                for name, matrix in found.items():
                    contenders = _contenders(operator, matrix, features, options.special)
                    times = interleave(contenders, _NAME, rounds, slice_seconds)
                    size = compulsory_bytes(operator, matrix.shape[0], matrix.nnz, features)
                    rate = size / times.seconds[_NAME] / bandwidth.of_working_set(size)
                    measured.append(_case(operator, features, threads, name, times, rate))
                _print(console, measured)
                cases += measured
    summary = _summary(cases)
    _print_summary(console, summary)
    return {
        "machine": platform.processor() or platform.machine(),
        "environment": ENVIRONMENT,
        "read_bandwidth": limits,
        "cases": cases,
        "summary": summary,
    }


def _contenders(operator: str, matrix: sp.csr_matrix, features: int, special: bool) -> dict:
    """Bind and check all contenders of one case."""
    operands = _operands(operator, matrix, features)
    expected, scale = reference(operator, matrix, operands)
    bound = {name: bind(matrix, *operands) for name, bind in peers.PEERS[operator].items()}
    bound[_NAME] = ours.bind(operator, matrix, operands, special)
    return checked(bound, expected, scale)


def checked(
    bound: dict[str, peers.Bound], expected: np.ndarray, scale: np.ndarray
) -> dict[str, Callable[[], object]]:
    """Compare every contender's result with the expected one; return the calls.

    Errors are relative to ``scale``, the sum of absolute terms.
    """
    for name, (call, read) in bound.items():
        call()
        error = np.abs(read() - expected) / scale
        if error.size and not error.max() < _TOLERANCE:
            raise AssertionError(f"{name}: relative error {error.max():.1e}")
    return {name: call for name, (call, _) in bound.items()}


def _operands(operator: str, matrix: sp.csr_matrix, features: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    rows, columns = matrix.shape
    shapes = {
        "spmv": [(columns,)],
        "spmm": [(columns, features)],
        "sddmm": [(rows, features), (columns, features)],
        "segment_sum": [(matrix.nnz, features)],
    }[operator]
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def reference(
    operator: str, matrix: sp.csr_matrix, operands: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """The result in float64, and what errors are relative to: the sum of absolute terms."""
    exact = sp.csr_matrix(matrix, dtype=np.float64)
    if operator == "sddmm":
        rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        terms = [operands[0].astype(float).T, operands[1].astype(float).T]
        value, scale = np.zeros(matrix.nnz), np.zeros(matrix.nnz)
        for x, y in zip(*terms):
            product = x[rows] * y[matrix.indices]
            value += product
            scale += np.abs(product)
    else:
        if operator == "segment_sum":
            structure = (np.ones(matrix.nnz), np.arange(matrix.nnz), matrix.indptr)
            exact = sp.csr_matrix(structure, shape=(matrix.shape[0], matrix.nnz))
        dense = operands[0].astype(float)
        value, scale = exact @ dense, abs(exact) @ np.abs(dense)
    return value, np.maximum(scale, 1e-30)


def _case(
    operator: str, features: int, threads: int, name: str, times: Times, bandwidth_share: float
) -> dict:
    speedups = dict(times.speedups)
    for label, group in _BEST_OF.get(operator, {}).items():
        speedups[label] = min(speedups[peer] for peer in group)
    return {
        "operator": operator,
        "features": features,
        "threads": threads,
        "matrix": name,
        "seconds": times.seconds,
        "speedups": speedups,
        "bandwidth_share": bandwidth_share,
        "others_load": times.others_load,
    }


def _summary(cases: list[dict]) -> list[dict]:
    """Geometric means over matrices and feature widths."""
    groups: dict[tuple, list[dict]] = {}
    for case in cases:
        groups.setdefault((case["operator"], case["threads"]), []).append(case)
    return [
        {
            "operator": operator,
            "threads": threads,
            "speedups": {
                peer: geometric_mean([case["speedups"][peer] for case in group])
                for peer in group[0]["speedups"]
            },
            "bandwidth_share": geometric_mean([case["bandwidth_share"] for case in group]),
        }
        for (operator, threads), group in groups.items()
    ]


def _print(console: Console, cases: list[dict]) -> None:
    first = cases[0]
    title = f"{first['operator']}, {first['features']} features, {first['threads']} threads"
    table = Table("matrix", f"{_NAME}, ms", *[f"{peer} x" for peer in first["speedups"]])
    table.title = f"{title}: time of each peer as a multiple of ours"
    table.add_column("of bandwidth")
    for case in cases:
        doubt = " (busy)" if case["others_load"] > 0.1 else ""
        table.add_row(
            case["matrix"] + doubt,
            f"{case['seconds'][_NAME] * 1e3:.3f}",
            *[f"{ratio:.2f}" for ratio in case["speedups"].values()],
            f"{case['bandwidth_share']:.0%}",
        )
    console.print(table)


def _print_summary(console: Console, summary: list[dict]) -> None:
    table = Table("operator", "threads", "geometric mean of peer's time / ours", "of bandwidth")
    for row in summary:
        ratios = ", ".join(f"{peer} {ratio:.2f}" for peer, ratio in row["speedups"].items())
        table.add_row(row["operator"], str(row["threads"]), ratios, f"{row['bandwidth_share']:.0%}")
    console.print(table)

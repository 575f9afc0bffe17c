"""SpMM on two threads against one, on skewed matrices: ``python -m benchmarks.scaling``.

Both are timed in turns in one process; rows are shared between threads by stored entries.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from tvm_sparse import schedules
from tvm_sparse.cli.matrices import power_law, read_matrix
from tvm_sparse.runtime import set_num_threads
from tvm_sparse.tune.timing import seconds_per_call

SKEWED = ("flickr_attr", "musae_github")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with the skewed graphs' .npz files")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    matrices = {"power law": power_law(40_000, 600_000, 9_000)}
    if options.data:
        matrices = {name: read_matrix(options.data / f"{name}.npz") for name in SKEWED}
    kernel = schedules.spmm.build()["spmm"]
    table = Table("matrix", "features", "1 thread, ms", "2 threads, ms", "times faster")
    for name, matrix in matrices.items():
        for features in (32, 64, 128, 256):
            dense = np.ones((matrix.shape[1], features), np.float32)
            call = functools.partial(kernel, *kernel.arguments(a=matrix, b=dense))
            one, two = _interleaved(call, options.rounds)
            cells = (f"{one * 1e3:.3f}", f"{two * 1e3:.3f}", f"{one / two:.2f}")
            table.add_row(name, str(features), *cells)
    Console().print(table)


def _interleaved(call, rounds: int) -> tuple[float, float]:
    samples: list[list[float]] = [[], []]
    for _ in range(rounds):
        for threads, taken in zip((1, 2), samples):
            set_num_threads(threads)
            taken.append(seconds_per_call(call, 5e-3))
    return float(np.median(samples[0])), float(np.median(samples[1]))


if __name__ == "__main__":
    main()

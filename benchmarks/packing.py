"""What packing a matrix costs: ``python -m benchmarks.packing``.

A graph like ogbn-arxiv (169,343 rows, 1,166,243 entries), from CSR of SciPy. The least of several runs,
and the largest memory that one needs beside its input. Goals: hyb at most 60 ms, BSR of 16 times 16 at
most 100, memory at most 3 times input and output together.
"""

from __future__ import annotations

import time
import tracemalloc

import scipy.sparse as sp
from rich.console import Console
from rich.table import Table

from tvm_sparse.cli.matrices import power_law
from tvm_sparse.formats import BSR, CSR, DBSR, SRBCRS, Composition, Format, Hyb

FORMATS: dict[str, Format | Composition] = {
    "CSR": CSR(),
    "hyb, widths chosen": Hyb(),
    "hyb, widths to 32": Hyb(buckets=[1, 2, 4, 8, 16, 32]),
    "hyb, 8 ranges of columns": Hyb(8),
    "BSR 4x4": BSR(4, 4),
    "BSR 16x16": BSR(16, 16),
    "DBSR 16x16": DBSR(16, 16),
    "SR-BCRS 8, 16": SRBCRS(8, 16),
    "BSR 4x4 half full + CSR": Composition({"blocks": BSR(4, 4, min_fill=0.5), "rest": CSR()}),
}


def main() -> None:
    """Print the table."""
    matrix = power_law()
    table = Table("format", "ms", "memory / (input + output)", "output MB", "padding")
    for name, fmt in FORMATS.items():
        memory, output, padding = _memory(fmt, matrix)
        table.add_row(
            name,
            f"{_least(fmt, matrix):.1f}",
            f"{memory:.2f}",
            f"{output / 1e6:.1f}",
            f"{padding:.0%}",
        )
    Console().print(table)


def _least(fmt: Format | Composition, matrix: sp.csr_matrix, rounds: int = 9) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        fmt.pack(matrix)
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def _memory(fmt: Format | Composition, matrix: sp.csr_matrix) -> tuple[float, int, float]:
    """Return the share of memory needed, the bytes of the result and its padding."""
    given = matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes
    tracemalloc.start()
    packed = fmt.pack(matrix)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / (given + packed.nbytes), packed.nbytes, packed.padding


if __name__ == "__main__":
    main()

"""Compile every CUDA kernel without a GPU and say what came out: ``python -m benchmarks.cuda_report``.

Exits with status 1 when a kernel with default tile sizes spills or does not compile, or a claim about it
(128-bit loads, tensor cores, an inner loop near the minimum) does not hold.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import track

from ..cuda_kernels import DTYPES, FEATURES, INDEX_DTYPES, OPERATORS, default_kernels
from .compilers import compilers
from .measure import measure_named
from .occupancy import LIMITS
from .tables import markdown, tables


def main(arguments: list[str] | None = None) -> int:
    """Run the report; see ``--help``."""
    options = _parse(arguments)
    cases = default_kernels(options.op, options.features, options.dtype, options.index_dtype)
    arches, names = options.arch or ["sm_80", "sm_90"], options.compiler or list(compilers())
    work = [(case.name, arches, names) for case in cases]
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)  # before the work, in case it can't be made
    rows = _measure_all(work, options.jobs)
    console = Console(width=None if sys.stdout.isatty() else 200)
    for table in tables(rows):
        console.print(table)
    for row in rows:
        for what in row["failures"]:
            console.print(f"{row['name']}, {row['arch']}, {row['compiler']}: {what}", style="red")
    if options.out:
        (options.out / "cuda_report.json").write_text(json.dumps(rows, indent=1))
        (options.out / "cuda_report.md").write_text(markdown(rows))
    return int(any(row["failures"] for row in rows))


def _measure_all(work: list[tuple[str, list[str], list[str]]], jobs: int) -> list[dict]:
    """Return rows by compiler and architecture, in the order of the work."""
    if jobs == 1:
        found = [measure_named(item) for item in track(work, transient=True)]
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, context) as pool:
            found = list(track(pool.map(measure_named, work), total=len(work), transient=True))
    return [row for alike in zip(*found) for row in alike]


def _width(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, found {text!r}")
    return int(text)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_report", description=__doc__)
    add = parser.add_argument
    add(
        "--arch",
        choices=sorted(LIMITS),
        action="append",
        help="architectures (default: sm_80 and sm_90)",
    )
    add("--compiler", action="append", choices=["nvrtc", "nvcc"], help="default: those installed")
    add("--op", action="append", choices=OPERATORS, help="operators (default: all)")
    add("--features", type=_width, action="append", help=f"widths (default: {FEATURES})")
    add("--dtype", action="append", choices=DTYPES, help="types of values (default: all)")
    add("--index-dtype", action="append", choices=INDEX_DTYPES, help="of indices (default: both)")
    add("--jobs", type=int, default=1, help="processes")
    add("--out", type=Path, help="write cuda_report.json and cuda_report.md into this folder")
    options = parser.parse_args(arguments)
    options.features = options.features or FEATURES
    options.dtype = options.dtype or DTYPES
    options.index_dtype = options.index_dtype or INDEX_DTYPES
    return options


if __name__ == "__main__":
    sys.exit(main())

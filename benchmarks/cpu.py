"""Time the operators on a CPU against SciPy, PyTorch, numba and MKL: ``python -m benchmarks.cpu``.

All contenders run in one process, in turns, with the same number of threads, on float32 values
and int32 indices. ``GOMP_SPINCOUNT=1000`` is set for all of them, before any of them is imported:
else the waiting threads of one OpenMP library take the processors from the next contender.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

ENVIRONMENT = {
    "GOMP_SPINCOUNT": "1000",
    "MKL_THREADING_LAYER": "GNU",
    "MKL_DYNAMIC": "FALSE",
}
OPERATORS = ("spmv", "spmm", "sddmm", "segment_sum")


def main() -> None:
    """Run the benchmark; see ``--help``."""
    options = parse_arguments()
    restart_with(ENVIRONMENT, "benchmarks.cpu")
    from .run import run  # noqa: PLC0415 (contenders read the environment when imported)

    results = run(options)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    if options.plot:
        from .plot import plot  # noqa: PLC0415

        plot(results, options.plot)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, help="folder of .npz and .mtx files (default: generated matrices)")
    add("--op", type=_names, default=list(OPERATORS), help="operators, separated by commas")
    add("--features", type=integers, default=[32, 64, 128, 256], help="feature widths")
    add("--threads", type=integers, default=[1, 2], help="numbers of threads")
    add("--matrices", type=lambda text: text.split(","), help="only these matrices")
    add("--rounds", type=int, default=9, help="rounds over all contenders")
    add("--special", action="store_true", help="compile a kernel for each feature width")
    add("--quick", action="store_true", help="small matrices, few rounds")
    add("--json", type=Path, help="write all results to this file")
    add("--plot", type=Path, help="write a bar chart to this PNG file")
    return parser.parse_args(arguments)


def restart_with(environment: dict[str, str], module: str) -> None:
    """Start this process anew, as ``python -m module``, unless it has the environment already."""
    if all(os.environ.get(name) == value for name, value in environment.items()):
        return
    kept = {key: value for key, value in os.environ.items() if not key.startswith("OPENBLAS_")}
    command = [sys.executable, "-m", module, *sys.argv[1:]]
    os.execve(sys.executable, command, {**kept, **environment})


def integers(text: str) -> list[int]:
    """Read integers separated by commas."""
    return [int(part) for part in text.split(",")]


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in OPERATORS:
            raise argparse.ArgumentTypeError(f"expected some of {OPERATORS}, found {name!r}")
    return names


if __name__ == "__main__":
    main()

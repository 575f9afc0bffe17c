"""Time kernels with sparse results: ``python -m benchmarks.sparse_results --data FOLDER``.

Four sections, each of which ``--only`` can choose: products ``A A`` of square matrices; sums of two and
three matrices; kernels of order-3 tensors against hand-written loops; and the policies of the workspace
against each other. For each case: multiply-adds F, distinct results Z, times, and the peak memory of a
call. Contenders take turns, as in ``benchmarks.cpu``; the result of every one is compared with that of
SciPy in float64.

``--render RESULTS`` reads files that ``--json`` wrote, of sections run one by one or all together, and
prints their tables in Markdown.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

from ..cpu import ENVIRONMENT, restart_with

_SECTIONS = ("products", "sums", "tensors", "workspaces")


def main() -> None:
    """Run the benchmark; see ``--help``."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sparse_results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, help="folder of .npz and .mtx files (default: generated ones)")
    add("--only", nargs="+", choices=_SECTIONS, default=list(_SECTIONS), help="sections")
    add(
        "--cases",
        nargs="+",
        default=[""],
        help="only cases of matrices or with names that hold this",
    )
    add("--threads", type=int, nargs="+", default=[1, 2])
    add("--rounds", type=int, default=9, help="rounds over all contenders, at most")
    add("--seconds", type=float, default=0.5, help="time of a case, if three rounds are done")
    add("--json", type=Path, help="write all results to this file")
    add("--render", type=Path, nargs="+", help="print the tables of such files in Markdown")
    options = parser.parse_args()
    if options.render:
        print(_rendered(options.render))
        return
    restart_with(ENVIRONMENT, "benchmarks.sparse_results")
    run(options)


def run(options: argparse.Namespace) -> None:
    """Measure and print everything; write it after each case."""
    # Contenders read the environment when imported.
    from rich.console import Console  # noqa: PLC0415

    from tvm_sparse.runtime import set_num_threads  # noqa: PLC0415

    from . import libraries, report  # noqa: PLC0415

    console = Console(width=220)
    results: dict = {"environment": ENVIRONMENT}
    for section in options.only:
        results[section] = []
        start = time.perf_counter()
        for threads in options.threads:
            set_num_threads(threads)
            libraries.set_threads(threads)
            for case in _cases(section, threads, options):
                results[section].append(case | {"threads": threads})
                if options.json:
                    options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
                passed = time.perf_counter() - start
                console.print(f"{section}, {threads} threads, {passed:.0f} s: {case['case']}")
        for table in report.tables(results, section):
            console.print(table)
        console.print(f"{section} took {time.perf_counter() - start:.0f} s")


def _cases(section: str, threads: int, options: argparse.Namespace) -> Iterator[dict]:
    from .. import matrices  # noqa: PLC0415
    from . import matrix_cases, tensor_cases, workspace_cases  # noqa: PLC0415
    from .measure import Limits  # noqa: PLC0415

    limits = Limits(options.rounds, options.seconds)

    def wanted(name: str) -> bool:
        return any(part in name for part in options.cases)

    if section == "tensors":
        return tensor_cases.tensors(options.data, threads, limits, wanted)
    if section == "workspaces":
        return workspace_cases.workspaces(limits, wanted)
    found = matrices.from_folder(options.data) if options.data else matrices.generated()
    found = {name: matrix for name, matrix in found.items() if wanted(name)}
    return getattr(matrix_cases, section)(found, limits)


def _rendered(paths: list[Path]) -> str:
    from . import report  # noqa: PLC0415

    results: dict = {}
    for path in paths:
        for section, found in json.loads(path.read_text(encoding="utf-8")).items():
            is_table = isinstance(
                found, list
            )  # one that was measured in several runs is put together
            results[section] = [*results.get(section, []), *found] if is_table else found
    return report.markdown(results)


if __name__ == "__main__":
    main()

"""Tune an operator on a matrix, compare, export and verify."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .. import schedules
from ..runtime import Executable, get_num_threads, minimal, resolve_target, set_num_threads
from ..tune import MeasureOptions, TuningResult, tune
from .matrices import power_law, read_matrix
from .operators import OPERATORS, Contender, Workload, measure

__all__ = ["add_parser", "run"]


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("operator", choices=sorted(OPERATORS))
    parser.add_argument(
        "--matrix",
        metavar="FILE",
        help="Matrix Market, .npz or edge list; without it, a seeded power-law graph of "
        "ogbn-arxiv's size (169,343 nodes, 1.17 M edges)",
    )
    parser.add_argument("--features", type=int, default=64, help="feature width (default 64)")
    parser.add_argument("--trials", type=int, default=32, help="candidates measured (default 32)")
    parser.add_argument(
        "--formats",
        metavar="auto|NAME,...",
        help="formats of the matrix to choose from (spmm): auto, or some of those that suit the matrix, "
        "such as csr,rows_rcm (default: CSR alone)",
    )
    parser.add_argument("--threads", type=int, help="threads of every contender (default: all)")
    parser.add_argument(
        "--target",
        default="llvm",
        help='target (default: this CPU), e.g. \'{"kind": "llvm", "mcpu": "x86-64-v3"}\'',
    )
    parser.add_argument(
        "--work-dir",
        help="folder of database and log (default: a new temporary one); a later run goes on there",
    )
    parser.add_argument("--export", metavar="FILE.so", help="write the kernel as a shared library")
    parser.add_argument("--json", metavar="FILE", help="write the table as JSON")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the table as a bar chart")
    parser.add_argument("--seed", type=int, default=0, help="of the search and of made-up values")


def run(arguments: argparse.Namespace) -> int:
    """Tune and report."""
    _check(arguments)
    if arguments.threads is not None:
        set_num_threads(arguments.threads)
    threads = get_num_threads()
    console = Console(soft_wrap=True)
    matrix = read_matrix(arguments.matrix) if arguments.matrix else power_law(seed=arguments.seed)
    workload = OPERATORS[arguments.operator](matrix, arguments.features, arguments.seed)
    degrees = np.diff(matrix.indptr)
    console.print(
        f"{arguments.operator} on {arguments.matrix or 'a power-law graph'}: "
        f"{matrix.shape[0]:,} x {matrix.shape[1]:,}, {matrix.nnz:,} entries, longest row "
        f"{int(degrees.max(initial=0)):,}, {int((degrees == 0).sum()):,} empty rows; "
        f"{arguments.features} features, {threads} threads"
    )

    formats = _formats(arguments.formats, arguments.operator, matrix, arguments.features)
    default = workload.default(arguments.target)
    with _progress_bar(console) as progress:
        task = progress.add_task("tuning", total=arguments.trials)

        def report(done: int, total: int, best: float | None) -> None:
            text = "tuning" if best is None else f"tuning, best {best * 1e3:.3f} ms"
            progress.update(task, completed=min(done, total), description=text)

        result = tune(
            workload.program,
            workload.inputs,
            arguments.target,
            arguments.trials,
            arguments.work_dir,
            formats=formats,
            default=default,
            options=MeasureOptions(num_threads=threads),
            seed=arguments.seed,
            on_progress=report,
        )
    console.print(
        f"{result.trials} candidates, {result.failures} failed; log and database in "
        f"{result.work_dir}"
    )
    if result.formats:
        console.print(_formats_table(result))

    contenders = workload.peers(threads)
    contenders += [
        Contender("tvm_sparse default", workload.bind(default)),
        Contender("tvm_sparse tuned", workload.bind(result.executable, result.operands)),
    ]
    rows = measure(workload, contenders)
    console.print(_table(rows, workload))
    report = {
        "operator": arguments.operator,
        "matrix": arguments.matrix or "power_law",
        "shape": list(matrix.shape),
        "entries": int(matrix.nnz),
        "features": arguments.features,
        "threads": threads,
        "trials": result.trials,
        "rows": [asdict(row) for row in rows],
        "format": result.format,
        "formats": {
            name: {**asdict(found), "seconds": None if found.error else found.seconds}
            for name, found in result.formats.items()
        },
    }
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        console.print(f"table written to {arguments.json}")
    if arguments.plot:
        _plot(rows, arguments.plot, report)
        console.print(f"chart written to {arguments.plot}")
    if arguments.export:
        path = result.executable.export_library(arguments.export)
        error = verify_in_fresh_process(path, workload, result.executable, result.operands)
        console.print(
            f"exported to {path}; reloaded in a fresh process without the compiler: largest error "
            f"{error:.1e} of the largest result"
        )
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what would only fail after the tuning."""
    for name in ("features", "trials", "threads"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name}: expected at least 1, found {value}")
    resolve_target(arguments.target)
    for name, suffixes in (("export", (".so",)), ("plot", (".png", ".svg", ".pdf")), ("json", ())):
        value = getattr(arguments, name)
        if value is None:
            continue
        path = Path(value)
        if not path.parent.is_dir():
            raise ValueError(f"--{name}: no folder {str(path.parent)!r}")
        if suffixes and path.suffix not in suffixes:
            raise ValueError(f"--{name}: expected a name ending in {suffixes}, found {value!r}")


def _formats(
    names: str | None, operator: str, matrix: sp.csr_matrix, features: int
) -> dict[str, Any] | None:
    """Return the formats to choose from, None for those of the program."""
    if names is None:
        return None
    if operator != "spmm":
        raise ValueError(f"--formats: expected the operator spmm, found {operator}")
    known = schedules.spmm.candidate_formats(matrix, features, str(matrix.dtype))
    if names == "auto":
        return known
    chosen = [name.strip() for name in names.split(",")]
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ValueError(
            f"--formats: expected auto or some of {', '.join(known)} for this matrix, found "
            f"{unknown[0]!r}"
        )
    return {name: known[name] for name in chosen}


def _formats_table(result: TuningResult) -> Table:
    table = Table("format", "best candidate, ms", "trials", "packing, ms")
    for name, found in result.formats.items():
        chosen = " (chosen)" if name == result.format else ""
        packing = "" if found.pack_seconds is None else f"{found.pack_seconds * 1e3:.1f}"
        best = "failed" if found.error else f"{found.seconds * 1e3:.3f}"
        table.add_row(f"{name}{chosen}", best, str(found.trials), packing)
    return table


def _progress_bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=console)


def _table(rows, workload: Workload) -> Table:
    table = Table("", "time, ms", "GFLOP/s", "GB/s", f"times {rows[0].name}")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.seconds * 1e3:.3f}",
            f"{row.gflops:.2f}",
            f"{row.gbytes:.2f}",
            f"{rows[0].seconds / row.seconds:.2f}",
        )
    return table


def _plot(rows, path: str, report: dict) -> None:
    import matplotlib  # noqa: PLC0415 (only for --plot)

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, axes = pyplot.subplots(figsize=(7, 0.6 * len(rows) + 1.4), layout="constrained")
    axes.barh([row.name for row in rows], [row.gflops for row in rows], color="tab:blue")
    axes.invert_yaxis()
    axes.set_xlabel("GFLOP/s")
    axes.set_title(
        f"{report['operator']}, {report['entries']:,} entries, {report['features']} features, "
        f"{report['threads']} threads"
    )
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


_VERIFY = """
import importlib.util, sys
import numpy as np
spec = importlib.util.spec_from_file_location("minimal", sys.argv[1])
minimal = importlib.util.module_from_spec(spec)
sys.modules["minimal"] = minimal
spec.loader.exec_module(minimal)
library = minimal.load(sys.argv[2])
with np.load(sys.argv[3]) as stored:
    arguments = [stored[f"arg_{k}"] for k in range(len(stored.files))]
arguments = [a if a.ndim else int(a) for a in arguments]
library[sys.argv[4]](*arguments)
assert "tvm" not in sys.modules
np.savez(sys.argv[3], *[a for a in arguments if isinstance(a, np.ndarray)])
"""


def verify_in_fresh_process(
    path: Path,
    workload: Workload,
    executable: Executable,
    operands: Mapping[str, Any] | None = None,
) -> float:
    """Run an exported kernel in a process without the compiler; return its relative error.

    Raises
    ------
    RuntimeError
        If the process fails or the result is wrong.
    """
    function = executable[workload.program.name]
    ready = workload.bind(executable, operands).arguments
    plain = [a.numpy() if hasattr(a, "numpy") else np.asarray(a) for a in ready]
    roles = [arg.get("role") for arg in function.metadata["args"] if arg["kind"] == "buffer"]
    for k, arg in enumerate(function.metadata["args"]):
        if arg.get("role") == "output":
            plain[k] = np.full(plain[k].shape, np.nan, plain[k].dtype)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "arguments.npz"
        np.savez(file, **{f"arg_{k}": value for k, value in enumerate(plain)})
        command = [
            sys.executable,
            "-c",
            _VERIFY,
            minimal.__file__,
            str(path),
            str(file),
            function.name,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the exported kernel failed in a fresh process:\n{done.stderr}")
        with np.load(file) as stored:
            found = stored[f"arr_{roles.index('output')}"]
    error = workload.relative_error(found)
    if not error < workload.tolerance:
        raise RuntimeError(f"the exported kernel's result is wrong: relative error {error:.1e}")
    return error

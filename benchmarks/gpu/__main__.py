"""Measure on a GPU machine that has neither this package nor a network: ``python -m benchmarks.gpu``.

``pack DIR`` makes a folder here; ``run.sh`` in it measures there and writes ``results.json``; ``report
results.json`` makes tables and plots of it. ``dry-run`` tries all that without a GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

from tvm_sparse.runtime.cuda_compiler import check_architectures
from tvm_sparse.runtime.minimal import parse_architecture

from ..cuda_kernels import OPERATORS, tile_grid


def main(arguments: list[str] | None = None) -> int:
    """Run a command; see ``--help``."""
    options = _parse(arguments)
    return options.run(options)


def _pack(options: argparse.Namespace) -> int:
    from .pack import pack  # noqa: PLC0415

    cases = tile_grid(options.op)
    try:
        size = pack(
            options.folder,
            cases,
            arch=options.arch,
            pythons=options.python or (),
            data=options.data,
            jobs=options.jobs,
        )
    except (ValueError, OSError) as error:
        raise SystemExit(str(error)) from None
    print(f"{options.folder}: {len(cases)} kernels, {size / (1 << 20):.1f} MiB")
    return 0


def _dry_run(_options: argparse.Namespace) -> int:
    from tests.cuda.emulation import emulated  # noqa: PLC0415 (of the checkout, not installed)

    from .dry_run import dry_run, dry_run_kernels  # noqa: PLC0415
    from .report import write  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        results = dry_run(Path(folder) / "kit", dry_run_kernels(), emulated)
        write(results, Path(folder) / "report")
    return 0


def _report(options: argparse.Namespace) -> int:
    from .report import write  # noqa: PLC0415

    try:
        results = json.loads(options.results.read_text())
        written = write(results, options.out)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(
            f"RESULT.json: expected a file that run.sh wrote, found {options.results} "
            f"({type(error).__name__}: {error})"
        ) from None
    for path in written:
        print(path)
    return 0


def _version(text: str) -> str:
    if not re.fullmatch(r"3\.\d+", text):
        raise argparse.ArgumentTypeError(
            f"expected a version of Python such as 3.12, found {text!r}"
        )
    return text


def _architecture(text: str) -> str:
    try:
        parse_architecture(text)
        check_architectures([text])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    commands = parser.add_subparsers(required=True)
    packing = commands.add_parser("pack", help="make the folder for the GPU machine")
    packing.set_defaults(run=_pack)
    packing.add_argument("folder", type=Path, metavar="DIR")
    packing.add_argument(
        "--arch", default="sm_90", type=_architecture, help="its GPU (default: sm_90)"
    )
    packing.add_argument(
        "--python", type=_version, action="append", help="its version of Python, such as 3.12"
    )
    packing.add_argument("--data", type=Path, help="a folder of matrices to take along")
    packing.add_argument(
        "--op", action="append", choices=OPERATORS, help="operators (default: all)"
    )
    packing.add_argument("--jobs", type=int, default=1, help="processes that compile")
    trying = commands.add_parser("dry-run", help="pack and run tiny sizes without a GPU")
    trying.set_defaults(run=_dry_run)
    rendering = commands.add_parser("report", help="make tables and plots of results")
    rendering.set_defaults(run=_report)
    rendering.add_argument("results", type=Path, metavar="RESULT.json")
    rendering.add_argument("--out", type=Path, default=Path("gpu_report"), help="folder")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

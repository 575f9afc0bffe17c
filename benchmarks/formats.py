"""What formats add to SpMM over CSR: ``python -m benchmarks.formats --data FOLDER``.

For each square matrix and feature width: our CSR schedule, the fastest of the formats that
``schedules.spmm.choose_format`` tries, MKL's inspector-executor, CSR of PyTorch, and SciPy. Contenders take
turns, as in ``benchmarks.cpu``; the chosen format is timed anew against the others. Then matrices of which
one row holds a fifth of the entries: rows cut into pieces, and whole rows shared by entries, or as many
rows for each thread.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from .cpu import ENVIRONMENT, restart_with

_CSR, _BEST = "our csr", "best format"
#: Most entries of a piece of a row.
_PIECE = 4096


def main() -> None:
    """Run the benchmark; see ``--help``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.formats", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, help="folder of .npz and .mtx files (default: generated matrices)")
    add("--matrices", nargs="+", help="only these matrices")
    add("--features", type=int, nargs="+", default=[64, 256])
    add("--threads", type=int, nargs="+", default=[2])
    add("--rounds", type=int, default=31, help="rounds over all contenders")
    add("--json", type=Path, help="write all results to this file")
    options = parser.parse_args()
    restart_with(ENVIRONMENT, "benchmarks.formats")
    results = run(options)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def run(options: argparse.Namespace) -> dict:
    """Measure and return everything that was measured."""
    # Contenders read the environment when imported.
    from rich.console import Console  # noqa: PLC0415

    from tvm_sparse.runtime import set_num_threads  # noqa: PLC0415

    from . import matrices, peers  # noqa: PLC0415
    from .limits import Bandwidth  # noqa: PLC0415

    console = Console(width=140)
    found = matrices.generated()
    if options.data:
        found = matrices.from_folder(options.data) | {"power_law": found["power_law"]}
    if options.matrices:
        found = {name: found[name] for name in options.matrices}
    cases, hubs = [], []
    for threads in options.threads:
        set_num_threads(threads)
        peers.set_threads(threads)
        bandwidth = Bandwidth(threads)
        for features in options.features:
            measured = [
                _case(name, matrix, features, threads, bandwidth, options.rounds)
                for name, matrix in found.items()
            ]
            console.print(_table(measured, features, threads))
            cases += measured
            hubs += [
                _hub_case(name, matrix, features, threads, options.rounds)
                for name, matrix in _with_hubs().items()
            ]
    for case in hubs:
        console.print(
            f"one row with a fifth of the entries, {case['rest']}, {case['features']} features, "
            f"{case['threads']} threads: as many rows for each thread take {case['by count']:.2f} times "
            f"as long as pieces of {_PIECE} entries, whole rows shared by entries {case['by entries']:.2f}"
        )
    return {"environment": ENVIRONMENT, "cases": cases, "hub": hubs}


def _case(name: str, matrix: sp.csr_matrix, features: int, threads: int, bandwidth, rounds: int):
    from tvm_sparse import schedules  # noqa: PLC0415

    from . import ours, peers  # noqa: PLC0415
    from .aligned import aligned  # noqa: PLC0415
    from .limits import compulsory_bytes  # noqa: PLC0415
    from .run import checked, reference  # noqa: PLC0415
    from .timing import interleave  # noqa: PLC0415

    choice = schedules.spmm.choose_format(matrix, features, rounds=rounds)
    dense = aligned(
        np.random.default_rng(1).standard_normal((matrix.shape[1], features), np.float32)
    )
    bound = {
        _CSR: ours.bind("spmm", matrix, [dense], special=True),
        _BEST: ours.bind_packed(choice.kernel, choice.packed, dense),
        "mkl": peers.mkl_spmm(matrix, dense),
        "torch": peers.torch_product(matrix, dense),
        "scipy": peers.scipy_product(matrix, dense),
    }
    calls = checked(bound, *reference("spmm", matrix, [dense]))
    times = interleave(calls, _BEST, rounds, 3e-3)
    size = compulsory_bytes("spmm", matrix.shape[0], matrix.nnz, features)
    return {
        "matrix": name,
        "features": features,
        "threads": threads,
        "format": choice.name,
        "candidates": choice.seconds,
        "seconds": times.seconds,
        "speedups": times.speedups,
        "bandwidth_share": size / times.seconds[_BEST] / bandwidth.of_working_set(size),
        "others_load": times.others_load,
    }


def _table(cases: list[dict], features: int, threads: int):
    from rich.table import Table  # noqa: PLC0415

    from .timing import geometric_mean  # noqa: PLC0415

    peers = [peer for peer in cases[0]["speedups"] if peer != _CSR]
    heads = [*[f"{peer} x" for peer in peers], "formats over csr", "of bandwidth"]
    table = Table("matrix", "best format", "ms", *heads)
    table.title = (
        f"SpMM, {features} features, {threads} threads: times over that of the best format"
    )
    for case in cases:
        doubt = " (busy)" if case["others_load"] > 0.1 else ""
        ratios = [*[case["speedups"][peer] for peer in peers], case["speedups"][_CSR]]
        table.add_row(
            case["matrix"] + doubt,
            case["format"],
            f"{case['seconds'][_BEST] * 1e3:.3f}",
            *[f"{ratio:.2f}" for ratio in ratios],
            f"{case['bandwidth_share']:.0%}",
        )
    table.add_section()
    means = [geometric_mean([case["speedups"][peer] for case in cases]) for peer in [*peers, _CSR]]
    share = geometric_mean([case["bandwidth_share"] for case in cases])
    table.add_row("geometric mean", "", "", *[f"{mean:.2f}" for mean in means], f"{share:.0%}")
    return table


def _hub_case(name: str, matrix: sp.csr_matrix, features: int, threads: int, rounds: int) -> dict:
    """Time rows cut into pieces against whole rows, shared by entries or by count."""
    from tvm_sparse import compile, schedules  # noqa: PLC0415
    from tvm_sparse.formats import CSR, Pieces  # noqa: PLC0415

    from . import ours  # noqa: PLC0415
    from .aligned import aligned  # noqa: PLC0415
    from .run import checked, reference  # noqa: PLC0415
    from .timing import interleave  # noqa: PLC0415

    dense = aligned(
        np.random.default_rng(1).standard_normal((matrix.shape[1], features), np.float32)
    )
    pieces, whole = Pieces(_PIECE), CSR()
    kernels = {
        "pieces": (schedules.spmm.build(features=features, formats=pieces), pieces),
        "by entries": (schedules.spmm.build(features=features, formats=whole), whole),
        "by count": (compile(_shared_by_count(features, threads)), whole),
    }
    bound = {
        label: ours.bind_packed(kernel, fmt.pack(matrix), dense)
        for label, (kernel, fmt) in kernels.items()
    }
    calls = checked(bound, *reference("spmm", matrix, [dense]))
    times = interleave(calls, "pieces", rounds, 3e-3)
    found = {label: times.speedups[label] for label in ("by entries", "by count")}
    case = {"rest": name, "features": features, "threads": threads}
    return case | found | {"others_load": times.others_load}


def _shared_by_count(features: int, threads: int):
    """Return the default schedule but for the rows: one stretch of as many for each thread."""
    from tvm_sparse import SparseSchedule, schedules  # noqa: PLC0415
    from tvm_sparse.formats import CSR  # noqa: PLC0415
    from tvm_sparse.schedules.cpu import parts  # noqa: PLC0415

    decomposed = SparseSchedule(schedules.spmm.program().specialize({"f": features}))
    decomposed.decompose_format("spmm", "A", CSR())
    schedule = decomposed.lower()
    schedule.work_on("spmm")
    parts.schedule(schedule, ["csr"], target="llvm")
    (row,) = schedule.get_loops(schedule.get_sblock("spmm_csr_0"))
    for annotation in ("tvm_sparse.balance", "tvm_sparse.versions"):
        schedule.unannotate(row, annotation)
    stretch, _ = schedule.split(row, [threads, None])
    schedule.parallel(stretch)
    return schedule


def _with_hubs(rows: int = 20_000, entries: int = 400_000) -> dict[str, sp.csr_matrix]:
    """Return matrices of which one row holds a fifth of the entries: others alike, or long ones first."""
    rng = np.random.default_rng(0)
    even = np.full(rows, entries * 4 // 5 // rows)
    weights = 1 / np.arange(1, rows + 1)
    skewed = np.sort(rng.multinomial(even.sum(), weights / weights.sum()))[::-1]
    even[rows // 3] = skewed[0] = entries // 5
    return {"others alike": _random_rows(even, rng), "others by length": _random_rows(skewed, rng)}


def _random_rows(lengths: np.ndarray, rng: np.random.Generator) -> sp.csr_matrix:
    """Return a matrix with rows of these lengths, at random columns."""
    columns = 2 * int(lengths.max())
    indices = [rng.choice(columns, length, replace=False) for length in lengths]
    values = rng.standard_normal(int(lengths.sum())).astype(np.float32)
    indptr = np.append(0, np.cumsum(lengths))
    matrix = sp.csr_matrix((values, np.concatenate(indices), indptr), (lengths.size, columns))
    matrix.sort_indices()
    return matrix


if __name__ == "__main__":
    main()

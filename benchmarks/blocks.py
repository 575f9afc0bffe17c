"""Time SpMM with blocks against PyTorch and MKL: ``python -m benchmarks.blocks --data FOLDER``.

Square matrices of 1024 and 4096 with 90 and 95 % of the blocks dropped at random, and the pruned
weights of the data folder. Peers are BSR of PyTorch and MKL, the same entries as CSR in PyTorch, and the
dense product of PyTorch with zeros kept. Contenders take turns, as in ``benchmarks.cpu``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from .cpu import ENVIRONMENT, restart_with

_NAME = "tvm_sparse"
_PEERS = ("torch bsr", "mkl bsr", "torch csr", "torch dense")
_SIZES = (1024, 4096)
_BLOCKS = (4, 16, 32)
_DENSITIES = (0.1, 0.05)


def main() -> None:
    """Run the benchmark; see ``--help``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.blocks", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, help="folder with pruned weights (.npz with blocksize)")
    add("--features", type=int, nargs="+", default=[32, 128, 256])
    add("--threads", type=int, nargs="+", default=[1, 2])
    add("--rounds", type=int, default=7, help="rounds over all contenders")
    add("--json", type=Path, help="write all results to this file")
    options = parser.parse_args()
    restart_with(ENVIRONMENT, "benchmarks.blocks")
    results = run(options)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def run(options: argparse.Namespace) -> dict:
    """Measure and return everything that was measured."""
    # Contenders read the environment when imported.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from tvm_sparse.runtime import set_num_threads  # noqa: PLC0415

    from . import peers  # noqa: PLC0415
    from .timing import geometric_mean, interleave  # noqa: PLC0415

    console = Console(width=140)
    matrices = generated() | (pruned(options.data) if options.data else {})
    cases = []
    for threads in options.threads:
        set_num_threads(threads)
        peers.set_threads(threads)
        found = []
        for name, matrix in matrices.items():
            for features in options.features:
                calls = _contenders(matrix, features)
                times = interleave(calls, _NAME, options.rounds, 2e-3)
                flops = 2 * matrix.data.size * features
                case = {
                    "matrix": name,
                    "features": features,
                    "threads": threads,
                    "seconds": times.seconds,
                    "speedups": times.speedups,
                    "best": min(times.speedups[peer] for peer in _PEERS),
                    "gflops": flops / times.seconds[_NAME] * 1e-9,
                    "others_load": times.others_load,
                }
                found.append(case)
        ratios = [*found[0]["speedups"], "best peer"]
        table = Table("matrix", "features", "GFLOP/s", *[f"{peer} x" for peer in ratios])
        table.title = f"BSR SpMM, {threads} threads: time of each peer as a multiple of ours"
        for case in found:
            doubt = " (busy)" if case["others_load"] > 0.1 else ""
            values = {**case["speedups"], "best peer": case["best"]}
            cells = [f"{values[peer]:.2f}" for peer in ratios]
            head = [case["matrix"] + doubt, str(case["features"]), f"{case['gflops']:.0f}"]
            table.add_row(*head, *cells)
        means = [
            geometric_mean(
                [{**case["speedups"], "best peer": case["best"]}[peer] for case in found]
            )
            for peer in ratios
        ]
        table.add_section()
        table.add_row("geometric mean", "", "", *[f"{mean:.2f}" for mean in means])
        console.print(table)
        cases += found
    return {"environment": ENVIRONMENT, "cases": cases}


def generated() -> dict[str, sp.bsr_matrix]:
    """Return square matrices of random full blocks."""
    found = {}
    for size in _SIZES:
        for density in _DENSITIES:
            for block in _BLOCKS:
                rng = np.random.default_rng(1)
                kept = rng.random((size // block, size // block)) < density
                pattern = sp.csr_matrix(kept.astype(np.float32))
                values = rng.standard_normal((pattern.nnz, block, block)).astype(np.float32)
                structure = (values, pattern.indices, pattern.indptr)
                name = f"{size}, {1 - density:.0%} dropped, {block}x{block}"
                found[name] = sp.bsr_matrix(structure, shape=(size, size))
    return found


def pruned(folder: Path) -> dict[str, sp.bsr_matrix]:
    """Return the matrices of blocks of a folder: ``.npz`` files that hold a ``blocksize``."""
    found = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as arrays:
            if "blocksize" not in arrays:
                continue
            structure = (
                arrays["data"].astype(np.float32),
                arrays["indices"].astype(np.int32),
                arrays["indptr"].astype(np.int32),
            )
            found[path.stem] = sp.bsr_matrix(structure, shape=tuple(arrays["shape"]))
    return found


def _contenders(matrix: sp.bsr_matrix, features: int) -> dict:
    """Bind and check all contenders."""
    from . import ours, peers  # noqa: PLC0415
    from .run import checked, reference  # noqa: PLC0415

    dense = np.random.default_rng(2).standard_normal((matrix.shape[1], features), np.float32)
    rows = sp.csr_matrix(matrix)
    bound = {
        "torch bsr": peers.torch_bsr_product(matrix, dense),
        "mkl bsr": peers.mkl_spmm(matrix, dense),
        "torch csr": peers.torch_product(rows, dense),
        "torch dense": peers.torch_dense_product(matrix, dense),
        "ours csr": ours.bind("spmm", rows, [dense]),
        _NAME: _bind(matrix, dense),
    }
    return checked(bound, *reference("spmm", rows, [dense]))


_KERNELS: dict = {}


def _bind(matrix: sp.bsr_matrix, dense: np.ndarray):
    from tvm_sparse import schedules  # noqa: PLC0415
    from tvm_sparse.formats import BSR  # noqa: PLC0415

    from . import ours  # noqa: PLC0415

    size = matrix.blocksize
    if size not in _KERNELS:
        _KERNELS[size] = schedules.spmm.build(formats=BSR(*size))
    return ours.bind_packed(_KERNELS[size], BSR(*size).pack(matrix), dense)


if __name__ == "__main__":
    main()

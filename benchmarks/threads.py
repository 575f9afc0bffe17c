"""Do our threads and OpenMP's live together? Alternate a kernel with PyTorch operators and see.

In: nothing. Out: a table of medians, each side alone and alternating, and their ratios; as JSON
with ``--json FILE``. Run it as ``python -m benchmarks.threads``; ``--pool tvm`` shows TVM's own
thread pool instead. All phases are interleaved in one process with nothing set in the environment.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
import tvm
import tvm_ffi
from tvm.script import tirx as T

from tvm_sparse.runtime import add_launcher_entry, openmp_runtime
from tvm_sparse.runtime.threads import attach_process_launcher

FEATURES = 32


@T.prim_func(s_tir=True)
def spmm(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    nnz: T.int32,
):
    T.func_attr({"tir.noalias": True})
    A = T.match_buffer(a, (nnz,), "float32", align=4)
    B = T.match_buffer(b, (n, 32), "float32", align=4)
    C = T.match_buffer(c, (m, 32), "float32", align=4)
    P = T.match_buffer(indptr, (m + 1,), "int32", align=4)
    J = T.match_buffer(indices, (nnz,), "int32", align=4)
    for i in T.parallel(m):
        with T.sblock("row"):
            vi = T.axis.spatial(m, i)
            for k in T.vectorized(32):
                C[vi, k] = T.float32(0)
            for j in range(P[vi + 1] - P[vi]):
                for k in T.vectorized(32):
                    C[vi, k] = C[vi, k] + A[P[vi] + j] * B[J[P[vi] + j], k]


def build_kernel(pool: str) -> Callable[[], None]:
    """Compile the kernel and bind it to a random graph of about half a millisecond."""
    compiled = tvm.compile(
        add_launcher_entry(tvm.IRModule({"spmm": spmm.with_attr("global_symbol", "spmm")})),
        target={"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()},
    )
    if pool == "process":
        attach_process_launcher(compiled.mod)
    matrix = sp.random(12000, 12000, 0.0012, "csr", dtype="f4", random_state=0)
    dense = np.ones((12000, FEATURES), "f4")
    result = np.full((12000, FEATURES), np.nan, "f4")
    tensors = [
        tvm_ffi.from_dlpack(array)
        for array in (matrix.data, dense, result, matrix.indptr, matrix.indices)
    ]
    arguments = (*tensors, 12000, 12000, matrix.nnz)
    function = compiled["spmm"]
    function(*arguments)
    if not np.allclose(result, matrix @ dense, rtol=1e-4, atol=1e-4):
        raise RuntimeError("the kernel's result is wrong")
    return lambda: function(*arguments)


def torch_operators() -> dict[str, Callable[[], object]]:
    """PyTorch operators of 0.2 to 1 ms that run on its OpenMP threads."""
    left, right = torch.rand(400, 400), torch.rand(400, 400)
    long_vector = torch.rand(1_000_000)
    matrix = sp.random(12000, 12000, 0.0012, "csr", dtype="f4", random_state=0)
    sparse = torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr),
        torch.from_numpy(matrix.indices),
        torch.from_numpy(matrix.data),
        size=matrix.shape,
    )
    dense = torch.rand(12000, FEATURES)
    return {
        "matmul": lambda: left @ right,
        "exp": lambda: torch.exp(long_vector),
        "csr @ dense": lambda: sparse @ dense,
    }


def timed(run: Callable[[], object]) -> float:
    """Return milliseconds of one call."""
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def compare(
    kernel: Callable[[], object], operator: Callable[[], object], rounds: int, calls: int
) -> dict[str, float]:
    """Time both sides alone and alternating, phases interleaved; return medians in ms."""
    times: dict[str, list[float]] = {
        name: [] for name in ("kernel", "kernel_mixed", "operator", "operator_mixed")
    }
    warm = 5
    for _ in range(rounds):
        times["kernel"] += [timed(kernel) for _ in range(calls + warm)][warm:]
        times["operator"] += [timed(operator) for _ in range(calls + warm)][warm:]
        for call in range(calls + warm):
            pair = timed(kernel), timed(operator)
            if call >= warm:
                times["kernel_mixed"].append(pair[0])
                times["operator_mixed"].append(pair[1])
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", choices=("process", "tvm"), default="process")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.pool == "tvm":
        os.environ.setdefault("TVM_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    kernel = build_kernel(options.pool)
    print(f"threads: torch {torch.get_num_threads()}, OpenMP runtime {openmp_runtime()}")
    table = {}
    print(f"{'operator':12} {'kernel ms':>10} {'mixed':>7} {'operator ms':>12} {'mixed':>7}")
    for name, operator in torch_operators().items():
        found = table[name] = compare(kernel, operator, options.rounds, options.calls)
        print(
            f"{name:12} {found['kernel']:10.3f} {found['kernel_mixed'] / found['kernel']:6.2f}x "
            f"{found['operator']:12.3f} {found['operator_mixed'] / found['operator']:6.2f}x"
        )
    if options.json:
        options.json.write_text(json.dumps({"pool": options.pool, "results": table}, indent=1))


if __name__ == "__main__":
    main()

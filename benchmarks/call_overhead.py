"""What a call costs over an empty compiled function: ``python -m benchmarks.call_overhead``.

The least of 30 rounds in which all ways to call take turns. Goals: ready tensors at most 5, NumPy arrays at
most 20.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import tvm
from rich.console import Console
from rich.table import Table

from tvm_sparse import compile
from tvm_sparse.script import from_source

EMPTY = """
@S.prim_func
def empty(a: S.handle, b: S.handle, c: S.handle, indptr: S.handle, indices: S.handle,
          m: S.int32, n: S.int32, f: S.int32, nnz: S.int32):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32", sorted=False, unique=False)
    N = S.dense_fixed(n)
    F = S.dense_fixed(f)
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (N, F), "float32")
    C = S.match_sparse_buffer(c, (I, F), "float32")
    with S.sp_iter([I, F], "SS", "empty") as [i, k]:
        C[i, k] = 0.0
"""


def main() -> None:
    """Print the table."""
    matrix = sp.random(10, 8, 0.4, "csr", dtype="f4", random_state=0)
    sizes = (10, 8, 4, matrix.nnz)
    dense, out = np.ones((8, 4), "f4"), np.zeros((10, 4), "f4")
    buffers = (matrix.data, dense, out, matrix.indptr, matrix.indices)
    inputs = (matrix.data, dense, matrix.indptr, matrix.indices)
    tensors = (*map(tvm.runtime.tensor, buffers), *sizes)
    executable = compile(from_source(EMPTY))
    kernel, bare = executable["empty"], executable.module.get_function("empty")
    ways: dict[str, Callable[[], object]] = {
        "the compiled function itself": lambda: bare(*tensors),
        "ready tensors, everything": lambda: kernel(*tensors),
        "NumPy, everything": lambda: kernel(*buffers, *sizes),
        "NumPy, sizes inferred": lambda: kernel(*buffers),
        "NumPy, sizes inferred, result allocated": lambda: kernel(*inputs),
        "SciPy matrix": lambda: kernel(a=matrix, b=dense),
    }
    taken = _least(list(ways.values()))
    table = Table("call", "us", "over the compiled function")
    for name, microseconds in zip(ways, taken):
        table.add_row(name, f"{microseconds:.2f}", f"{microseconds - taken[0]:.2f}")
    Console().print(table)


def _least(calls: list[Callable[[], object]], rounds: int = 30, repeats: int = 200) -> list[float]:
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for index, call in enumerate(calls):
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            best[index] = min(best[index], (time.perf_counter() - start) / repeats * 1e6)
    return best


if __name__ == "__main__":
    main()

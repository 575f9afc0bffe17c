"""What a call costs over an empty compiled function: ``python -m benchmarks.call_overhead``.

The least of 30 rounds in which all ways to call take turns. Goals: ready tensors at most 5, NumPy arrays at
most 20. Packed tensors are compared with the arrays of the same kernel, all given: the keyword call has
to find, check and complete them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import tvm
from rich.console import Console
from rich.table import Table

from tvm_sparse import compile, schedules
from tvm_sparse.formats import CSR, Composition, Format, Hyb
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
    _print("call", ways)
    hyb = Hyb(buckets=[1, 2, 3, 4, 8])
    for name, fmt in {"CSR": CSR(), f"hyb of {len(hyb.parts)} parts": hyb}.items():
        _print(f"SpMM over {name}", _packed_ways(matrix, fmt))


def _packed_ways(matrix: sp.csr_matrix, fmt: Format | Composition) -> dict[str, Callable]:
    """Return ways to call SpMM over a format on a matrix so small that its work is next to none."""
    executable = schedules.spmm.build(formats=fmt)
    kernel, bare = executable["spmm"], executable.module.get_function("spmm")
    packed, dense, out = fmt.pack(matrix), np.ones((8, 4), "f4"), np.zeros((10, 4), "f4")
    arrays = kernel.arguments(a=packed, b=dense, c=out)
    tensor, result = tvm.runtime.tensor(dense), tvm.runtime.tensor(out)
    tensors = kernel.arguments(a=packed, b=tensor, c=result)
    numpy_arrays = [np.from_dlpack(a) if hasattr(a, "__dlpack__") else a for a in arrays]
    return {
        "the compiled function itself": lambda: bare(*tensors),
        "ready tensors, everything": lambda: kernel(*tensors),
        "NumPy, everything": lambda: kernel(*numpy_arrays),
        "packed, ready tensor and result": lambda: kernel(a=packed, b=tensor, c=result),
        "packed, NumPy and result": lambda: kernel(a=packed, b=dense, c=out),
        "packed, NumPy, result allocated": lambda: kernel(a=packed, b=dense),
        "packed, not kept": lambda: kernel(a=packed, b=dense, m=10),
    }


def _print(title: str, ways: dict[str, Callable[[], object]]) -> None:
    taken = _least(list(ways.values()))
    table = Table(title, "us", "over the compiled function")
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

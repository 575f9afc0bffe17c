"""A call costs microseconds over an empty function; generous bounds, for busy machines."""

import time

import numpy as np
import scipy.sparse as sp
import tvm
from runtime_kernels import SPMM, build
from tvm.script import tirx as T

MATRIX = sp.random(10, 8, 0.4, "csr", dtype="f4", random_state=0)
SIZES = (10, 8, 4, MATRIX.nnz)


@T.prim_func(s_tir=True)
def empty_kernel(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    f: T.int32,
    nnz: T.int32,
):
    T.evaluate(0)


def arrays():
    dense, out = np.ones((8, 4), "f4"), np.zeros((10, 4), "f4")
    return MATRIX.data, dense, out, MATRIX.indptr, MATRIX.indices


def best_of_interleaved(*calls, rounds=30, repeats=200):
    """Least microseconds of each call over rounds in which all take turns."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for index, call in enumerate(calls):
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            best[index] = min(best[index], (time.perf_counter() - start) / repeats * 1e6)
    return best


def test_ready_tensors_cost_at_most_5_microseconds_over_an_empty_function():
    executable = build({"empty": (empty_kernel, SPMM)})
    kernel, raw = executable["empty"], executable.module.get_function("empty")
    given = (*map(tvm.runtime.tensor, arrays()), *SIZES)
    empty, ours = best_of_interleaved(lambda: raw(*given), lambda: kernel(*given))
    assert ours - empty < 5


def test_numpy_arrays_cost_at_most_20_microseconds_over_an_empty_function():
    executable = build({"empty": (empty_kernel, SPMM)})
    kernel, raw = executable["empty"], executable.module.get_function("empty")
    tensors = (*map(tvm.runtime.tensor, arrays()), *SIZES)
    given = (*arrays(), *SIZES)
    buffers = arrays()
    inputs = tuple(array for index, array in enumerate(buffers) if index != 2)
    empty, full, without_sizes, without_output = best_of_interleaved(
        lambda: raw(*tensors),
        lambda: kernel(*given),
        lambda: kernel(*buffers),
        lambda: kernel(*inputs),
    )
    assert max(full, without_sizes, without_output) - empty < 20

"""Your first sparse kernel: write it, look at its stages, schedule it, run it, export it.

Run me: ``python tutorials/01_first_kernel.py``. Every step prints what it shows.
"""

# %% [1] A program over coordinates
#
# Graph networks sum the features of a node's neighbours: y[i, k] = sum over the neighbours j of i of
# a[i, j] * x[j, k]. We say which coordinates exist (axes), what is stored over them (buffers), and what
# happens at each (an iteration). Nothing here says how the loops run.

import tempfile
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import tvm

import tvm_sparse  # registers the dialect

# isort: split
from tvm.script import sparse as S


@S.prim_func
def aggregate(
    a: S.handle,
    x: S.handle,
    y: S.handle,
    indptr: S.handle,
    indices: S.handle,
    m: S.int32,
    n: S.int32,
    f: S.int32,
    nnz: S.int32,
):
    I = S.dense_fixed(m)  # all rows
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")  # the stored columns of a row
    N = S.dense_fixed(n)  # all columns
    F = S.dense_fixed(f)  # all features
    A = S.match_sparse_buffer(a, (I, J), "float32")  # values, one per entry: CSR
    X = S.match_sparse_buffer(x, (N, F), "float32")  # dense, n x f
    Y = S.match_sparse_buffer(y, (I, F), "float32")  # dense, m x f
    # I and F are spatial (S): one result for each of their points. J is reduced (R).
    with S.sp_iter([I, J, F], "SRS", "aggregate") as [i, j, k]:
        with S.init():
            Y[i, k] = S.float32(0)
        Y[i, k] = Y[i, k] + A[i, j] * X[j, k]


# %% [2] Its three stages

from tvm_sparse.cli.show import render  # noqa: E402 (what `tvm-sparse show` prints)

for stage in ("1", "2", "3"):
    print(f"--- stage {stage} ---")
    print(render(aggregate, stage))

# %% [3] Run it on a real matrix
#
# Sizes are symbolic: the compiled kernel takes any matrix. A SciPy matrix stands for its three arrays;
# sizes and the result are worked out from the arguments. Rows without entries give the init value.

kernel = tvm_sparse.compile(aggregate)
matrix = sp.random(1000, 800, density=0.01, format="csr", dtype=np.float32, random_state=0)
features = np.random.default_rng(0).random((800, 32), dtype=np.float32)
result = kernel(a=matrix, x=features)
assert np.allclose(result, matrix @ features, atol=1e-4)
print("largest difference from SciPy:", np.abs(result - matrix @ features).max())

# Bad input is refused by name:
try:
    kernel(a=matrix, x=features[:799])
except ValueError as error:
    print("refused:", error)

# %% [4] Schedule it with TVM's own primitives
#
# Stage III is ordinary TensorIR. Here: rows in parallel, features in vectors of 16, the sum of a row
# started before its loop over the entries.

schedule = tvm.s_tir.Schedule(tvm_sparse.runtime.lower(aggregate.specialize({"f": 32})))
rows = schedule.get_sblock("aggregate_0", "aggregate")
body = schedule.get_sblock("aggregate_1", "aggregate")
(row,) = schedule.get_loops(rows)
entry, feature = schedule.get_loops(body)
tile, lane = schedule.split(feature, [None, 16])
schedule.reorder(tile, entry, lane)
schedule.vectorize(lane)
schedule.parallel(row)
schedule.decompose_reduction(body, entry)
scheduled = tvm_sparse.compile(schedule)
assert np.allclose(scheduled(a=matrix, x=features), matrix @ features, atol=1e-4)
print("the scheduled kernel agrees")

# %% [5] Export it, and load it again
#
# One shared library holds code and argument metadata. `tvm_sparse.runtime.minimal` is one file that loads
# it where neither TVM's compiler nor this package is installed.

with tempfile.TemporaryDirectory() as folder:
    path = scheduled.export_library(Path(folder) / "aggregate.so")
    loaded = tvm_sparse.load(path)
    assert np.array_equal(loaded(a=matrix, x=features), scheduled(a=matrix, x=features))
    print("the exported kernel agrees")

"""Composable formats: hold one matrix as a sum of parts, schedule each part, and measure.

Run me: ``python tutorials/03_composable_formats.py``. Every step prints what it shows.
"""

# %% [1] A skewed graph
#
# Most nodes have few neighbours and some have very many; a tenth has none. Some nodes form groups of
# eight in which each knows all the others. No single format suits all of this.

import statistics
import time

import numpy as np
import scipy.sparse as sp

import tvm_sparse
from tvm_sparse import SparseSchedule, schedules
from tvm_sparse.formats import (
    BSR,
    CSR,
    Composition,
    Format,
    Hyb,
    LayoutBuilder,
    Storage,
    check_format,
)
from tvm_sparse.runtime import set_num_threads
from tvm_sparse.schedule import Trace

NODES, FEATURES = 12000, 64
rng = np.random.default_rng(0)
degrees = np.minimum((rng.pareto(1.2, NODES) * 4 + 1).astype(int), NODES // 8)
degrees[rng.random(NODES) < 0.1] = 0
sources = np.repeat(np.arange(NODES), degrees)
targets = rng.integers(0, NODES, sources.size)
groups = rng.choice(NODES // 8, NODES // 16, replace=False) * 8
members = np.arange(8)
sources = np.append(sources, (groups[:, None] + np.repeat(members, 8)).ravel())
targets = np.append(targets, (groups[:, None] + np.tile(members, 8)).ravel())
weights = rng.random(sources.size, dtype=np.float32) + 0.5
graph = sp.csr_matrix((weights, (sources, targets)), shape=(NODES, NODES))
graph.sum_duplicates()
lengths = np.diff(graph.indptr)
print(f"{graph.nnz} edges; neighbours: median {np.median(lengths):g}, most {lengths.max()}")

features = rng.random((NODES, FEATURES), dtype=np.float32)
expected = graph @ features  # by SciPy

# %% [2] Two descriptions
#
# A description knows no matrix yet; `pack` applies it to one. The first takes blocks that are at least
# half full, and leaves the rest to CSR. The second is hyb: rows in buckets by length. Its widths may be
# left open; `fitted` chooses them for a matrix.

parts = Composition({"blocks": BSR(8, 8, min_fill=0.5), "rest": CSR()})
hyb = Hyb().fitted(graph)
print(parts.pack(graph))
print(hyb.pack(graph))

# %% [3] From one iteration to one for each part
#
# The program is written over coordinates of the matrix, so it does not change with the format of A.
# `decompose_format` puts one iteration for each part in its place. The parts add to the same result. One
# that visits every row ("covers") initialises it. A block stores padding too: its iteration leaves that
# out.

schedule = SparseSchedule(schedules.spmm.program().specialize({"f": FEATURES}))


def show(title, schedule):
    """Print a program from its first iteration on."""
    text = schedule.mod["spmm"].script()
    print(f"--- {title} ---\n{text[text.index('    with S.sp_iter') :]}")


show("before", schedule)
blocks, rest = schedule.decompose_format("spmm", "A", parts)
show("decomposed", schedule)
print("parameters:", ", ".join(schedule.mod["spmm"].arg_names))

# %% [4] Schedule a part at the level of coordinates
#
# Each part has its own loops. In the blocks, we compute one feature after the other: the loop over
# features goes outside of those over the columns of a row. In the rest, one loop over all edges takes
# the place of the two over rows and their edges; the row of an edge is found by a search.

i_block, i_within, j_block, j_within, feature = schedule.get_axes(blocks)
schedule.sparse_reorder(blocks, [i_block, i_within, feature, j_block, j_within])
i, j, _ = schedule.get_axes(rest)
schedule.sparse_fuse(rest, [i, j])
show("reordered and fused", schedule)

# What would change the result is refused.
try:
    schedule.sparse_reorder(blocks, [j_block, i_block, i_within, feature, j_within])
except tvm_sparse.SparseProgramError as error:
    print("refused:", error)

# %% [5] What was done so far
#
# The trace prints as a Python function. As JSON it goes to a file; read again, it makes the same program
# of the program that we began with.

print(schedule.trace)
text = schedule.trace.as_json()
print(f"{len(text)} characters of JSON")
again = SparseSchedule(schedules.spmm.program().specialize({"f": FEATURES}))
Trace.from_json(text).apply(again)
assert again.mod["spmm"].script() == schedule.mod["spmm"].script()

# %% [6] Run it
#
# The packed matrix stands for all arrays of its parts, whatever their names.

packed = parts.pack(graph)
kernel = tvm_sparse.compile(schedule)
assert np.allclose(kernel(a=packed, b=features), expected, rtol=1e-4)
print("the decomposed kernel agrees with SciPy")

# %% [7] Schedule a part with TVM's own primitives
#
# `lower` returns a stock schedule. Every part has blocks of its own there, named after its iteration:
# `spmm_rest_0` holds the loop over rows, `spmm_rest_1` those over the edges and features of a row. We
# run the rows in parallel and the features in vectors, and leave the other part as it is.

schedule = SparseSchedule(schedules.spmm.program().specialize({"f": FEATURES}))
schedule.decompose_format("spmm", "A", parts)
lowered = schedule.lower()
(row,) = lowered.get_loops(lowered.get_sblock("spmm_rest_0"))
edge, feature = lowered.get_loops(lowered.get_sblock("spmm_rest_1"))
_, lane = lowered.split(feature, [None, 16])
lowered.vectorize(lane)
lowered.parallel(row)
kernel = tvm_sparse.compile(lowered)
assert np.allclose(kernel(a=packed, b=features), expected, rtol=1e-4)
print("the scheduled kernel agrees with SciPy")

# %% [8] Measure
#
# `build` schedules all parts of a decomposed SpMM for a CPU. We compare the two sums with plain CSR and
# with SciPy, all on one thread, since SciPy uses one. A call with a packed matrix looks at every array of
# every part first. `arguments` does that once and returns what the kernel itself takes, the result
# among it, so that we time kernels alone. SciPy's times hold a new result at every call.


def median_time(call):
    """Return the median time of a call in milliseconds."""
    call()
    times = []
    for _ in range(21):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def compare(matrix, dense, descriptions):
    """Print what SpMM over a matrix in formats takes, beside CSR and SciPy."""
    times = {"SciPy": median_time(lambda: matrix @ dense)}
    nbytes = {"SciPy": CSR().pack(matrix).nbytes}
    for name, formats in {"CSR": CSR(), **descriptions}.items():
        kernel, packed = schedules.spmm.build(formats=formats), formats.pack(matrix)
        assert np.allclose(kernel(a=packed, b=dense), matrix @ dense, rtol=1e-4)
        function = kernel["spmm"]
        ready = function.arguments(a=packed, b=dense)
        times[name] = median_time(lambda function=function, ready=ready: function(*ready))
        nbytes[name] = packed.nbytes
    print("               ms    MB   speed: CSR = 1  SciPy = 1")
    for name, spent in times.items():
        speeds = [times[other] / spent for other in ("CSR", "SciPy")]
        print(f"{name:12}{spent:6.2f}{nbytes[name] / 1e6:6.2f}{speeds[0]:16.2f}{speeds[1]:11.2f}")


set_num_threads(1)
compare(graph, features, {"blocks + rest": parts, "hyb": hyb})

# Read the ratios before you believe in a format. Formats do not always help: each part visits rows of
# the result again, loops visit padding, and CSR has a good schedule to begin with. What a format buys
# depends on the matrix, on the number of features and on the machine, so measure on yours. There is a
# function for that: it checks every candidate, times them in turns, and returns the fastest.

candidates = {"CSR": CSR(), "blocks + rest": parts, "hyb": hyb}
choice = schedules.spmm.choose_format(graph, FEATURES, candidates=candidates)
print("chosen:", choice.name, {name: f"{1e3 * s:.2f} ms" for name, s in choice.seconds.items()})

# %% [9] A format of your own
#
# A format is a class with three methods. `layout` describes its axes to the compiler, `store` makes its
# arrays of sorted entries, `coordinates` says where a slot lies. `takes` picks what it is good for when
# it is one part of several. This one holds a band around the diagonal densely, without any index.


class Band(Format):
    """Diagonals ``-half_width .. half_width``, the same number of slots for every row."""

    covers = (0,)  # it visits every row, so it can initialise the result
    marks_padding = True  # slots without an entry are left out

    def __init__(self, half_width: int) -> None:
        self.name, self.half_width, self.width = f"band{half_width}", half_width, 2 * half_width + 1

    def layout(self, prefix, shape, index_dtype="int32"):
        build = LayoutBuilder(prefix, index_dtype)
        build.dense("I", shape[0], dims=[0])
        build.dense("D", self.width, dims=[1], distinct=False)  # two of D may share a column
        return build.finish(lambda at: [at[0], at[0] + at[1] - self.half_width])

    def takes(self, entries):
        rows, columns = entries.coordinates
        return abs(columns - rows) <= self.half_width

    def store(self, entries, index_dtype):
        rows, columns = (found.astype(np.int64) for found in entries.coordinates)
        slots = rows * self.width + columns - rows + self.half_width
        values = np.zeros((entries.shape[0], self.width), entries.values.dtype)
        values.flat[slots] = entries.values
        return Storage(values, arrays={}, sizes={}, slots=slots)

    def coordinates(self, storage, slots):
        rows, diagonals = np.divmod(slots, self.width)
        return rows, rows + diagonals - self.half_width


# %% [10] Pack it, check it, run it
#
# A kernel trusts what a format says of itself. `check_format` packs a tensor, walks the axes of the
# layout as a kernel does, and compares: try it on tensors that fit badly, here more rows than columns.
# Then the real one: a chain of nodes that know their nearest neighbours, and a few others. Nothing else
# has to be done: all that takes a format takes ours.

check_format(Band(1), sp.csr_matrix([[1.0, 2.0], [0.0, 0.0], [0.0, 3.0], [0.0, 0.0]]))

band = sp.diags([rng.random(NODES - abs(k)) + 0.5 for k in range(-3, 4)], range(-3, 4))
others = sp.random(NODES, NODES, density=2 / NODES, random_state=0)
chain = sp.csr_matrix(band + others, dtype=np.float32)

banded = Composition({"band": Band(3), "rest": CSR()})
packed = banded.pack(chain)
assert (packed.unpack() != chain).nnz == 0
print(packed)

schedule = SparseSchedule(schedules.spmm.program())
schedule.decompose_format("spmm", "A", banded)
show("band and rest", schedule)
kernel = tvm_sparse.compile(schedule)
assert np.allclose(kernel(a=packed, b=features), chain @ features, rtol=1e-4)
print("the kernel over our own format agrees with SciPy")

compare(chain, features, {"band + rest": banded})
set_num_threads(None)  # as before

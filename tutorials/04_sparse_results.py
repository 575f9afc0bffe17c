"""Sparse results: products and sums of sparse tensors whose result is sparse itself.

Run me: ``python tutorials/04_sparse_results.py``. Every step prints what it shows.
"""

# %% [1] Sums of products
#
# One letter for each dimension: `ik,kj->ij` is the product of two matrices. Letters that the result lacks
# are summed over. Operands may be SciPy matrices and arrays of any format and order, packed tensors and
# NumPy arrays.

import time

import numpy as np
import scipy.sparse as sp

import tvm_sparse
from tvm_sparse import einsum, einsum_plan
from tvm_sparse.script import from_source
from tvm_sparse.workspace.detection import detect

# isort: split
from tvm.script import sparse as S

NODES = 2000
rng = np.random.default_rng(0)
graph = sp.random_array((NODES, NODES), density=0.004, rng=rng, format="csr")
graph.data = rng.integers(1, 9, graph.nnz).astype("float64")

two_steps = einsum("ik,kj->ij", graph, graph)
assert abs(two_steps - graph @ graph).max() < 1e-9
print(f"{graph.nnz} edges, {two_steps.nnz} pairs two steps apart")

# The structure is that of the products: an entry stands wherever one met, also where they cancel. Then
# the same structure serves other values. `prune=True` leaves zeros out.
plus_and_minus = sp.csr_array([[1.0, -1.0]])
ones = sp.csr_array([[1.0], [1.0]])
print("entries kept:", einsum("ik,kj->ij", plus_and_minus, ones).nnz, end=", ")
print("pruned:", einsum("ik,kj->ij", plus_and_minus, ones, prune=True).nnz)

# %% [2] More than products of two matrices
#
# Sums are written with `+` and `-`, and terms may begin with a number. A chain of matrices is computed in
# pairs; where a thin mask picks entries of a product, the product itself is never stored. Without letters
# on the right the result is a number.

symmetric = einsum("ij+ji->ij", graph, graph)
both = einsum("ik,kj+ij->ij", graph, graph, graph, out="csc")
mask = sp.random_array((NODES, NODES), density=0.0005, rng=rng, format="csr")
sampled = einsum("ij,ik,kj->ij", mask, graph, graph)
pattern = (symmetric != 0).astype("int64")
triangles = einsum("ij,jk,ki->", pattern, pattern, pattern) / 6
print(f"{symmetric.nnz=} {both.format=} {sampled.nnz=} {triangles=:.0f}")
assert np.isclose(sampled.sum(), (mask * (graph @ graph)).sum())

# `mask=` asks for entries where a structure has some, whatever its values, `complement=True` for all
# others: here pairs that are two steps apart and not one.
apart = einsum("ik,kj->ij", graph, graph, mask=graph, complement=True)
assert apart.nnz + einsum("ik,kj->ij", graph, graph, mask=graph).nnz == two_steps.nnz
shifted = einsum("0.5*ij + 0.5*ji - ij -> ij", graph, graph, sp.eye_array(NODES))
print(f"{apart.nnz=} {shifted.nnz=}")

# Tensors of any order. MTTKRP, the kernel of a CP decomposition, with sparse factors:
ratings = sp.random_array((200, 300, 50), density=0.001, rng=rng)
movies = sp.random_array((300, 16), density=0.2, rng=rng)
days = sp.random_array((50, 16), density=0.2, rng=rng)
users = einsum("umd,mr,dr->ur", ratings, movies, days)
print("MTTKRP:", users.shape, users.nnz, "entries")

# Other semirings: the shortest ways of at most two steps.
ways = einsum("ik,kj+ij->ij", graph, graph, graph, semiring="min-plus")
print("shortest way from node 0 to its first neighbour:", ways.data[0])

# %% [3] What is run
#
# `explain=True` prints it. Letters that always stand together become one, so a contraction of two
# tensors is a product of two matrices and shares its kernel. Each operand is brought to the order of the
# loops. The workspace collects the entries of a row.

einsum("ijk,kl->ijl", ratings, days, explain=True)

# The program is one over coordinates, as in the other tutorials; `S.sparse_output` is an axis whose
# coordinates the kernel finds.
plan = einsum_plan("ik,kj->ij", graph, graph)
print(plan.script())

# %% [4] Write it yourself
#
# Loops and levels of the result decide what collects its entries. By rows a product needs a workspace of
# one dimension; as a sum of outer products, one of two.

for loops in ("ikj", "ijk", "kij"):
    found = detect(list(loops), ["i", "j"])
    print(f"loops {loops}: {found.strategy}, workspace over {found.workspace}")

kernel = tvm_sparse.compile(from_source(plan.script()))
print(kernel)
sizes = dict.fromkeys(("n_i", "n_j", "n_k"), NODES)
product = kernel(t0=graph, t1=graph, **sizes)
assert (product.indices == two_steps.indices).all()


# Axes that are walked side by side: a union visits what any of them stores, an intersection what all do.
# Where an operand stores nothing its default counts, here a distance without limit. Entries come in order
# and once each, so they need no workspace.
@S.prim_func
def nearer(
    a: S.handle,
    b: S.handle,
    c: S.handle,
    a_indptr: S.handle,
    a_indices: S.handle,
    b_indptr: S.handle,
    b_indices: S.handle,
    m: S.int32,
    n: S.int32,
    a_nnz: S.int32,
    b_nnz: S.int32,
):
    """Take the smaller of two distances, where one is known."""
    I = S.dense_fixed(m)
    JA = S.sparse_variable(I, (n, a_nnz), (a_indptr, a_indices), "int32")
    JB = S.sparse_variable(I, (n, b_nnz), (b_indptr, b_indices), "int32")
    JC = S.sparse_output(I, n)
    A = S.match_sparse_buffer(a, (I, JA), "float64", default=S.float64("inf"))
    B = S.match_sparse_buffer(b, (I, JB), "float64", default=S.float64("inf"))
    C = S.match_sparse_buffer(c, (I, JC), "float64")
    with S.sp_iter([I, S.union(JA, JB)], "SS", "nearer") as [i, j]:
        C[i, j] = S.min(A[i, j], B[i, j])


kernel = tvm_sparse.compile(nearer)
print(kernel)
distances = kernel(a=graph, b=two_steps)
assert distances.nnz == (abs(graph) + abs(two_steps)).nnz

# %% [5] New values, same structure
#
# A plan keeps the structure of the result. Where only values change, as in training, it is not computed
# again.


def seconds(run) -> float:
    """Least time of five runs."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def multiply():
    """Multiply by SciPy, whose results are not sorted by themselves."""
    (graph @ graph).sort_indices()


plan(graph, graph)  # the first call with new values prepares the next ones
runs = {
    "einsum": lambda: einsum("ik,kj->ij", graph, graph),
    "plan": lambda: plan(graph, graph),
    "SciPy": multiply,
}
print(", ".join(f"{name} {seconds(run) * 1e3:.1f} ms" for name, run in runs.items()))

# What does not fit is refused by name.
for wrong in (lambda: einsum("ik,jk->ij", graph, ratings), lambda: plan(mask, graph)):
    try:
        wrong()
    except ValueError as error:
        print("refused:", error)

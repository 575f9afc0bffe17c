"""Formats: what each one stores of a matrix, what that costs, and how to change values.

Run me: ``python tutorials/02_formats.py [FOLDER]``. Every step prints what it shows; the picture of all
layouts goes to FOLDER, or to a new temporary one.
"""

# %% [1] One small matrix
#
# It has something for every format: full blocks on the diagonal, a long row, empty rows, and single
# entries. We number the entries row by row, so that their order of storage can be read off.

import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from matplotlib.figure import Figure

from tvm_sparse import schedules
from tvm_sparse.formats import (
    BSR,
    COO,
    CSC,
    CSF,
    CSR,
    DBSR,
    DCSR,
    DIA,
    ELL,
    SRBCRS,
    Bucket,
    ColumnParts,
    Composition,
    Hyb,
    LongBucket,
    Ragged,
    RowList,
)

pattern = """
x x . . . . . .
x x . . . x . .
. . . . . . . .
. . . . . . . .
x x x x x x . x
. . x . . x . .
. . . . . . x x
. . . . . . x x
"""
mask = np.array([line.split() for line in pattern.strip().splitlines()]) == "x"
numbers = np.where(mask, np.cumsum(mask).reshape(mask.shape), 0).astype(np.float32)
matrix = sp.csr_matrix(numbers)
print(numbers.astype(int))


def show(packed):
    """Print the arrays of a packed tensor, flat, with a dot for every slot of padding."""
    print(packed)
    values = ["."] * packed.values.size
    for slot in packed.storage.slots:
        values[slot] = f"{packed.values.flat[slot]:g}"
    arrays = {name: array.ravel().astype(str) for name, array in packed.storage.arrays.items()}
    for name, items in {"values": values, **arrays}.items():
        line = f"{name}: {' '.join(items)}"
        print(textwrap.fill(line, 100, initial_indent="  ", subsequent_indent="    "))


# %% [2] Formats that store entries alone
#
# `pack` makes arrays of a matrix: one value for each slot, and index arrays. CSR goes row by row:
# `indptr` says where each row begins, `indices` names the column of each entry. CSC does the same by
# columns. COO names row and column of each entry, so that there are no pointers. DCSR is CSR without
# the empty rows. A row list has all rows, in an order of one's choice: here the longest come first. CSF
# compresses every dimension under the one before; for a matrix it is CSR.

everything = {}
for fmt in (CSR(), CSC(), COO(), DCSR(), RowList("degree"), CSF(2)):
    everything[fmt.name] = fmt.pack(matrix)
    show(everything[fmt.name])

# %% [3] Formats that pad rows
#
# Loops of one fixed length are easy to unroll and to balance. ELL gives every row as many slots as the
# longest one needs; the slots left over are padding, with the number of columns as their index. A
# bucket does so for the rows that have entries; a long bucket cuts them into pieces of its width. Both
# are named after their range of columns and their width. DIA stores whole diagonals and one offset for
# each.

for name, fmt in {
    "ell": ELL(),
    "bucket": Bucket(width=7),
    "long bucket": LongBucket(width=2),
    "dia": DIA(),
}.items():
    everything[name] = fmt.pack(matrix)
    show(everything[name])

# Padding contributes nothing to the result of a kernel. It costs memory, and loops visit it.
print({name: f"{100 * packed.padding:.0f} %" for name, packed in everything.items()})

# A width that is too small is refused; nothing is cut off.
try:
    ELL(width=3).pack(matrix)
except ValueError as error:
    print("refused:", error)

# %% [4] Formats of blocks
#
# BSR cuts the matrix into blocks and stores those that hold entries as small dense matrices, with one
# index for a block instead of one for an entry. DBSR leaves out empty rows of blocks. SR-BCRS stores
# columns of `t` entries, `g` of them to a group, for matrix units.

for fmt in (BSR(2, 2), DBSR(2, 2), SRBCRS(2, 2)):
    everything[fmt.name] = fmt.pack(matrix)
    show(everything[fmt.name])

# %% [5] Ragged rows
#
# Sequences of different lengths have no gaps, so they need no column indices. Our matrix has gaps.

try:
    Ragged().pack(matrix)
except ValueError as error:
    print("refused:", error)

sequences = sp.csr_matrix(np.where(np.arange(8) < mask.sum(axis=1)[:, None], 1.0, 0.0))
everything["ragged (sequences)"] = Ragged().pack(sequences.astype(np.float32))
show(everything["ragged (sequences)"])

# %% [6] Sums of parts
#
# A composition divides the entries among several formats. Each part takes what it stores well of what
# the parts before it left; every entry is in one part. Here, blocks that are at least three quarters
# full go to BSR and the rest to CSR. `Hyb` makes the parts itself, buckets for rows of about the same
# length. `ColumnParts`, one format, stores one range of columns after another, each as a list of rows;
# with `column_parts` the buckets of `Hyb` do so too.

everything["blocks + rest"] = Composition({"blocks": BSR(2, 2, min_fill=0.75), "rest": CSR()}).pack(
    matrix
)
everything["columns"] = ColumnParts(2).pack(matrix)
show(everything["columns"])
everything["hyb"] = Hyb(column_parts=2).pack(matrix)
for name in ("blocks + rest", "hyb"):
    print(everything[name])
    for part_name, part in everything[name].parts.items():
        print(f"- {part_name}", end=" ")
        show(part)

# %% [7] A picture of all of them
#
# `plot` draws a cell for each entry. In one format the colour is the order of storage, dark first; in a
# sum it is the part. Padding that lies at coordinates of the matrix is grey.

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="formats"))
figure = Figure(figsize=(24, 12), layout="constrained")
for packed, axes in zip(everything.values(), figure.subplots(3, 6).flat):
    packed.plot(axes)
figure.axes[-1].set_axis_off()  # one place more than there are formats
figure.savefig(folder / "formats.png", dpi=80)
print("drawn:", folder / "formats.png")

# %% [8] Back again, and with other values
#
# `unpack` returns what SciPy holds. Whatever the format, nothing is lost.

for name, packed in everything.items():
    source = sequences if name.startswith("ragged") else matrix
    assert packed.unpack().nnz == source.nnz
    assert (packed.unpack() != source).nnz == 0

# `update_values` replaces the values in place, in the order of the source that was packed. A kernel that
# was given the arrays sees them; structure and index arrays stay.
blocked = everything["bsr2x2"]
blocked.update_values(matrix.data * 10)
assert (blocked.unpack() != matrix * 10).nnz == 0
blocked.update_values(matrix.data)

# %% [9] Coordinates that come twice, and zeros that are stored
#
# Graphs may list an edge twice. `pack` sums what is repeated, unless the format keeps it. New values
# come in the order of the source in both cases: three here, and the first two are summed.

edges = sp.coo_matrix((np.array([1, 2, 4], np.float32), ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
summed, kept = CSR().pack(edges), CSR(keeps_duplicates=True).pack(edges)
print("summed:", summed.values, "kept:", kept.values)
summed.update_values(np.array([10, 20, 40], np.float32))
print("updated:", summed.values)

# An explicit zero is an entry: it stays through packing and unpacking.
zeros = sp.csr_matrix((np.array([0, 3], np.float32), [0, 1], [0, 1, 2]), shape=(2, 2))
print("entries with an explicit zero:", CSR().pack(zeros).unpack().nnz)

# In a block, padding is zero too. So BSR, DBSR, SR-BCRS and DIA store an entry that is zero as -0.0: it
# equals zero, and a kernel tells it from padding. Here the entry 0 meets infinity, which makes NaN. The
# padding below it does not. Write values by `update_values`, which keeps this up. Integers have neither
# -0 nor infinity: there, padding adds zero.
square = BSR(2, 2).pack(zeros)
print("the block:", square.values.ravel(), "entries:", square.unpack().nnz)
product = schedules.spmm.build(formats=BSR(2, 2))(a=square, b=np.array([[np.inf], [1]], np.float32))
print("times (inf, 1):", product.ravel())
assert np.isnan(product[0, 0]) and product[1, 0] == 3

# %% [10] Three dimensions
#
# A tensor of any rank comes as (coordinates, values, shape). Think of edges (relation, row, column). CSF
# is a tree: level 0 holds all relations, level 1 the rows of each that have edges, level 2 the columns
# of each of those rows. `order` puts other dimensions first; the name says so.

relation, row, column = [0, 0, 0, 0, 2, 2], [1, 1, 1, 4, 0, 0], [0, 2, 3, 3, 0, 1]
tensor = ((relation, row, column), np.arange(1, 7, dtype=np.float32), (3, 5, 4))
show(CSF(3).pack(tensor))
show(CSF(3, order=[2, 0, 1]).pack(tensor))
show(COO(3).pack(tensor))  # for comparison: all coordinates of every entry
coordinates = CSF(3).pack(tensor).unpack().coords
assert [found.tolist() for found in coordinates] == [relation, row, column]

# %% [11] Which one to use
#
# That depends on the pattern. Bytes for each entry say what a kernel that waits for memory has to read
# of the matrix: eight at least where every entry has an index, and four of them are the value.

n, rng = 1000, np.random.default_rng(0)


def from_rows(lengths):
    """Make a matrix with so many random columns in each row."""
    rows = np.repeat(np.arange(n), lengths)
    columns = np.concatenate([rng.choice(n, length, replace=False) for length in lengths])
    return sp.csr_matrix((rng.random(rows.size, dtype=np.float32) + 1, (rows, columns)), (n, n))


def from_blocks(density):
    """Make a matrix of full blocks of 8 times 8."""
    places = sp.random(n // 8, n // 8, density=density, random_state=0, dtype=np.float32)
    return sp.kron(places, np.ones((8, 8), np.float32)).tocsr()


patterns = {
    "banded": sp.diags([np.ones(n)] * 5, range(-2, 3), (n, n), "csr", np.float32),
    "blocks": from_blocks(0.02),
    "few blocks": from_blocks(0.001),
    "even rows": from_rows(np.full(n, 8)),
    "few rows": from_rows(np.where(np.arange(n) % 50 == 0, 8, 0)),
    "skewed rows": from_rows(np.minimum((rng.pareto(1.2, n) * 3 + 1).astype(int), n // 2)),
}
candidates = [CSR(), DCSR(), COO(), ELL(), DIA(), BSR(8, 8), DBSR(8, 8), Hyb()]
names = [getattr(fmt, "name", "hyb") for fmt in candidates]
print(f"{'bytes per entry':16}" + "".join(f"{name:>9}" for name in names))
smallest = {}
for kind, large in patterns.items():
    sizes = [fmt.pack(large).nbytes / large.nnz for fmt in candidates]
    print(f"{kind:16}" + "".join(f"{size:9.1f}" for size in sizes))
    smallest[kind] = names[int(np.argmin(sizes))]

# - Few full diagonals: DIA. No index at all is stored for an entry.
# - Full blocks: BSR. Most rows of blocks empty: DBSR.
# - Rows of one length: ELL. One long row makes it large.
# - Most rows empty: DCSR.
# - Rows of all lengths: CSR. Hyb costs some padding; what it buys is loops of fixed lengths. Whether
#   that pays is for a measurement to say, see tutorial 3.
# - COO is never the smallest here. Its use is that it needs nothing but a list of entries.
print(smallest)
assert smallest == {
    "banded": "dia",
    "blocks": "bsr8x8",
    "few blocks": "dbsr8x8",
    "even rows": "ell",
    "few rows": "dcsr",
    "skewed rows": "csr",
}

# %% [12] In a kernel
#
# Any of them can take the place of CSR in a kernel that is written over coordinates: `formats=` says
# which. The argument is then what `pack` returns. A kernel refuses what it was not compiled for.

features = rng.random((8, 4), dtype=np.float32)
for fmt in (DIA(), BSR(2, 2), Hyb(buckets=[2, 4])):
    kernel = schedules.spmm.build(formats=fmt)
    result = kernel(a=fmt.pack(matrix), b=features)
    assert np.allclose(result, matrix @ features, rtol=1e-5)
    print(f"{fmt!r}: the kernel agrees with SciPy")
try:
    kernel(a=CSR().pack(matrix), b=features)
except TypeError as error:
    print("refused:", error)

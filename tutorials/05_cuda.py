"""CUDA without a GPU at hand: compile kernels, read what they became, export them for another machine.

Run me: ``python tutorials/05_cuda.py [FOLDER]``. Needs ``pip install "tvm_sparse[cuda]"``, but no GPU;
where there is one, with PyTorch, the last step runs the kernels. Every step prints what it shows.
"""

# %% [1] A kernel for two cards
#
# The target names the architectures that a library shall hold code for: sm_80 is an A100, sm_90 an H100.
# A feature width that is known at compile time decides how wide the loads are, so give it.

import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import tvm

import tvm_sparse
from tvm_sparse import schedules
from tvm_sparse.formats import BSR, Hyb
from tvm_sparse.runtime import lower
from tvm_sparse.schedules.cuda import RowTile

FEATURES = 64
CARDS = {"kind": "cuda", "arch": ["sm_80", "sm_90"]}
ONE_CARD = {"kind": "cuda", "arch": "sm_90"}
kernel = schedules.spmm.build(features=FEATURES, target=CARDS)
print(kernel)


def kernels_of(executable):
    """Return the CUDA C of an executable from its first kernel on."""
    source = executable.inspect_source("cuda")
    return source[source.index('extern "C" __global__') :]


print(kernels_of(kernel))

# A row of the result belongs to 16 threads (threadIdx.x), each with four features in registers: `float4`
# loads 128 bits of a row of B at once. A block computes 16 rows (threadIdx.y).

# %% [2] Other tile sizes, and long rows
#
# The sizes have names. `share=` gives each group of lanes as many entries as every other, so that a row
# with very many does not keep one group busy when all others have finished; a second kernel puts the
# pieces of such rows together, without atomic updates.

wide = schedules.spmm.build(
    features=FEATURES, target=ONE_CARD, tile=RowTile(vector=4, lanes=8, vectors=2, rows=32)
)
shared = schedules.spmm.build(features=FEATURES, target=ONE_CARD, share=256)
for title, built in (("tile", wide), ("shared rows", shared)):
    names = re.findall(r"__launch_bounds__\((\d+).*?\) (\w+)\(.*\) \{", kernels_of(built))
    print(f"{title}: " + ", ".join(f"{name} with {threads} threads" for threads, name in names))

# %% [3] Formats
#
# `formats=` works as on a CPU. All buckets of hyb that hold narrow rows are one launch. Blocks of numbers
# in half precision are multiplied by tensor cores; blocks of float32 only if a tile asks for tf32, which
# keeps ten bits of a fraction.

hyb = Hyb(1, (1, 2, 4, 8, 16))
by_buckets = schedules.spmm.build(features=FEATURES, target=ONE_CARD, formats=hyb)
by_blocks = schedules.spmm.build(
    dtype="float16", features=FEATURES, target=ONE_CARD, formats=BSR(16, 16)
)
matrix_instructions = re.findall(r"(?:w?mma|ldmatrix)[\w.:]*", by_blocks.inspect_source("ptx"))
print("BSR in float16:", *sorted(set(matrix_instructions)), sep="\n    ")
assert matrix_instructions

# %% [4] A schedule of your own
#
# A lowered program is ordinary TensorIR: bind its loops with TVM's primitives. Here a thread computes one
# number of the result, in a register that `cache_write` makes and `reverse_compute_at` empties when the
# entries of the row are summed.

plain = tvm.s_tir.Schedule(lower(schedules.spmm.program().specialize({"f": FEATURES})))
plain.work_on("spmm")
body = plain.get_sblock("spmm_1")
(row,) = plain.get_loops(plain.get_sblock("spmm_0"))
entry, feature = plain.get_loops(body)
plain.reorder(feature, entry)
plain.bind(row, "blockIdx.x")
plain.bind(feature, "threadIdx.x")
register = plain.cache_write(body, 0, "local")
plain.reverse_compute_at(register, feature)
naive = tvm_sparse.compile(plain, target=ONE_CARD)
print(kernels_of(naive))

# %% [5] What the compiler made of it
#
# PTX tells how wide the loads are; `python -m benchmarks.cuda_report` in a checkout reads registers,
# spills, occupancy and inner loops from the machine code of all kernels.


def loads(executable):
    """Count the loads of 32 and of 128 bits."""
    code = executable.inspect_source("ptx")
    wide = len(re.findall(r"ld\.global\S*\.v4\.[bf]32", code))
    return {"32 bits": len(re.findall(r"ld\.global\S*\.[bfus]32", code)) - wide, "128 bits": wide}


print("loads of the simple schedule:", loads(naive))
print("loads of the default:        ", loads(kernel))
assert loads(naive)["128 bits"] == 0 < loads(kernel)["128 bits"]

# %% [6] Export
#
# The file holds code for both cards and what the arguments are. It can be loaded anywhere; calling it says
# what is missing.

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
folder.mkdir(parents=True, exist_ok=True)
kernel.export_library(folder / "spmm_cuda.so")
loaded = tvm_sparse.load(folder / "spmm_cuda.so")
print(loaded)

rng = np.random.default_rng(0)
matrix = sp.random(500, 400, density=0.02, format="csr", dtype=np.float32, random_state=0)
dense = rng.random((400, FEATURES), dtype=np.float32)

try:
    import torch
except ImportError:
    torch = None

if torch is None or not torch.cuda.is_available():
    try:
        loaded(a=matrix, b=dense)
    except ValueError as error:
        print("called here:", error)
else:
    on_card = torch.sparse_csr_tensor(
        *map(torch.from_numpy, (matrix.indptr, matrix.indices, matrix.data)), size=matrix.shape
    ).cuda()
    features = torch.from_numpy(dense).cuda()
    packed = hyb.pack(matrix).to("cuda")
    for result in (loaded(a=on_card, b=features), by_buckets(a=packed, b=features)):
        assert np.allclose(result.cpu(), matrix @ dense, atol=1e-4)
    print("called on", torch.cuda.get_device_name())

"""The Triton baseline of the GPU kit computes what it says, as Triton's own interpreter runs it on a CPU.

Its autotuner wants a GPU's clock, so each kernel runs with one configuration. Triton must be told before
it is imported that it interprets: a process of its own.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
import numpy as np, scipy.sparse as sp, torch, triton
from benchmarks.gpu.kit import triton_blocks

rng = np.random.default_rng(0)
BLOCK, ROWS, COLUMNS = 16, 5, 6
stored = rng.random((ROWS, COLUMNS)) < 0.5
stored[2] = False
rows, columns = np.nonzero(stored)
indptr = np.append(0, stored.sum(1).cumsum())
block_rows, indices, pointers = (torch.from_numpy(x.astype(np.int32)) for x in (rows, columns, indptr))


def normal(*shape):
    return torch.from_numpy(rng.standard_normal(shape)).to(DTYPE)


def check(found, terms, reference):
    error = np.abs(found.double().numpy() - reference)
    rounding = np.finfo(np.float16 if DTYPE == torch.float16 else np.float32).eps
    assert np.isfinite(error).all() and error.max() <= 4 * rounding * terms.max(), error.max()


for DTYPE in (torch.float32, torch.float16):
    for features in (64, 100):
        values, dense = normal(rows.size, BLOCK, BLOCK), normal(COLUMNS * BLOCK, features)
        result = torch.full((ROWS * BLOCK, features), float("nan"), dtype=DTYPE)
        grid = (ROWS, triton.cdiv(features, 64))
        triton_blocks._bsr_spmm.fn[grid](
            values, pointers, indices, dense, result, features, rows.size, BLOCK=BLOCK, TILE=64
        )
        parts = (values.double().numpy(), columns, indptr)
        matrix = sp.bsr_matrix(parts, (ROWS * BLOCK, COLUMNS * BLOCK))
        dense = dense.double().numpy()
        check(result, abs(matrix) @ abs(dense), matrix @ dense)

        x, y = normal(ROWS * BLOCK, features), normal(COLUMNS * BLOCK, features)
        result = torch.full((rows.size, BLOCK, BLOCK), float("nan"), dtype=DTYPE)
        triton_blocks._bsr_sddmm.fn[(rows.size,)](
            block_rows, indices, x, y, result, features, rows.size, BLOCK=BLOCK, DEPTH=32
        )
        x, y = (v.double().numpy().reshape(-1, BLOCK, features) for v in (x, y))
        dots = x[rows] @ y[columns].transpose(0, 2, 1)
        check(result, abs(x[rows]) @ abs(y[columns]).transpose(0, 2, 1), dots)
print("right")
"""


def test_the_triton_baseline_multiplies_blocks(tmp_path):
    if not all(map(importlib.util.find_spec, ("triton", "torch"))):
        pytest.skip("needs Triton and PyTorch")
    program = tmp_path / "interpreted.py"
    program.write_text(PROGRAM)
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "PYTHONPATH": paths, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "right", done.stderr

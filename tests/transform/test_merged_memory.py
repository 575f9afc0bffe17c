"""Merged loops read nothing behind the end of an array: each lies at the end of its last page."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.execution import host_target
from tests.programs.merged import operands, program
from tvm_sparse.runtime.minimal import array_to_tensor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="protects pages as Linux does")


class Guarded:
    """A copy of an array that ends where a page begins that nobody may touch."""

    def __init__(self, array: np.ndarray) -> None:
        page = mmap.PAGESIZE
        size = (array.nbytes + page - 1) // page * page
        self._memory = mmap.mmap(-1, size + page)
        raw = np.frombuffer(self._memory, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        end = ctypes.c_void_p(raw.ctypes.data + size)
        assert libc.mprotect(end, ctypes.c_size_t(page), 0) == 0
        self.array = raw[size - array.nbytes : size].view(array.dtype).reshape(array.shape)
        self.array[...] = array


ROOT = Path(__file__).parents[2]
OPTIONS = {"capture_output": True, "text": True, "cwd": ROOT}
ROWS = {
    "runs at the end": [[range(8), range(16)], [range(8), range(16)]],
    "runs that end early": [[range(17), range(3, 20)], [range(16), range(2, 20)]],
    "one entry": [[[], [39]], [[39], []]],
    "one side at the end": [[[0], range(40)], [range(40), [0]]],
    "nothing": [[[], []], [[], []]],
    "nothing on one side": [[range(30), []], [[], []]],
    "much longer": [[range(0, 40), range(40)], [[1], [39]]],
    "other coordinates": [[range(0, 40, 2)] * 2, [range(1, 40, 2)] * 2],
}
BODIES = {
    "sum": "Y[i, j] = A0[i, j] + A1[i, j]",
    "searched": "Y[i, j] = A0[i, j + 1] - A1[i, j - 1] * A0[1 - i, j]",
    "absent": "Y[i, j] = S.if_then_else(j > 3, A0[i, j], A1[i, j])",
}


def run_guarded(index: str) -> None:
    """Run every program on every structure; dies if one reads behind an array."""
    import tvm

    from tests.execution import stage_two

    for kind in ("union", "intersect"):
        for body in BODIES.values():
            text = f'with S.sp_iter([I, S.{kind}(J0, J1)], "SS", "merged") as [i, j]:\n    {body}'
            func = program(2, text, indices=(index,))
            kernel = tvm.compile(stage_two(func), target=host_target(), tir_pipeline="tvm_sparse")
            for rows in ROWS.values():
                for order in (rows, rows[::-1]):
                    arrays, scalars = operands(order, 40, indices=(index,))
                    arrays["y"] = np.zeros((2, 40))
                    guarded = {name: Guarded(array) for name, array in arrays.items() if array.size}
                    tensors = {
                        name: array_to_tensor(guarded[name].array if array.size else array)
                        for name, array in arrays.items()
                    }
                    kernel["program"](*(tensors.get(n, scalars.get(n)) for n in func.arg_names))


def run_sparse(kind: str) -> None:
    """The same for results whose structure the kernel finds, and a second call."""
    import scipy.sparse as sp

    from tests.workspace.merged_kernels import compiled

    kernel = compiled(kind)
    for rows in ROWS.values():
        for order in (rows, rows[::-1]):
            arrays, _ = operands(order, 40)
            pair = []
            for k in range(2):
                matrix = sp.csr_matrix((2, 40))
                for name, part in (("data", "a"), ("indices", "q"), ("indptr", "p")):
                    array = arrays[f"{part}{k}"]
                    setattr(matrix, name, Guarded(array).array if array.size else array)
                pair.append(matrix)
            for _ in range(2):
                kernel(a=pair[0], b=pair[1])
            kernel.plan(a=pair[0], b=pair[1])(a=pair[0], b=pair[1])


@pytest.mark.parametrize(
    "call",
    [
        "run_guarded('int32')",
        "run_guarded('int64')",
        "run_sparse('union')",
        "run_sparse('intersect')",
    ],
)
def test_nothing_is_read_behind_an_array(call):
    code = f"from tests.transform import test_merged_memory as own; own.{call}; print('done')"
    found = subprocess.run([sys.executable, "-c", code], check=False, **OPTIONS)
    assert found.returncode == 0 and "done" in found.stdout, found.stderr[-2000:]


def test_a_read_behind_an_array_would_show():
    code = (
        "from tests.transform.test_merged_memory import Guarded; import numpy as np, ctypes\n"
        "own = Guarded(np.zeros(3)).array; ctypes.string_at(own.ctypes.data + 24, 1)"
    )
    found = subprocess.run([sys.executable, "-c", code], check=False, **OPTIONS)
    assert found.returncode < 0

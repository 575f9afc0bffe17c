"""SpMV over formats on CUDA, run by the emulator: every structure and type against float64."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from tests.cuda.emulation import emulated
from tests.cuda.operator_cases import CUDA, assert_sums, poisoned, power_law, random_values, typed
from tests.cuda.test_formats import STRUCTURES
from tests.schedule.decompositions import FORMATS, Case, entries_of
from tvm_sparse import schedules
from tvm_sparse.formats import Entries, Hyb, as_entries
from tvm_sparse.runtime import Executable
from tvm_sparse.schedules._build import scheduled_parts
from tvm_sparse.schedules.cuda import RowTile

NAMES = ["csr", "csr_duplicates", "dcsr", "ell", "ell3", "dia", "bucket3", "long_bucket2"]
NAMES += ["row_list", "ragged", "user_diagonals", "hyb"]
DTYPES = ["float32", "float16", "bfloat16"]


def kernel(formats, dtype="float32", index="int32", **options) -> Executable:
    program = schedules.spmv.program(dtype, index)
    made = scheduled_parts("spmv_parts", program, "A", formats, CUDA, strips=True, **options)
    return emulated(made)


def check(
    call: Executable, case: Case, tensor: Entries, x: np.ndarray, dtype: str, index: str = "int32"
) -> None:
    given, stored = entries_of(case, tensor, typed([], dtype).dtype)
    y = poisoned(tensor.shape[0], dtype)
    call(a=case.packs.pack(given, index), x=x, y=y)
    matrix = sp.csr_array((stored.values, stored.coordinates), shape=stored.shape)
    finite = np.where(np.isfinite(x.astype("f8")), x.astype("f8"), 0)
    assert_sums(y, matrix @ finite, abs(matrix) @ np.abs(finite), dtype)


@pytest.mark.parametrize(
    "name, dtype, index",
    [
        (name, DTYPES[(place + turn) % 3], index)
        for place, name in enumerate(NAMES)
        for turn, index in enumerate(("int32", "int64"))
    ],
)
def test_every_format(name, dtype, index):
    call = kernel(FORMATS[name].formats, dtype, index)
    for tensor in STRUCTURES:
        check(call, FORMATS[name], tensor, random_values(tensor.shape[1], dtype), dtype, index)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", [None, RowTile(1, 1, 1, 64), RowTile(1, 32, 1, 4)])
def test_every_number_of_lanes_of_hyb(dtype, tile):
    hyb = Hyb(1, [1, 2, 8, 40])
    call = kernel(hyb, dtype, tile=tile)
    for tensor in [*STRUCTURES, as_entries(power_law(60, 700))]:
        x = random_values(tensor.shape[1], dtype)
        check(call, Case(hyb, hyb, lambda tensor: tensor), tensor, x, dtype)


@pytest.mark.parametrize("name", ["hyb", "ell", "dia", "bucket3"])
def test_padding_reads_nothing(name):
    """Inf and NaN at both ends of ``x``, whose columns are empty."""
    empty = sp.csr_matrix((90, 1))
    tensor = as_entries(sp.hstack([empty, power_law(90, 40), empty], "csr").astype("f4"))
    x = random_values(42, "float32")
    x[0], x[-1] = np.inf, np.nan
    check(kernel(FORMATS[name].formats), FORMATS[name], tensor, x, "float32")


@pytest.mark.parametrize("name", ["coo", "csc", "columns", "hyb_parts", "bsr4x4"])
def test_other_formats_are_refused(name):
    with pytest.raises(ValueError, match="expected a format with one loop over rows for SpMV"):
        schedules.spmv.build(formats=FORMATS[name].formats, target=CUDA)


def test_lanes_that_do_not_sum_by_shuffles_are_refused():
    with pytest.raises(
        ValueError, match="expected lanes that are a power of two up to 32, found 3"
    ):
        schedules.spmv.build(formats=FORMATS["csr"].formats, target=CUDA, tile=RowTile(1, 3, 1, 8))

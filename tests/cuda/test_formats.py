"""SpMM and SDDMM over formats on CUDA, run by the emulator: structures, types and widths."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from tvm.s_tir import Schedule

from tests.cuda.emulation import emulated
from tests.cuda.operator_cases import (
    CUDA,
    FEATURES,
    assert_sums,
    covering,
    poisoned,
    power_law,
    random_values,
    typed,
)
from tests.schedule.decompositions import FORMATS, Band, Case, entries_of
from tvm_sparse import schedules
from tvm_sparse.formats import BSR, Composition, Entries, Hyb, LongBucket, Ragged, as_entries
from tvm_sparse.runtime import Executable
from tvm_sparse.schedules._build import scheduled_parts

DTYPES = ["float32", "float16", "bfloat16"]
ROWS = ["csr", "csr_duplicates", "dcsr", "ell", "ell3", "dia", "bucket3", "long_bucket2"]
ROWS += ["row_list", "csf", "ragged", "user_diagonals"]
SCATTERED = ["columns", "hyb_parts", "bucket3_parts", "long_bucket2_parts", "coo", "coo_duplicates"]
SCATTERED += ["csc", "csc_duplicates", "csf_columns", "pieces", "further_pieces"]
SCATTERED += ["entries_and_columns"]
BLOCKS = [
    "bsr2x3",
    "bsr4x4",
    "dbsr3x2",
    "sr_bcrs2x3",
    "blocks_and_rest",
    "rest_first",
    "user_blocks",
]
SHAPES = {
    (131, 67): 0.05,
    (1, 97): 0.5,
    (97, 1): 0.5,
    (40, 30): 0,
    (0, 10): 0,
    (10, 0): 0,
    (0, 0): 0,
}
BUCKETS = [[1], [1, 2, 4, 8], [3, 40]]
STRUCTURES = [
    as_entries(sp.random(*shape, density, "csr", dtype="f4", random_state=0))
    for shape, density in SHAPES.items()
] + [as_entries(power_law(90, 130))]


def kernel(formats, dtype="float32", index="int32", features=None, **options) -> Executable:
    return emulated(spmm(formats, dtype, index, features, **options))


def spmm(formats, dtype="float32", index="int32", features=None, **options) -> Schedule:
    program = schedules.spmm.program(dtype, index)
    return scheduled_parts("parts", program, "A", formats, CUDA, features, **options)


def check(
    call: Executable, case: Case, tensor: Entries, b: np.ndarray, dtype: str, index: str = "int32"
) -> None:
    given, stored = entries_of(case, tensor, typed([], dtype).dtype)
    c = poisoned((tensor.shape[0], b.shape[1]), dtype)
    call(a=case.packs.pack(given, index), b=b, c=c)
    matrix = sp.csr_array((stored.values, stored.coordinates), shape=stored.shape)
    finite = np.where(np.isfinite(b.astype("f8")), b.astype("f8"), 0)
    assert_sums(c, matrix @ finite, abs(matrix) @ np.abs(finite), dtype)


def each_twice(names: list[str]) -> list[tuple]:
    """Two widths, types and index types for each format, other ones for the next."""
    return [
        (name, FEATURES[(3 * place + 4 * turn) % 8], DTYPES[(place + turn) % 3], index)
        for place, name in enumerate(names)
        for turn, index in enumerate(("int32", "int64"))
    ]


@pytest.mark.parametrize("name, features, dtype, index", each_twice([*ROWS, *SCATTERED, *BLOCKS]))
def test_every_format(name, features, dtype, index):
    call = kernel(FORMATS[name].formats, dtype, index, features)
    for tensor in STRUCTURES:
        b = random_values((tensor.shape[1], features or 45), dtype)
        check(call, FORMATS[name], tensor, b, dtype, index)


@pytest.mark.parametrize(
    "dtype, features, index, buckets",
    covering(dtype=DTYPES, features=FEATURES, index=["int32", "int64"], buckets=BUCKETS),
)
def test_every_width_and_type_of_hyb(dtype, features, index, buckets):
    hyb = Hyb(1, buckets)
    call = kernel(hyb, dtype, index, features)
    for tensor in STRUCTURES:
        for width in (1, 130) if features is None else [features]:
            b = random_values((tensor.shape[1], width), dtype)
            check(call, Case(hyb, hyb, lambda tensor: tensor), tensor, b, dtype, index)


@pytest.mark.parametrize(
    "name",
    ["hyb", "ell", "dia", "bucket3", "bsr2x3", "bsr4x4", "sr_bcrs2x3", "hyb_parts", "pieces"],
)
@pytest.mark.parametrize("features", [17, 64])
def test_padding_reads_nothing(name, features):
    """Inf and NaN in rows of ``b`` at both ends, whose columns are empty."""
    empty = sp.csr_matrix((90, 1))
    tensor = as_entries(sp.hstack([empty, power_law(90, 40), empty], "csr").astype("f4"))
    b = random_values((42, features), "float32")
    b[0], b[-1] = np.inf, np.nan
    check(kernel(FORMATS[name].formats, features=features), FORMATS[name], tensor, b, "float32")


@pytest.mark.parametrize("share", [None, 3])
@pytest.mark.parametrize("features", [8, None])
def test_parts_of_long_rows_add_what_other_parts_stored_once(share, features):
    parts = {"band": Band(2), "rest": LongBucket(2)}
    call = kernel(parts, features=features, share=share)
    tensor = as_entries(power_law(60, 700))
    b = random_values((700, 8), "float32")
    check(call, Case(parts, Composition(parts), lambda tensor: tensor), tensor, b, "float32")


def test_rows_whose_columns_are_places_in_them_are_not_shared():
    case = FORMATS["ragged"]
    check(
        kernel(Ragged(), share=3),
        case,
        as_entries(power_law(60, 50)),
        random_values((50, 9), "float32"),
        "float32",
    )


@pytest.mark.parametrize(
    "name, features, dtype",
    [
        ("csr", 0, "float32"),
        ("hyb", 0, "float16"),
        ("rest_first", 0, "bfloat16"),
        ("bsr4x4", 0, "float32"),
        ("coo", 0, "float16"),
        ("columns", 0, "float32"),
        ("hyb_parts", None, "float16"),
        ("csc", None, "float32"),
        ("hyb", None, "bfloat16"),
        ("blocks_and_rest", None, "bfloat16"),
    ],
)
def test_no_features_at_all(name, features, dtype):
    call = kernel(FORMATS[name].formats, dtype, features=features)
    for tensor in STRUCTURES:
        check(call, FORMATS[name], tensor, random_values((tensor.shape[1], 0), dtype), dtype)


@pytest.mark.parametrize("dtype, features", [("float32", 17), ("float16", 64), ("bfloat16", 0)])
def test_sddmm_over_blocks(dtype, features):
    blocks = BSR(4, 4)
    program = schedules.sddmm.program(dtype)
    call = emulated(scheduled_parts("sddmm_parts", program, "C", blocks, CUDA, features))
    for tensor in STRUCTURES:
        rows, columns = tensor.shape
        x = random_values((rows, features), dtype, seed=1)
        y = random_values((columns, features), dtype, seed=2)
        result = blocks.pack(tensor.with_values(poisoned(tensor.count, dtype)))
        call(x=x, y=y, c=result)
        found = result.entries().sorted()
        i, j = found.coordinates
        terms = x.astype("f8")[i] * y.astype("f8")[j]
        assert_sums(found.values, terms.sum(1), np.abs(terms).sum(1), dtype)


@pytest.mark.parametrize(
    "name, dtype, features",
    [
        ("dia", "int8", 64),
        ("dia", "int32", 256),
        ("dia", "int64", 64),
        ("ell", "int32", 64),
        ("ell", "int8", 256),
        ("hyb_parts", "int32", 64),
    ],
)
def test_padding_of_integers_loads_no_row(name, dtype, features):
    case = FORMATS[name]
    matrix = sp.random(131, 67, 0.08, "csr", dtype="f4", random_state=7)
    matrix.data = np.round(4 * matrix.data) - 2
    program = schedules.spmm.program(dtype, out_dtype=dtype)
    call = emulated(scheduled_parts("parts", program, "A", case.formats, CUDA, features))
    b = np.random.default_rng(0).integers(-1, 2, (67, features)).astype(dtype)
    c = poisoned((131, features), dtype)
    given, _ = entries_of(case, as_entries(matrix), np.dtype(dtype))
    call(a=case.packs.pack(given, "int32"), b=b, c=c)
    np.testing.assert_array_equal(c, matrix.astype("f8") @ b.astype("f8"))

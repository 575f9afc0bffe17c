"""SpMM over formats that hold parts of a row in several places: atomics, and results without them."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import scipy.sparse as sp
import tvm
import tvm_ffi
from tvm import tirx
from tvm.backend.cuda.op import cuda_atomic_add
from tvm.ir import Call, TensorLoad
from tvm.s_tir import SBlock

from tests.cuda.emulation import EmulationError, emulated, running_order
from tests.cuda.operator_cases import (
    CUDA,
    FEATURES,
    assert_sums,
    covering,
    poisoned,
    power_law,
    random_values,
)
from tests.cuda.source import kernels_in
from tests.cuda.test_formats import DTYPES, STRUCTURES, check, kernel, spmm
from tests.schedule.decompositions import FORMATS, Case
from tests.schedule.user_format import Band
from tvm_sparse import SparseProgramError, schedules
from tvm_sparse import script as S
from tvm_sparse.formats import (
    COO,
    CSC,
    CSR,
    DCSR,
    DIA,
    ELL,
    ColumnParts,
    Composition,
    Hyb,
    LongBucket,
    RowList,
    as_entries,
)
from tvm_sparse.schedules._build import decompose, scheduled_parts
from tvm_sparse.transform import MergeRanges
from tvm_sparse.transform._blocks import changed_block

RANGES = [Hyb(2, [1, 4]), Hyb(3, [2, 8, 64]), ColumnParts(3)]
SCATTERED = [COO(), CSC()]
HUB = as_entries(power_law(60, 700))


def case_of(formats) -> Case:
    return Case(formats, formats, lambda tensor: tensor)


@pytest.mark.parametrize(
    "formats, dtype, features, index, deterministic",
    covering(
        formats=RANGES,
        dtype=DTYPES,
        features=FEATURES,
        index=["int32", "int64"],
        deterministic=[False, True],
    ),
)
def test_ranges_of_columns(formats, dtype, features, index, deterministic):
    call = kernel(formats, dtype, index, features, deterministic=deterministic)
    for tensor in STRUCTURES:
        for width in (1, 130) if features is None else [features]:
            b = random_values((tensor.shape[1], width), dtype)
            check(call, case_of(formats), tensor, b, dtype, index)


@pytest.mark.parametrize(
    "formats, dtype, features, index",
    covering(formats=SCATTERED, dtype=DTYPES, features=FEATURES, index=["int32", "int64"]),
)
def test_entries_of_scattered_rows(formats, dtype, features, index):
    call = kernel(formats, dtype, index, features)
    for tensor in STRUCTURES:
        for width in (1, 130) if features is None else [features]:
            b = random_values((tensor.shape[1], width), dtype)
            check(call, case_of(formats), tensor, b, dtype, index)


@pytest.mark.parametrize("share", [3, 20])
@pytest.mark.parametrize("formats", [Hyb(2, [1, 4]), ColumnParts(3)])
def test_shares_of_long_rows_are_added_without_a_second_kernel(formats, share):
    call = kernel(formats, features=17, share=share)
    check(call, case_of(formats), HUB, random_values((700, 17), "float32"), "float32")
    of_parts = 2 if isinstance(formats, Hyb) else 1
    assert len(kernels_in(call.inspect_source())) == of_parts + 1  # one fills the result


@pytest.mark.parametrize("dtype", ["float64", "int8", "bfloat16"])
def test_all_dtypes_that_are_added_atomically(dtype):
    call = kernel(COO(), dtype, features=12)
    tensor = as_entries(power_law(40, 50))
    tensor = tensor.with_values(random_values(tensor.count, dtype))
    b = random_values((50, 12), dtype, seed=1)
    found = call(a=COO().pack(tensor), b=b)
    matrix = sp.csr_array((tensor.values.astype("f8"), tensor.coordinates), shape=tensor.shape)
    wide = b.astype("f8")
    assert_sums(found, matrix @ wide, abs(matrix) @ np.abs(wide), str(found.dtype))


# Atomics.


def atomics_replaced(module: tvm.IRModule, make) -> tvm.IRModule:
    """Put statements in the place of atomic additions, made from the element and the term."""

    def evaluate(node: tirx.Evaluate) -> tirx.Stmt:
        call = node.value
        if not isinstance(call, Call) or call.op.name != "tirx.cuda.atomic_add":
            return node
        return make(node, call.args[0].args[0], call.args[1])

    changed = tvm.IRModule(attrs=module.attrs)
    for var, func in module.functions.items():
        changed[var] = func.with_body(tvm_ffi.structural_map(func.body, (tirx.Evaluate, evaluate)))
    return changed


def added_plainly(_node: tirx.Evaluate, element, term) -> tirx.Stmt:
    return tirx.BufferStore(element.source, element + term, element.indices)


@pytest.mark.parametrize("share", [3, None])
@pytest.mark.parametrize("formats", [*RANGES, *SCATTERED])
def test_a_missing_atomic_is_a_race(formats, share):
    scheduled = spmm(formats, features=16, share=share).mod
    packed, b = formats.pack(HUB), random_values((700, 16), "float32")
    emulated(scheduled)(a=packed, b=b)
    with pytest.raises(EmulationError, match="data race"):
        emulated(atomics_replaced(scheduled, added_plainly))(a=packed, b=b)


def test_neighbours_of_a_row_are_added_up_before_an_atomic():
    """Counts the atomic additions to each element: one for each group of 32 entries that has the row."""

    def counted(node: tirx.Evaluate, _element, _term) -> tirx.Stmt:
        return tirx.Evaluate(cuda_atomic_add(node.value.args[0], tirx.const(1, "float32")))

    count = emulated(atomics_replaced(spmm(COO(), features=8).mod, counted))
    found = count(a=COO().pack(HUB), b=random_values((700, 8), "float32"))
    rows = HUB.sorted().coordinates[0]
    visits = {(int(row), place // 32) for place, row in enumerate(rows)}
    expected = np.bincount([row for row, _ in visits], minlength=60)
    np.testing.assert_array_equal(found, np.repeat(expected[:, None], 8, 1))


def test_a_sum_that_cuda_does_not_add_atomically_is_refused():
    with pytest.raises(SparseProgramError, match=r"\(float32, float64, int32\), found int64"):
        spmm(ColumnParts(2), "int64")


def loaded(store: tirx.BufferStore, place) -> TensorLoad:
    """Load from the array of values that a product loads from."""
    return tirx.BufferLoad(store.value.b.a.source, [place.astype("int32")])


ROW_USES = {
    "as a number": lambda store, row, _: row.astype("float32"),
    "as a place": lambda store, row, _: loaded(store, row),
    "halved": lambda store, row, _: loaded(store, row // 2),
}
RANGE_USES = {"range as a place": lambda store, _, part: loaded(store, part)}


@pytest.mark.parametrize(
    "name, in_order",
    [*itertools.product(ROW_USES, [False, True]), *itertools.product(RANGE_USES, [False])],
)
def test_numbers_of_rows_and_ranges_that_a_sum_uses_are_refused(name, in_order):
    decomposed, _ = decompose(schedules.spmm.program(), "A", ColumnParts(2))
    module, variables = decomposed.lower().mod, {}

    def note(block: SBlock) -> None:
        variables[block.name_hint] = block.iter_vars

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        row, part = (variables[f"spmm_columns_{number}"][0].var for number in (1, 0))
        term = {**ROW_USES, **RANGE_USES}[name](node, row, part)
        return tirx.BufferStore(node.buffer, node.value.a + (node.value.b + term), node.indices)

    func = module["spmm"]
    tvm_ffi.structural_walk(func.body, (SBlock, note))

    def sums(block: SBlock) -> SBlock:
        if block.name_hint != "spmm_columns_2":
            return block
        return changed_block(
            block, body=tvm_ffi.structural_map(block.body, (tirx.BufferStore, store))
        )

    module["spmm"] = func.with_body(tvm_ffi.structural_map(func.body, (SBlock, sums)))
    with pytest.raises(SparseProgramError, match="used by their number among all"):
        MergeRanges(in_order=in_order)(module)


@S.prim_func
def largest(
    a: S.handle,
    b: S.handle,
    c: S.handle,
    indptr: S.handle,
    indices: S.handle,
    m: S.int32,
    n: S.int32,
    f: S.int32,
    nnz: S.int32,
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    Jd = S.dense_fixed(n)
    F = S.dense_fixed(f)
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (Jd, F), "float32")
    C = S.match_sparse_buffer(c, (I, F), "float32")
    with S.sp_iter([I, J, F], "SRS", "largest") as [i, j, k]:
        with S.init():
            C[i, k] = S.float32(0)
        C[i, k] = S.max(C[i, k], A[i, j] * B[j, k])


def test_only_sums_are_added_atomically():
    with pytest.raises(SparseProgramError, match="expected rows that are summed"):
        scheduled_parts("parts", largest, "A", ColumnParts(2), CUDA, 16)
    with pytest.raises(ValueError, match="found one whose entries of a row are scattered"):
        scheduled_parts("parts", largest, "A", COO(), CUDA, 16)


def test_what_is_no_sum_is_computed_range_by_range():
    parts = ColumnParts(3)
    call = emulated(scheduled_parts("parts", largest, "A", parts, CUDA, 16, deterministic=True))
    b = random_values((700, 16), "float32")
    found = call(a=parts.pack(HUB), b=b, c=poisoned((60, 16), "float32"))
    matrix = sp.csr_array((HUB.values, HUB.coordinates), shape=HUB.shape).toarray()
    terms = np.where(matrix[:, :, None] != 0, matrix[:, :, None] * b[None], 0)
    np.testing.assert_array_equal(found, terms.max(1))


# Without atomics.


@pytest.mark.parametrize("formats", RANGES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_deterministic_results_are_the_same_bits_in_any_order(formats, dtype):
    call = kernel(formats, dtype, features=32, deterministic=True)
    source = call.inspect_source()
    assert "atomic" not in source
    # One kernel for all buckets of a range; others fill and round the result.
    assert len(kernels_in(source)) <= 2 + (dtype == "float16")
    rng = np.random.default_rng(0)
    b = random_values((700, 32), "float32") * 10.0 ** rng.integers(-3, 4, (700, 1))
    packed, found = formats.pack(HUB.with_values(HUB.values.astype(dtype))), set()
    for order, seed in [("forward", 0), ("reverse", 0), *(("shuffled", seed) for seed in range(4))]:
        with running_order(order, seed):
            found.add(call(a=packed, b=b.astype(dtype)).tobytes())
    assert len(found) == 1


def test_atomic_results_depend_on_the_order():
    """What `deterministic` is for: otherwise the test above would show nothing."""
    call = kernel(RANGES[0], features=32)
    rng = np.random.default_rng(0)
    b = (random_values((700, 32), "float32") * 10.0 ** rng.integers(-3, 4, (700, 1))).astype("f4")
    packed, found = RANGES[0].pack(HUB), set()
    for order, seed in [("forward", 0), ("reverse", 0), *(("shuffled", seed) for seed in range(4))]:
        with running_order(order, seed):
            found.add(call(a=packed, b=b).tobytes())
    assert len(found) > 1


@pytest.mark.parametrize("name", ["coo", "csc", "csf_columns", "pieces", "entries_and_columns"])
def test_formats_that_scatter_rows_are_not_deterministic(name):
    with pytest.raises(ValueError, match=r"deterministic: expected formats .* such as CSR or hyb"):
        schedules.spmm.build(formats=FORMATS[name].formats, target=CUDA, deterministic=True)


@pytest.mark.parametrize("operator", ["spmm", "spmv", "sddmm", "segment_reduce"])
def test_every_operator_takes_deterministic(operator):
    module = getattr(schedules, operator)
    with pytest.raises(ValueError, match="deterministic: expected True or False, found 1"):
        module.build(target=CUDA, deterministic=1)
    with pytest.raises(ValueError, match="deterministic: expected True or False, found 1"):
        module.build(deterministic=1)


# Half precision.


@pytest.mark.parametrize(
    "formats, kernels",
    [
        (Hyb(1, [1, 4]), 3),  # long rows are shared in two
        (CSR(), 2),
        (RowList("degree"), 2),
        (DCSR(), 3),  # with rows that are not stored
        (ELL(), 1),
        (DIA(), 1),
    ],
    ids=lambda given: getattr(given, "name", None),
)
def test_rows_in_one_place_are_rounded_there(formats, kernels):
    source = kernel(formats, "float16", features=64).inspect_source()
    assert len(kernels_in(source)) == kernels
    assert not re.search(r"C_sum_ptr\b", source)


@pytest.mark.parametrize("share", [3, None])
@pytest.mark.parametrize("formats", [Hyb(1, [1, 4]), DCSR(), RowList("degree")])
def test_rounding_once(formats, share):
    """Shared or not, and in float16 whose sums in float16 would be far off."""
    call = kernel(formats, "float16", features=24, share=share)
    check(call, case_of(formats), HUB, random_values((700, 24), "float16"), "float16")


def test_rows_in_two_places_are_rounded_after_both():
    parts = {"band": Band(2), "rest": LongBucket(2)}
    call = kernel(parts, "float16", features=24)
    assert re.search(r"C_sum_ptr\b", call.inspect_source())
    b = random_values((700, 24), "float16")
    check(call, Case(parts, Composition(parts), lambda tensor: tensor), HUB, b, "float16")

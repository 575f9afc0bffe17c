"""What tuning may vary of SpMM over formats: every variant is a kernel of the same product."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from tvm_sparse import compile, schedules
from tvm_sparse.formats import BSR, COO, CSR, Hyb, Pieces
from tvm_sparse.schedules._build import decompose, schedules_for

MATRIX = sp.random(60, 70, 0.1, "csr", dtype="f4", random_state=0)
DENSE = np.random.default_rng(0).standard_normal((70, 33)).astype("f4")


@pytest.mark.parametrize(
    ("fmt", "tiles"),
    [(CSR(), True), (Pieces(4), True), (Hyb(2, [1, 4]), True), (BSR(4, 4), False), (COO(), False)],
    ids=repr,
)
def test_variants_are_right(fmt, tiles):
    schedule, parts = decompose(schedules.spmm.program(), "A", fmt)
    groups = getattr(fmt, "disjoint_rows", None)
    variants = schedules_for("parts_space").space(schedule.lower(), parts, groups=groups)
    assert (len(variants) > 5) == tiles
    for variant in (variants[0], variants[-1]):
        found = compile(variant)(a=fmt.pack(MATRIX), b=DENSE)
        np.testing.assert_allclose(found, MATRIX @ DENSE, rtol=1e-4, atol=1e-5)


def test_parts_with_rows_in_parallel_have_grains_to_sample():
    schedule, parts = decompose(schedules.spmm.program(), "A", CSR())
    variant, *_ = schedules_for("parts_space").space(schedule.lower(), parts)
    assert [inst.kind.name for inst in variant.trace.insts].count("SampleCategorical") == 1

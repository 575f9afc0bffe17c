"""Decomposition of a tensor of relations, and of its parts' coverage at a call."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import tvm_sparse
from tests.programs.scripts import parse
from tvm_sparse import SparseSchedule, schedules
from tvm_sparse.formats import BSR, CSR, Composition, RelationalHyb


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_relational_hyb_runs_a_layer_over_relations(index):
    relations, rows, columns, features = 3, 6, 5, 4
    rng = np.random.default_rng(0)
    shape = (relations, rows, columns)
    dense = ((rng.random(shape) < 0.3) * rng.random(shape)).astype("float32")
    hyb = RelationalHyb(relations, [[1, 2]] * relations)
    sch = SparseSchedule(parse("rgcn_hetero", index))
    sch.decompose_format("rgcn_hetero", "A", hyb)
    coordinates = np.nonzero(dense)
    packed = hyb.pack((coordinates, dense[coordinates], shape), index)
    w = rng.random((relations, features, features)).astype("float32")
    x = rng.random((columns, features)).astype("float32")
    result = np.full((rows, features), np.nan, "float32")
    tvm_sparse.compile(sch)(a=packed, w=w, x=x, y=result)
    np.testing.assert_allclose(result, np.einsum("rij,rof,jf->io", dense, w, x), rtol=1e-5)


def test_full_validation_finds_an_entry_that_two_parts_hold():
    formats = Composition({"blocks": BSR(2, 2, min_fill=0.9), "rest": CSR()})
    sch = SparseSchedule(schedules.spmm.program())
    sch.decompose_format("spmm", "A", formats)
    kernel = tvm_sparse.compile(sch)
    matrix = sp.csr_matrix(np.array([[1, 2, 0], [3, 4, 5]], "float32"))
    packed = formats.pack(matrix)
    right = np.eye(3, dtype="float32")
    np.testing.assert_array_equal(kernel(a=packed, b=right, validate="full"), matrix.toarray())
    rest = packed.parts["rest"]
    rest.storage.arrays["indptr"][:] = [0, 1, 1]
    rest.storage.arrays["indices"][:] = [0]  # (0, 0) lies in the block
    with pytest.raises(ValueError, match=r"entry \(0, 0\) is stored twice"):
        kernel(a=packed, b=right, validate="full")

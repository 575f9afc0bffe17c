"""Sparse convolution by ``einsum``: a rulebook says which voxel meets which through which weight."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

import tvm_sparse
from tests.workspace.test_einsum import load

CONVOLUTION = "koi,id,kdc->oc"
OFFSETS = np.array(list(itertools.product((-1, 0, 1), repeat=3)))


def rulebook(points, outputs, dtype="float32"):
    """Ones at ``(k, o, i)`` where input ``i`` lies at offset ``k`` from output ``o``."""
    shape = points.max(axis=0) + 4
    keys = np.ravel_multi_index(tuple((points + 1).T), shape)
    order = np.argsort(keys)
    found = []
    for number, offset in enumerate(OFFSETS):
        wanted = np.ravel_multi_index(tuple((outputs + 1 + offset).T), shape)
        at = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), order.size - 1)]
        met = np.flatnonzero(keys[at] == wanted)
        found.append(np.stack([np.full(met.size, number), met, at[met]]))
    coordinates = np.concatenate(found, axis=1)
    size = len(OFFSETS), len(outputs), len(points)
    return sp.coo_array((np.ones(coordinates.shape[1], dtype), tuple(coordinates)), shape=size)


def convolved(points, outputs, features, weights, size):
    """Convolve a dense grid, and read it at the outputs."""
    grid = np.zeros((size + 2, size + 2, size + 2, features.shape[1]))
    grid[tuple((points + 1).T)] = features
    total = np.zeros((size, size, size, weights.shape[2]))
    for offset, weight in zip(OFFSETS, weights):
        x, y, z = 1 + offset
        total += grid[x : x + size, y : y + size, z : z + size] @ weight
    return total[tuple(outputs.T)]


@pytest.mark.parametrize("out", ["dense", "csr", "coo"])
@pytest.mark.parametrize("count", [1, 40, 512])
def test_convolutions_of_point_clouds(out, count):
    rng = np.random.default_rng(count)
    size = 8
    every = np.argwhere(np.ones((size, size, size), bool))
    points = rng.permutation(every)[:count]
    outputs = points if count != 40 else rng.permutation(every)[:60]
    features, weights = rng.random((count, 3)), rng.standard_normal((27, 3, 5))
    book = rulebook(points, outputs, "float64")
    found = tvm_sparse.einsum(CONVOLUTION, book, features, weights, out=out)
    dense = found if out == "dense" else found.toarray()
    np.testing.assert_allclose(
        dense, convolved(points, outputs, features, weights, size), atol=1e-12
    )
    if out != "dense":  # an entry in every row that meets any voxel
        assert found.nnz == 5 * np.unique(book.coords[1]).size


def test_gradients_of_convolutions():
    rng = np.random.default_rng(0)
    points = rng.permutation(np.argwhere(np.ones((6, 6, 6), bool)))[:50]
    book = rulebook(points, points, "float64")
    features, weights = rng.random((50, 3)), rng.standard_normal((27, 3, 5))
    slope = rng.standard_normal((50, 5))
    for expression, operands in {
        "koi,oc,kdc->id": [slope, weights],
        "koi,id,oc->kdc": [features, slope],
    }.items():
        found = tvm_sparse.einsum(expression, book, *operands, out="dense")
        np.testing.assert_allclose(
            found, np.einsum(expression, book.toarray(), *operands), atol=1e-12
        )


def test_a_real_point_cloud():
    points = load("spconv_pc_vox005")["coords"].astype(np.int64)
    rng = np.random.default_rng(0)
    features = rng.random((len(points), 16), dtype="float32")
    weights = rng.random((27, 16, 32), dtype="float32")
    book = rulebook(points, points)
    offset, output, source = book.coords
    expected = np.zeros((len(points), 32))
    for number, weight in enumerate(weights):
        own = offset == number
        expected[output[own]] += features[source[own]].astype("float64") @ weight
    plan = tvm_sparse.einsum_plan(CONVOLUTION, book, features, weights, out="dense")
    assert len(plan.functions) == 1  # no product of rulebook and features is stored
    np.testing.assert_allclose(plan.first_result(), expected, rtol=1e-4)

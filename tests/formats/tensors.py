"""Tensors to pack: random ones with all that may go wrong in their structure, and real ones."""

from __future__ import annotations

import functools
from pathlib import Path

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from tvm_sparse.formats import Entries

__all__ = ["DTYPES", "FILES", "assert_same", "load", "random_tensors", "reference"]

DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
#: Small integers are exact in every dtype, sums of a few included.
VALUES = (1.0, -2.0, 3.0, 64.0, 0.0, -0.0, float("inf"), float("nan"))
DATA = Path(__file__).parents[3] / "shared" / "data"
FILES = tuple(sorted(path.stem for path in DATA.glob("*.npz")))


@st.composite
def random_tensors(draw, rank: int, values: tuple[float, ...] = VALUES) -> Entries:
    """Draw a tensor with empty, short and repeated rows, in any order, perhaps without entries."""
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 5, 9, 0)), min_size=rank, max_size=rank)))
    coordinate = st.tuples(*(st.integers(0, max(0, extent - 1)) for extent in shape))
    found = draw(st.lists(coordinate, max_size=0 if 0 in shape else 14))
    count = len(found)
    index_dtype = draw(st.sampled_from((np.int32, np.int64)))
    arrays = np.array(found, index_dtype).reshape(count, rank).T
    chosen = draw(st.lists(st.sampled_from(values), min_size=count, max_size=count))
    dtype = DTYPES[draw(st.sampled_from(list(DTYPES)))]
    return Entries(tuple(np.ascontiguousarray(a) for a in arrays), np.array(chosen, dtype), shape)


def reference(tensor: Entries, keeps_duplicates: bool) -> Entries:
    """Sort entries and sum repeated ones, one entry at a time."""
    sums: dict[tuple[int, ...], float] = {}
    for number, key in enumerate(zip(*tensor.coordinates)):
        value = float(tensor.values[number])
        key = (*key, number if keeps_duplicates else 0)
        sums[key] = sums[key] + value if key in sums else value
    rank = len(tensor.shape)
    keys = np.array(sorted(sums), np.int64).reshape(len(sums), rank + 1)
    values = np.array([sums[key] for key in sorted(sums)], np.float64)
    coordinates = tuple(keys[:, dim] for dim in range(rank))
    return Entries(coordinates, values.astype(tensor.values.dtype), tensor.shape)


def assert_same(found: Entries, expected: Entries, label: str = "", signed_zeros=True) -> None:
    """Check that two tensors have the same shape, entries, order, dtype and values to the bit."""
    assert found.shape == expected.shape, label
    assert found.values.dtype == expected.values.dtype, label
    for dim, (left, right) in enumerate(zip(found.coordinates, expected.coordinates)):
        np.testing.assert_array_equal(left, right, f"{label} dimension {dim}")
    left, right = found.values.astype(np.float64), expected.values.astype(np.float64)
    np.testing.assert_array_equal(left, right, label)
    if signed_zeros:
        number = ~np.isnan(right)
        np.testing.assert_array_equal(np.signbit(left)[number], np.signbit(right)[number], label)


@functools.lru_cache(maxsize=1)
def load(name: str) -> Entries:
    """Read a file of real data; values that it does not hold are drawn."""
    with np.load(DATA / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    coordinates, values, shape = _coordinates(arrays)
    if values is None:
        values = np.random.default_rng(0).standard_normal(coordinates[0].size)
    arrays = tuple(np.ascontiguousarray(c, np.int32) for c in coordinates)
    return Entries(arrays, values.astype(np.float32), tuple(int(extent) for extent in shape))


def _coordinates(arrays: dict[str, np.ndarray]):
    """Return coordinates, values or None, and shape, in whichever form a file holds them."""
    if "src" in arrays:
        nodes, relations = int(arrays["num_nodes"]), int(arrays["num_rels"])
        return (arrays["src"], arrays["rel"], arrays["dst"]), None, (nodes, relations, nodes)
    if "coords" in arrays:
        return arrays["coords"].T, arrays.get("vals"), arrays["shape"]
    rows = np.repeat(np.arange(arrays["indptr"].size - 1), np.diff(arrays["indptr"]))
    if "blocksize" not in arrays:
        return (rows, arrays["indices"]), arrays.get("data"), arrays["shape"]
    size = arrays["data"].shape[1]
    within = np.arange(size)
    shape = arrays["data"].shape
    block_rows, block_columns = rows * size, arrays["indices"].astype(np.int64) * size
    all_rows = np.broadcast_to((block_rows[:, None] + within)[:, :, None], shape)
    all_columns = np.broadcast_to((block_columns[:, None] + within)[:, None, :], shape)
    return (all_rows.ravel(), all_columns.ravel()), arrays["data"].ravel(), arrays["shape"]

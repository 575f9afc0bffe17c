"""Small operands for ``einsum``, drawn at random: as they may come, so that every rule is met by some."""

from __future__ import annotations

import re

import numpy as np
import scipy.sparse as sp
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tvm_sparse.formats import CSC, CSR, DCSR

SETTINGS = settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@st.composite
def operand(draw, shape, dtype="float64"):
    """A sparse tensor as it may come: entries in any order, some twice, some zero."""
    size = int(np.prod(shape))
    most = min(12, 2 * size)
    keys = draw(st.lists(st.integers(0, max(0, size - 1)), max_size=most)) if size else []
    values = draw(st.lists(_values(dtype), min_size=len(keys), max_size=len(keys)))
    coordinates = np.unravel_index(np.array(keys, np.int64), shape) if keys else None
    if coordinates is None:
        coordinates = tuple(np.zeros(0, np.int64) for _ in shape)
    index = draw(st.sampled_from(["int32", "int64"]))
    coordinates = tuple(c.astype(index) for c in coordinates)
    tensor = sp.coo_array((np.array(values, dtype), coordinates), shape=shape)
    if len(shape) != 2:
        return tensor
    kind = draw(st.sampled_from(["coo", "csr", "csc", "packed"]))
    if kind == "csr":
        return _unsorted_rows(tensor)
    if kind == "csc":
        return _unsorted_rows(tensor.T).T
    packing = draw(st.sampled_from([CSR, CSC, DCSR]))
    return packing().pack(tensor) if kind == "packed" and 0 not in shape else tensor


def _values(dtype):
    """Small numbers, so that sums are exact and cancel."""
    whole = st.integers(-2, 2)
    return st.builds(complex, whole, whole) if np.dtype(dtype).kind == "c" else whole


def _unsorted_rows(tensor):
    """CSR with the entries of a row in the order in which they came, repeated ones too."""
    row, column = tensor.coords
    order = np.argsort(row, kind="stable")
    pointers = np.append(0, np.cumsum(np.bincount(row, minlength=tensor.shape[0])))
    return sp.csr_array((tensor.data[order], column[order], pointers), shape=tensor.shape)


@st.composite
def problem(draw, expression, dtypes=("float64",), masked=False):
    """Operands of an expression; a mask of its result follows them if asked for."""
    left, result = expression.replace(" ", "").split("->")
    wanted = re.findall("[A-Za-z]+", left) + [result] * masked
    letters = sorted(set("".join(wanted)))
    sizes = {letter: draw(st.sampled_from([0, 1, 2, 3, 3, 5, 7])) for letter in letters}
    shapes = [tuple(sizes[letter] for letter in own) for own in wanted]
    return [draw(operand(shape, draw(st.sampled_from(dtypes)))) for shape in shapes]

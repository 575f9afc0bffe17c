"""Kernels of order-3 tensors with sparse results: ours, and hand-written loops compiled by numba.

Ours are two: the whole call of ``einsum``, and the compiled kernel alone on the operands as it wants them,
which is what the loops get. Both kernels return rows compressed, as pointers, places and values.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import tvm_sparse
from tvm_sparse.einsum.program import compiled
from tvm_sparse.formats import CSF

from .loops import LOOPS
from .measure import OURS, Contender, Limits, measure

__all__ = ["tensors"]

_EINSUM, _NUMBA = "einsum", "numba"
#: Multiply-adds of a contraction at most: tensors lose entries until it has no more.
_MOST_CONTRACTED = 4_000_000


@dataclass(frozen=True)
class _Kernel:
    """A kernel on some operands.

    Parameters
    ----------
    loop : str
        Name in :data:`LOOPS`.
    expression : str
        For ``einsum``.
    operands : tuple
        Of it.
    prepared : tuple
        Operands of the loops.
    rows : int
        Rows of the result.
    spans : tuple of int
        Sizes of the dimensions inside a row.
    expected : scipy.sparse.sparray
        The result in float64.
    produced : int
        Multiply-adds.
    """

    loop: str
    expression: str
    operands: tuple
    prepared: tuple
    rows: int
    spans: tuple[int, ...]
    expected: sp.sparray
    produced: int


def tensors(
    folder: Path | None, threads: int, limits: Limits, wanted: Callable[[str], bool]
) -> Iterator[dict]:
    """Measure each kernel on each tensor."""
    for name, tensor in _tensors(folder).items():
        for label, make in _KERNELS.items():
            case = f"{label}, {name}"
            if wanted(case):
                yield {"case": case, **_case(make(tensor), threads, limits)}


def _case(kernel: _Kernel, threads: int, limits: Limits) -> dict:
    plan = tvm_sparse.einsum_plan(kernel.expression, *kernel.operands)
    (step,) = plan._steps
    ours = compiled(step.program.text, step.workspace)
    arguments = step.program.call.arguments(plan._values)
    contenders = {
        OURS: Contender(lambda: ours(**arguments), lambda _: plan.first_result()),
        _EINSUM: Contender(lambda: tvm_sparse.einsum(kernel.expression, *kernel.operands)),
        _NUMBA: Contender(
            lambda: _in_two_phases(kernel, threads), lambda result: _as_coo(kernel, *result)
        ),
    }
    return {"F": kernel.produced, **measure(contenders, kernel.expected, limits)}


# the hand-written loops


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


def _in_two_phases(kernel: _Kernel, threads: int) -> tuple[np.ndarray, ...]:
    """Count and fill, stretches of rows with as many entries of the first operand in parallel."""
    count, fill, place_type = LOOPS[kernel.loop]
    pointers = kernel.prepared[0][2 if kernel.rows == kernel.prepared[0][1].size else 0]
    shares = np.linspace(0, pointers[-1], threads + 1)
    bounds = np.searchsorted(pointers, shares).tolist()
    bounds[0], bounds[-1] = 0, kernel.rows
    counts = np.empty(kernel.rows, np.int64)

    def each(phase: Callable, *arrays: np.ndarray) -> None:
        arguments = (*arrays, kernel.spans, *kernel.prepared)
        tasks = list(itertools.pairwise(bounds))
        if threads == 1:
            phase(*tasks[0], *arguments)
        else:
            list(_pool(threads).map(lambda task: phase(*task, *arguments), tasks))

    each(count, counts)
    pos = np.zeros(kernel.rows + 1, np.int64)
    np.cumsum(counts, out=pos[1:])
    crd, values = np.empty(pos[-1], place_type), np.empty(pos[-1], np.float32)
    each(fill, pos, crd, values)
    return pos, crd, values


def _as_coo(kernel: _Kernel, pos: np.ndarray, crd: np.ndarray, values: np.ndarray) -> sp.sparray:
    row = np.repeat(np.arange(kernel.rows), np.diff(pos))
    pos1, crd1 = kernel.prepared[0][:2]
    outer: tuple[np.ndarray, ...] = (row,)
    if len(kernel.spans) + 1 < kernel.expected.ndim:
        outer = np.repeat(np.arange(pos1.size - 1), np.diff(pos1))[row], crd1[row]
    inner = np.unravel_index(crd, kernel.spans)
    return sp.coo_array((values, (*outer, *inner)), shape=kernel.expected.shape)


# tensors


def _tensors(folder: Path | None) -> dict[str, sp.coo_array]:
    """Return the tensors of a folder, if there are any, and generated ones."""
    found = {}
    for path in sorted(folder.glob("*.npz")) if folder else ():
        with np.load(path) as arrays:
            if "coords" in arrays and "vals" in arrays:
                found[path.stem] = _coo(arrays["coords"].T, arrays["shape"], arrays["vals"])
            elif path.stem == "fb15k237":
                nodes, relations = int(arrays["num_nodes"]), int(arrays["num_rels"])
                coordinates = [arrays[name] for name in ("src", "rel", "dst")]
                found[path.stem] = _coo(coordinates, (nodes, relations, nodes))
    rng = np.random.default_rng(3)
    shape = 3_000, 2_000, 1_000
    found["uniform"] = _coo([rng.integers(0, n, 200_000) for n in shape], shape)
    skewed = [np.minimum(rng.pareto(1.5, 200_000) * n / 20, n - 1) for n in shape]
    found["skewed"] = _coo(skewed, shape)
    return found


def _coo(coordinates: Any, shape: Any, values: np.ndarray | None = None) -> sp.coo_array:
    """A sorted tensor without repeated places; float32."""
    shape = tuple(int(n) for n in shape)
    keys = np.ravel_multi_index([np.asarray(own, np.int64) for own in coordinates], shape)
    keys, first = np.unique(keys, return_index=True)
    if values is None:
        values = np.random.default_rng(4).standard_normal(keys.size)
        first = slice(None)
    coordinates = tuple(own.astype("i4") for own in np.unravel_index(keys, shape))
    tensor = sp.coo_array((values[first].astype("f4"), coordinates), shape=shape)
    tensor.has_canonical_format = True
    return tensor


def _levels(tensor: sp.coo_array) -> tuple[np.ndarray, ...]:
    """Return pointers, coordinates and values of a tensor, a dense level first."""
    packed = CSF(3).pack((tensor.coords, tensor.data, tensor.shape))
    arrays = packed.storage.arrays
    names = ("indptr1", "indices1", "indptr2", "indices2")
    return (*(arrays[name] for name in names), tensor.data)


def _csr(matrix: sp.csr_array) -> tuple[np.ndarray, ...]:
    return matrix.indptr, matrix.indices, matrix.data


def _factor(rows: int, columns: int, each: int, seed: int) -> sp.csr_array:
    """A random matrix of so many entries in each row."""
    rng = np.random.default_rng(seed)
    places = np.argsort(rng.random((rows, columns), np.float32), axis=1)[:, :each]
    indptr = np.arange(rows + 1, dtype=np.int32) * each
    columns_of = np.sort(places, axis=1).ravel().astype("i4")
    values = rng.standard_normal(rows * each, np.float32)
    return sp.csr_array((values, columns_of, indptr), shape=(rows, columns))


def _unfolded(tensor: sp.coo_array, rows: int) -> sp.csr_array:
    """The tensor in float64 as a matrix: its first dimensions are rows, the others columns."""
    shape = tensor.shape
    flat = [
        np.ravel_multi_index([c.astype(np.int64) for c in tensor.coords[part]], shape[part])
        for part in (slice(0, rows), slice(rows, None))
    ]
    sizes = [
        int(np.prod(shape[part], dtype=np.int64)) for part in (slice(0, rows), slice(rows, None))
    ]
    return sp.csr_array((tensor.data.astype(np.float64), tuple(flat)), shape=tuple(sizes))


def _folded(matrix: sp.csr_array, shape: tuple[int, ...]) -> sp.coo_array:
    return sp.coo_array(matrix).reshape(shape)


# kernels


def _mttkrp(tensor: sp.coo_array) -> _Kernel:
    _, k, l = tensor.shape
    c, d = _factor(k, 32, 8, seed=5), _factor(l, 32, 8, seed=6)
    at = tensor.coords
    terms = c[at[1]].astype(np.float64).multiply(d[at[2]].astype(np.float64)).tocsr()
    choose = sp.csr_array((tensor.data, (at[0], np.arange(tensor.nnz))))
    choose.resize(tensor.shape[0], tensor.nnz)
    return _Kernel(
        "mttkrp",
        "ikl,kj,lj->ij",
        (tensor, c, d),
        (_levels(tensor), _csr(c), _csr(d)),
        tensor.shape[0],
        (32,),
        choose.astype(np.float64) @ terms,
        terms.nnz,
    )


def _ttm(tensor: sp.coo_array) -> _Kernel:
    i, j, k = tensor.shape
    c = _factor(k, 1000, 8, seed=7)
    levels = _levels(tensor)
    return _Kernel(
        "ttm",
        "ijk,kl->ijl",
        (tensor, c),
        (levels, _csr(c)),
        levels[1].size,
        (1000,),
        _folded(_unfolded(tensor, 2) @ c.astype(np.float64), (i, j, 1000)),
        8 * tensor.nnz,
    )


def _ttv(tensor: sp.coo_array) -> _Kernel:
    i, j, k = tensor.shape
    rng = np.random.default_rng(8)
    stored = rng.random(k) < 0.3
    values = np.where(stored, rng.standard_normal(k, np.float32), np.float32(0))
    vector = sp.coo_array((values[stored], (np.flatnonzero(stored).astype("i4"),)), shape=(k,))
    expected = _unfolded(tensor, 2) @ sp.csr_array(values.astype(np.float64)[:, None])
    return _Kernel(
        "ttv",
        "ijk,k->ij",
        (tensor, vector),
        (_levels(tensor), (stored, values)),
        i,
        (j,),
        _folded(expected, (i, j)),
        int(stored[tensor.coords[2]].sum()),
    )


def _contraction_of_one(tensor: sp.coo_array) -> _Kernel:
    own = _thinned(tensor, lambda kept: kept.coords[2])
    i, j, k = own.shape
    other = _coo(own.coords[::-1], (k, j, i))
    levels, right = _levels(own), _levels(other)
    expected = _unfolded(own, 2) @ _unfolded(other, 1)
    return _Kernel(
        "contract1",
        "ijk,klm->ijlm",
        (own, other),
        (levels, right),
        levels[1].size,
        (j, i),
        _folded(expected, (i, j, j, i)),
        _produced(own.coords[2]),
    )


def _contraction_of_two(tensor: sp.coo_array) -> _Kernel:
    tensor = _thinned(tensor, _keys)
    i, j, k = tensor.shape
    other = _coo([tensor.coords[n] for n in (1, 2, 0)], (j, k, i))
    expected = _unfolded(tensor, 1) @ _unfolded(other, 2)
    return _Kernel(
        "contract2",
        "ijk,jkl->il",
        (tensor, other),
        (_levels(tensor), _levels(other)),
        i,
        (i,),
        expected,
        _produced(_keys(tensor)),
    )


def _thinned(
    tensor: sp.coo_array, contracted: Callable[[sp.coo_array], np.ndarray]
) -> sp.coo_array:
    """Drop half of the entries, at random, until the contraction with the tensor itself is small."""
    rng = np.random.default_rng(9)
    while _produced(contracted(tensor)) > _MOST_CONTRACTED:
        kept = np.sort(rng.permutation(tensor.nnz)[: tensor.nnz // 2])
        tensor = _coo([own[kept] for own in tensor.coords], tensor.shape, tensor.data[kept])
    return tensor


def _produced(keys: np.ndarray) -> int:
    """Return the pairs of equal keys."""
    counts = np.unique(keys, return_counts=True)[1].astype(np.int64)
    return int((counts**2).sum())


def _keys(tensor: sp.coo_array) -> np.ndarray:
    """Number the last two coordinates of each entry."""
    return tensor.coords[1].astype(np.int64) * tensor.shape[2] + tensor.coords[2]


def _multiply(tensor: sp.coo_array) -> _Kernel:
    """The product with a tensor that shares half of the places."""
    rng = np.random.default_rng(10)
    moved = rng.random(tensor.nnz) < 0.5
    first = np.where(moved, rng.integers(0, tensor.shape[0], tensor.nnz), tensor.coords[0])
    other = _coo([first, *tensor.coords[1:]], tensor.shape)
    expected = _unfolded(tensor, 1).multiply(_unfolded(other, 1)).tocsr()
    return _Kernel(
        "multiply",
        "ijk,ijk->ijk",
        (tensor, other),
        (_levels(tensor), _levels(other)),
        tensor.shape[0],
        tensor.shape[1:],
        _folded(expected, tensor.shape),
        expected.nnz,
    )


_KERNELS = {
    "MTTKRP ikl,kj,lj->ij": _mttkrp,
    "TTM ijk,kl->ijl": _ttm,
    "TTV ijk,k->ij": _ttv,
    "contraction ijk,klm->ijlm": _contraction_of_one,
    "contraction ijk,jkl->il": _contraction_of_two,
    "product ijk,ijk->ijk": _multiply,
}

"""The peers of each operator: cuSPARSE, PyTorch, CuPy, PyG and Triton on a GPU, SciPy where there is none.

A peer whose library is not installed is left out; the results say so.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from . import cusparse
from .contenders import PEER, Contender, Problem
from .graphs import BlockMatrix, Graph
from .machine import Machine

__all__ = ["available", "peers_of"]

_OPTIONAL = ("cupy", "torch_geometric", "torch_scatter", "torch_sparse", "triton", "scipy")


def available() -> dict[str, str | None]:
    """Return the versions of optional libraries; None for those that are missing."""
    found: dict[str, str | None] = {}
    for name in _OPTIONAL:
        try:
            found[name] = str(importlib.import_module(name).__version__)
        except Exception:  # a broken installation is as good as none
            found[name] = None
    return found


def peers_of(machine: Machine, problem: Problem, data: Graph | BlockMatrix) -> list[Contender]:
    """Return the peers for a problem."""
    if not machine.is_gpu:
        return [Contender("scipy", PEER, lambda: _on_host(problem, data))]
    torch = machine.torch
    made = _GPU_PEERS[problem.operator](torch, machine, problem, data)
    return [Contender(name, PEER, prepare) for name, prepare in made.items()]


Peers = dict[str, Callable[[], Callable[[], Any]]]


def _spmm(torch: Any, machine: Machine, problem: Problem, graph: Graph) -> Peers:
    arrays = problem.arrays
    found = {
        f"cusparse {name}": lambda number=number: cusparse.spmm(torch, arrays, number)
        for name, number in cusparse.SPMM_ALGORITHMS.items()
    }
    found["torch csr"] = lambda: _times(_csr(torch, arrays), arrays["b"])
    if problem.dtype == "float32":
        found["cupy csr"] = lambda: _cupy_product(torch, arrays, "b")
        found["pyg spmm"] = lambda: _pyg_spmm(torch, arrays)
        found["pyg scatter"] = lambda: _pyg_scatter(machine, arrays, graph)
    return found


def _spmv(torch: Any, machine: Machine, problem: Problem, graph: Graph) -> Peers:
    arrays = problem.arrays
    found = {
        f"cusparse {name}": lambda number=number: cusparse.spmv(torch, arrays, number)
        for name, number in cusparse.SPMV_ALGORITHMS.items()
    }
    found["torch csr"] = lambda: _times(_csr(torch, arrays), arrays["x"])
    found["cupy csr"] = lambda: _cupy_product(torch, arrays, "x")
    return found


def _sddmm(torch: Any, machine: Machine, problem: Problem, graph: Graph) -> Peers:
    arrays = problem.arrays
    found = {
        f"cusparse {name}": lambda number=number: cusparse.sddmm(torch, arrays, number)
        for name, number in cusparse.SDDMM_ALGORITHMS.items()
    }

    def sampled() -> Callable[[], Any]:
        shape = (arrays["m"], arrays["n"])
        zeros = arrays["x"].new_zeros(arrays["nnz"])
        pattern = torch.sparse_csr_tensor(arrays["indptr"], arrays["indices"], zeros, shape)
        right = arrays["y"].t()
        return lambda: torch.sparse.sampled_addmm(pattern, arrays["x"], right, beta=0.0).values()

    def gathered() -> Callable[[], Any]:
        rows, columns = machine.array(graph.entry_rows()).long(), arrays["indices"].long()
        return lambda: (arrays["x"][rows] * arrays["y"][columns]).sum(dim=1)

    found["torch sampled_addmm"] = sampled
    # Gathered rows of all entries at once: only where they fit.
    if graph.entries * (problem.features or 1) < 1 << 30:
        found["torch gather"] = gathered
    return found


def _segment_sum(torch: Any, machine: Machine, problem: Problem, graph: Graph) -> Peers:
    arrays = problem.arrays

    def reduced() -> Callable[[], Any]:
        offsets = arrays["indptr"].long()
        return lambda: torch.segment_reduce(arrays["x"], "sum", offsets=offsets, initial=0.0)

    def scattered() -> Callable[[], Any]:
        from torch_scatter import segment_csr  # noqa: PLC0415

        pointers = arrays["indptr"].long()
        return lambda: segment_csr(arrays["x"], pointers, reduce="sum")

    def geometric() -> Callable[[], Any]:
        from torch_geometric.utils import segment  # noqa: PLC0415

        pointers = arrays["indptr"].long()
        return lambda: segment(arrays["x"], pointers, reduce="sum")

    return {"torch": reduced, "torch_scatter": scattered, "pyg segment": geometric}


def _bsr_spmm(torch: Any, machine: Machine, problem: Problem, matrix: BlockMatrix) -> Peers:
    arrays = problem.arrays
    pointers, indices = arrays["block_indptr"], arrays["block_indices"]
    values, dense = arrays["values"], arrays["b"]

    def blocks() -> Callable[[], Any]:
        shape = (matrix.rows, matrix.columns)
        left = torch.sparse_bsr_tensor(pointers, indices, values, shape)
        return lambda: _matrix_mode(machine, problem, lambda: left @ dense)

    def triton_blocks() -> Callable[[], Any]:
        from .triton_blocks import bsr_spmm  # noqa: PLC0415

        result = dense.new_full((matrix.rows, dense.shape[1]), float("nan"))

        def run() -> Any:
            bsr_spmm(values, pointers, indices, dense, result)
            return result

        return run

    def product() -> Callable[[], Any]:
        return lambda: _matrix_mode(machine, problem, lambda: arrays["dense"] @ dense)

    return {"triton": triton_blocks, "torch bsr": blocks, "dense product": product}


def _bsr_sddmm(torch: Any, machine: Machine, problem: Problem, matrix: BlockMatrix) -> Peers:
    arrays, block = problem.arrays, matrix.block
    x, y = arrays["x"], arrays["y"]
    indices, rows = arrays["block_indices"], arrays["block_rows"]

    def triton_blocks() -> Callable[[], Any]:
        from .triton_blocks import bsr_sddmm  # noqa: PLC0415

        result = x.new_full((matrix.blocks, block, block), float("nan"))

        def run() -> Any:
            bsr_sddmm(rows, indices, x, y, result)
            return result

        return run

    def batched() -> Callable[[], Any]:
        left, right = (values.reshape(-1, block, values.shape[1]) for values in (x, y))
        own, others = rows.long(), indices.long()
        multiply = lambda: torch.bmm(left[own], right[others].transpose(1, 2))  # noqa: E731
        return lambda: _matrix_mode(machine, problem, multiply)

    def product() -> Callable[[], Any]:
        """All of it, and the blocks taken out."""
        own, others = rows.long(), indices.long()

        def multiply() -> Any:
            whole = (x @ y.t()).reshape(-1, block, matrix.columns // block, block)
            return whole.permute(0, 2, 1, 3)[own, others]

        return lambda: _matrix_mode(machine, problem, multiply)

    return {"triton": triton_blocks, "torch bmm": batched, "dense product": product}


def _srbcrs_spmm(torch: Any, machine: Machine, problem: Problem, graph: Graph) -> Peers:
    arrays = problem.arrays
    found = {
        f"cusparse {name}": lambda number=number: cusparse.spmm(torch, arrays, number)
        for name, number in cusparse.SPMM_ALGORITHMS.items()
    }
    found["torch csr"] = lambda: _times(_csr(torch, arrays), arrays["b"])
    multiply = lambda: arrays["dense"] @ arrays["b"]  # noqa: E731
    found["dense product"] = lambda: lambda: _matrix_mode(machine, problem, multiply)
    return found


_GPU_PEERS: dict[str, Callable[..., Peers]] = {
    "spmm": _spmm,
    "spmv": _spmv,
    "sddmm": _sddmm,
    "segment_sum": _segment_sum,
    "bsr_spmm": _bsr_spmm,
    "bsr_sddmm": _bsr_sddmm,
    "srbcrs_spmm": _srbcrs_spmm,
}


def _matrix_mode(machine: Machine, problem: Problem, call: Callable[[], Any]) -> Any:
    with machine.matrix_mode(problem.dtype):
        return call()


def _csr(torch: Any, arrays: dict[str, Any]) -> Any:
    shape = (arrays["m"], arrays["n"])
    return torch.sparse_csr_tensor(arrays["indptr"], arrays["indices"], arrays["a"], shape)


def _times(matrix: Any, dense: Any) -> Callable[[], Any]:
    return lambda: matrix @ dense


def _cupy_product(torch: Any, arrays: dict[str, Any], dense: str) -> Callable[[], Any]:
    import cupy  # noqa: PLC0415
    import cupyx.scipy.sparse  # noqa: PLC0415

    parts = tuple(cupy.from_dlpack(arrays[name]) for name in ("a", "indices", "indptr"))
    matrix = cupyx.scipy.sparse.csr_matrix(parts, shape=(arrays["m"], arrays["n"]))
    operand = cupy.from_dlpack(arrays[dense])
    if operand.ndim == 2:
        operand = cupy.asfortranarray(operand)  # CuPy would convert it at each call

    def run() -> Any:
        return torch.from_dlpack(matrix @ operand)

    return run


def _pyg_spmm(torch: Any, arrays: dict[str, Any]) -> Callable[[], Any]:
    from torch_geometric.utils import spmm  # noqa: PLC0415

    matrix = _csr(torch, arrays)
    return lambda: spmm(matrix, arrays["b"], reduce="sum")


def _pyg_scatter(machine: Machine, arrays: dict[str, Any], graph: Graph) -> Callable[[], Any]:
    """PyG's message passing without a sparse matrix: gather, multiply, scatter."""
    from torch_geometric.utils import scatter  # noqa: PLC0415

    if graph.entries * arrays["b"].shape[1] >= 1 << 30:
        raise MemoryError("messages of all entries are too large")
    rows, columns = machine.array(graph.entry_rows()).long(), arrays["indices"].long()
    weights = arrays["a"].unsqueeze(1)
    return lambda: scatter(
        arrays["b"][columns] * weights, rows, dim=0, dim_size=arrays["m"], reduce="sum"
    )


def _on_host(problem: Problem, data: Graph | BlockMatrix) -> Callable[[], Any]:
    import scipy.sparse as sp  # noqa: PLC0415

    arrays = problem.arrays
    if problem.operator == "bsr_sddmm":
        x, y = (arrays[k].reshape(-1, data.block, problem.features) for k in ("x", "y"))
        return lambda: x[data.block_rows()] @ y[data.indices].transpose(0, 2, 1)
    if isinstance(data, BlockMatrix):
        parts = (arrays["values"].astype("float32"), data.indices, data.indptr)
        matrix = sp.bsr_matrix(parts, (data.rows, data.columns))
        return lambda: matrix @ arrays["b"]
    shape = (data.rows, data.rows)
    if problem.operator == "segment_sum":
        ones = np.ones(data.entries, arrays["x"].dtype)
        parts = (ones, np.arange(data.entries), data.indptr)
        matrix = sp.csr_matrix(parts, (data.rows, data.entries))
        return lambda: matrix @ arrays["x"]
    if problem.operator == "sddmm":
        rows = data.entry_rows()
        return lambda: np.einsum("ij,ij->i", arrays["x"][rows], arrays["y"][data.indices])
    parts = (arrays["a"].astype("float32"), data.indices, data.indptr)
    matrix = sp.csr_matrix(parts, shape)
    operand = arrays["x" if problem.operator == "spmv" else "b"]
    return lambda: matrix @ operand

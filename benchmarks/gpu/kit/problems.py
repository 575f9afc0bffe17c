"""The problems of each operator: operands on the machine, and the result in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .contenders import Problem
from .graphs import BlockMatrix, Graph
from .layouts import csr_arrays
from .machine import Machine

__all__ = [
    "bsr_sddmm",
    "bsr_spmm",
    "entry_values",
    "sddmm",
    "segment_sum",
    "spmm",
    "spmv",
    "srbcrs_spmm",
]

_BYTES = {"float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2}
_INDEX = 4


def spmm(machine: Machine, graph: Graph, features: int, dtype: str) -> Problem:
    """Return ``C = A B`` for a graph."""
    arrays = _structure(machine, graph)
    arrays["a"] = entry_values(machine, graph, dtype)
    arrays["b"] = machine.random((graph.rows, features), _stored(dtype), seed=1)
    item = _BYTES[dtype]
    moved = _index_bytes(graph) + item * (graph.entries + 2 * graph.rows * features)
    reference = _product(machine, graph, arrays, "b")
    operations = 2.0 * graph.entries * features
    return Problem(
        "spmm", graph.name, features, dtype, arrays, reference, moved, operations, _facts(graph)
    )


def spmv(machine: Machine, graph: Graph, dtype: str) -> Problem:
    """Return ``y = A x`` for a graph."""
    arrays = _structure(machine, graph)
    arrays["a"] = entry_values(machine, graph, dtype)
    arrays["x"] = machine.random((graph.rows,), _stored(dtype), seed=1)
    moved = _index_bytes(graph) + _BYTES[dtype] * (graph.entries + 2 * graph.rows)
    reference = _product(machine, graph, arrays, "x")
    return Problem(
        "spmv",
        graph.name,
        None,
        dtype,
        arrays,
        reference,
        moved,
        2.0 * graph.entries,
        _facts(graph),
    )


def sddmm(machine: Machine, graph: Graph, features: int, dtype: str) -> Problem:
    """Return the dot products of rows of ``x`` and ``y`` at the entries of a graph."""
    arrays = _structure(machine, graph)
    arrays["x"] = machine.random((graph.rows, features), _stored(dtype), seed=1)
    arrays["y"] = machine.random((graph.rows, features), _stored(dtype), seed=2)
    moved = _index_bytes(graph) + _BYTES[dtype] * (graph.entries + 2 * graph.rows * features)
    reference = _dot_products(machine, graph, arrays)
    operations = 2.0 * graph.entries * features
    return Problem(
        "sddmm", graph.name, features, dtype, arrays, reference, moved, operations, _facts(graph)
    )


def segment_sum(machine: Machine, graph: Graph, features: int, dtype: str) -> Problem:
    """Return the sums of rows of ``x``, as many for each row as the graph has entries there."""
    arrays = _structure(machine, graph)
    arrays["x"] = machine.random((graph.entries, features), _stored(dtype), seed=1)
    item = _BYTES[dtype]
    moved = _INDEX * graph.rows + item * features * (graph.entries + graph.rows)
    reference = _sums(machine, graph, arrays["x"])
    operations = float(graph.entries * features)
    return Problem(
        "segment_sum",
        graph.name,
        features,
        dtype,
        arrays,
        reference,
        moved,
        operations,
        _facts(graph),
    )


def bsr_spmm(machine: Machine, matrix: BlockMatrix, features: int, dtype: str) -> Problem:
    """Return ``C = A B`` for a matrix of blocks."""
    block = matrix.block
    values = machine.random((matrix.blocks, block, block), _stored(dtype), seed=3)
    arrays = {
        "values": values,
        "block_indptr": machine.array(matrix.indptr),
        "block_indices": machine.array(matrix.indices),
        "b": machine.random((matrix.columns, features), _stored(dtype), seed=1),
    }
    arrays["dense"] = _dense(machine, matrix, values)
    item = _BYTES[dtype]
    stored = matrix.blocks * block * block
    moved = item * (stored + (matrix.columns + matrix.rows) * features) + _INDEX * matrix.blocks
    reference = _float64(machine, arrays["dense"]) @ _float64(machine, arrays["b"])
    facts = {"rows": matrix.rows, "blocks": matrix.blocks, "block": block}
    return Problem(
        "bsr_spmm",
        matrix.name,
        features,
        dtype,
        arrays,
        reference,
        moved,
        2.0 * stored * features,
        facts,
    )


def srbcrs_spmm(machine: Machine, graph: Graph, features: int, dtype: str) -> Problem:
    """Return ``C = A B`` for a matrix of scattered entries, to be held in strips of rows."""
    problem = replace(spmm(machine, graph, features, dtype), operator="srbcrs_spmm")
    places = graph.entry_rows().astype(np.int64) * graph.rows + graph.indices
    values = problem.arrays["a"]
    if machine.is_gpu:
        dense = values.new_zeros(graph.rows * graph.rows)
        dense[machine.array(places)] = values
    else:
        dense = np.zeros(graph.rows * graph.rows, values.dtype)
        dense[places] = values
    problem.arrays["dense"] = dense.reshape(graph.rows, graph.rows)
    return problem


def bsr_sddmm(machine: Machine, matrix: BlockMatrix, features: int, dtype: str) -> Problem:
    """Return the products of block rows of ``x`` and of ``y`` at stored blocks."""
    block = matrix.block
    arrays = {
        "block_indices": machine.array(matrix.indices),
        "block_rows": machine.array(matrix.block_rows()),
        "x": machine.random((matrix.rows, features), _stored(dtype), seed=1),
        "y": machine.random((matrix.columns, features), _stored(dtype), seed=2),
    }
    x, y = (_float64(machine, arrays[name]).reshape(-1, block, features) for name in ("x", "y"))
    right = y[_places(machine, matrix.indices)]
    right = right.transpose(1, 2) if machine.is_gpu else right.transpose(0, 2, 1)
    reference = x[_places(machine, matrix.block_rows())] @ right
    stored = matrix.blocks * block * block
    item = _BYTES[dtype]
    moved = item * (stored + (matrix.columns + matrix.rows) * features) + _INDEX * matrix.blocks
    facts = {"rows": matrix.rows, "blocks": matrix.blocks, "block": block}
    operations = 2.0 * stored * features
    return Problem(
        "bsr_sddmm", matrix.name, features, dtype, arrays, reference, moved, operations, facts
    )


def _places(machine: Machine, places: np.ndarray) -> Any:
    return machine.array(places).long() if machine.is_gpu else places


def entry_values(machine: Machine, graph: Graph, dtype: str) -> Any:
    """Return the values of a graph's entries, the same at each call."""
    return machine.random((graph.entries,), _stored(dtype), seed=3)


def _structure(machine: Machine, graph: Graph) -> dict[str, Any]:
    return {
        name: machine.array(value) if isinstance(value, np.ndarray) else value
        for name, value in csr_arrays(graph).items()
    }


def _facts(graph: Graph) -> dict[str, int]:
    return {"rows": graph.rows, "entries": graph.entries}


def _index_bytes(graph: Graph) -> int:
    return _INDEX * (graph.entries + graph.rows + 1)


def _stored(dtype: str) -> str:
    return "float32" if dtype == "tf32" else dtype


def _float64(machine: Machine, values: Any) -> Any:
    return values.double() if machine.is_gpu else np.asarray(values, np.float64)


def _product(machine: Machine, graph: Graph, arrays: dict[str, Any], dense: str) -> Any:
    values, operand = (_float64(machine, arrays[name]) for name in ("a", dense))
    shape = (graph.rows, graph.rows)
    if machine.is_gpu:
        torch = machine.torch
        matrix = torch.sparse_csr_tensor(arrays["indptr"], arrays["indices"], values, shape)
        return matrix @ operand
    import scipy.sparse as sp  # noqa: PLC0415 (only where the script is tried)

    return sp.csr_matrix((values, graph.indices, graph.indptr), shape) @ operand


def _dot_products(machine: Machine, graph: Graph, arrays: dict[str, Any]) -> Any:
    rows, columns = graph.entry_rows(), graph.indices
    if not machine.is_gpu:
        x, y = (_float64(machine, arrays[name]) for name in ("x", "y"))
        return np.einsum("ij,ij->i", x[rows], y[columns])
    torch = machine.torch
    rows, columns = machine.array(rows).long(), arrays["indices"].long()
    found = arrays["x"].new_empty(graph.entries, dtype=torch.float64)
    step = 1 << 20
    for begin in range(0, graph.entries, step):
        part = slice(begin, begin + step)
        left, right = arrays["x"][rows[part]].double(), arrays["y"][columns[part]].double()
        found[part] = (left * right).sum(dim=1)
    return found


def _sums(machine: Machine, graph: Graph, x: Any) -> Any:
    rows = graph.entry_rows()
    if not machine.is_gpu:
        found = np.zeros((graph.rows, x.shape[1]))
        np.add.at(found, rows, np.asarray(x, np.float64))
        return found
    torch = machine.torch
    found = x.new_zeros(graph.rows, x.shape[1], dtype=torch.float64)
    step = 1 << 20
    numbers = machine.array(rows).long()
    for begin in range(0, graph.entries, step):
        part = slice(begin, begin + step)
        found.index_add_(0, numbers[part], x[part].double())
    return found


def _dense(machine: Machine, matrix: BlockMatrix, values: Any) -> Any:
    block = matrix.block
    rows = matrix.block_rows()
    shape = (matrix.rows // block, matrix.columns // block, block, block)
    if machine.is_gpu:
        dense = values.new_zeros(shape)
        dense[machine.array(rows).long(), machine.array(matrix.indices).long()] = values
        return dense.permute(0, 2, 1, 3).reshape(matrix.rows, matrix.columns).contiguous()
    dense = np.zeros(shape, values.dtype)
    dense[rows, matrix.indices] = values
    return np.ascontiguousarray(dense.transpose(0, 2, 1, 3).reshape(matrix.rows, matrix.columns))

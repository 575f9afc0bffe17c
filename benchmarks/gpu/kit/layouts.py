"""The arrays that kernels take, by the names of their parameters.

The package itself packs matrices; these few lines do the same for graphs in CSR where it is not installed.
A test compares both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .graphs import BlockMatrix, Graph

__all__ = ["bsr_arrays", "coo_arrays", "csr_arrays", "hyb_arrays", "sr_bcrs_arrays"]

Arrays = dict[str, "np.ndarray | int"]


def csr_arrays(graph: Graph) -> Arrays:
    """Return structure and sizes of a matrix in CSR."""
    sizes = {"m": graph.rows, "n": graph.rows, "nnz": graph.entries}
    return {"indptr": graph.indptr, "indices": graph.indices, **sizes}


def coo_arrays(graph: Graph, name: str = "a") -> Arrays:
    """Return structure and sizes of a matrix whose entries have both coordinates."""
    return {
        f"{name}_nnz": graph.entries,
        f"{name}_indices0": graph.entry_rows().reshape(-1, 1),
        f"{name}_indices1": graph.indices.reshape(-1, 1, 1),
        "m": graph.rows,
        "n": graph.rows,
    }


def hyb_arrays(
    graph: Graph,
    values: np.ndarray,
    widths: Sequence[int],
    column_parts: int = 1,
    name: str = "a",
) -> Arrays:
    """Return a matrix as hyb.

    Parameters
    ----------
    graph : Graph
        The structure.
    values : numpy.ndarray
        Of its entries.
    widths : sequence of int
        Of the buckets, rising; the last one takes longer rows in pieces.
    column_parts : int
        Ranges of columns; in each, a row goes by its entries there.
    name : str
        Of the kernel's parameter.
    """
    arrays: Arrays = {"m": graph.rows, "n": graph.rows}
    given, values = _by_ranges(graph, values, column_parts)
    lengths = np.diff(given.indptr)
    under_row = (1,) if column_parts == 1 else ()
    if column_parts == 1:
        empty = np.flatnonzero(lengths == 0)
        none = (empty.size, 1, 0)
        arrays |= _bucket(f"{name}_w0", empty, np.zeros(none, values.dtype), np.zeros(none, "i4"))
    chosen = np.minimum(np.searchsorted(widths, lengths), len(widths) - 1)
    for number, width in enumerate(widths):
        rows = np.flatnonzero((chosen == number) & (lengths > 0))
        last = number == len(widths) - 1
        pieces = -(-lengths[rows] // width) if last else np.ones(rows.size, np.int64)
        shape = (int(pieces.sum()), width) if last else (rows.size, *under_row, width)
        key = f"{name}_w{width}"
        padded = _padded(given, values, rows, pieces, graph.rows, shape)
        arrays |= _bucket(key, rows % max(graph.rows, 1), *padded)
        if column_parts > 1:
            arrays[f"{key}_row_indices"] = arrays[f"{key}_row_indices"].reshape(-1)
            begins = np.searchsorted(rows, np.arange(column_parts + 1) * graph.rows)
            arrays[f"{key}_part_indptr"] = begins.astype(np.int32)
        if last:
            arrays[f"{key}_indptr"] = np.concatenate([[0], np.cumsum(pieces)]).astype(np.int32)
            arrays[f"{key}_pieces"] = int(pieces.sum())
    return arrays


def _by_ranges(graph: Graph, values: np.ndarray, column_parts: int) -> tuple[Graph, np.ndarray]:
    """Count the rows of each range of columns as rows of their own, the first range first."""
    part = graph.indices // max(1, -(-graph.rows // column_parts))
    order = np.argsort(part, kind="stable")
    keys = part.astype(np.int64) * graph.rows + graph.entry_rows()
    lengths = np.bincount(keys, minlength=column_parts * graph.rows)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    rows = column_parts * graph.rows
    return Graph(graph.name, rows, indptr, graph.indices[order]), values[order]


def bsr_arrays(matrix: BlockMatrix, name: str = "a") -> Arrays:
    """Return structure and sizes of a matrix of blocks."""
    return {
        f"{name}_indptr": matrix.indptr,
        f"{name}_indices": matrix.indices,
        f"{name}_block_rows": matrix.indptr.size - 1,
        f"{name}_block_columns": matrix.columns // matrix.block,
        f"{name}_nnz": matrix.blocks,
        "m": matrix.rows,
        "n": matrix.columns,
    }


def sr_bcrs_arrays(graph: Graph, values: np.ndarray, t: int, g: int, name: str = "a") -> Arrays:
    """Return a matrix in strips of ``t`` rows, whose columns with entries come in groups of ``g``."""
    strips = -(-graph.rows // t)
    rows = graph.entry_rows().astype(np.int64)
    keys = rows // t * graph.rows + graph.indices
    tiles, of_entry = np.unique(keys, return_inverse=True)
    counts = np.bincount(tiles // graph.rows, minlength=strips)
    groups = -(-counts // g)
    begins = np.concatenate([[0], np.cumsum(groups)])
    padded = np.repeat(begins[:-1] * g - (np.cumsum(counts) - counts), counts)
    places = np.arange(tiles.size) + padded
    indices = np.full((begins[-1], g), graph.rows, np.int32)
    indices.reshape(-1)[places] = tiles % graph.rows
    packed = np.zeros((begins[-1], g, t), values.dtype)
    packed.reshape(-1)[places[of_entry] * t + rows % t] = values
    return {
        name: packed,
        f"{name}_indptr": begins.astype(np.int32),
        f"{name}_indices": indices,
        f"{name}_strips": strips,
        f"{name}_groups": int(begins[-1]),
        "m": graph.rows,
        "n": graph.rows,
    }


def _bucket(key: str, rows: np.ndarray, values: np.ndarray, indices: np.ndarray) -> Arrays:
    numbers = rows.astype(np.int32).reshape(-1, 1)
    return {
        key: values,
        f"{key}_rows": rows.size,
        f"{key}_row_indices": numbers,
        f"{key}_indices": indices,
    }


def _padded(
    graph: Graph,
    values: np.ndarray,
    rows: np.ndarray,
    pieces: np.ndarray,
    columns: int,
    shape: tuple[int, ...],
) -> tuple[np.ndarray, np.ndarray]:
    """Return values and indices of some rows, each in as many slots as its pieces have."""
    lengths, width = np.diff(graph.indptr)[rows], shape[-1]
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    entries = np.repeat(graph.indptr[rows].astype(np.int64), lengths) + within
    slots = np.repeat((np.cumsum(pieces) - pieces) * width, lengths) + within
    packed = np.zeros(shape, values.dtype)
    indices = np.full(shape, columns, np.int32)
    packed.reshape(-1)[slots] = values[entries]
    indices.reshape(-1)[slots] = graph.indices[entries]
    return packed, indices

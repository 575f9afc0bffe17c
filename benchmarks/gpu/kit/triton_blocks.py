"""Products of block-sparse matrices in Triton: the baseline that kernels on tensor cores are held against.

One program computes a tile of the result that is one block high. It goes over the blocks of its row, whose
loads Triton's pipeliner issues some blocks ahead; tile width, warps and stages are chosen by Triton's
autotuner for each size of blocks, dtype and width.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

__all__ = ["bsr_sddmm", "bsr_spmm"]

_CONFIGS = [
    triton.Config({"TILE": tile}, num_warps=warps, num_stages=stages)
    for tile, warps, stages in (
        (32, 2, 4),
        (64, 4, 3),
        (64, 4, 5),
        (128, 4, 3),
        (128, 4, 5),
        (128, 8, 4),
        (256, 8, 3),
    )
]


@triton.autotune(configs=_CONFIGS, key=["BLOCK", "features", "blocks"])
@triton.jit
def _bsr_spmm(
    values,
    indptr,
    indices,
    dense,
    result,
    features,
    blocks,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    within = tl.arange(0, BLOCK)
    inside = columns[None, :] < features
    begin = tl.load(indptr + row).to(tl.int64)
    end = tl.load(indptr + row + 1).to(tl.int64)
    total = tl.zeros((BLOCK, TILE), dtype=tl.float32)
    offsets = within[:, None] * BLOCK + within[None, :]
    for place in range(begin, end):
        column = tl.load(indices + place).to(tl.int64)
        left = tl.load(values + place * (BLOCK * BLOCK) + offsets)
        rows = column * BLOCK + within
        right = tl.load(dense + rows[:, None] * features + columns[None, :], mask=inside, other=0.0)
        total = tl.dot(left, right, total, input_precision="tf32")
    rows = row.to(tl.int64) * BLOCK + within
    to = result + rows[:, None] * features + columns[None, :]
    tl.store(to, total.to(result.dtype.element_ty), mask=inside)


def bsr_spmm(values: Any, indptr: Any, indices: Any, dense: Any, result: Any) -> None:
    """Write the product of a matrix of blocks and a dense one.

    Parameters
    ----------
    values : torch.Tensor
        Shape ``(blocks, b, b)``.
    indptr, indices : torch.Tensor
        Block rows in CSR, int32.
    dense, result : torch.Tensor
        Row-major, shapes ``(n, features)`` and ``(m, features)``.
    """
    blocks, block, _ = values.shape
    features = dense.shape[1]

    def grid(chosen: dict[str, int]) -> tuple[int, int]:
        return indptr.shape[0] - 1, triton.cdiv(features, chosen["TILE"])

    _bsr_spmm[grid](values, indptr, indices, dense, result, features, blocks, BLOCK=block)


_DOT_CONFIGS = [
    triton.Config({"DEPTH": depth}, num_warps=warps, num_stages=stages)
    for depth, warps, stages in (
        (32, 1, 4),
        (32, 2, 4),
        (64, 2, 3),
        (64, 4, 4),
        (128, 4, 2),
    )
]


@triton.autotune(configs=_DOT_CONFIGS, key=["BLOCK", "features", "blocks"])
@triton.jit
def _bsr_sddmm(
    rows,
    indices,
    x,
    y,
    result,
    features,
    blocks,
    BLOCK: tl.constexpr,
    DEPTH: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + place).to(tl.int64)
    column = tl.load(indices + place).to(tl.int64)
    within = tl.arange(0, BLOCK)
    deep = tl.arange(0, DEPTH)
    left = x + (row * BLOCK + within)[:, None] * features + deep[None, :]
    right = y + (column * BLOCK + within)[None, :] * features + deep[:, None]
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for begin in range(0, features, DEPTH):
        inside = begin + deep < features
        one = tl.load(left + begin, mask=inside[None, :], other=0.0)
        other = tl.load(right + begin, mask=inside[:, None], other=0.0)
        total = tl.dot(one, other, total, input_precision="tf32")
    to = result + place * (BLOCK * BLOCK) + within[:, None] * BLOCK + within[None, :]
    tl.store(to, total.to(result.dtype.element_ty))


def bsr_sddmm(rows: Any, indices: Any, x: Any, y: Any, result: Any) -> None:
    """Write the products of block rows of ``x`` and ``y`` at stored blocks.

    Parameters
    ----------
    rows, indices : torch.Tensor
        Block row and block column of each stored block, int32.
    x, y : torch.Tensor
        Row-major, of as many columns.
    result : torch.Tensor
        Shape ``(blocks, b, b)``.
    """
    blocks, block, _ = result.shape
    features = x.shape[1]
    _bsr_sddmm[(blocks,)](rows, indices, x, y, result, features, blocks, BLOCK=block)

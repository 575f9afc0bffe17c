"""Default CUDA schedules of the operators."""

from . import blocks, parts, sddmm, sddmm_blocks, segment_reduce, spmm, spmv, spmv_parts
from .block_tiles import BlockRowsTile, BlockTile
from .sddmm import DotTile
from .tiles import RowTile, vector_width

__all__ = [
    "BlockRowsTile",
    "BlockTile",
    "DotTile",
    "RowTile",
    "blocks",
    "parts",
    "sddmm",
    "sddmm_blocks",
    "segment_reduce",
    "spmm",
    "spmv",
    "spmv_parts",
    "vector_width",
]

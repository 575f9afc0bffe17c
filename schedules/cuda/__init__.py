"""Default CUDA schedules of the operators."""

from . import parts, sddmm, segment_reduce, spmm, spmv
from .sddmm import DotTile
from .tiles import RowTile, vector_width

__all__ = [
    "DotTile",
    "RowTile",
    "parts",
    "sddmm",
    "segment_reduce",
    "spmm",
    "spmv",
    "vector_width",
]

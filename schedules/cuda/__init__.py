"""Default CUDA schedules of the operators."""

from . import parts, segment_reduce, spmm, spmv
from .tiles import RowTile, vector_width

__all__ = ["RowTile", "parts", "segment_reduce", "spmm", "spmv", "vector_width"]

"""Default CPU schedules of the operators, and the spaces that MetaSchedule searches.

Each module holds ``schedule(sch, *, tile, target)``, which applies stock TVM primitives to a
stage-III program, and ``space(sch, *, target)``, which returns the variants to choose from.
"""

from . import sddmm, segment_reduce, spmm, spmv
from .tiles import EntryTile, RowTile
from .vectors import vector_lanes

__all__ = ["EntryTile", "RowTile", "sddmm", "segment_reduce", "spmm", "spmv", "vector_lanes"]

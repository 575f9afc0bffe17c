"""Default CPU schedules of the operators, and the spaces that MetaSchedule searches.

Each module holds ``schedule(sch, *, tile, target)``, which applies stock TVM primitives to a stage-III
program, and ``space(sch, *, target)``, which returns the variants to choose from.
"""

from . import sddmm, segment_reduce, spmm, spmv
from .rows import RowTile
from .vectors import vector_lanes

__all__ = ["RowTile", "sddmm", "segment_reduce", "spmm", "spmv", "vector_lanes"]

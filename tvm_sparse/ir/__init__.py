"""Node types of stage I."""

from .axis import (
    AttachedAxis,
    Axis,
    DenseFixedAxis,
    DenseVariableAxis,
    FusedAxis,
    IntersectionAxis,
    MergedAxis,
    SparseFixedAxis,
    SparseOutputAxis,
    SparseVariableAxis,
    UnionAxis,
    stored_axis,
)
from .buffer import SparseBuffer
from .function import SparseFunc
from .iteration import SparseIteration
from .verify import verify

__all__ = [
    "AttachedAxis",
    "Axis",
    "DenseFixedAxis",
    "DenseVariableAxis",
    "FusedAxis",
    "IntersectionAxis",
    "MergedAxis",
    "SparseBuffer",
    "SparseFixedAxis",
    "SparseFunc",
    "SparseIteration",
    "SparseOutputAxis",
    "SparseVariableAxis",
    "UnionAxis",
    "stored_axis",
    "verify",
]

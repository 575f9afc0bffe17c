"""Node types of stage I."""

from .axis import (
    AttachedAxis,
    Axis,
    DenseFixedAxis,
    DenseVariableAxis,
    FusedAxis,
    SparseFixedAxis,
    SparseOutputAxis,
    SparseVariableAxis,
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
    "SparseBuffer",
    "SparseFixedAxis",
    "SparseFunc",
    "SparseIteration",
    "SparseOutputAxis",
    "SparseVariableAxis",
    "verify",
]

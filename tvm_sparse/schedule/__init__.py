"""Scheduling of stage-I programs."""

from .schedule import SparseSchedule
from .trace import IterationHandle, IteratorHandle, Sample, Trace, TraceEntry

__all__ = [
    "IterationHandle",
    "IteratorHandle",
    "Sample",
    "SparseSchedule",
    "Trace",
    "TraceEntry",
]

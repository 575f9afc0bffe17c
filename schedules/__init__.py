"""The operator library: program, reference, default schedules and tuning space of each operator."""

from . import sddmm, segment_reduce, spmm, spmv

__all__ = ["sddmm", "segment_reduce", "spmm", "spmv"]

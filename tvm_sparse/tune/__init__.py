"""Tuning on real data with MetaSchedule."""

from .fingerprint import fingerprint
from .postprocessors import RewriteReductionInit
from .runner import MeasureOptions
from .search import Space, TuningError, TuningResult, tune

__all__ = [
    "MeasureOptions",
    "RewriteReductionInit",
    "Space",
    "TuningError",
    "TuningResult",
    "fingerprint",
    "tune",
]

"""Tuning on real data: MetaSchedule over loop schedules, successive halving over formats."""

from .fingerprint import fingerprint
from .halving import halve
from .loops import Space
from .postprocessors import RewriteReductionInit
from .result import FormatReport, TuningError, TuningResult
from .runner import MeasureOptions
from .search import tune
from .spaces import SparseSpace

__all__ = [
    "FormatReport",
    "MeasureOptions",
    "RewriteReductionInit",
    "Space",
    "SparseSpace",
    "TuningError",
    "TuningResult",
    "fingerprint",
    "halve",
    "tune",
]

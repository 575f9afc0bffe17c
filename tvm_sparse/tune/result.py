"""What tuning returns, and how it fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tvm

from ..runtime import Executable
from ..schedule.trace import Trace

__all__ = ["FormatReport", "TuningError", "TuningResult"]


class TuningError(RuntimeError):
    """No candidate could be built and measured; carries the first underlying error."""


@dataclass(frozen=True)
class FormatReport:
    """What was found about one format, or one choice of stage-I decisions.

    Attributes
    ----------
    seconds : float
        Of its fastest kernel, infinite where none ran.
    trials : int
        Candidates of it that were measured.
    pack_seconds : float or None
        What packing the operands took, None where that never came to an end.
    error : str or None
        Why it was given up, if it failed.
    """

    seconds: float
    trials: int
    pack_seconds: float | None
    error: str | None = None


@dataclass
class TuningResult:
    """What tuning found.

    Attributes
    ----------
    executable : Executable
        The fastest kernel: the tuned one, or the default where tuning found nothing faster.
    schedule : tvm.s_tir.Schedule, optional
        The schedule of the tuned kernel, ``None`` where the default was kept.
    seconds, default_seconds : float
        Median time of a call of either kernel on the inputs, measured interleaved. Packing is not in
        it.
    trials, failures : int
        Candidates measured, those of earlier runs in the folder included, and failures of this run.
    work_dir : pathlib.Path
        Holds database and log.
    errors : list of str
        Of the failures.
    format : str, optional
        Name of the format that the kernel takes, or its stage-I decisions; ``None`` for the formats of
        the program.
    operands : dict
        The sparse arguments as the kernel takes them, packed where it has a format of its own:
        ``result.executable(b=dense, **result.operands)``. Another matrix is packed by
        ``result.operands["a"].format.pack``, or ``.composition.pack`` for a sum of parts.
    trace : Trace, optional
        The stage-I primitives that made the tuned program.
    pack_seconds : float
        What packing the operands took, once.
    formats : dict of str to FormatReport
        All that were tried, in the order given.
    """

    executable: Executable
    schedule: tvm.s_tir.Schedule | None
    seconds: float
    default_seconds: float
    trials: int
    failures: int
    work_dir: Path
    errors: list[str] = field(default_factory=list)
    format: str | None = None
    operands: dict[str, Any] = field(default_factory=dict)
    trace: Trace | None = None
    pack_seconds: float = 0.0
    formats: dict[str, FormatReport] = field(default_factory=dict)

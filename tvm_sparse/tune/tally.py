"""Counting of candidates, and MetaSchedule's log."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

__all__ = ["LOGGER", "Tally", "TallyCallback", "log_to_file"]

LOGGER = "tvm.s_tir.meta_schedule"


class Tally:
    """Counts candidates, keeps the errors, and reports.

    Parameters
    ----------
    total : int
        Candidates to measure.
    report : callable, optional
        Called with ``(measured, total, best seconds or None)``.
    """

    def __init__(
        self, total: int, report: Callable[[int, int, float | None], None] | None = None
    ) -> None:
        self.total, self.report = total, report
        self.measured = self.failures = 0
        self.errors: list[str] = []
        self.best: float | None = None

    def add(self, results: Iterable[tuple[list[float] | None, str]]) -> None:
        """Count candidates, each by its times, None if it failed, and its error."""
        for times, error in results:
            self.measured += 1
            if times:
                seconds = min(times)
                self.best = seconds if self.best is None else min(self.best, seconds)
            else:
                self.failures += 1
                self.errors.append(error)
        if self.report is not None:
            self.report(self.measured, self.total, self.best)


@derived_object
class TallyCallback(ms.measure_callback.PyMeasureCallback):
    """Forwards to a tally, which TVM's copies of this callback share."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self.tally = tally

    def apply(self, task_scheduler, task_id, candidates, builds, runs) -> None:
        self.tally.add(
            (
                [float(s) for s in run.run_secs] if run.run_secs else None,
                str(build.error_msg or run.error_msg),
            )
            for build, run in zip(builds, runs)
        )


@contextlib.contextmanager
def log_to_file(folder: Path) -> Iterator[None]:
    """Send MetaSchedule's log to ``folder/logs`` instead of the terminal."""
    logger = logging.getLogger(LOGGER)
    (folder / "logs").mkdir(exist_ok=True)
    handler = logging.FileHandler(folder / "logs" / "tuning.log")
    handler.setFormatter(logging.Formatter("%(asctime)s [%(levelname)s] %(message)s"))
    state = (logger.handlers[:], logger.propagate, logger.level)
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = state[0], state[1]
        logger.setLevel(state[2])
        handler.close()

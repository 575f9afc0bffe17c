"""The results as a table on the terminal: ours, the best peer, and the share of the machine's limit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .contenders import OURS, PEER, TILE

__all__ = [
    "GOAL_HEADS",
    "SUMMARY_HEADS",
    "best",
    "by_problem",
    "geometric_mean",
    "goals",
    "lines",
    "ratio",
    "summary",
]

Row = dict[str, Any]

SUMMARY_HEADS = ("operator", "dtype", "problems", "ratio, cold", "ratio, warm", "best tiles, cold")

GOAL_HEADS = ("goal", "at least", "default tiles", "best tiles", "problems")


@dataclass(frozen=True)
class Goal:
    """What a ratio of times shall be, in geometric mean over problems, with the cache flushed."""

    name: str
    operator: str
    least: float
    ours: tuple[str, ...] = ("",)
    peers: tuple[str, ...] = ("",)


GOALS = (
    Goal("SpMM on hyb / cuSPARSE", "spmm", 1.5, ("hyb",), ("cusparse", "torch csr", "cupy")),
    Goal("SDDMM / best peer", "sddmm", 1.5),
    Goal("BSR SpMM / Triton", "bsr_spmm", 1.0, peers=("triton",)),
)


def by_problem(rows: Iterable[Row]) -> dict[tuple, list[Row]]:
    """Return rows grouped by operator, problem, width and dtype."""
    found: dict[tuple, list[Row]] = {}
    for row in rows:
        key = (row["operator"], row["problem"], row["features"], row["dtype"])
        found.setdefault(key, []).append(row)
    return found


def best(
    rows: Sequence[Row], kinds: Sequence[str], when: str = "cold", names: Sequence[str] = ("",)
) -> Row | None:
    """Return the fastest row of some kinds, whose names begin so; None where none was measured."""
    timed = [
        row
        for row in rows
        if row["kind"] in kinds
        and f"{when}_seconds" in row
        and row["contender"].startswith(tuple(names))
    ]
    return min(timed, key=lambda row: row[f"{when}_seconds"], default=None)


def ratio(
    rows: Sequence[Row],
    kinds: Sequence[str],
    when: str = "cold",
    names: Sequence[str] = ("",),
    peers: Sequence[str] = ("",),
) -> float | None:
    """Return the time of the best peer over ours."""
    ours, peer = best(rows, kinds, when, names), best(rows, [PEER], when, peers)
    if ours is None or peer is None:
        return None
    return peer[f"{when}_seconds"] / ours[f"{when}_seconds"]


def geometric_mean(values: Iterable[float | None]) -> float:
    """Return the geometric mean of those that are there; NaN if none is."""
    logs = [math.log(value) for value in values if value]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def summary(results: dict[str, Any]) -> list[list[str]]:
    """Return for each operator and dtype the geometric mean of the best peer's time over ours."""
    groups: dict[tuple[str, str], list[list[Row]]] = {}
    for (operator, _, _, dtype), rows in _all_problems(results):
        groups.setdefault((operator, dtype), []).append(rows)
    lines = []
    for (operator, dtype), cases in groups.items():
        means = [
            geometric_mean(ratio(rows, kinds, when) for rows in cases)
            for kinds, when in (([OURS], "cold"), ([OURS], "warm"), ([OURS, TILE], "cold"))
        ]
        lines.append([operator, dtype, str(len(cases)), *map(_number, means)])
    return lines


def goals(results: dict[str, Any]) -> list[list[str]]:
    """Return for each goal what was reached."""
    lines = []
    for goal in GOALS:
        groups = [rows for key, rows in _all_problems(results) if key[0] == goal.operator]
        found = {
            kinds: [ratio(rows, kinds, "cold", goal.ours, goal.peers) for rows in groups]
            for kinds in ((OURS,), (OURS, TILE))
        }
        count = sum(value is not None for value in found[OURS, TILE])
        means = [_number(geometric_mean(values)) for values in found.values()]
        lines.append([goal.name, f"{goal.least:.1f}", *means, str(count)])
    return lines


def _all_problems(results: dict[str, Any]) -> list[tuple[tuple, list[Row]]]:
    sections = results["sections"].values()
    return [item for section in sections for item in by_problem(section["rows"]).items()]


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def lines(results: dict[str, Any]) -> list[str]:
    """Return the table as lines of text."""
    heads = (
        "operator",
        "problem",
        "F",
        "dtype",
        "ours",
        "us cold",
        "us warm",
        "of limit",
        "best tiles",
        "us cold",
        "best peer",
        "us cold",
        "ratio",
    )
    rows = [list(heads)]
    for section in results["sections"].values():
        rows += [_line(key, group) for key, group in by_problem(section["rows"]).items()]
    rows += [[], list(SUMMARY_HEADS), *summary(results), [], list(GOAL_HEADS), *goals(results)]
    widths = [
        max((len(row[k]) for row in rows if k < len(row)), default=0) for k in range(len(heads))
    ]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    ]


def _line(key: tuple, rows: Sequence[Row]) -> list[str]:
    operator, problem, features, dtype = key
    ours, tiles, peer = (best(rows, [kind]) for kind in (OURS, TILE, PEER))
    share = ours["bound_seconds"] / ours["cold_seconds"] if ours else math.nan
    found = ratio(rows, [OURS])
    refused = next(
        (row["refused"] for row in rows if row["kind"] == OURS and "refused" in row), "-"
    )
    return [
        operator,
        problem,
        str(features or "-"),
        dtype,
        ours["contender"] if ours else refused[:40],
        _micros(ours, "cold"),
        _micros(ours, "warm"),
        f"{share:.0%}" if ours else "-",
        tiles["contender"] if tiles else "-",
        _micros(tiles, "cold"),
        peer["contender"] if peer else "-",
        _micros(peer, "cold"),
        f"{found:.2f}" if found else "-",
    ]


def _micros(row: Row | None, when: str) -> str:
    return f"{row[f'{when}_seconds'] * 1e6:.1f}" if row else "-"

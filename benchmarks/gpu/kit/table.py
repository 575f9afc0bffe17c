"""The results as a table on the terminal: ours beside the best peer, and the share of the machine's limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .contenders import OURS, PEER, TILE

__all__ = ["SUMMARY_HEADS", "by_problem", "geometric_mean", "lines", "summary"]

Row = dict[str, Any]

SUMMARY_HEADS = ("operator", "dtype", "problems", "ratio, cold", "ratio, warm", "best tiles, cold")


def by_problem(rows: Iterable[Row]) -> dict[tuple, list[Row]]:
    """Return rows grouped by operator, problem, width and dtype."""
    found: dict[tuple, list[Row]] = {}
    for row in rows:
        key = (row["operator"], row["problem"], row["features"], row["dtype"])
        found.setdefault(key, []).append(row)
    return found


def best(rows: Sequence[Row], kinds: Sequence[str], when: str = "cold") -> Row | None:
    """Return the fastest row of some kinds; None where none was measured."""
    timed = [row for row in rows if row["kind"] in kinds and f"{when}_seconds" in row]
    return min(timed, key=lambda row: row[f"{when}_seconds"], default=None)


def ratio(
    rows: Sequence[Row],
    kinds: Sequence[str],
    when: str = "cold",
    is_peer: Callable[[Row], bool] = lambda row: True,
) -> float | None:
    """Return the time of the best peer over ours."""
    ours = best(rows, kinds, when)
    peer = best([row for row in rows if is_peer(row)], [PEER], when)
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
    for section in results["sections"].values():
        for (operator, _, _, dtype), rows in by_problem(section["rows"]).items():
            groups.setdefault((operator, dtype), []).append(rows)
    lines = []
    for (operator, dtype), cases in groups.items():
        means = [
            geometric_mean(ratio(rows, kinds, when) for rows in cases)
            for kinds, when in (([OURS], "cold"), ([OURS], "warm"), ([OURS, TILE], "cold"))
        ]
        lines.append([operator, dtype, str(len(cases)), *(f"{mean:.2f}" for mean in means)])
    return lines


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
    rows += [[], list(SUMMARY_HEADS), *summary(results)]
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

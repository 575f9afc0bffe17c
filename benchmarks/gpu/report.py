"""Results of the kit as Markdown and plots."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from .kit.contenders import OURS, PEER, TILE
from .kit.table import GOAL_HEADS, SUMMARY_HEADS, best, by_problem, goals, ratio, summary

__all__ = ["markdown", "plot", "write"]

Row = dict[str, Any]

_HEADS = (
    "problem",
    "F",
    "dtype",
    "ours",
    "cold, us",
    "warm, us",
    "share of limit",
    "best tiles",
    "cold, us",
    "best peer",
    "cold, us",
    "best peer / ours",
)


def write(results: dict[str, Any], folder: Path) -> list[Path]:
    """Write ``gpu.md`` and a plot for each operator into a folder; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "gpu.md"]
    written[0].write_text(markdown(results))
    for name, section in results["sections"].items():
        if any("cold_seconds" in row for row in section["rows"]):
            written.append(folder / f"gpu_{name}.png")
            plot(section["rows"], name, written[-1])
    return written


def markdown(results: dict[str, Any]) -> str:
    """Return the tables as they stand in ``benchmarks/results``."""
    limits = results["limits"]
    rates = ", ".join(f"{dtype} {rate / 1e12:.3g}" for dtype, rate in limits["flops"].items())
    text = [
        "# GPU kernels",
        "",
        _machine(results),
        "",
        f"Copy on the device: {limits['bytes_per_second'] / 1e12:.2f} TB/s read and written. Dense "
        f"products, TFLOP/s: {rates}.",
        "",
        "*Cold*: the second-level cache is flushed before each call; *warm*: calls in a row. Medians, from "
        "CUDA events. *Share of limit*: the time in which every operand could be read once and the result "
        "written, at the rate of the copy, or the operations be done at that of a dense product, over the "
        "cold time. Results were checked against float64.",
        "",
        *_table(SUMMARY_HEADS, summary(results)),
        "",
        *_table(GOAL_HEADS, goals(results)),
    ]
    for name, section in results["sections"].items():
        groups = by_problem(section["rows"])
        text += ["", f"## {name}", "", *_table(_HEADS, [_line(*item) for item in groups.items()])]
        text += ["", *_peers(groups.values()), *_refused(section)]
    return "\n".join(text) + "\n"


def plot(rows: Sequence[Row], operator: str, path: Path) -> None:
    """Draw the best peer's time over ours, cold, for each problem."""
    groups = [(key, found) for key, found in by_problem(rows).items() if ratio(found, [OURS, TILE])]
    labels = [" ".join(str(part) for part in key[1:] if part is not None) for key, _ in groups]
    figure, panel = plt.subplots(figsize=(8, 1.5 + 0.28 * len(groups)))
    for place, (kinds, label) in enumerate(
        (([OURS], "default tiles"), ([OURS, TILE], "best tiles"))
    ):
        values = [ratio(found, kinds) or 0 for _, found in groups]
        places = [index + 0.4 * place for index in range(len(groups))]
        bars = panel.barh(places, values, 0.38, label=label)
        panel.bar_label(bars, fmt="%.2f", fontsize=6)
    panel.axvline(1, color="black", linewidth=0.8)
    panel.set_yticks([index + 0.2 for index in range(len(groups))], labels, fontsize=7)
    panel.invert_yaxis()
    panel.set_title(operator)
    panel.set_xlabel("time of the best peer / ours, cache flushed")
    panel.margins(x=0.15)
    panel.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _machine(results: dict[str, Any]) -> str:
    known = {**results["machine"], **{k: v for k, v in results["libraries"].items() if v}}
    facts = ", ".join(f"{name} {value}" for name, value in known.items())
    missing = [name for name, version in results["libraries"].items() if version is None]
    without = f" Not installed: {', '.join(missing)}." if missing else ""
    return f"{facts}. The run took {results.get('seconds', math.nan):.0f} s.{without}"


def _line(key: tuple, rows: Sequence[Row]) -> list[str]:
    _, problem, features, dtype = key
    ours, tiles, peer = (best(rows, [kind]) for kind in (OURS, TILE, PEER))
    found = ratio(rows, [OURS])
    return [
        problem,
        str(features or "-"),
        dtype,
        ours["contender"] if ours else "-",
        _micros(ours, "cold"),
        _micros(ours, "warm"),
        f"{ours['bound_seconds'] / ours['cold_seconds']:.0%}" if ours else "-",
        tiles["contender"] if tiles else "-",
        _micros(tiles, "cold"),
        peer["contender"] if peer else "-",
        _micros(peer, "cold"),
        f"{found:.2f}" if found else "-",
    ]


def _peers(groups: Iterable[Sequence[Row]]) -> list[str]:
    """Return how often each peer was the fastest."""
    fastest: dict[str, int] = {}
    for rows in groups:
        peer = best(rows, [PEER])
        if peer:
            fastest[peer["contender"]] = fastest.get(peer["contender"], 0) + 1
    listed = ", ".join(f"{name} {count}" for name, count in sorted(fastest.items()))
    return [f"Fastest peer: {listed}.", ""] if listed else []


def _refused(section: dict[str, Any]) -> list[str]:
    """Return what was not measured, and why."""
    reasons: dict[tuple[str, str], int] = {}
    for row in section["rows"]:
        if "refused" in row:
            key = (row["contender"], row["refused"].splitlines()[0])
            reasons[key] = reasons.get(key, 0) + 1
    text = [f"- {name}, {count} times: {why}" for (name, why), count in reasons.items()]
    if section["skipped"]:
        text.append(f"- no time for {len(section['skipped'])} others")
    if "seconds" not in section:
        text.append("- the section did not come to its end")
    return ["Not measured:", "", *text] if text else []


def _micros(row: Row | None, when: str) -> str:
    return f"{row[f'{when}_seconds'] * 1e6:.1f}" if row else "-"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]

"""Tables of a report: Markdown for a file, and rich tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table

__all__ = ["markdown", "tables"]

Rows = list[list[str]]

_RESOURCES = (
    "kernel",
    "threads",
    "registers",
    "stack",
    "spills",
    "shared, B",
    "occupancy",
    "loads",
    "stores",
    "atomics",
    "tensor cores",
    "async copies",
)
_ENTRIES = (
    "kernel",
    "groups",
    "bytes",
    "least",
    "ratio",
    "instructions",
    "least",
    "ratio",
    "of which",
)


def tables(rows: Sequence[dict[str, Any]]) -> list[Table]:
    """Return the tables of a report for the terminal."""
    found = []
    for title, heads, lines in _sections(rows):
        table = Table(*heads, title=title)
        for line in lines:
            table.add_row(*line)
        found.append(table)
    return found


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the report as Markdown."""
    text = ["# CUDA kernels", "", _summary(rows), ""]
    for title, heads, lines in _sections(rows):
        text += [f"## {title}", "", _line(heads), _line(["---"] * len(heads))]
        text += [*map(_line, lines), ""]
    failed = [f"- {_label(row)}: {what}" for row in rows for what in row["failures"]]
    return "\n".join([*text, *(["## Claims that do not hold", "", *failed, ""] if failed else [])])


def _summary(rows: Sequence[dict[str, Any]]) -> str:
    built = sum(bool(row["kernels"]) for row in rows)
    failed = sum(bool(row["failures"]) for row in rows)
    return (
        f"{built} of {len(rows)} cubins built; {failed} with a claim that does not hold. Loads and "
        "stores are instructions by the bits that a thread accesses. Bytes and instructions are "
        "those of one entry in the inner loop, for a warp (see `loops.py` and `bounds.py` in "
        "`benchmarks/cuda_report`)."
    )


def _sections(rows: Sequence[dict[str, Any]]) -> Iterable[tuple[str, Sequence[str], Rows]]:
    for arch, compiler in dict.fromkeys((row["arch"], row["compiler"]) for row in rows):
        chosen = [row for row in rows if (row["arch"], row["compiler"]) == (arch, compiler)]
        of = [(row, facts) for row in chosen for facts in row["kernels"]]
        lines = [_resources(row, facts) for row, facts in of]
        yield f"{arch}, {compiler}: resources", _RESOURCES, lines
        lines = [_entry(row, facts["entry"]) for row, facts in of if "entry" in facts]
        if lines:
            yield f"{arch}, {compiler}: inner loops", _ENTRIES, lines


def _resources(row: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    shared = facts["static_shared"] + facts["dynamic_shared"]
    return [
        _kernel(row, facts),
        str(facts["threads"]),
        str(facts["registers"]),
        str(facts["stack"]),
        str(facts["spill_loads"] + facts["spill_stores"]),
        str(shared),
        f"{facts['occupancy']:.0%}",
        *(_counts(facts[kind]) for kind in ("loads", "stores", "atomics")),
        _counts(facts["tensor_cores"]),
        _counts(facts["async_copies"]),
    ]


def _entry(row: dict[str, Any], entry: dict[str, Any]) -> list[str]:
    kinds = ", ".join(f"{kind} {count:.2f}" for kind, count in entry["kinds"].items())
    return [
        row["name"],
        f"{entry['groups']:.3g}",
        f"{entry['loaded_bytes']:.0f}",
        f"{entry['least_bytes']:.0f}",
        f"{entry['bytes_ratio']:.2f}",
        f"{entry['instructions']:.2f}",
        f"{entry['least_instructions']:.2f}",
        f"{entry['instructions_ratio']:.2f}",
        kinds,
    ]


def _kernel(row: dict[str, Any], facts: dict[str, Any]) -> str:
    several = len(row["kernels"]) > 1
    return f"{row['name']}: {facts['kernel']}" if several else row["name"]


def _label(row: dict[str, Any]) -> str:
    return f"{row['name']}, {row['arch']}, {row['compiler']}"


def _counts(found: dict) -> str:
    return ", ".join(f"{count} x {what}" for what, count in found.items()) or "-"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

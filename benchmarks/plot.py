"""A bar chart of the results: one panel an operator, one group of bars a number of threads."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

__all__ = ["plot"]


def plot(results: dict, path: Path) -> None:
    """Write the geometric means of `results` to a PNG file."""
    summary = results["summary"]
    operators = list(dict.fromkeys(row["operator"] for row in summary))
    figure, panels = plt.subplots(1, len(operators), figsize=(4 * len(operators), 3.5))
    for operator, panel in zip(operators, [panels] if len(operators) == 1 else panels):
        rows = [row for row in summary if row["operator"] == operator]
        names = list(rows[0]["speedups"])
        height = 0.8 / len(rows)
        for position, row in enumerate(rows):
            places = [index + position * height for index in range(len(names))]
            bars = panel.barh(
                places, list(row["speedups"].values()), height, label=f"{row['threads']} threads"
            )
            panel.bar_label(bars, fmt="%.2f", fontsize=7)
        panel.axvline(1, color="black", linewidth=0.8)
        panel.set_yticks([index + 0.4 - height / 2 for index in range(len(names))], names)
        panel.set_title(operator)
        panel.set_xlabel("time of the peer / ours")
        panel.margins(x=0.2)
        panel.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)

"""Tables of what was measured: on the terminal, and in Markdown for ``benchmarks/results``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table

from ..timing import geometric_mean
from .libraries import SORTED
from .measure import OURS

__all__ = ["SECTIONS", "markdown", "tables"]

#: Sections of the benchmark, and what each compares.
SECTIONS = {
    "products": "A A",
    "sums": "sums of matrices",
    "tensors": "tensor kernels and hand-written loops",
    "workspaces": "policies of the workspace",
}
#: Times are doubtful where other processes kept this much of a processor busy.
_BUSY = 0.1
_POLICIES = ("dense", "list", "hash", "sort", "bucket", "merge")

Rows = tuple[list[str], list[list[str]], str]


def tables(results: dict, section: str) -> list[Table]:
    """Return the tables of a section, one for each number of threads."""
    made = []
    for threads, cases in _by_threads(results[section]):
        heads, rows, below = _LAYOUTS[section](cases)
        table = Table(*heads, title=f"{_title(section, threads)}; {_MEANINGS[section]}")
        for row in rows:
            table.add_row(*row)
        table.caption = below
        made.append(table)
    return made


def markdown(results: dict) -> str:
    """Return all sections as they stand in ``benchmarks/results``."""
    parts = []
    for section in SECTIONS:
        for threads, cases in _by_threads(results.get(section, [])):
            heads, rows, below = _LAYOUTS[section](cases)
            lines = [heads, ["---"] * len(heads), *rows]
            table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
            title = _title(section, threads)
            parts.append(f"## {title}\n\n{_MEANINGS[section]}.\n\n{table}\n\n{below}\n")
    return "\n".join(parts)


def _title(section: str, threads: int) -> str:
    name = f"{section.capitalize()}: {SECTIONS[section]}"
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def _by_threads(cases: Sequence[dict]) -> list[tuple[int, list[dict]]]:
    numbers = sorted({case["threads"] for case in cases})
    return [(n, [case for case in cases if case["threads"] == n]) for n in numbers]


# matrices


def _matrices(cases: Sequence[dict]) -> Rows:
    """Peers' times over ours; unsorted peers are compared with our unsorted result, if there is one."""
    unsorted = f"{OURS} unsorted"
    names = [own for own in cases[0]["speedups"] if own != unsorted]
    mixed = unsorted in cases[0]["speedups"]
    last = ["best sorted", "best of all / unsorted"] if mixed else ["best"]
    heads = ["case", "F", "Z", "F/Z", "ms", "MiB", *([unsorted] if mixed else []), *names, *last]

    def ratios(case: dict) -> list[float]:
        found = case["speedups"]
        peers = [own for own in names if own != "plan"]
        best = [min(found[own] for own in peers if own in SORTED or not mixed)]
        if mixed:
            best.append(min(found[own] for own in peers) / found[unsorted])
        return [*([found[unsorted]] if mixed else []), *(found[own] for own in names), *best]

    return _ratio_rows(heads, cases, ratios)


def _ratio_rows(
    heads: list[str], cases: Sequence[dict], ratios: Callable[[dict], list[float]]
) -> Rows:
    """Rows of a case each, and geometric means and least values of the ratios below them."""
    found = [ratios(case) for case in cases]
    rows = [[*_facts(case), *(f"{own:.2f}" for own in line)] for case, line in zip(cases, found)]
    blank = [""] * 5
    columns = list(zip(*found))
    rows.append(["geometric mean", *blank, *(f"{geometric_mean(own):.2f}" for own in columns)])
    rows.append(["least", *blank, *(f"{min(own):.2f}" for own in columns)])
    return heads, rows, _memory(cases)


def _facts(case: dict) -> list[str]:
    return [*_sizes(case), f"{case['seconds'][OURS] * 1e3:.2f}", _mib(case, OURS)]


def _sizes(case: dict) -> list[str]:
    doubt = " (busy)" if case["others_load"] > _BUSY else ""
    ratio = f"{case['F'] / max(1, case['Z']):.1f}"
    return [case["case"] + doubt, f"{case['F']:,}", f"{case['Z']:,}", ratio]


def _mib(case: dict, name: str) -> str:
    peak = case["peak"].get(name)
    return "-" if peak is None else f"{peak / 2**20:.1f}"


def _memory(cases: Sequence[dict]) -> str:
    """Say how the peak memory of the others compares, over the cases where it can be told from noise."""
    least = 8 << 20
    parts = []
    for name in cases[0]["peak"]:
        pairs = [(case["peak"].get(name), case["peak"].get(OURS)) for case in cases]
        known = [(other, own) for other, own in pairs if other and own and own > least]
        if known and name != OURS:
            mean = geometric_mean([other / own for other, own in known])
            parts.append(f"{name} {mean:.2f}")
    return f"Peak memory of a call over ours, geometric means: {', '.join(parts) or 'too small'}."


# tensors


def _tensors(cases: Sequence[dict]) -> Rows:
    names = list(cases[0]["speedups"])
    heads = ["case", "F", "Z", "F/Z", "kernel ms", "MiB", *names]
    return _ratio_rows(heads, cases, lambda case: [case["speedups"][own] for own in names])


# workspaces


def _workspaces(cases: Sequence[dict]) -> Rows:
    heads = ["case", "F", "Z", "F/Z", *(f"{own} ms" for own in _POLICIES), "auto ms", "chosen"]
    heads += ["auto / best", "dense / best sparse", "typical sparse / dense"]
    heads += ["MiB dense", "MiB best sparse", "MiB auto"]
    rows = []
    for case in cases:
        seconds, best_sparse = case["seconds"], _best_sparse(case)
        times = [f"{seconds[p] * 1e3:.3g}" if p in seconds else "-" for p in (*_POLICIES, OURS)]
        best = min(seconds[p] for p in _POLICIES if p in seconds)
        typical = geometric_mean([seconds[p] for p in _SPARSE])
        ratios = [f"{seconds[OURS] / best:.2f}", "-", "-"]
        if "dense" in seconds:
            ratios[1] = f"{seconds['dense'] / seconds[best_sparse]:.2f}"
            ratios[2] = f"{typical / seconds['dense']:.2f}"
        memory = [_mib(case, own) for own in ("dense", best_sparse, OURS)]
        rows.append([*_sizes(case), *times, case["chosen"], *ratios, *memory])
    below = f"Sparse policies are {', '.join(_SPARSE)}; typical is their geometric mean."
    return heads, rows, below


_SPARSE = ("hash", "sort", "bucket", "merge")


def _best_sparse(case: dict) -> str:
    return min((p for p in _SPARSE if p in case["seconds"]), key=case["seconds"].get)


_OVER = "times as multiples of ours, which are sorted; memory as the peak of a call"
_MEANINGS = {
    "products": _OVER,
    "sums": _OVER,
    "tensors": (
        "times as multiples of our compiled kernel on prepared operands; `einsum` is the whole call, "
        "which reads, sorts and checks its operands"
    ),
    "workspaces": "milliseconds of each policy, all generated by us, and of the automatic choice",
}
_LAYOUTS: dict[str, Callable[[Sequence[dict]], Rows]] = {
    "products": _matrices,
    "sums": _matrices,
    "tensors": _tensors,
    "workspaces": _workspaces,
}

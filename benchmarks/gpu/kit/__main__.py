"""Measure everything on the GPU of this machine; see ``--help``. ``run.sh`` starts it.

Each section runs in a process of its own: a kernel that crashes or hangs takes only itself away, since a
new process goes on behind it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from .graphs import SHAPES, TINY, Graph, power_law, read_graph, read_graphs, write_graph
from .library import Kernels, Libraries
from .machine import Gpu, Host, Machine
from .run import SECTIONS, Plan, Run, read_results, write_results
from .table import lines

FOLDER = Path(__file__).resolve().parents[1]
#: Sections are started again this often after crashes.
_TRIES = 5
#: Seconds that a process may take beyond its time before it is ended.
_GRACE = 25.0
#: Seconds after which a contender hangs; Triton's tuner takes half a minute.
_MOST_SECONDS = 75.0
TINY_PLAN = Plan(
    seconds=40.0,
    each=0.002,
    product=64,
    features=(32, 17),
    block_features=(64,),
    blocks=((96, 16, 0.3),),
    scattered=((70, 0.1),),
)


def main(
    arguments: Sequence[str] | None = None,
    machine: Machine | None = None,
    kernels: Kernels | None = None,
) -> int:
    """Run; everything happens in this process if `kernels` are given."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parse(given)
    if options.part:
        _measure(options, options.part, options.until, machine, kernels)
        return 0

    def here(part: str, until: float) -> int:
        _measure(options, part, until, machine, kernels)
        return 0

    def apart(part: str, until: float) -> int:
        return _in_process([*given, "--part", part, "--until", str(until)], until)

    options.out.unlink(missing_ok=True)
    begin = time.time()
    whole = _all_parts(options, begin, here if kernels is not None else apart)
    results = read_results(options.out)
    results["seconds"] = time.time() - begin
    write_results(options.out, results)
    if "limits" in results:
        print("\n".join(lines(results)))
    print(f"results: {options.out}; {results['seconds']:.0f} s")
    return 0 if whole else 1


def _all_parts(
    options: argparse.Namespace, begin: float, start: Callable[[str, float], int]
) -> bool:
    """Start one part after another; return whether all came to their end."""
    seconds = options.seconds or _plan(options).seconds
    if start("machine", begin + seconds):
        return False
    pending = options.sections or list(SECTIONS)
    whole = True
    while pending:
        name, share = pending[0], sum(SECTIONS[own] for own in pending)
        now = time.time()
        until = now + (begin + seconds - now) * SECTIONS[name] / share
        pending = pending[1:]
        for _ in range(_TRIES):
            if start(name, until) == 0:
                break
            _note_crash(options.out, name)
        else:
            whole = False
    return whole


def _in_process(arguments: list[str], until: float) -> int:
    command = [sys.executable, "-m", "kit", *arguments]
    try:
        allowed = max(until - time.time(), 0.0) + _GRACE
        return subprocess.run(command, cwd=FOLDER, timeout=allowed, check=False).returncode
    except subprocess.TimeoutExpired:
        return 1


def _note_crash(path: Path, name: str) -> None:
    """Enter what ran when a process ended, so that the next one leaves it out."""
    results = read_results(path)
    section = results["sections"].setdefault(name, {"rows": [], "skipped": []})
    if "next" in section:
        section["rows"].append(section.pop("next"))
    write_results(path, results)


def _measure(
    options: argparse.Namespace,
    part: str,
    until: float,
    machine: Machine | None,
    kernels: Kernels | None,
) -> None:
    """Measure the machine or a section."""
    machine = machine or (Host() if options.host else Gpu())
    kernels = kernels or Libraries(FOLDER)
    most = _MOST_SECONDS if options.part else None
    run = Run(machine, kernels, lambda: _graphs(options), _plan(options), options.out, most)
    if part == "machine":
        run.measure_machine()
    else:
        run.measure_section(part, until)


def _plan(options: argparse.Namespace) -> Plan:
    plan = TINY_PLAN if options.tiny else Plan()
    return plan if options.seconds is None else replace(plan, seconds=options.seconds)


def _graphs(options: argparse.Namespace) -> Iterator[Graph]:
    names = options.graphs or (list(TINY) if options.tiny else None)
    yield from read_graphs(FOLDER / "graphs", names)
    for name, shape in {**TINY, **SHAPES}.items():
        if name in (names or SHAPES):
            kept = FOLDER / "made" / f"{name}.npz"
            if not kept.exists():
                write_graph(kept, power_law(name, *shape))
            yield read_graph(kept)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=FOLDER / "results.json", help="file of the results")
    add("--seconds", type=float, help="for the whole run (default: 440)")
    add("--sections", nargs="+", choices=list(SECTIONS), help="default: all")
    add("--graphs", nargs="+", help="names of graphs (default: all)")
    add("--tiny", action="store_true", help="small problems, to try the script")
    add("--host", action="store_true", help="NumPy instead of a GPU, to try the script")
    add("--part", choices=["machine", *SECTIONS], help=argparse.SUPPRESS)
    add("--until", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.out = options.out.resolve()
    return options


if __name__ == "__main__":
    sys.exit(main())

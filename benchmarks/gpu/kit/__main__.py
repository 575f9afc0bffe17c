"""Measure everything on the GPU of this machine; see ``--help``. ``run.sh`` starts it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from .graphs import SHAPES, TINY, Graph, power_law, read_graphs
from .library import Kernels, Libraries
from .machine import Gpu, Host, Machine
from .run import SECTIONS, Plan, Run
from .table import lines

FOLDER = Path(__file__).resolve().parents[1]
TINY_PLAN = Plan(
    seconds=40.0,
    each=0.002,
    product=64,
    features=(32, 17),
    block_features=(64,),
    blocks=((96, 16, 0.3),),
)


def main(
    arguments: Sequence[str] | None = None,
    machine: Machine | None = None,
    kernels: Kernels | None = None,
) -> int:
    """Run; `machine` and `kernels` are found here unless they are given."""
    options = _parse(arguments)
    plan = TINY_PLAN if options.tiny else Plan()
    if options.seconds is not None:
        plan = replace(plan, seconds=options.seconds)
    machine = machine or (Host() if options.host else Gpu())
    kernels = kernels or Libraries(FOLDER)
    names = options.graphs or (TINY if options.tiny else None)

    def graphs() -> Iterator[Graph]:
        yield from read_graphs(FOLDER / "graphs", names)
        for name, shape in {**TINY, **SHAPES}.items():
            if name in (names or SHAPES):
                if name not in made:
                    made[name] = power_law(name, *shape)
                yield made[name]

    made: dict[str, Graph] = {}
    run = Run(machine, kernels, graphs, plan, options.out)
    results = run.all(options.sections or tuple(SECTIONS))
    print("\n".join(lines(results)))
    print(f"results: {options.out}; {results['seconds']:.0f} s")
    failed = [name for name, section in results["sections"].items() if "failed" in section]
    return int(bool(failed))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=Path("results.json"), help="file of the results")
    add("--seconds", type=float, help="for the whole run (default: 440)")
    add("--sections", nargs="+", choices=list(SECTIONS), help="default: all")
    add("--graphs", nargs="+", help="names of graphs (default: all)")
    add("--tiny", action="store_true", help="small problems, to try the script")
    add("--host", action="store_true", help="NumPy instead of a GPU, to try the script")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

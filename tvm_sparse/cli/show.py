"""Print any stage of a program in a Python file."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

from tvm import tirx
from tvm.ir import IRModule

from ..ir import SparseFunc
from ..runtime import compile
from ..script.printer import print_module
from ..transform import LowerSparseBuffer, LowerSparseIteration
from ..transform._layout import LAYOUT_ATTR

__all__ = ["add_parser", "run"]


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "program", metavar="PROGRAM.py:name", help="file, which is run, and name of the program"
    )
    parser.add_argument(
        "--stage",
        default="1",
        choices=["1", "2", "3", "source"],
        help="1 coordinates, 2 positions, 3 loops, source: generated code",
    )
    parser.add_argument("--target", default="llvm", help="target of --stage source")


def run(arguments: argparse.Namespace) -> int:
    """Print the stage."""
    print(render(load_program(arguments.program), arguments.stage, arguments.target))
    return 0


def load_program(reference: str) -> SparseFunc | tirx.PrimFunc | IRModule:
    """Run the file of ``PROGRAM.py:name`` and return what the name is bound to.

    A function without parameters is called, and its result taken.

    Raises
    ------
    ValueError
        If the file or name does not exist, or is no program.
    """
    path, separator, name = reference.rpartition(":")
    if not separator or not path or not name:
        raise ValueError(f"program: expected PROGRAM.py:name, found {reference!r}")
    if not Path(path).is_file():
        raise ValueError(f"program: no file {path!r}")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"program: running {path!r} failed: {error}") from error
    program: Any = getattr(module, name, None)
    if inspect.isfunction(program):
        program = program()
    if not isinstance(program, SparseFunc | tirx.PrimFunc | IRModule):
        known = [k for k, v in vars(module).items() if isinstance(v, SparseFunc | IRModule)]
        raise ValueError(f"program: {name!r} is no program in {path}; found {known}")
    return program


def render(program: SparseFunc | tirx.PrimFunc | IRModule, stage: str, target: str = "llvm") -> str:
    """Return the text of a program at a stage."""
    if stage == "source":
        return compile(program, target).inspect_source("ll")
    module = (
        program
        if isinstance(program, IRModule)
        else IRModule({program.name: program})
        if (isinstance(program, SparseFunc))
        else IRModule.from_expr(program)
    )
    if stage == "1":
        return print_module(module)
    module = LowerSparseIteration()(module)
    if stage == "3":
        module = LowerSparseBuffer()(module)
    bare = IRModule(
        {
            var: func.without_attr(LAYOUT_ATTR) if isinstance(func, tirx.PrimFunc) else func
            for var, func in module.functions.items()
        }
    )
    return bare.script()

"""The command line: one module a command, each with ``add_parser`` and ``run``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata

from . import info, show, tune

__all__ = ["main"]

_COMMANDS = {"tune": tune, "show": show, "info": info}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; those of the process by default.

    Returns
    -------
    int
        Exit status: 0, or 2 for bad input (the reason is printed in one line).
    """
    parser = argparse.ArgumentParser(
        prog="tvm-sparse", description="Tune, show and inspect sparse kernels."
    )
    version = metadata.version("tvm_sparse")
    parser.add_argument("--version", action="version", version=f"tvm_sparse {version}")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module in _COMMANDS.items():
        module.add_parser(commands.add_parser(name, help=(module.__doc__ or "").splitlines()[0]))
    arguments = parser.parse_args(argv)
    try:
        return _COMMANDS[arguments.command].run(arguments)
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        sys.stdout = None
        return 0
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        print(f"tvm-sparse {arguments.command}: {error}", file=sys.stderr)
        return 2

"""Find the iterations of a stage-I function, and put others in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import tvm_ffi
from tvm import tirx
from tvm.ir import Var

from ..errors import SparseProgramError
from ..ir import Axis, SparseFunc, SparseIteration
from ..ir.statements import in_sequence

__all__ = [
    "axis_title",
    "find_iteration",
    "iterations_of",
    "position_of_iterator",
    "replace_iteration",
    "with_fields",
]


def iterations_of(node: tvm_ffi.Object) -> list[SparseIteration]:
    """Return all iterations inside a function or statement, outer ones first."""
    found: list[SparseIteration] = []
    root = node.body if isinstance(node, SparseFunc) else node
    tvm_ffi.structural_walk(root, [(SparseIteration, found.append)])
    return found


def find_iteration(func: SparseFunc, name: str) -> SparseIteration:
    """Return the one iteration of this name.

    Raises
    ------
    SparseProgramError
        If there is none, or more than one.
    """
    found = iterations_of(func)
    matches = [it for it in found if it.name == name]
    if len(matches) == 1:
        return matches[0]
    names = ", ".join(it.name for it in found) or "none"
    problem = "no sparse iteration" if not matches else f"{len(matches)} sparse iterations"
    raise SparseProgramError(f"function {func.name}: {problem} named {name!r}; found {names}")


def replace_iteration(
    func: SparseFunc, old: SparseIteration, new: tirx.Stmt | Sequence[tirx.Stmt]
) -> SparseFunc:
    """Return the function with another statement, or several, in place of an iteration."""
    stmt = new if isinstance(new, tirx.Stmt) else in_sequence(new)

    def exchange(node: SparseIteration) -> tirx.Stmt:
        return stmt if node.same_as(old) else node

    return func.with_body(tvm_ffi.structural_map(func.body, [(SparseIteration, exchange)]))


def with_fields(iteration: SparseIteration, **fields) -> SparseIteration:
    """Return the iteration with some fields changed."""
    kept = {
        name: getattr(iteration, name)
        for name in ("axes", "kinds", "iter_vars", "body", "init", "name", "annotations", "span")
    }
    return SparseIteration(**{**kept, **fields})


def position_of_iterator(iteration: SparseIteration, name: str, label: str) -> int:
    """Return which iterator has this name.

    Raises
    ------
    SparseProgramError
        If none or several have it.
    """
    names = [var.name for var in iteration.iter_vars]
    if names.count(name) != 1:
        raise SparseProgramError(
            f"{label}: expected one of the iterators {', '.join(names)}, found {name!r}"
        )
    return names.index(name)


def axis_title(axis: Axis, variables: Iterable[Var]) -> str:
    """Return an axis and its iterators for messages: ``J (iterator j)``."""
    names = ", ".join(var.name for var in variables)
    return f"{axis.name} (iterator {names})"


def walk(node: tvm_ffi.Object, kind: type, visit: Callable) -> None:
    """Call ``visit`` for every node of a kind."""
    tvm_ffi.structural_walk(node, [(kind, lambda found: visit(found) and None)])

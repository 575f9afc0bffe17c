"""Detection: how many dimensions a temporary of a sparse result needs, and which.

Comes in: the order of the loops and the order in which the levels of the result are stored. Goes out:
whether entries may be appended as they are produced, summed in a scalar first, or scatter, so that a
workspace must collect them, and over which variables.

The rule is that of Zhang, Hsu and Kjolstad, "Compilation of Modular and General Sparse Workspaces",
PLDI 2024: a level may be shared with the loops as long as loops and levels agree from outside, and lie
outside of every reduction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import SparseProgramError

__all__ = ["Detection", "Fuse", "Position", "Split", "detect", "undo_scheduling"]


@dataclass(frozen=True)
class Detection:
    """How the entries of a result come about.

    Attributes
    ----------
    strategy : {"insert", "append", "scalar", "workspace"}
        ``"insert"``: every level takes entries at any place, nothing is needed. ``"append"``: entries
        come in order, once each. ``"scalar"``: in order, but several terms one after another.
        ``"workspace"``: in any order, or several times.
    hoisted : tuple of str
        Variables of the outer levels that loops and result share, outermost first.
    workspace : tuple of str
        Variables of the workspace, in the order of the loops.
    permutation : tuple of int
        For each workspace variable, which of the remaining levels of the result it is.
    accumulates : bool
        Whether several terms meet at one place; otherwise a sort does.
    """

    strategy: str
    hoisted: tuple[str, ...]
    workspace: tuple[str, ...]
    permutation: tuple[int, ...]
    accumulates: bool

    @property
    def order(self) -> int:
        """Number of dimensions of the workspace."""
        return len(self.workspace)


def detect(
    loops: Sequence[str],
    result: Sequence[str],
    *,
    levels: Mapping[str, str] | None = None,
    unordered: Sequence[str] = (),
) -> Detection:
    """Detect what a result needs.

    Parameters
    ----------
    loops : sequence of str
        Variables of the loops, outermost first, splits and fusions undone (:func:`undo_scheduling`).
    result : sequence of str
        Variables of the result in the order of its levels, outermost first.
    levels : dict of str to str, optional
        Kind of a level by its variable: ``"compressed"``, the default, takes entries in order only;
        ``"dense"`` and ``"hashed"`` take them anywhere.
    unordered : sequence of str
        Loops that may visit their coordinates out of order, or one of them several times.

    Returns
    -------
    Detection
        What it needs.

    Raises
    ------
    SparseProgramError
        If a variable of the result is no loop, or one is named twice.

    Examples
    --------
    Row by row a product needs a workspace of one dimension, as an outer product one of two.

    >>> detect(["i", "k", "j"], ["i", "j"]).workspace
    ('j',)
    >>> detect(["k", "i", "j"], ["i", "j"]).workspace
    ('i', 'j')
    >>> detect(["i", "j", "k"], ["i", "j"]).strategy
    'scalar'
    """
    for what, names in (("loops", loops), ("result", result)):
        if len(set(names)) != len(names):
            raise SparseProgramError(
                f"{what}: expected each variable once, found {', '.join(names)}"
            )
    missing = [var for var in result if var not in loops]
    if missing:
        raise SparseProgramError(
            f"result: expected variables of the loops ({', '.join(loops)}), found {', '.join(missing)}"
        )
    levels = dict(levels or {})
    reduced = [var for var in loops if var not in result]
    if all(levels.get(var, "compressed") != "compressed" for var in result):
        return Detection("insert", tuple(result), (), (), bool(reduced))
    produced = [var for var in loops if var in result]
    outside = produced if not reduced else loops[: loops.index(reduced[0])]
    shared = 0
    for var, level, outer in zip(produced, result, outside):
        is_open = levels.get(var, "compressed") != "compressed"
        if not (var == level == outer) or (var in unordered and not is_open):
            break
        shared += 1
    rest, left = produced[shared:], list(result[shared:])
    accumulates = bool(reduced) or any(var in unordered for var in rest)
    if not rest:
        strategy = "scalar" if reduced else "append"
        return Detection(strategy, tuple(result), (), (), bool(reduced))
    permutation = tuple(left.index(var) for var in rest)
    return Detection("workspace", tuple(result[:shared]), tuple(rest), permutation, accumulates)


@dataclass(frozen=True)
class Split:
    """Variable ``of`` was split into an outer and an inner one."""

    of: str
    outer: str
    inner: str


@dataclass(frozen=True)
class Fuse:
    """Two neighbouring variables were fused into one."""

    outer: str
    inner: str
    into: str


@dataclass(frozen=True)
class Position:
    """Variable ``of`` is iterated by its positions, ``into``."""

    of: str
    into: str


def undo_scheduling(
    loops: Sequence[str], steps: Sequence[Split | Fuse | Position], reduced: Sequence[str]
) -> list[str]:
    """Return the loops over original variables that scheduled loops stand for.

    Parameters
    ----------
    loops : sequence of str
        Scheduled variables, outermost first.
    steps : sequence of Split, Fuse or Position
        What was done, oldest first.
    reduced : sequence of str
        Variables that are reduced: a split one counts where its outer part is, others where their inner
        part is.

    Raises
    ------
    SparseProgramError
        If a step names a variable that is not there.

    Examples
    --------
    >>> steps = [Fuse("i", "k", "f"), Position("f", "p"), Split("p", "p0", "p1")]
    >>> undo_scheduling(["p0", "p1", "j"], steps, ["k"])
    ['i', 'k', 'j']
    """
    order = list(loops)

    def place(var: str, step) -> int:
        if var not in order:
            raise SparseProgramError(
                f"{step}: expected {var} among the loops {', '.join(order)}, found it not"
            )
        return order.index(var)

    for number in reversed(range(len(steps))):
        step = steps[number]
        if isinstance(step, Position):
            order[place(step.into, step)] = step.of
        elif isinstance(step, Fuse):
            at = place(step.into, step)
            order[at : at + 1] = [step.outer, step.inner]
        else:
            outer, inner = sorted((place(step.outer, step), place(step.inner, step)))
            kept = outer if _holds_reduction(step.of, steps[:number], reduced) else inner
            order[kept] = step.of
            del order[inner if kept == outer else outer]
    return order


def _holds_reduction(var: str, steps: Sequence, reduced: Sequence[str]) -> bool:
    """Whether a variable is reduced, or was made of one that is."""
    made = {var}
    for step in reversed(steps):
        if isinstance(step, Fuse) and step.into in made:
            made |= {step.outer, step.inner}
        elif isinstance(step, Position) and step.into in made:
            made.add(step.of)
        if isinstance(step, Split) and {step.outer, step.inner} & made:
            made.add(step.of)
    return bool(made & set(reduced))

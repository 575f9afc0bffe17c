"""The control flow of a kernel: which instructions run, and which make loops.

Blocks of instructions and the branches between them are the graph; a branch to a block that dominates its
own closes a loop, of what can reach the branch without passing through the loop's first block (natural
loops). Code that runs only where lanes of a warp have diverged at a shuffle (``BRA.DIV``) is left out: it
stands out of line and does the same lane by lane.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from .sass import Instruction

__all__ = ["Path", "busiest_paths", "running"]

Block = list[Instruction]
Weight = Callable[[Instruction], int]


def running(code: Sequence[Instruction]) -> list[Instruction]:
    """Return the instructions that run in warps that have not diverged."""
    blocks, successors = _graph(code)
    return [one for number in sorted(_reached(successors)) for one in blocks[number]]


@dataclass(frozen=True)
class Path:
    """Instructions that run one after another, a way to them, and whether they are the round of a loop."""

    before: list[Instruction]
    body: list[Instruction]
    repeats: bool


def busiest_paths(code: Sequence[Instruction], weight: Weight) -> list[Path]:
    """Return what runs in a round of each innermost loop, and what runs outside of loops.

    Where there are several ways, such as one for what lies beyond the end of the data, it is the one whose
    instructions weigh most together, and of two that weigh as much the shorter. Outside of loops only what
    runs instead of a loop with weight counts, since what runs before or after one is what it left over.

    Parameters
    ----------
    code : sequence of Instruction
        A kernel.
    weight : callable
        Of an instruction.
    """
    blocks, successors = _graph(code)
    loops = _natural_loops(successors)
    inner = {
        first: body
        for first, body in loops.items()
        if not any(other in body for other in loops if other != first)
    }
    backward = {(number, first) for first, body in loops.items() for number in body}
    forward = {
        number: {each for each in successors[number] if (number, each) not in backward}
        for number in _reached(successors)
    }
    paths = []
    for first, body in sorted(inner.items()):
        own = {number: forward[number] & body for number in body}
        way = _busiest(blocks, own, first, frozenset(), weight)
        paths.append(_path(blocks, forward, way, True))
    looped = frozenset().union(*loops.values())
    heavy = [number for number in looped if any(map(weight, blocks[number]))]
    beside = looped | _in_line_with(forward, heavy)
    straight = _busiest(blocks, forward, 0, beside, weight)
    if any(weight(one) for number in straight for one in blocks[number]):
        paths.append(_path(blocks, forward, straight, False))
    return paths


def _path(
    blocks: Sequence[Block], forward: Mapping[int, set[int]], way: Sequence[int], repeats: bool
) -> Path:
    before = [one for number in _way_to(forward, way[0]) for one in blocks[number]]
    return Path(before, [one for number in way for one in blocks[number]], repeats)


def _in_line_with(forward: Mapping[int, set[int]], chosen: Collection[int]) -> set[int]:
    """Return the blocks that a way leads to from one of some blocks, or from which one leads to them."""
    backward: dict[int, set[int]] = {number: set() for number in forward}
    for number, following in forward.items():
        for each in following:
            backward[each].add(number)
    found: set[int] = set()
    for edges in (forward, backward):
        pending, entered = list(chosen), set()
        while pending:
            number = pending.pop()
            if number not in entered:
                entered.add(number)
                pending += edges[number]
        found |= entered
    return found


def _way_to(forward: Mapping[int, set[int]], last: int) -> list[int]:
    """Return the blocks of a shortest way from the first block to another, without the other."""
    came_from = {0: -1}
    pending = [0]
    for number in pending:
        for each in forward[number]:
            if each not in came_from:
                came_from[each] = number
                pending.append(each)
    way, number = [], came_from[last]
    while number >= 0:
        way.append(number)
        number = came_from[number]
    return way[::-1]


def _busiest(
    blocks: Sequence[Block],
    forward: Mapping[int, set[int]],
    first: int,
    passed: frozenset[int],
    weight: Weight,
) -> list[int]:
    """Return the heaviest way through a graph without circles, without the blocks that are `passed`."""
    own = {
        number: (0, 0)
        if number in passed
        else (sum(map(weight, blocks[number])), -len(blocks[number]))
        for number in forward
    }
    found: dict[int, tuple[int, int]] = {}
    then: dict[int, int] = {}
    for number in _backwards(forward, first):
        follow = max(forward[number], key=lambda each: found[each], default=None)
        ahead = (0, 0) if follow is None else found[follow]
        found[number] = (own[number][0] + ahead[0], own[number][1] + ahead[1])
        if follow is not None:
            then[number] = follow
    path, number = [], first
    while number is not None:
        path += [] if number in passed else [number]
        number = then.get(number)
    return path


def _backwards(forward: Mapping[int, set[int]], first: int) -> list[int]:
    """Return the blocks that are reached, each after all that may follow it."""
    order: list[int] = []
    entered: set[int] = set()
    pending = [(first, False)]
    while pending:
        number, is_done = pending.pop()
        if is_done:
            order.append(number)
        elif number not in entered:
            entered.add(number)
            pending.append((number, True))
            pending += [(each, False) for each in forward[number]]
    return order


def _graph(code: Sequence[Instruction]) -> tuple[list[Block], list[set[int]]]:
    """Return blocks, and the blocks that may follow each."""
    begins = {code[0].place} if code else set()
    for one, following in zip(code, [*code[1:], None]):
        if one.name in ("BRA", "EXIT", "RET") and following is not None:
            begins.add(following.place)
        if one.target is not None:
            begins.add(one.target)
    blocks: list[Block] = []
    for one in code:
        if one.place in begins:
            blocks.append([])
        blocks[-1].append(one)
    number_of = {block[0].place: number for number, block in enumerate(blocks)}
    successors = []
    for number, block in enumerate(blocks):
        last, follow = block[-1], set()
        diverges = "DIV" in last.modifiers
        if last.target in number_of and not diverges:
            follow.add(number_of[last.target])
        ends = last.name in ("BRA", "EXIT", "RET") and not last.predicate and not diverges
        # A predicate in front of the operands of an unconditional branch makes it conditional.
        conditional = last.name == "BRA" and len(last.operands) > 1
        if (not ends or conditional) and number + 1 < len(blocks):
            follow.add(number + 1)
        successors.append(follow)
    return blocks, successors


def _reached(successors: Sequence[set[int]]) -> set[int]:
    found, pending = set(), [0] if successors else []
    while pending:
        number = pending.pop()
        if number not in found:
            found.add(number)
            pending += successors[number]
    return found


def _natural_loops(successors: Sequence[set[int]]) -> dict[int, set[int]]:
    """Return the blocks of each loop by its first block."""
    reached = _reached(successors)
    before: dict[int, set[int]] = {number: set() for number in reached}
    for number in reached:
        for following in successors[number]:
            before[following].add(number)
    dominators = _dominators(reached, before)
    loops: dict[int, set[int]] = {}
    for number in reached:
        for first in successors[number] & dominators[number]:
            body = loops.setdefault(first, {first})
            pending = [number]
            while pending:
                block = pending.pop()
                if block not in body:
                    body.add(block)
                    pending += before[block]
    return loops


def _dominators(reached: set[int], before: dict[int, set[int]]) -> dict[int, set[int]]:
    """Return for each block those that every way to it passes through, itself among them."""
    found = {number: set(reached) for number in reached}
    found[0] = {0}
    changed = True
    while changed:
        changed = False
        for number in sorted(reached - {0}):
            own = {number}.union(set.intersection(*(found[each] for each in before[number])))
            if own != found[number]:
                found[number], changed = own, True
    return found

"""The control flow of a kernel: which instructions run, and which make loops.

Blocks of instructions and the branches between them are the graph; a branch to a block that dominates its
own closes a loop, of what can reach the branch without passing through the loop's first block (natural
loops). Code that runs only where lanes of a warp have diverged at a shuffle (``BRA.DIV``) is left out: it
stands out of line and does the same lane by lane.
"""

from __future__ import annotations

from collections.abc import Sequence

from .sass import Instruction

__all__ = ["innermost_loops", "running", "straight_runs"]

Block = list[Instruction]


def running(code: Sequence[Instruction]) -> list[Instruction]:
    """Return the instructions that run in warps that have not diverged."""
    blocks, successors = _graph(code)
    return [one for number in sorted(_reached(successors)) for one in blocks[number]]


def innermost_loops(code: Sequence[Instruction]) -> list[list[Instruction]]:
    """Return the instructions of each loop that holds no other loop, in their order."""
    blocks, successors = _graph(code)
    loops = _natural_loops(successors)
    inner = [
        body
        for first, body in loops.items()
        if not any(other in body for other in loops if other != first)
    ]
    return [[one for number in sorted(body) for one in blocks[number]] for body in inner]


def straight_runs(code: Sequence[Instruction]) -> list[list[Instruction]]:
    """Return the longest runs of instructions that follow each other without a choice."""
    blocks, successors = _graph(code)
    reached = _reached(successors)
    before: dict[int, list[int]] = {number: [] for number in reached}
    for number in reached:
        for following in successors[number]:
            before[following].append(number)
    alone = {
        number: before[number][0]
        for number in reached
        if len(before[number]) == 1 and len(successors[before[number][0]]) == 1
    }
    runs: dict[int, list[Instruction]] = {}
    for number in sorted(reached):
        first = number
        while first in alone and alone[first] < first:
            first = alone[first]
        runs.setdefault(first, []).extend(blocks[number])
    return list(runs.values())


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

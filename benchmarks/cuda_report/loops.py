"""The inner loop over entries of a kernel, and what one entry costs in it: bytes and instructions.

In: the instructions of a kernel. Out: for the innermost loop that gathers rows of a dense operand,
counts for one warp and one entry of the sparse operand. Of a loop with branches the way counts that does
most arithmetic. Where a kernel has several such loops (the compiler unrolls, and adds a loop for what is
left over), the one that does most is the inner loop; what the compiler unrolled as a whole, outside of
loops, counts like a loop of one round, from its first load behind the last barrier.

Which load is which follows from where its address comes from:

- its address depends on a value loaded in the loop: it *gathers* a row of a dense operand;
- its value goes into the address of another load of the loop: it loads an *index*;
- otherwise it is a *stream*: values, or rows that change with the loop alone.

A load whose address depends on ``threadIdx.x`` fetches different bytes in each of the 32 lanes of the warp.
Another fetches the same in all lanes of a row group, the lanes with one ``threadIdx.y``, so its bytes count
once a group; a block that is ``x`` threads wide has ``32 / x`` groups in a warp, at least one. A warp of a
block whose width does not divide 32 has parts of groups, which count as parts.
Indices are counted to know how many entries a round of the loop takes (unrolled loops take several), and
multiplications to know how many features of an entry: where those are fewer than the kernel's width, the
loop runs over each entry several times, and all counts are taken as often. Predicated instructions count in
full, also where lanes beyond the width are switched off.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .flow import Path, busiest_paths
from .sass import Instruction

__all__ = ["EntryCost", "entry_cost"]

_WARP = 32
_REGISTER = re.compile(r"\b(U?R)(\d+)(\.64)?")
_LANE_SOURCES = ("SR_TID.X", "SR_LANEID")
_LANE = "lane"
#: Multiplications of an instruction.
_MULTIPLIES = {"FFMA": 1, "FMUL": 1, "DFMA": 1, "DMUL": 1, "HFMA2": 2, "HMUL2": 2}
_SHUFFLES = ("SHFL", "REDUX")
_FLOAT_ADDS = ("FADD", "DADD", "HADD2")
_CONTROL = (
    "BRA",
    "BSSY",
    "BSYNC",
    "ISETP",
    "PLOP3",
    "EXIT",
    "NOP",
    "WARPSYNC",
    "BREAK",
    "CALL",
    "RET",
)
_CONVERSIONS = ("F2F", "F2FP", "PRMT", "I2F", "F2I")
_WRITES_NOTHING = ("STG", "STS", "STL", "RED", "REDG", "BRA", "EXIT", "BAR", "BSSY", "BSYNC", "NOP")

Taints = dict[str, frozenset]


@dataclass(frozen=True)
class EntryCost:
    """What one entry costs a warp in the inner loop.

    Parameters
    ----------
    entries : float
        Entries that a warp takes in one round of the loop.
    groups : float
        Row groups of a warp: entries that it has in hand at a time, on average.
    passes : float
        How often the loop runs over an entry to cover all features.
    loaded_bytes : float
        Different bytes that the warp loads for an entry.
    instructions : float
        Instructions that the warp issues for an entry.
    kinds : dict of str to float
        The same by kind: ``load``, ``store``, ``multiply``, ``add``, ``convert``, ``shuffle``,
        ``control`` (branches and comparisons) and ``integer`` (addresses and counters).
    """

    entries: float
    groups: float
    passes: float
    loaded_bytes: float
    instructions: float
    kinds: dict[str, float]


def entry_cost(
    code: Sequence[Instruction], threads_x: int, features: int, index_bytes: int
) -> EntryCost | None:
    """Return the costs of an entry.

    Parameters
    ----------
    code : sequence of Instruction
        A kernel.
    threads_x : int
        Threads of a block along x.
    features : int
        Width of the dense operands.
    index_bytes : int
        Size of an index.

    Returns
    -------
    EntryCost or None
        None where no load gathers.
    """
    groups = max(1.0, _WARP / threads_x)
    found = [
        _path_cost(path if path.repeats else _from_first_load(path), groups, features, index_bytes)
        for path in busiest_paths(code, _multiplies)
    ]
    costs = [cost for cost in found if cost is not None]
    return max(costs, key=lambda cost: (cost[0], -cost[1].instructions), default=(0, None))[1]


def _from_first_load(path: Path) -> Path:
    """Set what comes before the first load behind the last barrier apart: searches, pointers of rows."""
    straight = path.body
    begin = max((number for number, one in enumerate(straight) if one.name == "BAR"), default=0)
    loads = (number for number, one in enumerate(straight) if one.is_global_load)
    first = next((number for number in loads if number >= begin), begin)
    return Path(path.before + straight[:first], straight[first:], False)


def _path_cost(
    path: Path, groups: float, features: int, index_bytes: int
) -> tuple[float, EntryCost] | None:
    """Return multiplications in a round, and the cost of an entry; None where no load gathers."""
    region = path.body
    sources = _address_sources(path)
    loads = {one.place: one for one in region if one.is_global_load}
    indices = {place for taints in sources.values() for place in taints if place in loads}
    multiplies = sum(_multiplies(one) for one in region)
    if not indices or not multiplies:
        return None
    distinct = {place: _WARP if _LANE in sources[place] else groups for place in loads}
    entries = sum(loads[place].bits / 8 / index_bytes * distinct[place] for place in indices)
    passes = max(1.0, features * entries / (_WARP * multiplies))
    scale = passes / entries
    loaded = sum(one.bits / 8 * distinct[place] for place, one in loads.items())
    kinds = Counter(_kind(one) for one in region)
    cost = EntryCost(
        entries,
        groups,
        passes,
        loaded * scale,
        len(region) * scale,
        {kind: count * scale for kind, count in sorted(kinds.items())},
    )
    return multiplies, cost


def _address_sources(path: Path) -> dict[int, frozenset]:
    """Return, by the place of each load of a path, what its address depends on.

    That is :data:`_LANE`, and the places of loads of the path.
    """
    region = path.body
    inside = {one.place for one in region}
    state: Taints = {}
    for one in path.before:
        _flow(one, state, inside)
    found: dict[int, frozenset] = {}
    for _ in range(
        2 if path.repeats else 1
    ):  # the second round sees what the first leaves in registers
        for one in region:
            if one.is_global_load:
                found[one.place] = _joined(state, _registers(one.operands[1:]))
            _flow(one, state, inside)
    return found


def _flow(one: Instruction, state: Taints, inside: set[int]) -> None:
    """Carry what registers depend on over an instruction."""
    if one.name == "STL":
        state[one.operands[0]] = _joined(state, _registers(one.operands[1:]))
    if one.name in _WRITES_NOTHING or not one.operands:
        return
    taints = _joined(state, _sources(one))
    if any(operand in _LANE_SOURCES for operand in one.operands):
        taints |= {_LANE}
    if one.name == "LDL":
        taints |= state.get(one.operands[1], frozenset())
    if one.is_global_load:
        taints |= {one.place} if one.place in inside else set()
    # A move under a condition may leave what was there; loads and addresses are used under the same one.
    is_kept = one.predicate and not one.is_global_load and "WIDE" not in one.modifiers
    for register in _destinations(one):
        kept = state.get(register, frozenset()) if is_kept else frozenset()
        state[register] = taints | kept


def _joined(state: Mapping[str, frozenset], registers: Iterator[str]) -> frozenset:
    return frozenset().union(*(state.get(register, frozenset()) for register in registers))


def _destinations(one: Instruction) -> list[str]:
    found = _REGISTER.match(one.operands[0])
    if found is None:
        return []
    bank, number, _ = found.groups()
    wide = one.name in ("LDG", "LD", "LDS", "LDL", "LDC", "ULDC", "CS2R", "MOV", "UMOV")
    words = max(1, one.bits // _WORD_BITS) if wide else 1
    if "WIDE" in one.modifiers or one.name in ("CS2R", "DFMA", "DADD", "DMUL"):
        words = max(words, 2)
    return [f"{bank}{int(number) + word}" for word in range(words)]


_WORD_BITS = 32


def _sources(one: Instruction) -> Iterator[str]:
    yield from _registers(one.operands[1:])
    if "WIDE" in one.modifiers and len(one.operands) > 3:  # the addend is a pair of registers
        for found in _REGISTER.finditer(one.operands[-1]):
            yield f"{found.group(1)}{int(found.group(2)) + 1}"


def _registers(operands: Sequence[str]) -> Iterator[str]:
    for operand in operands:
        for found in _REGISTER.finditer(operand):
            if operand.startswith("desc[") and found.group(1) == "UR" and found.start() == 5:
                continue  # the descriptor of the address space
            yield f"{found.group(1)}{found.group(2)}"
            if found.group(3):
                yield f"{found.group(1)}{int(found.group(2)) + 1}"


def _multiplies(one: Instruction) -> int:
    return _MULTIPLIES.get(one.name, 0) if not _sets_constant(one) else 0


def _sets_constant(one: Instruction) -> bool:
    """Whether a multiplication only makes a constant, as compilers do to use idle units."""
    return "MMA" in one.modifiers or not any(_REGISTER.search(part) for part in one.operands[1:])


def _kind(one: Instruction) -> str:
    if one.is_global_load or one.name in ("LDS", "LDL", "LDC", "ULDC", "LDSM") or one.is_async_copy:
        return "load"
    if one.is_global_store or one.is_atomic or one.name in ("STS", "STL"):
        return "store"
    if _multiplies(one):
        return "multiply"
    if one.name in _CONVERSIONS or (one.name == "HADD2" and "F32" in one.modifiers):
        return "convert"
    for kind, names in (
        ("shuffle", _SHUFFLES),
        ("add", _FLOAT_ADDS),
        ("control", _CONTROL),
    ):
        if one.name in names:
            return kind
    return "integer"

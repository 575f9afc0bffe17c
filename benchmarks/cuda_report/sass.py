"""The machine code of a cubin as lists of instructions, and what kinds of access are in it.

``nvdisasm`` (PyPI: ``nvidia-cuda-nvdisasm``, or any CUDA toolkit) disassembles; it needs no GPU.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Accesses", "Instruction", "accesses", "disassemble"]

_LOADS, _STORES = ("LDG", "LD"), ("STG", "ST")
_ATOMICS = ("ATOMG", "ATOM", "REDG", "RED")
_ASYNC_COPIES = ("LDGSTS", "UBLKCP", "UTMALDG")
_TENSOR_CORES = ("HMMA", "IMMA", "DMMA", "HGMMA", "IGMMA", "QGMMA")
_BITS = {"256": 256, "128": 128, "64": 64, "U16": 16, "S16": 16, "U8": 8, "S8": 8}
_WORD = 32
_SIZE = 16  # bytes of an instruction


@dataclass(frozen=True)
class Instruction:
    """One instruction: its place in bytes, predicate, opcode with modifiers, and operands."""

    place: int
    predicate: str
    opcode: str
    operands: tuple[str, ...]

    @property
    def name(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> tuple[str, ...]:
        """The opcode's modifiers."""
        return tuple(self.opcode.split(".")[1:])

    @property
    def bits(self) -> int:
        """How many bits of memory an access of one thread touches."""
        return next((_BITS[part] for part in self.modifiers if part in _BITS), _WORD)

    @property
    def target(self) -> int | None:
        """Where a branch goes to."""
        if self.name != "BRA" or not self.operands:
            return None
        found = re.search(r"0x[0-9a-f]+$", self.operands[-1])
        return int(found.group(), 16) if found else None

    @property
    def is_global_load(self) -> bool:
        return self.name in _LOADS

    @property
    def is_global_store(self) -> bool:
        return self.name in _STORES

    @property
    def is_atomic(self) -> bool:
        return self.name in _ATOMICS

    @property
    def is_async_copy(self) -> bool:
        return self.name in _ASYNC_COPIES

    @property
    def uses_tensor_cores(self) -> bool:
        return self.name in _TENSOR_CORES


@dataclass
class Accesses:
    """How often instructions of each kind stand in a kernel.

    Parameters
    ----------
    loads, stores, atomics, async_copies : Counter
        Accesses to global memory by bits a thread.
    tensor_cores : Counter
        Matrix instructions by opcode.
    spill_loads, spill_stores : int
        Accesses to local memory.
    """

    loads: Counter = field(default_factory=Counter)
    stores: Counter = field(default_factory=Counter)
    atomics: Counter = field(default_factory=Counter)
    async_copies: Counter = field(default_factory=Counter)
    tensor_cores: Counter = field(default_factory=Counter)
    spill_loads: int = 0
    spill_stores: int = 0


def disassemble(cubin: bytes) -> dict[str, list[Instruction]]:
    """Return the instructions of each kernel of a cubin.

    Raises
    ------
    RuntimeError
        If ``nvdisasm`` is not installed, or refuses the file.
    """
    program = _nvdisasm()
    if program is None:
        raise RuntimeError("found no nvdisasm; pip install nvidia-cuda-nvdisasm")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(program), "--emit-json", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"nvdisasm: {done.stderr.strip()}")
    _, functions = json.loads(done.stdout)
    return {
        function["function-name"]: [
            _instruction(index * _SIZE, found)
            for index, found in enumerate(function["sass-instructions"])
        ]
        for function in functions
    }


def accesses(instructions: Iterable[Instruction]) -> Accesses:
    """Count the accesses of a kernel."""
    found = Accesses()
    for one in instructions:
        if one.is_global_load:
            found.loads[one.bits] += 1
        elif one.is_global_store:
            found.stores[one.bits] += 1
        elif one.is_atomic:
            found.atomics[one.bits] += 1
        elif one.is_async_copy:
            found.async_copies[one.bits] += 1
        elif one.uses_tensor_cores:
            found.tensor_cores[one.opcode] += 1
        elif one.name == "LDL":
            found.spill_loads += 1
        elif one.name == "STL":
            found.spill_stores += 1
    return found


def _instruction(place: int, found: dict) -> Instruction:
    operands = tuple(part.strip() for part in found.get("operands", "").split(",") if part.strip())
    return Instruction(place, found.get("predicate", ""), found["opcode"], operands)


@functools.cache
def _nvdisasm() -> Path | None:
    places = [shutil.which("nvdisasm"), "/usr/local/cuda/bin/nvdisasm"]
    try:
        roots = importlib.import_module("nvidia").__path__
        places += [str(path) for root in roots for path in Path(root).glob("**/bin/nvdisasm")]
    except ImportError:
        pass
    return next((Path(place) for place in places if place and Path(place).exists()), None)

"""Registers, stack and shared memory of compiled kernels, read from the cubin itself.

A cubin is an ELF file. Its sections ``.nv.info`` and ``.nv.info.KERNEL`` hold a list of attributes:
a byte that tells how the value is stored, a byte that names it, two bytes that are the value or its
length, and then the value. The static shared memory of a kernel is the size of ``.nv.shared.KERNEL``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Resources", "read_resources"]

_SIZED = 4  # the form of an attribute whose two bytes are the length of the value that follows
_FRAME_SIZE, _MIN_STACK_SIZE, _REGISTERS = 0x11, 0x12, 0x2F
_SYMBOL_TABLE = 2
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


@dataclass(frozen=True)
class Resources:
    """What a kernel needs.

    Parameters
    ----------
    registers : int
        Of a thread.
    stack : int
        Bytes of local memory of a thread: spilled registers, and arrays that are no registers.
    shared : int
        Bytes of static shared memory of a block.
    """

    registers: int
    stack: int
    shared: int


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    size: int
    data: bytes
    link: int


def read_resources(cubin: bytes) -> dict[str, Resources]:
    """Return what each kernel of a cubin needs, by the kernel's name.

    Raises
    ------
    ValueError
        If the file is no 64-bit ELF file.
    """
    sections = _sections(cubin)
    names = _symbol_names(sections)
    registers: dict[str, int] = {}
    stack: dict[str, int] = {}
    for section in sections:
        if section.name == ".nv.info" or section.name.startswith(".nv.info."):
            for attribute, symbol, value in _symbol_attributes(section.data):
                if attribute == _REGISTERS:
                    registers[names[symbol]] = value
                elif attribute in (_FRAME_SIZE, _MIN_STACK_SIZE):
                    stack[names[symbol]] = max(value, stack.get(names[symbol], 0))
    by_name = {section.name: section for section in sections}
    found = {}
    for section in sections:
        if section.name.startswith(".text."):
            kernel = section.name.removeprefix(".text.")
            shared = by_name.get(f".nv.shared.{kernel}")
            found[kernel] = Resources(
                registers[kernel], stack.get(kernel, 0), shared.size if shared else 0
            )
    return found


def _sections(elf: bytes) -> list[_Section]:
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError("cubin: expected a 64-bit ELF file, found another")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [_SECTION.unpack_from(elf, table + entry * index) for index in range(count)]
    names = elf[headers[names_index][4] :]
    sections = []
    for name, kind, _flags, _address, offset, size, link, _info, _align, _entry in headers:
        data = elf[offset : offset + size]
        sections.append(_Section(_text_at(names, name), kind, size, data, link))
    return sections


def _symbol_names(sections: list[_Section]) -> list[str]:
    for section in sections:
        if section.kind == _SYMBOL_TABLE:
            strings = sections[section.link].data
            return [_text_at(strings, symbol[0]) for symbol in _SYMBOL.iter_unpack(section.data)]
    return []


def _symbol_attributes(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield attributes that are a value of a symbol: name, symbol and value."""
    place = 0
    while place + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, place)
        place += 4
        if form == _SIZED:
            if size == 8 and attribute in (_FRAME_SIZE, _MIN_STACK_SIZE, _REGISTERS):
                yield attribute, *struct.unpack_from("<II", data, place)
            place += size


def _text_at(strings: bytes, place: int) -> str:
    return strings[place : strings.index(b"\0", place)].decode()

"""Inline PTX of generated kernels, as calls of the functions in ``ptx.h``.

In: C++ text with ``asm`` statements. Out: the text with a block of C++ for each. An instruction becomes a
call with its operands in order, a register group an array, a predicate a ``bool``. What is not known is
refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["rewrite_asm"]

_ASM = re.compile(r"\b(?:__asm__|asm)\s*(?:__volatile__|volatile)?\s*(?=\()")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_PTX = "::emulation::ptx::"


def rewrite_asm(text: str) -> str:
    """Replace all ``asm`` statements.

    Examples
    --------
    >>> print(rewrite_asm('asm volatile("cp.async.wait_group 1;" ::: "memory");'))
    { ::emulation::wait_for_copies(1, __LINE__); }
    """
    parts, end = [], 0
    for match in _ASM.finditer(text):
        close = _closing(text, match.end())
        inside = text[match.end() + 1 : close]
        semicolon = text.index(";", close)
        parts += [text[end : match.start()], _block(inside), "\n" * inside.count("\n")]
        end = semicolon + 1
    return "".join([*parts, text[end:]])


def _block(inside: str) -> str:
    """Return the C++ block of an ``asm`` statement."""
    template, operands = _parse(inside)
    statements = []
    for statement in re.split(r";", template.replace("\\n", " ").replace("\\t", " ")):
        statement = (
            statement.strip().strip("{}").strip() if _is_brace(statement) else statement.strip()
        )
        if statement:
            statements.append(_statement(statement, operands))
    return "{ " + " ".join(statements) + " }"


def _is_brace(statement: str) -> bool:
    """Whether it opens or closes the block of the whole text, not a group of registers."""
    return statement.count("{") != statement.count("}")


def _statement(text: str, operands: list[str]) -> str:
    guard = ""
    if match := re.match(r"@(!?)(\w+)\s+", text):
        guard = f"if ({match[1]}{match[2]}) "
        text = text[match.end() :]
    if match := re.fullmatch(r"\.reg\s+\.pred\s+(\w+)", text):
        return f"bool {match[1]} = false;"
    opcode, _, rest = text.partition(" ")
    if "{" in opcode:  # a group may follow at once
        opcode, rest = text.split("{", 1)
        rest = "{" + rest
    arguments = [_Operand(word, operands) for word in _split(rest)]
    for pattern, write in _INSTRUCTIONS:
        if match := re.fullmatch(pattern, opcode):
            return guard + write(match, arguments)
    raise NotImplementedError(f"emulation: no emulation of the PTX instruction {opcode!r}")


class _Operand:
    """An operand of an instruction, as C++."""

    def __init__(self, text: str, operands: list[str]) -> None:
        self._operands = operands
        self.is_group = text.startswith("{")
        words = text.strip("{} ").split(",") if self.is_group else [text.strip("[] ")]
        self.words = [self._value(word.strip()) for word in words]

    def _value(self, word: str) -> str:
        match = re.fullmatch(r"%(\d+)", word)
        return f"({self._operands[int(match[1])]})" if match else word

    def value(self) -> str:
        return self.words[0]

    def outputs(self) -> str:
        return f"{_PTX}outputs({', '.join(self.words)})"

    def inputs(self) -> str:
        return f"{_PTX}inputs({', '.join(self.words)})"


def _call(function: str, *arguments: str) -> str:
    return f"{function}({', '.join([*arguments, '__LINE__'])});"


def _mma(match: re.Match, given: list[_Operand]) -> str:
    m, n, k, d, a, b, c = match.groups()
    types = ", ".join([m, n, k, *(_PTX + kind for kind in (d, a, b, c))])
    return _call(f"{_PTX}mma<{types}>", given[0].outputs(), *(x.inputs() for x in given[1:4]))


def _ldmatrix(match: re.Match, given: list[_Operand]) -> str:
    transposed = "true" if match[2] else "false"
    return _call(f"{_PTX}ldmatrix<{match[1]}, {transposed}>", given[0].outputs(), given[1].value())


def _compare(match: re.Match, given: list[_Operand]) -> str:
    sign = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}[match[1]]
    return f"{given[0].value()} = {given[1].value()} {sign} {given[2].value()};"


def _values(function: str) -> Callable[[re.Match, list[_Operand]], str]:
    return lambda match, given: _call(function, *(operand.value() for operand in given))


_BYTE = {"s": "int8_t", "u": "uint8_t"}
_INSTRUCTIONS: list[tuple[str, Callable[[re.Match, list[_Operand]], str]]] = [
    (
        r"mma\.sync\.aligned\.m(\d+)n(\d+)k(\d+)\.row\.col(?:\.satfinite)?\.(\w+)\.(\w+)\.(\w+)\.(\w+)",
        _mma,
    ),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x(\d)(\.trans)?\.shared(?:::cta)?\.b16", _ldmatrix),
    (
        r"cp\.async\.c[ag]\.shared(?:::cta)?\.global(?:\.L2::\d+B)?",
        _values(f"{_PTX}cp_async"),
    ),
    (r"cp\.async\.commit_group", _values("::emulation::commit_copies")),
    (r"cp\.async\.wait_group", _values("::emulation::wait_for_copies")),
    (
        r"cp\.async\.wait_all",
        lambda match, given: (
            "::emulation::commit_copies(__LINE__); ::emulation::wait_for_copies(0, __LINE__);"
        ),
    ),
    (r"bar(?:rier)?\.sync(?:\.aligned)?", _values("::emulation::named_barrier")),
    (r"setp\.(\w\w)\.[bus]32", _compare),
    (
        r"st\.shared(?:::cta)?(?:\.v[24])?\.[bufs]32",
        lambda match, given: _call(f"{_PTX}st_shared", given[0].value(), given[1].inputs()),
    ),
    (
        r"st\.global(?:\.v[24])?\.[bufs]32",
        lambda match, given: _call(f"{_PTX}st_global", given[0].value(), given[1].inputs()),
    ),
    (
        r"ld\.shared(?:::cta)?(?:\.v[24])?\.[bufs]32",
        lambda match, given: _call(f"{_PTX}ld_shared", given[0].outputs(), given[1].value()),
    ),
    (
        r"ld\.global(?:\.nc)?(?:\.L2::\d+B)?(?:\.v[24])?\.[bufs]32",
        lambda match, given: _call(f"{_PTX}ld_global", given[0].outputs(), given[1].value()),
    ),
    (r"mov\.[bufs]32", lambda match, given: f"{_PTX}mov({given[0].value()}, {given[1].value()});"),
    (
        r"dp4a\.([su])32\.([su])32",
        lambda match, given: (
            f"{_PTX}dp4a<{_BYTE[match[1]]}, {_BYTE[match[2]]}>("
            f"{', '.join(operand.value() for operand in given)});"
        ),
    ),
    (
        r"cvt\.rna\.tf32\.f32",
        lambda match, given: f"{_PTX}cvt_rna_tf32({given[0].value()}, {given[1].value()});",
    ),
]


def _parse(inside: str) -> tuple[str, list[str]]:
    """Return the template and the C++ expressions of the operands, outputs first."""
    template, at = "", 0
    while match := re.compile(r"\s*" + _STRING.pattern).match(inside, at):
        template += match[1]
        at = match.end()
    operands = []
    for section in _sections(inside[at:])[:2]:
        for operand in _split(section):
            constraint = _STRING.match(operand)
            expression = operand[constraint.end() :].strip()
            operands.append(expression[1:-1])
    return template, operands


def _sections(text: str) -> list[str]:
    """Split at the colons that part outputs, inputs and clobbers."""
    sections: list[str] = []
    depth, start = 0, None
    at = 0
    while at < len(text):
        if text[at] in "([{":
            depth += 1
        elif text[at] in ")]}":
            depth -= 1
        elif text[at] == ":" and depth == 0:
            if start is not None:
                sections.append(text[start:at])
            start = at + 1
        at += 1
    return [*sections, text[start:]] if start is not None else []


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += letter in "([{"
        depth -= letter in ")]}"
        if letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def _closing(text: str, start: int) -> int:
    depth, at = 0, start
    while True:
        if text[at] == '"':
            at = _STRING.match(text, at).end()
            continue
        depth += text[at] in "(["
        depth -= text[at] in ")]"
        if depth == 0:
            return at
        at += 1

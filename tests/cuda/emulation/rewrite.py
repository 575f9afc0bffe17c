"""CUDA C as TVM generates it, rewritten into C++ for the emulator's headers.

In: the text of a CUDA C file. Out: C++ with the same lines, where pointers are checked ones, shared
arrays are objects that know their size, and inline PTX is a call; and the kernels that it defines. The
rewriting is lexical: it leans on what the generated text looks like, not on a parser of C++.

==========================================  ===========================================================
``float* __restrict__ a`` as a parameter    ``::emulation::Ptr<float> a``
``(float4*)(a + i)``, of any operand        ``::emulation::ptr_cast<float4>(a + i)``
``__shared__ float t[32]``                  a ``SharedStorage<float, 32>`` and a ``Shared<float> t``
``extern __shared__ uchar s[]``             ``Shared<uchar> s``
``alignas(16) float x[4];``                 ``Local<float, 4, 16> x;``
``(int)x``                                  ``::emulation::narrowed(x)``, which checks the range
``asm("...")``                              a block of calls (``inline_ptx.py``)
==========================================  ===========================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .inline_ptx import rewrite_asm

__all__ = ["KernelText", "Parameter", "rewrite"]

_TYPE = (
    r"(?:(?:const|volatile)\s+)*"
    r"((?:(?:unsigned|signed)\s+)?(?:long\s+long|[A-Za-z_]\w*(?:::\w+)*(?:<[^<>;(){}]*>)?))"
    r"(?:\s+(?:const|volatile))*"
)
_POINTER_PARAMETER = re.compile(
    rf"(?<![\w>]){_TYPE}\s*\*\s*(?:__restrict__\s*)?(?=[A-Za-z_]\w*\s*[,)=])"
)
_POINTER_VARIABLE = re.compile(rf"(?m)^(\s*){_TYPE}\s*\*\s*(?=[A-Za-z_]\w*\s*=[^=])")
_POINTER_CAST = re.compile(rf"\(\s*{_TYPE}\s*\*\s*\)\s*(?=[\w(&*])")
# Casts whose result is read or written, not only moved.
_ACCESSED_CAST = re.compile(rf"(?:\*\s*|\()\(\s*{_TYPE}\s*\*\s*\)\s*(?:\(|\w+\s*\)\s*\[)")
_NAMED_CAST = re.compile(rf"\b(?:reinterpret|static|const)_cast\s*<\s*{_TYPE}\s*\*\s*>\s*(?=\()")
_TEMPLATE_VALUE = re.compile(r"(?<![\w<])T\s+(?=\w+\s*[,)])")
_INT_CAST = re.compile(r"\(\s*int\s*\)\s*(?=[\w(&*+~!-])")
_ATTRIBUTES = r"(?:__\w+__\s*\((?:[^()]|\([^()]*\))*\)\s*)*"
_FUNCTION = re.compile(
    rf"__(?:global|device)__\b[^;{{}}()]*?{_ATTRIBUTES}[^;{{}}()]*?\b(?!__)(\w+)\s*\("
)
_KERNEL = re.compile(rf"__global__\s+void\s+({_ATTRIBUTES})(\w+)\s*\(([^()]*)\)\s*\{{")
_LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\s*\(\s*(\d+)")
_ALIGNED = r"(?:(?:alignas|__align__)\s*\(\s*(\d+)\s*\)\s*)?"
_DYNAMIC_SHARED = re.compile(rf"extern\s+__shared__\s+{_ALIGNED}{_TYPE}\s+(\w+)\s*\[\s*\]\s*;")
_STATIC_SHARED = re.compile(
    rf"__shared__\s+{_ALIGNED}{_TYPE}\s+(\w+)\s*\[([^\[\];]+)\](?:\s*\[([^\[\];]+)\])?\s*;"
)
_SHARED_SCALAR = re.compile(rf"__shared__\s+{_ALIGNED}{_TYPE}\s+(\w+)\s*;")

_LOCAL_ARRAY = re.compile(
    rf"(?m)(?:^|(?<=[;{{}}]))(\s*)alignas\((\d+)\)\s+{_TYPE}\s+(\w+)\s*\[([^\[\];]+)\]\s*;"
)

_BYTES = {
    1: {"char", "signed char", "unsigned char", "uchar", "int8_t", "uint8_t", "bool"},
    2: {
        "short",
        "ushort",
        "unsigned short",
        "half",
        "__half",
        "nv_bfloat16",
        "__nv_bfloat16",
        "int16_t",
    }
    | {
        "uint16_t",
        "half2",
        "__half2",
        "nv_bfloat162",
        "__nv_bfloat162",
        "short2",
        "short4",
        "ushort2",
    }
    | {"ushort4"},
}
_BYTES[1] |= {f"{kind}{lanes}" for kind in ("char", "uchar") for lanes in (2, 3, 4)}


@dataclass
class Parameter:
    """A parameter of a kernel; of a pointer, the type that it points to."""

    name: str
    type: str
    is_pointer: bool


@dataclass
class KernelText:
    """What the text says of a kernel."""

    name: str
    largest_block: int
    parameters: list[Parameter]


def rewrite(source: str) -> tuple[str, int, list[KernelText]]:
    """Return the C++ text, log2 of the bytes of the smallest number in shared memory, and the kernels.

    Examples
    --------
    >>> text, granule, kernels = rewrite('__global__ void k(float* __restrict__ a) { a[0] = 1.0f; }')
    >>> print(text)
    __global__ void k(::emulation::Ptr<float> a) { a[0] = 1.0f; }
    >>> kernels[0].parameters
    [Parameter(name='a', type='float', is_pointer=True)]
    """
    text = _blank_comments(source)
    kernels = _kernels(text)
    text = rewrite_asm(text)
    granule = _granule(text)
    text = _rewrite_shared(text, granule)
    text = _LOCAL_ARRAY.sub(
        lambda m: f"{m[1]}::emulation::Local<{m[3]}, ({m[5]}), {m[2]}> {m[4]};", text
    )
    text = _rewrite_signatures(text)
    text = _POINTER_VARIABLE.sub(lambda m: f"{m[1]}::emulation::Ptr<{m[2]}> ", text)
    text = _NAMED_CAST.sub(lambda m: f"::emulation::ptr_cast<{m[1]}>", text)
    text = _rewrite_casts(text, _POINTER_CAST, lambda m: f"::emulation::ptr_cast<{m[1]}>")
    text = _rewrite_casts(text, _INT_CAST, lambda _: "::emulation::narrowed")
    return text, granule, kernels


def _kernels(source: str) -> list[KernelText]:
    found = []
    for match in _KERNEL.finditer(source):
        parameters = [_parameter(text) for text in match[3].split(",") if text.strip()]
        bounds = _LAUNCH_BOUNDS.search(match[1])
        found.append(KernelText(match[2], int(bounds[1]) if bounds else 0, parameters))
    return found


def _parameter(text: str) -> Parameter:
    words = text.replace("__restrict__", " ").strip()
    match = re.fullmatch(rf"{_TYPE}\s*(\*?)\s*(\w+)", words)
    if match is None:
        raise ValueError(
            f"parameter of a kernel: expected a type and a name, found {text.strip()!r}"
        )
    return Parameter(match[3], match[1], bool(match[2]))


def _blank_comments(text: str) -> str:
    """Drop comments, keeping the lines."""
    kept = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S)
    return re.sub(r"//[^\n]*", "", kept)


def _granule(text: str) -> int:
    """Return log2 of the bytes of the smallest number that the file holds in shared memory."""
    declared = [
        m[2] for pattern in (_STATIC_SHARED, _SHARED_SCALAR) for m in pattern.finditer(text)
    ]
    cast = [m[1] for m in _ACCESSED_CAST.finditer(text)]
    types = set(declared) | set(cast)
    return 0 if types & _BYTES[1] else 1 if types & _BYTES[2] else 2


def _rewrite_shared(text: str, granule: int) -> str:
    def dynamic(match: re.Match) -> str:
        name = match[3]
        return (
            f"::emulation::Shared<{match[2]}> {name}"
            f'{{::emulation::dynamic_shared("{name}")}}; (void){name};'
        )

    def static(match: re.Match) -> str:
        alignment, kind, name, size = match[1], match[2], match[3], match[4]
        columns = match[5] if match.re is _STATIC_SHARED else None
        count = f"({size}) * ({columns})" if columns else size
        view = f"SharedRows<{kind}, ({columns})>" if columns else f"Shared<{kind}>"
        aligned = f", {alignment}" if alignment else ""
        return (
            f"static ::emulation::SharedStorage<{kind}, ({count})> {name}_storage"
            f'("{name}", {granule}{aligned}); ::emulation::check_shared_size(__LINE__); '
            f"::emulation::{view} {name}{{&{name}_storage.buffer}};"
        )

    def scalar(match: re.Match) -> str:
        alignment, kind, name = match.groups()
        aligned = f", {alignment}" if alignment else ""
        return (
            f"static ::emulation::SharedStorage<{kind}, 1> {name}_storage"
            f'("{name}", {granule}{aligned}); ::emulation::check_shared_size(__LINE__); '
            f"::emulation::Ref<{kind}> {name} = ::emulation::Shared<{kind}>{{&{name}_storage.buffer}}[0];"
        )

    text = _DYNAMIC_SHARED.sub(dynamic, text)
    text = _STATIC_SHARED.sub(static, text)
    return _SHARED_SCALAR.sub(scalar, text)


def _rewrite_signatures(text: str) -> str:
    """Make checked pointers of the pointer parameters of kernels and device functions."""
    parts, end = [], 0
    for match in _FUNCTION.finditer(text):
        close = _closing(text, match.end() - 1)
        if match.start() < end or close < 0:
            continue
        signature = text[match.end() : close + 1]
        parts += [text[end : match.end()]]
        signature = _POINTER_PARAMETER.sub(lambda m: f"::emulation::Ptr<{m[1]}> ", signature)
        if "Ptr<T>" in signature:  # T follows from the pointer alone
            signature = _TEMPLATE_VALUE.sub("typename ::emulation::SameType<T>::Type ", signature)
        parts += [signature]
        end = close + 1
    return "".join([*parts, text[end:]])


def _rewrite_casts(text: str, cast: re.Pattern, function: Callable[[re.Match], str]) -> str:
    """Make functions of casts, around the operand that C gives them; of the last one first."""
    for match in reversed(list(cast.finditer(text))):
        end = _operand_end(text, match.end())
        operand = text[match.end() : end]
        text = f"{text[: match.start()]}{function(match)}({operand}){text[end:]}"
    return text


def _operand_end(text: str, start: int) -> int:
    """Return where the operand of a cast ends: signs, then a name or a group, then what follows it."""
    at = start
    while text[at] in "&*+-~! \t":
        at += 1
    if text[at] == "(":
        at = _closing(text, at) + 1
    else:
        at = re.compile(r"[\w:]+").match(text, at).end()
    while at < len(text):
        if text[at] in "[(":
            at = _closing(text, at) + 1
        elif follow := re.compile(r"(?:\.|->)\w+").match(text, at):
            at = follow.end()
        else:
            break
    return at


def _closing(text: str, start: int) -> int:
    """Return where the bracket at ``start`` is closed, -1 if it is not."""
    depth = 0
    for at in range(start, len(text)):
        depth += text[at] in "([{"
        depth -= text[at] in ")]}"
        if depth == 0:
            return at
    return -1

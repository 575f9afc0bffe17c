"""The error raised for programs that cannot be honoured.

Everything that is wrong with a *program* (stage I) is a :class:`SparseProgramError`; everything that
is wrong with the *arguments* of a compiled kernel is a plain ``ValueError`` or ``TypeError``.
"""

from __future__ import annotations

from tvm.ir import Span
from tvm_ffi.error import register_error

__all__ = ["SparseProgramError", "describe_span"]


@register_error  # so that it stays itself when it crosses TVM's pass infrastructure
class SparseProgramError(ValueError):
    """A sparse program that has no meaning, or none that the compiler can honour.

    The message names the function, the axis or buffer involved and, for programs written in
    TVMScript, the source line.
    """


def describe_span(span: Span | None) -> str:
    """Return ``"file:line: "`` for a source span, or ``""`` where there is none."""
    if span is None or not hasattr(span, "line"):
        return ""
    return f"{span.source_name.name}:{span.line}: "
